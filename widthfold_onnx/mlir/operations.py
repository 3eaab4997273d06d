"""Read named linalg operations as layers, and all layers as one ONNX model.

Each layer becomes a Conv or MatMul of an ONNX model that is not connected to other layers. So the
rules for ONNX models read, judge and fold it.

The axes of an operand are named by letters: n samples, g groups, c input channels of a group, f
output channels of a group, h and w positions. A letter without an axis has extent 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx import mlir
from widthfold_onnx.algebra.packing import Move, Reshape, Transpose, shape_after
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.decide.decisions import Decision, decisions_of
from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions, Layout
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rules.form import Answer, Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.legality import guard_conditions
from widthfold_onnx.rules.selection import preferred_form

CONVOLUTIONS: Mapping[str, tuple[str, str]] = {
    "conv_1d_ncw_fcw": ("ncw", "fcw"),
    "conv_1d_nwc_wcf": ("nwc", "wcf"),
    "conv_2d_nchw_fchw": ("nchw", "fchw"),
    "conv_2d_nhwc_hwcf": ("nhwc", "hwcf"),
    "conv_2d_ngchw_gfchw": ("ngchw", "gfchw"),
    "conv_2d_nhwgc_gfhwc": ("nhwgc", "gfhwc"),
    "depthwise_conv_2d_nchw_chw": ("nghw", "ghw"),
    "depthwise_conv_2d_nhwc_hwc": ("nhwg", "hwg"),
}
"""Operation -> letters of its data and of its weight."""

LINALG_MATMUL = "matmul"
PLAIN = ("(d0, d2)", "(d2, d1)", "(d0, d1)")
"""Results of the indexing maps, (d0, d1, d2) -> ..., of a product without transposed operands."""

ELEMENTS = {
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "f32": TensorProto.FLOAT,
    "f64": TensorProto.DOUBLE,
}
ORDER = "ngfchw"
"""The letters in the order in which ONNX has these axes."""


@dataclass(frozen=True, eq=False)
class LinalgOp:
    """A named linalg operation.

    Attributes:
        op: the operation.
        kind: its name in `CONVOLUTIONS`, or `LINALG_MATMUL`.
        pads: zeros before and behind each spatial axis, from a tensor.pad; () if it reads none.
        weight: the weight if it is constant, else None.
        right: True if the weight is the second operand.
    """

    op: Any
    kind: str
    pads: tuple[tuple[int, int], ...]
    weight: Array | None
    right: bool = True

    @property
    def data(self) -> Any:
        """The operand that is not the weight, before it is padded with zeros."""
        value = self.op.operands[0 if self.right else 1]
        return value.owner.operands[0] if self.pads else value

    @property
    def axes(self) -> tuple[str, str]:
        """Letters of data and weight; "" for a product."""
        return CONVOLUTIONS.get(self.kind, ("", ""))

    @property
    def channels_last(self) -> bool:
        """True if channels are the last axis of the data."""
        return self.axes[0].endswith(("c", "g"))

    @property
    def name(self) -> str:
        """Its name in reports: FUNCTION/%RESULT."""
        parent = self.op.parent
        while "sym_name" not in parent.attributes and parent.parent is not None:
            parent = parent.parent
        function = parent.attributes["sym_name"].value if "sym_name" in parent.attributes else ""
        return f"{function}/{self.op.results[0].get_name()}"


def find_operations(module: Any) -> list[LinalgOp]:
    """Return the operations on tensors that are in `CONVOLUTIONS` or `LINALG_MATMUL`, in order."""
    linalg_ops: list[LinalgOp] = []

    def visit(op: Any) -> Any:
        kind = op.name.removeprefix("linalg.")
        is_linear = kind in CONVOLUTIONS or (kind == LINALG_MATMUL and _is_plain(op))
        if is_linear and op.results:
            linalg_ops.append(_linalg_op(op, kind))
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return linalg_ops


def _is_plain(product: Any) -> bool:
    maps = map(str, product.attributes["indexing_maps"])
    return all(axes in text for axes, text in zip(PLAIN, maps, strict=True))


def _linalg_op(op: Any, kind: str) -> LinalgOp:
    weight = numbers_of(op.operands[1])
    if kind != LINALG_MATMUL:
        return LinalgOp(op, kind, _pads(op.operands[0], CONVOLUTIONS[kind][0]), weight)
    left_weight = numbers_of(op.operands[0]) if weight is None else None
    return LinalgOp(
        op, kind, (), weight if left_weight is None else left_weight, right=left_weight is None
    )


def _pads(data: Any, letters: str) -> tuple[tuple[int, int], ...]:
    """Return the zeros that a tensor.pad adds to each spatial axis; () for any other value."""
    source = data.owner
    if isinstance(source, mlir.ir.Block) or source.name != "tensor.pad":
        return ()
    ends = (source.attributes[f"static_{end}"] for end in ("low", "high"))
    pads = dict(zip(letters, zip(*ends, strict=True), strict=True))
    value = numbers_of(source.regions[0].blocks[0].operations[0].operands[0])
    is_zero = value is not None and not value.any()
    is_fixed = len(source.operands) == 1  # others are sizes that are known when the module runs
    is_spatial = all(pad == (0, 0) for letter, pad in pads.items() if letter not in "hw")
    if not (is_zero and is_fixed and is_spatial):
        return ()
    return tuple(pads[letter] for letter in "hw" if letter in pads)


def shape_of(value: Any) -> Dims:
    """Return the extents of a tensor; None where open."""
    kind = value.type
    return tuple(None if kind.is_dynamic_dim(i) else e for i, e in enumerate(kind.shape))


def numbers_of(value: Any) -> Array | None:
    """Return the numbers of a constant, also behind a linalg.transpose; None for other values."""
    source = value.owner
    if isinstance(source, mlir.ir.Block):
        return None
    if source.name == "linalg.transpose":
        numbers = numbers_of(source.operands[0])
        order = list(source.attributes["permutation"])
        return None if numbers is None else numbers.transpose(order)
    if source.name != "arith.constant":
        return None
    attribute = source.attributes["value"]
    if isinstance(attribute, mlir.ir.FloatAttr):
        return np.asarray(attribute.value)
    try:
        return np.array(attribute) if isinstance(attribute, mlir.ir.DenseElementsAttr) else None
    except TypeError:  # bfloat16: numpy has no such type
        return None


def decide(linalg_ops: Sequence[LinalgOp], options: FoldOptions) -> list[Decision]:
    """Return one decision for each operation: the cheapest legal form, or a refusal.

    Args:
        linalg_ops: the operations.
        options: which layers are folded, and how.

    Raises:
        UsageError: a node pattern that matches no operation.
    """

    def choose(layer: Layer) -> Answer:
        if None in layer.fixed_shape[1:]:
            return Refusal(
                Code.UNKNOWN_EXTENT, f"of {list(layer.fixed_shape)} only samples may be open"
            )
        linalg_op = linalg_ops[int((layer.data.name or "")[1:])]
        layout = Layout.NHWC if linalg_op.channels_last else Layout.NCHW
        answer = preferred_form(layer, replace(options, layout=layout))
        if isinstance(answer, Form) and guard_conditions(layer, answer):
            return Refusal(Code.UNKNOWN_EXTENT, "the fold needs a guard, and no module has one")
        return answer

    return decisions_of(
        Reading(Document(_model(linalg_ops), None, OPERATORS)), options.selection, choose
    )


def _model(linalg_ops: Sequence[LinalgOp]) -> onnx.ModelProto:
    """Return one ONNX model of all operations; number i reads x{i} and w{i}, and makes y{i}."""
    nodes, inputs, weights = [], [], []
    for i, linalg_op in enumerate(linalg_ops):
        shape, of_weight = shape_of(linalg_op.data), linalg_op.axes[1]
        data = [
            (f"x{i}", linalg_op.data, shape_after(shape, to_canonical(linalg_op.axes[0], shape)))
        ]
        if linalg_op.weight is None:
            value = linalg_op.op.operands[1]
            data.append((f"w{i}", value, _outputs_first(of_weight, shape_of(value))))
        else:
            weight = linalg_op.weight
            numbers = weight.transpose(in_order(of_weight)) if of_weight else weight
            weight_shape = _outputs_first(of_weight, weight.shape)
            sizes = [e for e in weight_shape if e is not None]  # all extents of a constant are
            weights.append(numpy_helper.from_array(numbers.reshape(sizes), f"w{i}"))
        for name, value, extents in data:
            element = ELEMENTS.get(str(value.type.element_type), TensorProto.INT32)
            dims = [f"{name}_{axis}" if e is None else e for axis, e in enumerate(extents)]
            inputs.append(helper.make_tensor_value_info(name, element, dims))
        operands = [f"x{i}", f"w{i}"][:: 1 if linalg_op.right else -1]
        op = "MatMul" if linalg_op.kind == LINALG_MATMUL else "Conv"
        attributes = dict(_attributes(linalg_op))
        nodes.append(helper.make_node(op, operands, [f"y{i}"], linalg_op.name, **attributes))
    graph = helper.make_graph(nodes, "layers", inputs, [], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _attributes(linalg_op: LinalgOp) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of the Conv; none for a product."""
    if linalg_op.kind == LINALG_MATMUL:
        return
    for name in ("strides", "dilations"):
        if name in linalg_op.op.attributes:
            yield name, np.array(linalg_op.op.attributes[name]).tolist()
    if linalg_op.pads:
        yield "pads", [pad for ends in zip(*linalg_op.pads, strict=True) for pad in ends]
    data = dict(zip(linalg_op.axes[0], shape_of(linalg_op.data), strict=True))
    yield "group", data.get("g", 1)


def in_order(letters: str) -> tuple[int, ...]:
    """Return the permutation that brings axes into ONNX's order."""
    return tuple(sorted(range(len(letters)), key=lambda i: ORDER.index(letters[i])))


def _outputs_first(letters: str, shape: Dims) -> Dims:
    """Return the extents of a weight as [O, C/group, *kernel]."""
    if not letters:
        return shape
    extents = dict(zip(letters, shape, strict=True))
    outputs = math.prod(extents.get(letter) or 1 for letter in "gf")
    kernel = (extents[letter] for letter in "hw" if letter in extents)
    return (outputs, extents.get("c", 1), *kernel)


def result_axes(data: str) -> str:
    """Return the letters of the result for those of the data."""
    return data.replace("c", "f")


def to_canonical(letters: str, shape: Dims, lifted: int = 0) -> tuple[Move, ...]:
    """Return the moves from data or result to [N, C, *spatial].

    Args:
        letters: its axes, with groups directly before their channels; "" for a product, which needs
            no moves.
        shape: its extents.
        lifted: number of leading spatial axes, of extent 1, to drop.
    """
    if not letters:
        return ()
    channels = "".join(letter for letter in letters if letter in "gcf")
    merged_letters = letters.replace(channels, channels[0])
    sizes = dict(zip(letters, shape, strict=True))
    sizes[channels[0]] = math.prod(sizes[letter] or 1 for letter in channels)
    extents = tuple(sizes[letter] for letter in merged_letters)
    order = in_order(merged_letters)
    dims = [extents[i] for i in order]
    del dims[2 : 2 + lifted]
    return (
        Reshape(len(letters), extents, (False,) * len(extents)),
        Transpose(order, extents),
        Reshape(len(order), tuple(dims), (False,) * len(dims)),
    )
