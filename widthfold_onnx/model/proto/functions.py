"""Inlines the local functions of a model; computes first how large it becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import onnx
from onnx.inliner import inline_local_functions, inline_selected_functions

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.domain import domain_name
from widthfold_onnx.model.proto.scope import text
from widthfold_onnx.model.proto.walk import all_nodes, attribute_graphs
from widthfold_onnx.text import printable, quoted

MAX_INLINED_NODES = 2_000_000

FunctionKey = tuple[str, str, str]
"""Domain, name and overload, by which a node names the function that it calls."""

Weigh = Callable[[onnx.NodeProto], int]

_GRAPH_TYPES = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def call_key(node: onnx.NodeProto) -> FunctionKey:
    """Return the key of the function that a node would call."""
    return domain_name(node.domain), node.op_type, node.overload


def function_key(function: onnx.FunctionProto) -> FunctionKey:
    """Return the key by which nodes call a function."""
    return domain_name(function.domain), function.name, function.overload


@dataclass
class _Body:
    """Size of one body, its calls, and how many of its attributes stand for a caller's graph."""

    size: int = 0
    graph_references: int = 0
    calls: Counter[FunctionKey] = field(default_factory=Counter)


def inline(
    model: onnx.ModelProto, names: Collection[tuple[str, str]] | None = None
) -> onnx.ModelProto:
    """Inline the local functions of a model, which stays as it is.

    Check the size first (`check_inlined_size`).

    Args:
        model: the model.
        names: domains and names of the functions to inline; None for all.

    Raises:
        InvalidModelError: a function is of another operator set.
    """
    stated = _with_stated_defaults(model)
    try:
        if names is None:
            return inline_local_functions(stated)
        return inline_selected_functions(stated, sorted(names))
    except RuntimeError as error:
        raise InvalidModelError(printable(str(error))) from error


def _with_stated_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which every call states the attributes for which its function has a value.

    onnx's inliner (1.23) leaves out those that a call does not state.
    """
    defaults = {function_key(f): f.attribute_proto for f in model.functions if f.attribute_proto}
    if not defaults:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for nodes in (copy.graph.node, *(function.node for function in copy.functions)):
        for node in all_nodes(nodes):
            said = {attribute.name for attribute in node.attribute}
            own = defaults.get(call_key(node), [])
            node.attribute.extend(entry for entry in own if entry.name not in said)
    return copy


def check_inlining(model: onnx.ModelProto) -> None:
    """Check that no local function recurses, and that inlining them stays within bounds.

    Raises:
        InvalidModelError: a function is defined twice or calls itself, directly or through
            others, or the inlined model has more than `MAX_INLINED_NODES` nodes.
    """
    if model.functions:
        check_inlined_size(model, lambda node: 1, MAX_INLINED_NODES, "nodes")


def check_inlined_size(model: onnx.ModelProto, weigh: Weigh, most: int, unit: str) -> None:
    """Check the size that a model would have with all calls of local functions inlined.

    Args:
        model: the model.
        weigh: size of a node; nodes of graphs inside of it are weighed on their own as well.
        most: the largest sum.
        unit: of the sum, for messages.

    Raises:
        InvalidModelError: it is larger, or a function is defined twice or calls itself.
    """
    bodies: dict[FunctionKey, _Body] = {}
    for function in callees_first(model):
        body = bodies[function_key(function)] = _measure(function.node, weigh)
        for attribute in function.attribute_proto:
            for graph in attribute_graphs(attribute):
                body.size += sum(map(weigh, all_nodes(graph.node)))
    main = _measure(model.graph.node, weigh)
    # A graph that a caller passes in can be any graph of the file, so it counts as all of them.
    everything = main.size + sum(body.size for body in bodies.values())
    sizes: dict[FunctionKey, int] = {}

    def total(body: _Body, what: str) -> int:
        size = body.size + body.graph_references * everything
        size += sum(count * sizes[key] for key, count in body.calls.items() if key in sizes)
        if size > most:
            raise InvalidModelError(f"{what} has {size} {unit} once inlined, above {most}")
        return size

    for key, body in bodies.items():
        sizes[key] = total(body, _describe(key))
    total(main, "the graph")


def _describe(key: FunctionKey) -> str:
    return f"function {quoted('::'.join(key[:2]))}"


def _measure(nodes: Iterable[onnx.NodeProto], weigh: Weigh) -> _Body:
    body = _Body()
    for node in all_nodes(nodes):
        body.size += weigh(node)
        body.calls[call_key(node)] += 1
        body.graph_references += sum(
            1 for a in node.attribute if a.ref_attr_name and a.type in _GRAPH_TYPES
        )
    return body


def callees_first(model: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """Sort the local functions of a model after those that they call.

    Raises:
        InvalidModelError: a function is defined twice or calls itself.
    """
    functions: dict[FunctionKey, onnx.FunctionProto] = {}
    for function in model.functions:
        key = function_key(function)
        for part in key:
            text(part, "function name")
        if key in functions:
            raise InvalidModelError(f"{_describe(key)} is defined twice")
        functions[key] = function
    callees = {
        key: {call_key(node) for node in all_nodes(function.node)} & functions.keys()
        for key, function in functions.items()
    }
    try:
        return [functions[key] for key in TopologicalSorter(callees).static_order()]
    except CycleError as error:
        raise InvalidModelError(f"{_describe(error.args[1][0])} calls itself") from error
