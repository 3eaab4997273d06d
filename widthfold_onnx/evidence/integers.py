"""Run changed linear nodes on small integers, to check the kernels of the runtime.

The proof takes each operator as ONNX defines it. Only a run shows whether the runtime's kernel
follows the definition at the size of the layer. Each node runs alone, at its extents in the model,
on random integers in place of data and of nonzero weights. The integers are small enough for all
sums to be exact in the element type (in float32 below 2^24), in whatever order they are added. So
the result must equal the definition bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import open_exact
from widthfold_onnx.evidence.proof.field import (
    Draw,
    Draws,
    drawing,
    remainder,
    side_by_side,
)
from widthfold_onnx.evidence.proof.operators import MEANINGS
from widthfold_onnx.evidence.proof.program import Correspondence, Program, constant
from widthfold_onnx.evidence.proof.values import Call, Elements, UnevaluableError
from widthfold_onnx.model.proto.scope import NameScope, describe_node
from widthfold_onnx.model.proto.walk import body_path, copy_of, is_default
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import RuntimeOptions, Shapes
from widthfold_onnx.results import IntegerRun
from widthfold_onnx.runtime.provider_traits import Level

EXACT_BELOW = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
MAX_MAGNITUDE = 61
"""Magnitude of weights, and of data where sums allow it. It fits 7 bits. Weights of bfloat16 are at
most 16, so that sums of several products stay exact."""

TERMS: dict[str, Callable[[list[tuple[int, ...]]], int]] = {
    "Conv": lambda shapes: math.prod(shapes[1][1:]),
    "ConvInteger": lambda shapes: math.prod(shapes[1][1:]),
    "ConvTranspose": lambda shapes: math.prod(shapes[1]) // max(shapes[1][1], 1),
    "Gemm": lambda shapes: 2 * max(shapes[0]) + 3,
    "MatMul": lambda shapes: shapes[0][-1],
    "MatMulInteger": lambda shapes: shapes[0][-1],
}
"""By operator: how many products one result adds up at most, from the extents of the inputs."""

WHOLE_ALPHA_BETA = {"alpha": 2.0, "beta": 3.0}
"""Whole numbers that replace the factors of a Gemm."""


@cache
def _draw() -> Draw:
    """Return a draw of two primes; each integer is its own field element.

    The product of the primes is above 2^46, more than twice any sum, so a result that agrees with
    the definition modulo both primes is equal to it.
    """
    draw = Draw.of("integers")
    return replace(draw, primes=draw.primes[:2])


def run_on_integers(
    old: Program, new: Program, shapes: Shapes, options: RuntimeOptions
) -> IntegerRun:
    """Run every linear node that only the new model has."""
    table = new.shapes_at(shapes)
    shared_values = Correspondence(old, new).shared_values
    count, skip_reason = 0, ""
    for path, node, reader in _linear_nodes(new, new.scope, "", shared_values):
        try:
            arrays = _integers(node, table, path, reader)
            with drawing(_draw()):
                difference = _difference(new, node, arrays, options)
        except (UnverifiedError, UnevaluableError, MemoryError) as error:
            skip_reason = skip_reason or f"{describe_node(node)}: {error}"
            continue
        if difference:
            return IntegerRun(verdict="different", reason=f"{describe_node(node)}: {difference}")
        count += 1
    verdict: Literal["skipped", "exact"] = "skipped" if skip_reason else "exact"
    return IntegerRun(verdict=verdict, reason=skip_reason, nodes=count)


Reader = Callable[[str], Array | None]
"""Returns the numbers of a name, None where it is no stored constant."""


def _linear_nodes(
    model: Program,
    graph: NameScope,
    path: str,
    shared_values: set[str],
    outer_reader: Reader = lambda _: None,
) -> Iterator[tuple[str, onnx.NodeProto, Reader]]:
    """Yield the linear nodes of a graph and its subgraphs, with their path and constants."""

    def read(name: str) -> Array | None:
        if name in graph.initializers:
            return model.read(graph.initializers[name])
        writer = graph.writer(name)
        return outer_reader(name) if writer is None else constant(writer, model)

    for index, node in enumerate(graph.nodes):
        if node.output and node.output[0] in shared_values:
            continue
        if is_default(node, *TERMS):
            yield path, node, read
        for place, scope in graph.inner.get(index, ()):
            inner_path = body_path(path, node, place)
            yield from _linear_nodes(model, scope, inner_path, set(), read)


def _difference(
    model: Program, node: onnx.NodeProto, arrays: list[Array | None], options: RuntimeOptions
) -> str:
    """Say where the runtime's result differs from the definition, "" if nowhere.

    Raises:
        UnverifiedError: the node cannot be run.
        UnevaluableError: the node is invalid.
    """
    node = _with_factors(node)
    call = Call(
        node=node,
        attributes=model.attributes(node),
        inputs=[None if a is None else Elements(_draws(a)) for a in arrays],
        opset=model.opsets.get("", 1),
        version=0,
        shapes=[None],
    )
    with side_by_side():
        expected = MEANINGS[node.op_type](call)
    assert expected is not None
    assert isinstance(expected[0], Elements)
    feeds = {f"i{i}": array for i, array in enumerate(arrays) if array is not None}
    graph = helper.make_graph(
        [node],
        "integers",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [onnx.ValueInfoProto(name=node.output[0])],
    )
    opsets = [helper.make_opsetid("", call.opset)]
    node_model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = open_exact(node_model, options, Level.DISABLED)
    (result,) = session.run(feeds).values()
    if result.shape != expected[0].shape:
        return f"extents {list(result.shape)} instead of {list(expected[0].shape)}"
    mask = np.zeros(result.shape, bool)
    for prime, draw in zip(_draw().primes, expected[0].draws, strict=True):
        mask |= remainder(result.astype(np.float64) - draw, prime) != 0
    return f"{np.count_nonzero(mask)} of {mask.size} integers differ" if mask.any() else ""


def _draws(array: Array) -> Draws:
    """Return integers as field elements; below half of a prime an integer is its own residue."""
    return (array.astype(np.float32),) * len(_draw().primes)


def _with_factors(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a copy with inputs of our own names, and whole numbers for alpha and beta."""
    copy = copy_of(node)
    copy.input[:] = [f"i{i}" if name else "" for i, name in enumerate(node.input)]
    copy.domain = ""
    for attribute in copy.attribute:
        if attribute.name in WHOLE_ALPHA_BETA:
            attribute.f = WHOLE_ALPHA_BETA[attribute.name]
    return copy


def _integers(
    node: onnx.NodeProto, table: ShapeTable, path: str, reader: Reader
) -> list[Array | None]:
    """Draw integers for all inputs of a node.

    Raises:
        UnverifiedError: extents or element types are not known.
    """
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = []
    kinds: list[np.dtype[Any]] = []
    for name in node.input:
        extents = table.extents(path, name) if name else ()
        kind = table.element_type(path, name) if name else onnx.TensorProto.FLOAT
        if extents is None or not kind:
            raise UnverifiedError(f"the extents of {name} are not known")
        shapes.append(extents)
        kinds.append(np.dtype(helper.tensor_dtype_to_np_dtype(kind)))
    terms = TERMS[node.op_type](shapes)
    return [
        _drawn(rng, shape, kind, reader(name), terms) if name else None
        for name, shape, kind in zip(node.input, shapes, kinds, strict=True)
    ]


def _drawn(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    kind: np.dtype[Any],
    weight: Array | None,
    terms: int,
) -> Array:
    """Draw integers of one input; a stored weight of floats keeps its zeros."""
    if kind.name not in EXACT_BELOW:
        low, high = (0, 2 * MAX_MAGNITUDE) if kind.kind == "u" else (-MAX_MAGNITUDE, MAX_MAGNITUDE)
        return rng.integers(low, high, shape, endpoint=True).astype(kind)
    limit = EXACT_BELOW[kind.name]
    heaviest = min(MAX_MAGNITUDE, limit >> 4)
    if weight is not None:
        integers = rng.integers(1, heaviest, shape, endpoint=True) * rng.choice([-1, 1], shape)
        return np.asarray((integers * (weight != 0)).astype(kind))
    largest = max(1, min(MAX_MAGNITUDE, limit // ((terms + 1) * heaviest)))  # + 1: a bias
    integers = rng.integers(-largest, largest, shape, endpoint=True)
    # If sums of data from -1 to 1 could reach the limit, most of the data is zero. A sum then has a
    # few nonzero products, each at most limit / 16; more than 15 are too unlikely to matter.
    is_drawn = rng.random(shape) < limit / (4 * max(terms, 1) * heaviest)
    return np.asarray((integers * is_drawn).astype(kind))
