"""Makes a light copy of a model: the same graph without the bulk of its numbers.

Checkers and shape inference copy a whole model, twice and more; of the weights they need the shape
only. In the skeleton a large constant is a typed input of the main graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from widthfold_onnx.model.proto.domain import domain_name, is_default, operator_of
from widthfold_onnx.model.proto.external import is_external
from widthfold_onnx.model.proto.scope import NameScope, function_scope, graph_scope
from widthfold_onnx.model.proto.tensors import BITS, elements, stored_bytes
from widthfold_onnx.model.proto.walk import all_nodes, attribute_graphs

SMALL_BYTES = 1024
"""Constants up to this size keep their data: shape inference reads them."""

_STRING_BYTES = 16  # counted for a string element of any length

FUSED_CONV = ("com.microsoft", "FusedConv")
ACTIVATION = ("activation", "activation_params")
"""Attributes that a FusedConv has beside those of a Conv."""


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without its large constants.

    Initializers and Constant nodes above `SMALL_BYTES`, and external ones of any size, become
    inputs of the main graph with their name, type and shape, behind the graph's own inputs. In a
    subgraph the value is an Identity of such an input, whose name is made up; in a local function
    it is one more input, which no caller gives. Nodes come in an order that can run. Training
    graphs and metadata are left out.

    Args:
        model: one that `check.check_model` accepts, or as far as it has got: dims are not
            negative, element types known, and `scope.graph_scope` takes its graphs.

    Raises:
        InvalidModelError: a graph that has no scope (`scope.graph_scope`).
    """
    copy = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    main = _Main({value.name for value in model.graph.input})
    copy.graph.name = model.graph.name
    copy.graph.input.extend(model.graph.input)
    _fill(copy.graph, graph_scope(model.graph), main)
    copy.graph.input.extend(main.holes)
    for function in model.functions:
        copy.functions.append(_function(function))
    _spell_domains(copy)
    return copy


def _spell_domains(copy: onnx.ModelProto) -> None:
    """Write the default domain as "": the runtime takes "ai.onnx" as well, onnx's tools do not."""
    imports = {domain_name(item.domain): item.version for item in copy.opset_import}
    del copy.opset_import[:]
    copy.opset_import.extend(helper.make_opsetid(*item) for item in imports.items())
    for nodes in (copy.graph.node, *(function.node for function in copy.functions)):
        for node in all_nodes(nodes):
            node.domain = domain_name(node.domain)
            if operator_of(node) == FUSED_CONV:
                _leave_activation_out(node)


def _leave_activation_out(node: onnx.NodeProto) -> None:
    """Write a FusedConv, which onnx does not know, as the Conv whose extents it has."""
    node.domain, node.op_type = "", "Conv"
    kept = [attribute for attribute in node.attribute if attribute.name not in ACTIVATION]
    del node.attribute[:], node.input[3:]
    node.attribute.extend(kept)


class _Main:
    """The inputs that replace left-out constants in the main graph."""

    def __init__(self, taken: set[str]) -> None:
        self.holes: list[onnx.ValueInfoProto] = []
        self._taken = taken

    def add(self, name: str, tensor: TensorProto) -> None:
        """Declare a constant of the main graph; a default of an input is declared already."""
        if name not in self._taken:
            self._taken.add(name)
            self.holes.append(
                helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
            )

    def add_fresh(self, tensor: TensorProto) -> str:
        """Declare a constant of a subgraph under a name of our own, and return that."""
        name = f"widthfold/constant/{len(self.holes)}"
        self.add(name, tensor)
        return name


def _is_large(tensor: TensorProto) -> bool:
    if is_external(tensor):
        return True
    if tensor.data_type not in BITS:
        return elements(tensor) * _STRING_BYTES > SMALL_BYTES
    return stored_bytes(tensor) > SMALL_BYTES


def _large_constant(node: onnx.NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant node, if it is large."""
    if not is_default(node, "Constant"):
        return None
    if len(node.attribute) != 1 or len(node.output) != 1 or node.input:
        return None
    attribute = node.attribute[0]
    if attribute.name != "value" or not attribute.HasField("t"):
        return None
    tensor: TensorProto = attribute.t
    return tensor if _is_large(tensor) else None


def _fill(copy: onnx.GraphProto, scope: NameScope, main: _Main, *, outermost: bool = True) -> None:
    """Copy initializers, nodes, outputs and value infos of `scope.graph` into an empty graph."""
    source = scope.graph
    if source is None:
        return
    large: list[tuple[str, TensorProto]] = []
    for tensor in source.initializer:
        if _is_large(tensor):
            large.append((tensor.name, tensor))
        else:
            copy.initializer.append(tensor)
    for sparse in source.sparse_initializer:
        dense = TensorProto(data_type=sparse.values.data_type, dims=sparse.dims)
        large.append((sparse.values.name, dense))
    declared = {value.name for value in copy.input}
    for index, node in enumerate(scope.nodes):
        if (constant := _large_constant(node)) is not None:
            large.append((node.output[0], constant))
        else:
            _copy_node(copy.node.add(), node, scope.inner.get(index, ()), main)
    if outermost:
        for name, tensor in large:
            main.add(name, tensor)
    else:
        hidden = [
            helper.make_node("Identity", [main.add_fresh(tensor)], [name])
            for name, tensor in large
            if name not in declared
        ]
        nodes = [*hidden, *copy.node]
        if hidden:
            del copy.node[:]
            copy.node.extend(nodes)
    copy.output.extend(source.output)
    copy.value_info.extend(source.value_info)


def _copy_node(
    copy: onnx.NodeProto, node: onnx.NodeProto, inner: Sequence[NameScope], main: _Main
) -> None:
    if not inner:
        copy.CopyFrom(node)
        return
    copy.input.extend(node.input)
    copy.output.extend(node.output)
    copy.name, copy.op_type = node.name, node.op_type
    copy.domain, copy.overload = node.domain, node.overload
    scopes = iter(inner)
    for attribute in node.attribute:
        copied = copy.attribute.add()
        graphs = list(attribute_graphs(attribute))
        if not graphs:
            copied.CopyFrom(attribute)
            continue
        copied.name, copied.type = attribute.name, attribute.type
        for graph in graphs:
            target = (
                copied.g if attribute.HasField("g") and graph is graphs[0] else copied.graphs.add()
            )
            target.name = graph.name
            target.input.extend(graph.input)
            _fill(target, next(scopes), main, outermost=False)


def _function(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Copy a local function; large constants become inputs that no caller gives."""
    copy = onnx.FunctionProto()
    copy.name, copy.domain, copy.overload = function.name, function.domain, function.overload
    copy.opset_import.extend(function.opset_import)
    copy.attribute.extend(function.attribute)
    copy.attribute_proto.extend(function.attribute_proto)
    copy.output.extend(function.output)
    copy.value_info.extend(function.value_info)
    copy.input.extend(function.input)
    for node in function_scope(function).nodes:
        if _large_constant(node) is None:
            copy.node.append(node)
        else:
            copy.input.extend(node.output)
    return copy
