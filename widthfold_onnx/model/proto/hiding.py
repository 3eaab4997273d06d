"""Rename values of bodies that hide values of an outer graph.

A body of If, Loop or Scan may give an input or an initializer the name of a value of a graph around
it; onnx and ONNX Runtime accept that. After the renaming a name alone tells which value is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx

from widthfold_onnx.model.proto.walk import all_graphs, copy_of, initializers, subgraphs


def with_own_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which no body hides a name: the same model if none does.

    Interfaces, names of nodes and outputs of nodes stay.
    """
    if next(_hiding_bodies(model), None) is None:
        return model
    copy = copy_of(model)
    names = _names(copy)
    for body, hidden_names in _hiding_bodies(copy):
        _rename(body, {name: _fresh(name, names) for name in hidden_names})
    return copy


def _hiding_bodies(model: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto, list[str]]]:
    """Yield each body that hides names, with these; outer ones first, as they may be renamed."""
    yield from _hiding_in(model.graph.node, ({*_declared(model.graph), *_written(model.graph)},))
    for function in model.functions:
        yield from _hiding_in(function.node, ({*function.input, *_written(function)},))


def _hiding_in(
    nodes: Iterable[onnx.NodeProto], outer_names: tuple[set[str], ...]
) -> Iterator[tuple[onnx.GraphProto, list[str]]]:
    """Yield the bodies in nodes that hide names; `outer_names` holds those of each graph around."""
    for node in nodes:
        for _, body in subgraphs(node.attribute):
            hidden_names = [n for n in _declared(body) if any(n in names for names in outer_names)]
            if hidden_names:
                yield body, hidden_names
            names = {*_declared(body), *_written(body)}
            yield from _hiding_in(body.node, (*outer_names, names))


def _declared(graph: onnx.GraphProto) -> dict[str, None]:
    """Return the names of inputs and initializers."""
    return dict.fromkeys([*(value.name for value in graph.input), *initializers(graph)])


def _written(body: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    return (name for node in body.node for name in node.output)


def _names(model: onnx.ModelProto) -> set[str]:
    """Return the names of all values of a model."""
    names: set[str] = set()
    for function in model.functions:
        names |= {*function.input, *_written(function)}
    function_nodes = (node for function in model.functions for node in function.node)
    inner = (body for node in function_nodes for _, body in subgraphs(node.attribute))
    for outermost in (model.graph, *inner):
        for graph in all_graphs(outermost):
            names |= {*_declared(graph), *_written(graph)}
    return names


def _fresh(name: str, names: set[str]) -> str:
    """Return a name that no value has yet, and add it to the names."""
    count = 2
    while f"{name}_{count}" in names:
        count += 1
    names.add(f"{name}_{count}")
    return f"{name}_{count}"


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give values new names in a graph, and where the bodies in it read them."""
    values = (*graph.input, *graph.output, *graph.value_info)
    sparse = (tensor.values for tensor in graph.sparse_initializer)
    for holder in (*values, *graph.initializer, *sparse):
        holder.name = names.get(holder.name, holder.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = names.get(annotation.tensor_name, annotation.tensor_name)
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = names.get(entry.value, entry.value)
    for node in graph.node:
        if not names.keys().isdisjoint(node.input):
            node.input[:] = [names.get(name, name) for name in node.input]
        for _, body in subgraphs(node.attribute):
            own_names = {*_declared(body), *_written(body)}
            _rename(body, {old: new for old, new in names.items() if old not in own_names})
