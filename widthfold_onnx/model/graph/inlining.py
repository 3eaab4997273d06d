"""Inlines local functions that hold a site: then each call has its own extents and weights.

Runtimes inline functions as well. A fold inside of a function would have to suit all calls, and its
weights are mostly arguments, which are constant only where the function is called.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.domain import operator_of
from widthfold_onnx.model.proto.functions import (
    FunctionKey,
    call_key,
    callees_first,
    check_inlined_size,
    function_key,
    inline,
)
from widthfold_onnx.model.proto.walk import all_nodes

Sites = Collection[tuple[str, str]]

MAX_NODES = 100_000
MAX_BYTES = 1 << 30
"""Most bytes that all calls together may add to a model; a message holds twice that."""


def inlined(model: onnx.ModelProto, sites: Sites) -> tuple[onnx.ModelProto, str]:
    """Inline the functions that hold sites, and those that call them.

    Args:
        model: a checked model; it stays as it is.
        sites: the operators of sites, by domain and type.

    Returns:
        The model, a new one if anything was inlined, and why nothing could be, else "".
    """
    holding = _holding_sites(model, sites)
    if not holding:
        return model, ""
    try:
        nodes = list(all_nodes(model.graph.node))
        check_inlined_size(model, lambda _: 1, len(nodes) + MAX_NODES, "nodes")
        own = sum(node.ByteSize() for node in nodes)
        check_inlined_size(model, lambda node: node.ByteSize(), own + MAX_BYTES, "bytes")
        if model.ByteSize() > MAX_BYTES:
            return model, f"a model of more than {MAX_BYTES} bytes is not inlined"
        return inline(model, holding), ""
    except InvalidModelError as error:
        return model, str(error)


def _holding_sites(model: onnx.ModelProto, sites: Sites) -> set[tuple[str, str]]:
    """Return domain and name of every function with a site, in itself or in a function it calls."""
    holding: dict[FunctionKey, tuple[str, str]] = {}
    for function in callees_first(model):
        nodes = all_nodes(function.node)
        if any(operator_of(node) in sites or call_key(node) in holding for node in nodes):
            holding[function_key(function)] = function.domain, function.name
    return set(holding.values())
