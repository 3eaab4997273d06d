"""Makes a light copy of a model for onnx's checker, which copies a whole model twice."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

from widthfold_onnx.model.proto.domain import domain_name
from widthfold_onnx.model.proto.external import is_external
from widthfold_onnx.model.proto.scope import NameScope, function_scope, graph_scope

LARGE_BYTES = 1024


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model without its large constants: empty tensors of their types stand for them.

    Nodes come in an order that can run. Training graphs are left out.

    Args:
        model: dims are not negative, element types are known, and `scope.graph_scope` takes its
            graphs, as `check.check_model` ensures.

    Raises:
        InvalidModelError: a graph that has no scope (`scope.graph_scope`).
    """
    # Below IR version 4 initializers had to be inputs as well, which runtimes do not ask for.
    copy = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    # Runtimes take "ai.onnx" for "" as well, onnx's tools do not.
    imports = {domain_name(item.domain): item.version for item in model.opset_import} or {"": 1}
    copy.opset_import.extend(helper.make_opsetid(*item) for item in imports.items())
    _copy_graph(copy.graph, graph_scope(model.graph))
    for function in model.functions:
        light = copy.functions.add(
            name=function.name, domain=function.domain, overload=function.overload
        )
        declared = ("input", "output", "attribute", "attribute_proto", "opset_import", "value_info")
        for field in declared:
            getattr(light, field).extend(getattr(function, field))
        _copy_nodes(light, function_scope(function))
    return copy


def _copy_graph(copy: onnx.GraphProto, scope: NameScope) -> None:
    source = scope.graph
    assert source is not None
    copy.name = source.name
    for field in ("input", "output", "value_info"):
        getattr(copy, field).extend(getattr(source, field))
    sparse = [tensor.values for tensor in source.sparse_initializer]
    copy.initializer.extend(map(_light, [*source.initializer, *sparse]))
    _copy_nodes(copy, scope)


def _copy_nodes(copy: onnx.GraphProto | onnx.FunctionProto, scope: NameScope) -> None:
    for index, node in enumerate(scope.nodes):
        light = copy.node.add(name=node.name, op_type=node.op_type, overload=node.overload)
        light.domain = domain_name(node.domain)
        light.input.extend(node.input)
        light.output.extend(node.output)
        inner = iter([inside for _, inside in scope.inner.get(index, ())])
        for attribute in node.attribute:
            _copy_attribute(light.attribute.add(), attribute, inner)


def _copy_attribute(
    copy: onnx.AttributeProto, attribute: onnx.AttributeProto, inner: Iterator[NameScope]
) -> None:
    """Copy an attribute; `inner` yields the scopes of the graphs in it."""
    if not attribute.HasField("g") and not attribute.graphs and not attribute.HasField("t"):
        copy.CopyFrom(attribute)
        return
    copy.name, copy.type = attribute.name, attribute.type
    if attribute.ref_attr_name:
        copy.ref_attr_name = attribute.ref_attr_name
    if attribute.HasField("t"):
        copy.t.CopyFrom(_light(attribute.t))
    if attribute.HasField("g"):
        _copy_graph(copy.g, next(inner))
    for _ in attribute.graphs:
        _copy_graph(copy.graphs.add(), next(inner))


def _light(tensor: TensorProto) -> TensorProto:
    """Return a tensor, or an empty one of its type and name if it is large or elsewhere."""
    if tensor.ByteSize() <= LARGE_BYTES and not is_external(tensor):
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
