"""Inline the local functions of a model; compute first how large it becomes.

A function that holds a site is inlined before the model is rewritten: then each call has its own
extents and weights. Runtimes inline functions as well. A fold inside of a function would have to
suit all calls, and its weights are mostly arguments, which are constant only where it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import chain

import onnx
from onnx.inliner import inline_local_functions, inline_selected_functions

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.scope import checked_text
from widthfold_onnx.model.proto.walk import all_nodes, copy_of, domain_name, operator_of, subgraphs
from widthfold_onnx.text import printable, quoted

MAX_INLINED_NODES = 1_000_000
"""Most nodes of a model once all its functions are inlined."""

MAX_ADDED_NODES = 100_000
"""Most nodes that inlining before a rewrite may add."""

MAX_INLINED_BYTES = 1 << 30
"""Most bytes that inlining before a rewrite may add to a model, and that the model may have before
it: a protobuf message can hold both together."""

FunctionKey = tuple[str, str, str]
"""Domain, name and overload, by which a node names the function that it calls."""

Operators = Collection[tuple[str, str]]
"""Operators by domain and type."""

_GRAPH_TYPES = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def call_key(node: onnx.NodeProto) -> FunctionKey:
    """Return the key of the function that a node would call."""
    return domain_name(node.domain), node.op_type, node.overload


def function_key(function: onnx.FunctionProto) -> FunctionKey:
    """Return the key by which nodes call a function."""
    return domain_name(function.domain), function.name, function.overload


def inline_holders(model: onnx.ModelProto, operators: Operators) -> tuple[onnx.ModelProto, str]:
    """Inline the functions that hold any of these operators, and their callers.

    Args:
        model: a checked model; it is not changed.
        operators: by domain and type.

    Returns:
        The model, a new one if anything was inlined; and why nothing could be inlined, else "".
    """
    holding: dict[FunctionKey, tuple[str, str]] = {}
    for function in _callees_first(model):
        nodes = all_nodes(function.node)
        if any(operator_of(node) in operators or call_key(node) in holding for node in nodes):
            holding[function_key(function)] = function.domain, function.name
    if not holding:
        return model, ""
    try:
        main = list(all_nodes(model.graph.node))
        _check_size(model, lambda _: 1, len(main) + MAX_ADDED_NODES, "nodes")
        size = sum(node.ByteSize() for node in main)
        _check_size(model, lambda node: node.ByteSize(), size + MAX_INLINED_BYTES, "bytes")
        if model.ByteSize() > MAX_INLINED_BYTES:
            return model, f"a model of more than {MAX_INLINED_BYTES} bytes is not inlined"
        return inline(model, set(holding.values())), ""
    except InvalidModelError as error:
        return model, str(error)


def inline(
    model: onnx.ModelProto, names: Collection[tuple[str, str]] | None = None
) -> onnx.ModelProto:
    """Inline the local functions of a model, which is not changed.

    Args:
        model: a checked model, so that its size is bounded.
        names: domains and names of the functions to inline; None for all.

    Raises:
        InvalidModelError: a function is of another operator set.
    """
    explicit = _with_explicit_defaults(model)
    try:
        if names is None:
            return inline_local_functions(explicit)
        return inline_selected_functions(explicit, sorted(names))
    except RuntimeError as error:
        raise InvalidModelError(printable(str(error))) from error


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without functions, for reading; the same model if they cannot be inlined."""
    if not model.functions or model.ByteSize() > MAX_INLINED_BYTES:
        return model
    try:
        return inline(model)
    except InvalidModelError:  # the bodies of the functions stay unread
        return model


def _with_explicit_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which every call states the attributes for which its function has a value.

    onnx's inliner (1.23) drops an attribute that a call does not state.
    """
    defaults = {function_key(f): f.attribute_proto for f in model.functions if f.attribute_proto}
    if not defaults:
        return model
    copy = copy_of(model)
    for nodes in (copy.graph.node, *(function.node for function in copy.functions)):
        for node in all_nodes(nodes):
            names = {attribute.name for attribute in node.attribute}
            entries = defaults.get(call_key(node), [])
            node.attribute.extend(entry for entry in entries if entry.name not in names)
    return copy


def check_inlining(model: onnx.ModelProto) -> None:
    """Check that no local function recurses, and that inlining them stays within bounds.

    Raises:
        InvalidModelError: a function is defined twice or calls itself, directly or through
            others, or the inlined model has more than `MAX_INLINED_NODES` nodes.
    """
    if model.functions:
        _check_size(model, lambda _: 1, MAX_INLINED_NODES, "nodes")


def _check_size(
    model: onnx.ModelProto, weigh: Callable[[onnx.NodeProto], int], most: int, unit: str
) -> None:
    """Check the size that a model would have with all calls of local functions inlined.

    Args:
        model: the model.
        weigh: size of a node; nodes of graphs inside of it are weighed on their own as well.
        most: the largest sum.
        unit: the unit of the sum, for messages.

    Raises:
        InvalidModelError: it is larger, or a function is defined twice or calls itself.
    """
    bodies = {function_key(f): [*f.node, *_default_nodes(f)] for f in _callees_first(model)}
    nodes = chain(model.graph.node, *bodies.values())
    # A graph that a caller passes in can be any graph of the file, so it counts as all of them.
    everything = sum(map(weigh, all_nodes(nodes)))
    sizes: dict[FunctionKey, int] = {}

    def total(nodes: Iterable[onnx.NodeProto], subject: str) -> int:
        size = 0
        for node in all_nodes(nodes):
            passed = sum(1 for a in node.attribute if a.ref_attr_name and a.type in _GRAPH_TYPES)
            size += weigh(node) + sizes.get(call_key(node), 0) + passed * everything
        if size > most:
            raise InvalidModelError(f"{subject} has {size} {unit} once inlined, above {most}")
        return size

    for key, body in bodies.items():
        sizes[key] = total(body, _describe(key))
    total(model.graph.node, "the graph")


def _default_nodes(function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graphs that stand for attributes which a call leaves out."""
    for _, graph in subgraphs(function.attribute_proto):
        yield from graph.node


def _describe(key: FunctionKey) -> str:
    return f"function {quoted('::'.join(key[:2]))}"


def _callees_first(model: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """Sort the local functions of a model so that callees come first.

    Raises:
        InvalidModelError: a function is defined twice or calls itself.
    """
    functions: dict[FunctionKey, onnx.FunctionProto] = {}
    for function in model.functions:
        key = function_key(function)
        for part in key:
            checked_text(part, "function name")
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
