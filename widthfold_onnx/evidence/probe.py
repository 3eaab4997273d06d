"""Two forms of one site, run on small integers and compared bit for bit.

A Conv is bilinear in its input and its weight, and a fold copies weights or places zeros whatever
they are. So random small integers serve as both, and the runtime must return equal results:
every sum stays at or below the largest integer up to which the element type holds all integers
(53, 24, 11 and 8 bits of significand), so no order of summation rounds. A wrong coefficient
survives a trial over n labels with probability at most 2/n (Schwartz-Zippel, degree two; less is
promised where the data must be thinned to stay exact); tolerances hide such faults where weights
are small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import open_exact
from widthfold_onnx.fold.state import State
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.session import Level

Array = npt.NDArray[Any]
Fold = Callable[[list[Array]], list[Array]]
Draw = Callable[[np.random.Generator, Sequence[Array], tuple[int, ...], int], list[Array]]
"""(generator, original parameters, extents of the data, most terms of a sum) -> parameters and, as
the last, data."""

TRIALS = 2
LARGEST = 61
EXACT_BELOW = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}


@dataclass(frozen=True)
class Side:
    """One form of the site.

    Attributes:
        nodes: from the site's input to its output, in order.
        constants: all other values that they read.
        opset: of the default domain.
        parameters: names of weight and bias among the constants.
        reads: the state in which the first node finds the input; None for natural.
        returns: the state in which the last node leaves the output.
        data: which input of the first node is the data.
    """

    nodes: Sequence[onnx.NodeProto]
    constants: dict[str, Array]
    opset: int
    parameters: Sequence[str]
    reads: State | None = None
    returns: State | None = None
    data: int = 0

    def packed(self, result: Array) -> Array:
        """A natural result as the last node is to leave it."""
        return result if self.returns is None else self.returns.packed(result)


def small_integers(
    rng: np.random.Generator, originals: Sequence[Array], shape: tuple[int, ...], terms: int
) -> list[Array]:
    """Parameters and data of which no sum rounds; see `Draw`.

    Raises:
        UnverifiedError: no bound is known for the element type.
    """
    dtype = originals[0].dtype
    if dtype.name not in EXACT_BELOW:
        raise UnverifiedError(f"no bound is known below which {dtype.name} is exact")
    limit = EXACT_BELOW[dtype.name]
    parameters = [
        rng.integers(1, LARGEST, p.shape, endpoint=True) * rng.choice([-1, 1], p.shape)
        for p in originals
    ]
    largest = max(1, min(LARGEST, limit // (terms * LARGEST)))
    data = rng.integers(-largest, largest, shape, endpoint=True)
    # Where even -1..1 could reach the limit, most of the data is zero: a quarter of the limit
    # is expected then, and four times the expectation is out of reach.
    data *= rng.random(shape) < limit / (4 * terms * LARGEST)
    return [array.astype(dtype) for array in (*parameters, data)]


def first_difference(
    before: Side,
    after: Side,
    *,
    fold: Fold,
    shape: tuple[int, ...],
    terms: int,
    options: VerifyOptions,
    draw: Draw = small_integers,
    kept: Sequence[npt.NDArray[np.bool_]] | None = None,
) -> str:
    """Run both sides on integers.

    Args:
        before: the original node.
        after: the nodes in its place.
        fold: maps original weight and bias to folded ones.
        shape: input extents.
        terms: most products and summands of one output element.
        options: where it runs.
        draw: what it is run on.
        kept: which numbers of weight and bias may be other than zero; None: all.

    Returns:
        Where the sides differ, or "".

    Raises:
        UnverifiedError: the runtime cannot run the original node.
        NoKernelError: it has no kernel for it.
    """
    originals = [before.constants[name] for name in before.parameters]
    masks = [np.ones(p.shape, bool) for p in originals] if kept is None else kept
    for seed in range(TRIALS):
        rng = np.random.default_rng(seed)
        *drawn, data = draw(rng, originals, shape, terms)
        small = [(p * there).astype(p.dtype) for p, there in zip(drawn, masks, strict=True)]
        found = difference(before, after, small, fold(small), data, options)
        if found:
            return found
    return ""


def difference(
    before: Side,
    after: Side,
    parameters: list[Array],
    folded: list[Array],
    data: Array,
    options: VerifyOptions,
) -> str:
    """Run both sides once.

    Args:
        before: the original node.
        after: the nodes in its place.
        parameters: of the original node.
        folded: of the new ones.
        data: what both read.
        options: where it runs.

    Returns:
        Where the sides differ, or ""; the errors are those of `first_difference`.
    """
    plain = run_side(before, parameters, data, options)
    try:
        first = after.packed(plain)
    except ValueError:
        return f"an output of {list(plain.shape)} does not fit the state that is claimed"
    try:
        second = run_side(after, folded, data, options)
    except UnverifiedError as error:
        return f"the new nodes do not run where the original node does: {error}"
    if first.shape != second.shape:
        return f"the output has shape {list(second.shape)} instead of {list(first.shape)}"
    wrong = np.argwhere(first != second)
    if not wrong.size:
        return ""
    at = tuple(int(i) for i in wrong[0])
    return (
        f"{len(wrong)} of {first.size} integers differ; the first at {list(at)} is "
        f"{second[at]:g} instead of {first[at]:g}"
    )


def run_side(side: Side, parameters: list[Array], data: Array, options: VerifyOptions) -> Array:
    """Run one form on natural data, with these parameters; the result is as it leaves it.

    Raises:
        UnverifiedError: the runtime cannot run it.
    """
    if side.reads is not None:
        data = side.reads.packed(data)
    start, end = side.nodes[0].input[side.data], side.nodes[-1].output[0]
    constants = side.constants | dict(zip(side.parameters, parameters, strict=True))
    element = helper.np_dtype_to_tensor_dtype(data.dtype)
    graph = helper.make_graph(
        side.nodes,
        "probe",
        [helper.make_tensor_value_info(start, element, data.shape)],
        [onnx.ValueInfoProto(name=end)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", side.opset)])
    model.ir_version = 8
    session = open_exact(model, options, Level.DISABLED, threads=1)
    return session.run({start: data})[end]
