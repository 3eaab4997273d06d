"""Cut one layer out as a model of its own, to be measured.

The layer has its real shapes and the operators behind it that a runtime fuses into it. One more
operator stands at the end (a Neg, or a Cast of a type that no Neg takes), so that no form pays for
writing a graph output: a Reshape in the middle of a graph is free, one that makes an output is a
copy. A layer whose data and weight are dequantized gets quantizers at both ends, because a runtime
computes it in integers only between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.match.dequantized import data_dequantizer
from widthfold_onnx.rules.match.parameter import dequantizer
from widthfold_onnx.rules.match.site import LinearSite

FUSED = frozenset(
    {"Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "HardSigmoid", "BatchNormalization"}
    | {"Add", "Mul"}
)
"""Operators that runtimes fuse into a Conv if all other inputs are constants (conv_*_fusion.cc)."""
QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""Operators that they also fuse if data and weight are dequantized."""


def fused_behind(document: Document, site: LinearSite) -> list[Node]:
    """Return the operators behind a site that a runtime fuses into it."""
    kinds = FUSED | QUANTIZING if _dequantizer(site) is not None else FUSED
    found: list[Node] = []
    value = site.node.outputs[0]
    while len(uses := list(value.uses())) == 1 and not value.is_graph_output():
        after = uses[0].node
        others = [v for v in after.inputs if v is not None and v is not value]
        fuses = after.op_type in kinds and after.domain == "" and len(after.outputs) == 1
        if not fuses or after.graph is not site.node.graph or not _constant(document, others):
            break
        found.append(after)
        value = after.outputs[0]
    return found


def excerpt(
    document: Document,
    site: LinearSite,
    behind: Sequence[Node],
    shape: Sequence[int],
    measured: ShapeTable,
) -> onnx.ModelProto:
    """Return a layer as a model of its own; its inputs other than the data are constants there.

    Args:
        document: the model.
        site: the layer.
        behind: the operators that are fused into it.
        shape: extents of its data.
        measured: element types, and extents of computed inputs other than the data.
    """
    path, start = site.scope.path, site.data.name or ""
    element = measured.element(path, start)
    makers: list[Node] = []
    nodes: list[onnx.NodeProto] = []
    maker = _dequantizer(site)
    if maker is not None:
        others = [dequantizer(value) for value in site.node.inputs if value is not site.data]
        makers = [node for node in others if node is not None]
        given, *numbers = (value.name or "" for value in maker.inputs if value is not None)
        again = onnx.NodeProto()
        again.CopyFrom(document.message(maker))
        again.output[0], start = start, document.fresh("start")
        nodes = [helper.make_node("QuantizeLinear", [start, *numbers], [given]), again]
    layer = [*makers, site.node, *behind]
    nodes += [document.message(node) for node in layer]
    made = {name for node in nodes for name in node.output} | {start}
    constants = {}
    for value in _read([*layer, *([] if maker is None else [maker])]):
        if (name := value.name or "") not in made:
            constants[name] = _number(document, value, measured, path)
    last, end = nodes[-1].output[0], document.fresh("end")
    kind = measured.element(path, last)
    if kind == TensorProto.UINT8:
        kind = TensorProto.FLOAT
        nodes.append(helper.make_node("Cast", [last], [end], to=kind))
    else:
        nodes.append(helper.make_node("Neg", [last], [end]))
    graph = helper.make_graph(
        nodes,
        "workload",
        [helper.make_tensor_value_info(start, element, shape)],
        [helper.make_tensor_value_info(end, kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    domain, _ = operator_of(site.node)
    opsets = [helper.make_opsetid("", document.opset)]
    opsets += [o for o in document.proto.opset_import if domain and o.domain == domain]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _dequantizer(site: LinearSite) -> Node | None:
    """Return the DequantizeLinear of the data of a site that a runtime computes in integers."""
    return data_dequantizer(site.data) if site.is_finite else None


def _read(layer: Iterable[Node]) -> list[Value]:
    """Return the values that nodes read."""
    return [value for node in layer for value in node.inputs if value is not None]


def _constant(document: Document, values: Sequence[Value]) -> bool:
    return not any(isinstance(document.constant(value), Refusal) for value in values)


def _number(document: Document, value: Value, measured: ShapeTable, path: str) -> Array:
    """Return a constant, or ones for a computed scale or zero point, whose value takes no time."""
    constant = document.constant(value)
    if not isinstance(constant, Refusal):
        return document.read(constant)
    extents = measured.get(path, value.name or "") or ()
    kind = helper.tensor_dtype_to_np_dtype(measured.element(path, value.name or ""))
    return np.ones([extent or 1 for extent in extents], kind)
