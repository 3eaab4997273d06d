"""How large the values inside of a region can become, from what the region reads.

A value is bounded by |value| <= scale * B + shift for all data with |data| <= B. Ops that are not
in the table, and inputs that are neither bounded nor constant, are not known to be bounded at all:
an Exp makes Inf of finite numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.conv_state import ConvState
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import LinearSite
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.operand import Op
from widthfold_onnx.rules.parameter import INPUTS, input_of
from widthfold_onnx.rules.windowed import WindowedSite

Array = npt.NDArray[Any]

HEADROOM = 2.0**-8
"""Share of the largest number that values may reach: kernels add up before they subtract."""

LARGEST = {
    "FLOAT": float(np.finfo(np.float32).max),
    "DOUBLE": float(np.finfo(np.float64).max),
    "FLOAT16": float(np.finfo(np.float16).max),
    "BFLOAT16": 2.0**127,
}
"""By element type: the largest number, or one that is not larger."""


class Bound(NamedTuple):
    """|value| <= scale * B + shift."""

    scale: float
    shift: float


DATA = Bound(1.0, 0.0)
"""Of what the region reads."""

Bounds = Sequence[Bound | None]
"""Of every input of an op; None where an input is not computed in the region."""


def largest_data(
    document: Document, nodes: Sequence[Node], sites: Mapping[Node, LinearSite]
) -> float | None:
    """The largest power of two B such that |data| <= B keeps every value of a region in its type.

    Args:
        document: the model.
        nodes: the region, in an order in which it runs, as the model has it.
        sites: those of the nodes that are linear.

    Returns:
        B, 0 where there is none; None where nothing is known of one of the nodes, or they are not
        of one element type.
    """
    kinds = {site.weight.dtype for site in sites.values()}
    if len(kinds) != 1 or not kinds <= LARGEST.keys():
        return None
    limit = LARGEST[kinds.pop()] * HEADROOM
    bounds: dict[Value, Bound] = {}
    below = limit
    for node in nodes:
        if node in sites:
            bound = _linear(document, sites[node], bounds)
        else:
            inputs = [
                bounds.get(value, DATA)
                if value is not None and isinstance(document.constant(value), Refusal)
                else None
                for value in node.inputs
            ]
            bound = through(Op(document, node, ConvState(1, ()), ()), inputs)
        if bound is None:
            return None
        bounds |= dict.fromkeys(node.outputs, bound)
        room = limit - bound.shift
        below = min(below, room / bound.scale if bound.scale else math.copysign(limit, room))
    return 2.0 ** math.floor(math.log2(below)) if below > 0 else 0.0


def _linear(document: Document, site: LinearSite, bounds: Mapping[Value, Bound]) -> Bound | None:
    data = bounds.get(site.data, DATA)
    weight = document.read(site.weight)
    if isinstance(site, WindowedSite):
        weight = site.canonical(weight)
        bias = input_of(site.node, INPUTS[site.op].bias)
        known = None if bias is None else document.constant(bias)
        added = 0.0
        if known is not None and not isinstance(known, Refusal):
            added = _largest(document.read(known))
        return linear(weight, tuple(range(1, weight.ndim)), data, added)
    if not isinstance(site, MatMulSite):
        return None
    scales = {name: site.node.attributes.get(name) for name in ("alpha", "beta")}
    alpha, beta = (1.0 if a is None else abs(a.as_float()) for a in scales.values())
    added = 0.0 if site.addend is None else _largest(document.read(site.addend))
    weight = weight.reshape(site.weight_shape).astype(np.float64) * alpha
    return linear(weight, (-1 if site.left != site.turned else -2,), data, beta * added)


def linear(weight: Array, summed: tuple[int, ...], data: Bound, added: float) -> Bound:
    """What a linear op makes of bounded data: at most the L1 norm of its weights times that.

    Args:
        weight: of any axes.
        summed: the axes over which one output adds up.
        data: of its input.
        added: largest magnitude of what is added.
    """
    norm = float(np.abs(weight.astype(np.float64)).sum(axis=summed).max(initial=0.0))
    return Bound(norm * data.scale, norm * data.shift + added)


def through(op: Op, inputs: Bounds) -> Bound | None:
    """What a carried op makes of bounded inputs; None where nothing is known."""
    rule = TABLE.get(op.node.op_type)
    return None if rule is None else rule(op, inputs)


def _same(op: Op, inputs: Bounds) -> Bound | None:
    return inputs[0]


def _unit(op: Op, inputs: Bounds) -> Bound | None:
    return Bound(0.0, 1.0)


def _sum(op: Op, inputs: Bounds) -> Bound | None:
    """Add and Sub; it bounds Max and Min as well."""
    scale, shift = 0.0, 0.0
    for index, bound in enumerate(inputs):
        largest = _constant(op, index) if bound is None else None
        if bound is None and largest is None:
            return None
        scale += bound.scale if bound else 0.0
        shift += bound.shift if bound else largest or 0.0
    return Bound(scale, shift)


def _scaled(op: Op, inputs: Bounds) -> Bound | None:
    """A product of data and a constant."""
    data = [bound for bound in inputs if bound is not None]
    factors = [_constant(op, i) for i, bound in enumerate(inputs) if bound is None]
    if len(data) != 1 or len(factors) != 1 or factors[0] is None:
        return None
    return Bound(data[0].scale * factors[0], data[0].shift * factors[0])


def _leaky(op: Op, inputs: Bounds) -> Bound | None:
    """LeakyRelu, and PRelu with a constant slope."""
    slope = abs(op.real("alpha", 0.01)) if len(inputs) == 1 else _constant(op, 1)
    if slope is None or inputs[0] is None:
        return None
    return Bound(*(max(1.0, slope) * number for number in inputs[0]))


def _clip(op: Op, inputs: Bounds) -> Bound | None:
    ends = [op.real(name, 0.0) for name in ("min", "max")]
    for index in range(1, len(op.node.inputs)):
        if op.node.inputs[index] is not None:
            end = _constant(op, index)
            if end is None:
                return None
            ends.append(end)
    shift = max(map(abs, ends))
    return None if inputs[0] is None else Bound(inputs[0].scale, inputs[0].shift + shift)


def _pad(op: Op, inputs: Bounds) -> Bound | None:
    value = abs(op.real("value", 0.0))
    if len(op.node.inputs) > 2 and op.node.inputs[2] is not None:
        filler = _constant(op, 2)
        if filler is None:
            return None
        value = filler
    return None if inputs[0] is None else Bound(inputs[0].scale, inputs[0].shift + value)


def _concat(op: Op, inputs: Bounds) -> Bound | None:
    known = [bound for bound in inputs if bound is not None]
    if len(known) < len(inputs):
        return None
    return Bound(max(b.scale for b in known), max(b.shift for b in known))


def _normalization(op: Op, inputs: Bounds) -> Bound | None:
    arrays = [op.constant(index) for index in range(1, 5)]
    scale, shift, mean, variance = (
        None if isinstance(a, Refusal) else a.astype(np.float64) for a in arrays
    )
    if scale is None or shift is None or mean is None or variance is None or inputs[0] is None:
        return None
    with np.errstate(all="ignore"):  # nonsense becomes NaN, which bounds nothing
        factor = np.abs(scale / np.sqrt(variance + op.real("epsilon", 1e-5)))
        added = np.abs(mean) * factor + np.abs(shift)
    return Bound(
        _largest(factor) * inputs[0].scale, _largest(factor) * inputs[0].shift + _largest(added)
    )


def _constant(op: Op, index: int) -> float | None:
    array = op.constant(index)
    return None if isinstance(array, Refusal) else _largest(array)


def _largest(array: Array | None) -> float:
    """The largest magnitude; Inf where one is NaN."""
    if array is None:
        return 0.0
    largest = float(np.abs(array.astype(np.float64)).max(initial=0.0))
    return math.inf if math.isnan(largest) else largest


TABLE: Mapping[str, Callable[[Op, Bounds], Bound | None]] = {
    **dict.fromkeys(("Abs", "Identity", "Neg", "Relu", "HardSwish"), _same),
    **dict.fromkeys(("AveragePool", "MaxPool", "ReduceMax", "ReduceMean", "ReduceMin"), _same),
    **dict.fromkeys(("Erf", "HardSigmoid", "Sigmoid", "Sign", "Softsign", "Tanh"), _unit),
    **dict.fromkeys(("Add", "Max", "Min", "Sub"), _sum),
    "BatchNormalization": _normalization,
    "Clip": _clip,
    "Concat": _concat,
    "LeakyRelu": _leaky,
    "Mul": _scaled,
    "PRelu": _leaky,
    "Pad": _pad,
}
"""By operator: what bounds its output."""
