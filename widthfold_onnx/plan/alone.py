"""A layer as a model of its own: with what dequantizes before it, and one more operator behind it.

That operator is there so that no form pays for writing a graph output (`plan.units`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import LinearSite
from widthfold_onnx.rules.parameter import INPUTS, dequantizer
from widthfold_onnx.rules.windowed import WindowedSite

Array = npt.NDArray[Any]


def layer_model(
    document: Document, site: LinearSite, behind: Sequence[Node], shape: Sequence[int]
) -> onnx.ModelProto:
    """A layer as it is, with one more operator at the end.

    Args:
        document: the model.
        site: the layer.
        behind: the operators behind it that a runtime fuses into it.
        shape: extents of the data.
    """
    before, first = _before(site)
    layer = [*before, site.node, *behind]
    made = {value for node in layer for value in node.outputs}
    constants: dict[str, Array] = {}
    for node in layer:
        for value in node.inputs:
            if value is not None and value is not first and value not in made:
                constant = document.constant(value)
                constants[value.name or ""] = (
                    _stand_in(site, value)
                    if isinstance(constant, Refusal)
                    else document.read(constant)
                )
    quantization = site.quantization if isinstance(site, WindowedSite) else None
    kind = site.weight.dtype if quantization is None else quantization.dtype
    nodes = [document.message(node) for node in layer]
    start = first.name or ""
    if kind == "INT8" and before:
        # Without it the runtime would not compute signed bytes in integers (`Region.signed`).
        data = dequantizer(site.data)
        assert data is not None
        scales = [value.name or "" for value in data.inputs[1:] if value is not None]
        start, kind = document.fresh("real"), "FLOAT"
        nodes.insert(0, helper.make_node("QuantizeLinear", [start, *scales], [first.name or ""]))
    end, one = document.fresh("end"), document.fresh("one")
    last = layer[-1].outputs[0].name or ""
    if quantization is None or (quantization.dequantized and layer[-1].op_type != "QuantizeLinear"):
        closing = helper.make_node("Neg", [last], [end])
    else:
        closing = helper.make_node("DequantizeLinear", [last, one], [end])
        constants[one] = np.array(1, np.float32)
    graph = helper.make_graph(
        [*nodes, closing],
        "unit",
        [helper.make_tensor_value_info(start, TensorProto.DataType.Value(kind), shape)],
        [onnx.ValueInfoProto(name=end)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", document.opset)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def _before(site: LinearSite) -> tuple[list[Node], Value]:
    """What dequantizes the inputs of a node, and the data as it is before that."""
    makers = [dequantizer(value) for value in site.node.inputs]
    found = dict.fromkeys(node for node in makers if node is not None)
    data = makers[site.data_index]
    if not isinstance(site, WindowedSite) or not site.is_dequantized or data is None:
        return [], site.data
    first = data.inputs[0]
    assert first is not None
    return list(found), first


def _stand_in(site: LinearSite, value: Value) -> Array:
    """A scale or zero point in the place of one that is computed when the model runs."""
    assert isinstance(site, WindowedSite)
    assert site.quantization is not None
    inputs = INPUTS[site.op]
    index = list(site.node.inputs).index(value)
    if index in (inputs.data_scale, inputs.out_scale):
        return np.ones((), np.float32)
    return np.zeros((), site.quantization.dtype.lower())
