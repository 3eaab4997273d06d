"""Two forms of one quantized product, run on random integers and compared bit for bit.

Sums of integers do not round, so any integers will do, whatever the order of summation; scales are
any numbers, as every element of the result is scaled alone. Data comes from all 8 bits. Weights and
their zero points come from 7, at which no kernel saturates (`runtime.saturation`): the probe judges
the fold and not the processor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.evidence.probe import TRIALS, Side, difference
from widthfold_onnx.evidence.product_pair import ProductPair
from widthfold_onnx.model.graph import Value
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.quantized_product import PRODUCT_INPUTS

Array = npt.NDArray[Any]

SPREAD = 45.0
"""A scale of the result with which it uses its 8 bits: products of uniform numbers of 8 and 7 bits
deviate by 74 * 37, so a sum of C of them by about 60 * 45 * sqrt(C)."""


def quantized_difference(pair: ProductPair, shape: tuple[int, ...], options: VerifyOptions) -> str:
    """Where both sides differ, "" if nowhere.

    Args:
        pair: both sides.
        shape: extents of the stored data.
        options: where it runs.

    Raises:
        UnverifiedError: the runtime cannot run the original node, or a type is not known.
        NoKernelError: it has no kernel for it.
    """
    site, graph = pair.site, pair.graph
    line = [graph.new.message(node) for node in (*pair.before, pair.new, *pair.after)]
    for seed in range(TRIALS):
        rng = np.random.default_rng(seed)
        given: dict[str, Array] = {}
        for index, value in enumerate(pair.old.inputs):
            if value is not None and index != site.data_index:
                drawn = _drawn(pair, index, value, rng)
                given.setdefault(value.name or "", drawn)  # one tensor may serve as two inputs
        names = [[_name(node.inputs[i]) for i in site.parameters] for node in (pair.old, pair.new)]
        parameters = [given[name] for name in names[0]]
        found = difference(
            Side(
                [graph.old.message(pair.old)],
                given,
                graph.old.opset,
                names[0],
                data=site.data_index,
            ),
            Side(
                line,
                pair.constants | _read(pair, given),
                graph.new.opset,
                names[1],
                pair.reads,
                pair.returns,
                data=0 if pair.before else site.data_index,
            ),
            parameters,
            pair.folded(parameters),
            _integers(rng, np.dtype(graph.element(site.data)), shape, bits=8),
            options,
        )
        if found:
            return found
    return ""


def _read(pair: ProductPair, given: dict[str, Array]) -> dict[str, Array]:
    """What the new node reads as the original does."""
    return {n: given[n] for value in pair.new.inputs if (n := _name(value)) in given}


def _drawn(pair: ProductPair, index: int, value: Value, rng: np.random.Generator) -> Array:
    """Random numbers for an input."""
    site, inputs = pair.site, PRODUCT_INPUTS[pair.site.op]
    constant = pair.graph.old.constant(value)
    if isinstance(constant, Refusal):
        extents = pair.graph.extents(value) or ()
        shape, kind = tuple(e or 1 for e in extents), np.dtype(pair.graph.element(value))
    else:
        shape, kind = constant.shape, pair.graph.old.read(constant).dtype
    if kind.kind in "iu":
        of_weight = index in site.parameters
        return _integers(rng, kind, shape, bits=7 if of_weight else 8)
    scale = SPREAD * math.sqrt(site.channels[0]) if index in inputs.result else 1.0
    return (rng.uniform(0.5, 1.0, shape) * scale).astype(kind)


def _integers(
    rng: np.random.Generator, kind: np.dtype[Any], shape: tuple[int, ...], *, bits: int
) -> Array:
    """Random integers of the lowest bits of a type."""
    low = 0 if kind.kind == "u" else -(1 << (bits - 1))
    return np.asarray(rng.integers(low, low + (1 << bits), shape)).astype(kind)


def _name(value: Value | None) -> str:
    return "" if value is None else value.name or ""
