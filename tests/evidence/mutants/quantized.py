"""Faults in folded quantized convolutions: gaps, scales, zero points, biases, chained layers."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.evidence.mutants.algebra import Planted, code
from tests.evidence.mutants.alter import flipped, regrouped, rolled, swapped
from tests.folding import fold_model
from tests.rewrite.quantized.convs import Case
from widthfold_onnx.algebra.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.options import AxisName, FoldOptions, Layout
from widthfold_onnx.rewrite import folded_node
from widthfold_onnx.rewrite.record import FOLD_KEY

Array = np.ndarray[Any, np.dtype[Any]]
Fault = Callable[[onnx.ModelProto], bool]
"""Changes a folded model in place; False where it has no place for the fault."""

PADS = {"pads": [2, 1], "kernel_shape": [4]}
LINE = {"shape": (2, 3, 20), "weight": (5, 3, 4), "attributes": PADS, "pads": (2, 1)}
FLAT = {
    "shape": (1, 4, 6, 10),
    "weight": (6, 2, 3, 3),
    "attributes": {"pads": [1, 0, 1, 2], "group": 2, "strides": [1, 2]},
    "pads": (1, 0, 1, 2),
}
UP = {
    "shape": (1, 2, 12),
    "weight": (2, 3, 5),
    "attributes": {"strides": [2], "pads": [1, 2]},
    "pads": (1, 2),
}
POOL = onnx.helper.make_node("MaxPool", ["xf"], ["m"], kernel_shape=[1])
U8, S8 = np.uint8, np.int8
W, H = AxisName.WIDTH, AxisName.HEIGHT

BASES: dict[str, tuple[Case, dict[str, Any]]] = {
    "qlinear": (Case(op="QLinearConv", **LINE), {"factor": 4, "axis": W}),
    "qlinear_ragged": (
        Case(op="QLinearConv", kinds=(U8, U8), **LINE),
        {"factor": 3, "axis": W, "ragged": True},
    ),
    "qlinear_groups": (
        Case(op="QLinearConv", kinds=(S8, S8), **FLAT),
        {"factor": 5, "axis": W, "layout": Layout.NHWC},
    ),
    "qlinear_batch": (
        Case(op="QLinearConv", per_channel=False, **LINE),
        {"factor": 2, "axis": AxisName.BATCH},
    ),
    "integer": (
        Case(op="ConvInteger", per_channel=False, **LINE),
        {"factor": 4, "axis": W, "layout": Layout.NHWC},
    ),
    "integer_ragged": (
        Case(op="ConvInteger", per_channel=False, kinds=(S8, U8), **LINE),
        {"factor": 6, "axis": W, "ragged": True},
    ),
    "qdq": (Case(op="QDQ Conv", **LINE), {"factor": 4, "axis": W}),
    "qdq_groups": (Case(op="QDQ Conv", kinds=(U8, U8), **FLAT), {"factor": 3, "axis": H}),
    "qdq_one_scale": (
        Case(op="QDQ Conv", per_channel=False, bias=False, **FLAT),
        {"factor": 5, "axis": W},
    ),
    "qdq_signed": (Case(op="QDQ Conv", kinds=(S8, S8), **LINE), {"factor": 4, "axis": W}),
    "qdq_weight_of_floats": (
        Case(op="QDQ Conv", plain=True, kinds=(S8, S8), opset=21, **FLAT),
        {"factor": 5, "axis": W, "layout": Layout.NHWC},
    ),
    "qdq_behind_pool": (
        Case(op="QDQ Conv", behind=POOL, **LINE),
        {"factor": 4, "axis": W},
    ),
    "qdq_ragged": (Case(op="QDQ Conv", **LINE), {"factor": 3, "axis": W, "ragged": True}),
    "qdq_ragged_signed": (
        Case(op="QDQ Conv", kinds=(S8, S8), **FLAT),
        {"factor": 4, "axis": H, "ragged": True},
    ),
    "qdq_transposed": (Case(op="QDQ ConvTranspose", **UP), {"factor": 4, "axis": W}),
}


def options(base: str) -> FoldOptions:
    return FoldOptions(max_flops_growth=1e9, max_bytes_growth=1e9, **BASES[base][1])


@cache
def right_fold(base: str) -> onnx.ModelProto:
    model, (site,) = fold_model(BASES[base][0].model(), options(base))
    assert site.status == "folded", site.reason
    return model


def new_node(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(n for n in model.graph.node if any(e.key == FOLD_KEY for e in n.metadata_props))


ROLES = {
    "QLinearConv": {
        "data_scale": 1,
        "data_zero": 2,
        "weight": 3,
        "scale": 4,
        "zero": 5,
        "out_scale": 6,
        "out_zero": 7,
        "bias": 8,
    },
    "ConvInteger": {"weight": 1, "data_zero": 2, "zero": 3},
}
DEQUANTIZED = {
    "weight": (1, 0),
    "scale": (1, 1),
    "zero": (1, 2),
    "bias": (2, 0),
    "bias_scale": (2, 1),
}
"""Which input of the Conv, and of what dequantizes that."""


def place(model: onnx.ModelProto, role: str) -> tuple[onnx.NodeProto, int] | None:
    """The node and the index of its input that holds what plays a role, if one does."""
    node = new_node(model)
    index = ROLES.get(node.op_type, {}).get(role)
    if index is None and node.op_type == "Conv" and role in DEQUANTIZED:
        outer, inner = DEQUANTIZED[role]
        if outer >= len(node.input):
            return None
        maker = next((n for n in model.graph.node if node.input[outer] in n.output), None)
        if maker is None:
            return None if inner else (node, outer)
        return (maker, inner) if inner < len(maker.input) else None
    if index is None and node.op_type == "Conv":
        # Where moves lie between, what quantizes is the original's own.
        if role in ("data_scale", "data_zero"):
            beside = next(n for n in model.graph.node if node.input[0] in n.output)
        else:
            beside = next(n for n in model.graph.node if node.output[0] in n.input)
        quantizes = beside.op_type in ("QuantizeLinear", "DequantizeLinear")
        return (beside, 1 if role.endswith("scale") else 2) if quantizes else None
    return None if index is None or index >= len(node.input) else (node, index)


def changed(role: str, alter: Callable[[Array], Array | None]) -> Fault:
    """A fault that changes the numbers of a role, in a constant of its own."""

    def plant(model: onnx.ModelProto) -> bool:
        entry = place(model, role)
        if entry is None:
            return False
        node, index = entry
        held = next(t for t in model.graph.initializer if t.name == node.input[index])
        array = numpy_helper.to_array(held)
        altered = alter(array.copy())
        if altered is None or altered.tobytes() == array.tobytes():
            return False
        contiguous = np.ascontiguousarray(altered.astype(array.dtype)).reshape(altered.shape)
        model.graph.initializer.append(numpy_helper.from_array(contiguous, f"{held.name}/wrong"))
        node.input[index] = f"{held.name}/wrong"
        return True

    return plant


def gaps(fill: Callable[[Array], Array]) -> Fault:
    """A fault that fills the gaps of the weight: what holds the zero point of its channel."""

    def plant(model: onnx.ModelProto) -> bool:
        entry = place(model, "zero")
        if entry is None:
            return False
        node, index = entry
        zero = numpy_helper.to_array(
            next(t for t in model.graph.initializer if t.name == node.input[index])
        )

        def alter(weight: Array) -> Array:
            zeros = np.broadcast_to(
                zero.reshape(-1 if zero.size > 1 else 1, *[1] * (weight.ndim - 1)), weight.shape
            )
            return np.where(weight == zeros, fill(zeros), weight)

        return changed("weight", alter)(model)

    return plant


def of_first(change: Callable[[Any], Any]) -> Callable[[Array], Array | None]:
    def alter(array: Array) -> Array:
        with np.errstate(over="ignore"):
            array.reshape(-1)[0] = change(array.reshape(-1)[0])
        return array

    return alter


def same_floats(model: onnx.ModelProto) -> bool:
    """A bias of twice the integers and half the scale."""
    dequantized = place(model, "bias_scale") is not None
    return (
        dequantized
        and changed("bias", lambda a: 2 * a)(model)
        and changed("bias_scale", lambda a: a / 2)(model)
    )


def shortened(model: onnx.ModelProto) -> bool:
    """A Pad that appends 0."""
    pads = [n for n in model.graph.node if n.op_type == "Pad" and len(n.input) > 2]
    for pad in pads:
        del pad.input[2:]
    return bool(pads)


def other_padding(model: onnx.ModelProto) -> bool:
    """A Pad that appends another number."""
    pads = [n for n in model.graph.node if n.op_type == "Pad"]
    for pad in pads:
        if len(pad.input) == 2:
            pad.input.append("other")
            model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "other"))
            continue
        held = next(t for t in model.graph.initializer if t.name == pad.input[2])
        zero = numpy_helper.to_array(held)
        model.graph.initializer.append(numpy_helper.from_array(zero ^ zero.dtype.type(1), "other"))
        pad.input[2] = "other"
    return bool(pads)


def crossed(role: str, other: str) -> Fault:
    """Two inputs exchanged."""

    def plant(model: onnx.ModelProto) -> bool:
        first, second = place(model, role), place(model, other)
        if first is None or second is None:
            return False
        names = first[0].input[first[1]], second[0].input[second[1]]
        second[0].input[second[1]], first[0].input[first[1]] = names
        return True

    return plant


def requantized(which: str, index: int, alter: Callable[[Array], Array | None]) -> Fault:
    """A fault in what dequantizes integers to move them, or quantizes them again."""

    def plant(model: onnx.ModelProto) -> bool:
        nodes = [n for n in model.graph.node if re.search(f"/widthfold/{which}(_[0-9]+)?$", n.name)]
        for node in nodes:
            held = next(t for t in model.graph.initializer if t.name == node.input[index])
            altered = alter(numpy_helper.to_array(held).copy())
            assert altered is not None
            model.graph.initializer.append(numpy_helper.from_array(altered, f"{node.name}/wrong"))
            node.input[index] = f"{node.name}/wrong"
        return bool(nodes)

    return plant


def pair(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The node that quantizes moved data again, and the node that dequantizes them."""
    return [n for n in model.graph.node if re.search("/widthfold/(de)?quantize(_[0-9]+)?$", n.name)]


def without_pair(model: onnx.ModelProto) -> bool:
    """The graph computes the same, but the pair is missing."""
    nodes = pair(model)
    if nodes:
        new_node(model).input[0] = nodes[0].input[0]
    for node in nodes:
        model.graph.node.remove(node)
    return bool(nodes)


def added_to_pair(model: onnx.ModelProto) -> bool:
    for node in pair(model):
        node.attribute.append(onnx.helper.make_attribute("axis", 0))
    return bool(pair(model))


PER_CHANNEL = {
    "digits_regrouped": regrouped(0),
    "rotated": rolled(0),
    "reversed": flipped(0),
    "swapped": swapped(0, 0, -1),
    "first_everywhere": lambda a: np.full_like(a, a[0]),
}

MOVED = ("fold_dequantize", "fold_quantize", "unfold_dequantize", "unfold_quantize")

FAULTS: dict[str, Fault] = {
    "gaps.hold_0": gaps(np.zeros_like),
    "gaps.hold_one_more": gaps(lambda zeros: np.where(zeros < 100, zeros + 1, zeros - 1)),
    **{
        f"{role}.{name}": changed(role, lambda a, f=alter: f(a) if a.size > 1 else None)
        for role in ("scale", "zero", "bias", "bias_scale")
        for name, alter in PER_CHANNEL.items()
    },
    **{
        f"weight.{name}": changed("weight", alter)
        for name, alter in (
            PER_CHANNEL
            | {
                "inputs_rotated": rolled(1),
                "input_digits_regrouped": regrouped(1),
                "kernel_reversed": flipped(-1),
                "first_one_more": of_first(lambda v: v + 1 if v < 100 else v - 1),
            }
        ).items()
    },
    **{
        f"{role}.off": changed(role, of_first(lambda v: v * 2))
        for role in ("scale", "data_scale", "out_scale", "bias_scale")
    },
    **{
        f"{role}.off": changed(role, of_first(lambda v: v + 1 if v < 100 else v - 1))
        for role in ("zero", "data_zero", "out_zero", "bias")
    },
    **{
        f"requantized.{which}_{what}": requantized(which, index, alter)
        for which in (*MOVED, "quantize", "dequantize")
        for what, index, alter in (
            ("scale", 1, lambda a: 2 * a),
            ("zero", 2, of_first(lambda v: v + 1 if v < 100 else v - 1)),
        )
    },
    "pair.missing": without_pair,
    "pair.an_attribute": added_to_pair,
    "scales.crossed": crossed("data_scale", "out_scale"),
    "zeros.crossed": crossed("data_zero", "out_zero"),
    "integers.others_of_the_same_floats": same_floats,
    "pad.appends_0": shortened,
    "pad.appends_another": other_padding,
}


def gaps_of_0(weight: Array, fold: ConvFold, *zero: Array) -> Array:
    return fold_weight(weight, fold)


def tiled(numbers: Array, fold: ConvFold) -> Array:
    return np.tile(numbers, fold.out_factor)


def first_only(numbers: Array, fold: ConvFold) -> Array:
    right = fold_per_channel(numbers, fold)
    return np.concatenate([right[-1:], right[:-1]])


IN_CODE: dict[str, Planted] = {
    "code.gaps_of_0": code((folded_node, "fold_weight"), by=gaps_of_0),
    **{
        f"code.per_channel.{by.__name__}": code(
            (folded_node, "fold_per_channel"), (folded_node, "fold_bias"), by=by
        )
        for by in (tiled, first_only)
    },
}
