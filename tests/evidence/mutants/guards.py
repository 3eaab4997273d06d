"""Folds behind guards with a fault each: in a branch, or in what chooses one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.rewrite.guards.cases import CASES
from tests.rewrite.guards.guarded import (
    CHAIN,
    REGION,
    SEVERAL,
    SHAPE,
    WEIGHTS,
    folded,
    guards,
    parsed,
)
from widthfold_onnx.options import AxisName, FoldOptions

DEQUANTIZED = """<ir_version: 8, opset_import: ["" : 17]>
main (float[2, 3, 7, W] x) => (float[2, 3, 7, W] y)
<int8[3, 3, 1, 3] w = {NUMBERS}, float t = {0.5}> {
  q, s, z = DynamicQuantizeLinear (x)
  d = DequantizeLinear (q, s, z)
  m = DequantizeLinear (w, t)
  y = Conv <pads = [0, 1, 0, 1]> (d, m)
}""".replace("NUMBERS", ", ".join(str(i - 13) for i in range(27)))

CHAINED = replace(REGION, input_shapes={"x": SHAPE})
MASKED = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 3, 7, W] x, float[W] mask) => (float[1, 3, 7, V] y) {
  q = Mul (x, mask)
  y = Conv <pads = [1, 0, 1, 0]> (q, w)
}"""
"""The extent that a guard tests is axis 0 of another input, where others have the batch."""

BY_4 = FoldOptions(factor=4, axis=AxisName.WIDTH, input_shapes={"x": (1, 3, 7, 24)})

ALONE = ("height", "batch", "assumed", "both assumed", "rows")
BASES = {key: (*CASES[key][:2], 1) for key in ALONE} | {
    "chain": (parsed(CHAIN, **WEIGHTS), CHAINED, 3),
    "several": (parsed(SEVERAL, **WEIGHTS), REGION, 3),
    "dequantized": (parsed(DEQUANTIZED), CHAINED, 1),
    "masked": (parsed(MASKED, w=(3, 3, 3, 9)), BY_4, 1),
}
"""Originals by name, how they are folded, and how many of their layers are."""

GUARD = {base: model for base, (model, *_) in BASES.items()}


@cache
def right(base: str) -> onnx.ModelProto:
    return folded(*BASES[base])


def copied(base: str) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(right(base))
    return copy


def node_of(model: onnx.ModelProto, what: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.output and n.output[0].endswith(what))


def constant(what: str, change: Callable[[np.ndarray], object]) -> Callable:
    def plant(model: onnx.ModelProto) -> None:
        (attribute,) = node_of(model, what).attribute
        array = numpy_helper.to_array(attribute.t)
        changed = np.asarray(change(array.copy()), array.dtype)
        attribute.t.CopyFrom(numpy_helper.from_array(changed))

    return plant


def body(model: onnx.ModelProto, branch: str) -> onnx.GraphProto:
    return next(a.g for a in guards(model)[0].attribute if a.name == branch)


def weight_of(branch: str) -> Callable:
    def plant(model: onnx.ModelProto) -> None:
        floats = [t for t in body(model, branch).initializer if t.data_type == 1]
        array = numpy_helper.to_array(floats[0]).copy()
        at = tuple(np.argwhere(array)[-1])
        array[at] = np.nextafter(array[at], np.float32(9))
        floats[0].CopyFrom(numpy_helper.from_array(array, floats[0].name))

    return plant


def inverted(model: onnx.ModelProto) -> None:
    guard = guards(model)[0]
    node = helper.make_node("Not", [guard.input[0]], ["inverted"])
    guard.input[0] = "inverted"
    at = next(i for i, n in enumerate(model.graph.node) if n.output == guard.output)
    model.graph.node.insert(at, node)


def swapped(model: onnx.ModelProto) -> None:
    for attribute in guards(model)[0].attribute:
        attribute.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[
            attribute.name
        ]


def always(model: onnx.ModelProto) -> None:
    node_of(model, guards(model)[0].input[0]).CopyFrom(
        helper.make_node(
            "Constant", [], [guards(model)[0].input[0]], value=numpy_helper.from_array(np.True_)
        )
    )


def operator(what: str, op_type: str) -> Callable:
    def plant(model: onnx.ModelProto) -> None:
        node_of(model, what).op_type = op_type

    return plant


def turned(what: str) -> Callable:
    def plant(model: onnx.ModelProto) -> None:
        node = node_of(model, what)
        node.input[:] = list(node.input)[::-1]

    return plant


def read(what: str, name: str) -> Callable:
    def plant(model: onnx.ModelProto) -> None:
        node_of(model, what).input[0] = name

    return plant


def either(model: onnx.ModelProto) -> None:
    node_of(model, "guard_all").op_type = "Or"


def first_only(model: onnx.ModelProto) -> None:
    guard = guards(model)[0]
    guard.input[0] = node_of(model, guard.input[0]).input[0]


def original_attribute(model: onnx.ModelProto) -> None:
    conv = next(n for n in body(model, "else_branch").node if n.op_type == "Conv")
    attribute = next(a for a in conv.attribute if a.name == "pads")
    attribute.ints[:] = [attribute.ints[0] + 1, attribute.ints[1], attribute.ints[2] - 1][
        : len(attribute.ints)
    ] + list(attribute.ints[3:])


def original_operator(model: onnx.ModelProto) -> None:
    next(n for n in body(model, "else_branch").node if n.op_type == "Relu").op_type = "Abs"


def without(model: onnx.ModelProto) -> None:
    """The folded nodes stand in the place of the first guard."""
    guard, branch = guards(model)[0], body(model, "then_branch")
    names = {v.name: name for v, name in zip(branch.output, guard.output, strict=True)}
    nodes = []
    for node in model.graph.node:
        if node.output[:1] != guard.output[:1]:
            nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
            continue
        for inner in branch.node:
            copy = onnx.NodeProto.FromString(inner.SerializeToString())
            for ports in (copy.input, copy.output):
                ports[:] = [names.get(name, name) for name in ports]
            nodes.append(copy)
    model.graph.initializer.extend(branch.initializer)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def folded_integer(model: onnx.ModelProto) -> None:
    tensor = next(t for t in body(model, "then_branch").initializer if t.data_type == 3)
    array = numpy_helper.to_array(tensor).copy()
    array[tuple(np.argwhere(array)[-1])] += 1
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def constant_result(model: onnx.ModelProto) -> None:
    """The branch returns the tensor that it dequantized for the folded node."""
    branch = body(model, "then_branch")
    maker = next(n for n in branch.node if n.op_type == "DequantizeLinear")
    branch.output[0].name = maker.output[0]


def more_nodes(model: onnx.ModelProto) -> None:
    branch = body(model, "then_branch")
    node = helper.make_node("Relu", [branch.output[0].name], ["more"])
    branch.node.append(node)
    branch.output[0].name = "more"


EXTENT_FAULTS = {
    "half_the_modulus": constant("guard_moduli", lambda a: np.where(a > 99, a, a // 2)),
    "modulus_one": constant("guard_moduli", lambda a: 0 * a + 1),
    "modulus_zero": constant("guard_moduli", lambda a: 0 * a),
    "more": constant("guard_moduli", lambda a: a + 1),
    "offset": constant("guard_offsets", lambda a: a + 1),
    "axis": constant("guard_axes", lambda a: (a + 1) % 3),
    "smallest_rest": operator("guard_largest", "ReduceMin"),
    "largest_extent": operator("guard_smallest", "ReduceMax"),
    "any_rest": operator("guard_some", "Abs"),
    "other_test": operator("guard_fits", "Greater"),
    "turned": turned("guard_fits"),
    "smallest_of_another": read("guard_smallest", "w"),
    "added": operator("guard_above", "Add"),
    "divided": operator("guard_rest", "Div"),
    "other_tensor": read("guard_shape", "w"),
    "without": without,
}
ANY_FAULTS = {
    "inverted": inverted,
    "swapped": swapped,
    "always": always,
    "original_weight": weight_of("else_branch"),
    "folded_weight": weight_of("then_branch"),
}
FAULTS = {
    **{
        (base, name): fault
        for base in GUARD
        for name, fault in ANY_FAULTS.items()
        if base != "dequantized" or not name.endswith("weight")  # no branch holds one of floats
    },
    **{
        (base, name): fault
        for base in ("chain", *ALONE)
        for name, fault in EXTENT_FAULTS.items()
        if (base, name) != ("both assumed", "without")  # it fails loudly, as without the option
    },
    ("chain", "original_operator"): original_operator,
    ("chain", "original_attribute"): original_attribute,
    ("dequantized", "folded_integer"): folded_integer,
    ("dequantized", "a constant is returned"): constant_result,
    ("dequantized", "more is computed"): more_nodes,
    ("several", "one input is not tested"): first_only,
    ("several", "either input is tested"): either,
    ("several", "one input is tested twice"): read("guard_shape_2", "x"),
}
