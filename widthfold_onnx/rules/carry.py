"""Ops that a state passes through: the node in the folded form, or why there is none.

Rule: replaces unfold - op - fold with the op on packed tensors.
Requires: every tensor that the op reads element by element is there in one state.
Rewrites: constants that differ per channel are packed like the channels, repeated or tiled; the
    operator and its attributes stay.
Refuses: what reads or writes along a folded axis, and operator sets below 7, in which
    broadcasting was another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.layout import Transpose
from widthfold_onnx.model.propagate import Dims
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.along import ALONG, SIZES
from widthfold_onnx.rules.operand import Op

Array = npt.NDArray[Any]

MIN_OPSET = 7
UNARY = frozenset(
    {
        *("Abs", "Cast", "Ceil", "Celu", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
        *("HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu"),
        *("Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Tanh"),
        "ThresholdedRelu",
    }
)
"""One input; each element of the output depends on the same element of the input."""
BROADCASTING = frozenset({"Add", "Div", "Max", "Min", "Mul", "PRelu", "Pow", "Sub"})
"""Several inputs that are broadcast; the same holds."""


@dataclass(frozen=True)
class Carried:
    """The op in the folded form.

    Attributes:
        shapes: natural extents of every output.
        constants: new numbers for inputs, by index; all other inputs stay, but for the packed.
    """

    shapes: tuple[Dims, ...]
    constants: Mapping[int, Array] = field(default_factory=dict)


Rule = Callable[[Op], Carried | Refusal]


def carry(op: Op) -> Carried | Refusal:
    """The op in the state, or why it must see the natural tensor."""
    node, rule = op.node, CARRY.get(op.node.op_type)
    if rule is None or node.domain not in ("", "ai.onnx"):
        return Refusal("not-carried", f"no rule carries {node.op_type}")
    if op.document.opset < MIN_OPSET:
        return Refusal("opset-too-old", f"opset {op.document.opset} is below {MIN_OPSET}")
    if node.device_configurations:
        return Refusal("sharded", "the node is configured to run on several devices")
    result = rule(op)
    if isinstance(result, Carried) and len(result.shapes) != len(node.outputs):
        return Refusal("more-outputs", f"{node.op_type} has {len(node.outputs)} outputs")
    return result


def _pointwise(op: Op) -> Carried | Refusal:
    """Input 0 is data, all others are scalars by the definition of the operator."""
    shape, *others = op.shapes
    if shape is None or any(other is not None for other in others):
        return Refusal("not-packed", "the input is not there in the state")
    return Carried((shape,))


def _broadcasting(op: Op) -> Carried | Refusal:
    """All inputs are data of the same extents, or constants that differ per channel at most."""
    shapes = [shape for shape in op.shapes if shape is not None]
    if any(shape != shapes[0] for shape in shapes):
        return Refusal("shapes-differ", f"extents {[list(shape) for shape in shapes]}")
    constants = {}
    for index, shape in enumerate(op.shapes):
        if shape is None:
            array = op.constant(index)
            if isinstance(array, Refusal):
                return array
            packed = _constant(op, array, shapes[0])
            if isinstance(packed, Refusal):
                return packed
            if packed is not None:
                constants[index] = packed
    return Carried((shapes[0],), constants)


def _constant(op: Op, array: Array, shape: Dims) -> Array | Refusal | None:
    """A constant for the packed tensor in place of one for extents `shape`; None if it stays."""
    rank, channel = len(shape), op.state.channel_axis % len(shape)
    axes = (1,) * (rank - array.ndim) + array.shape
    others = axes[:channel] + axes[channel + 1 :]
    if len(axes) > rank or set(others) - {1} or axes[channel] not in (1, shape[channel]):
        return Refusal("constant-varies", f"a constant has the extents {list(axes)}")
    if channel >= rank - array.ndim and axes[channel] == shape[channel]:
        return op.state.constant(array, rank)
    return array.reshape(()) if array.ndim > op.state.rank(rank) else None


def _per_channel(op: Op, axis: int) -> Carried | Refusal:
    """Input 0 is data; all others hold one number, or one per position of an axis: the channels."""
    result = _pointwise(op)
    if isinstance(result, Refusal):
        return result
    (shape,) = result.shapes
    named = op.state.names_channels(axis, len(shape))
    count = shape[op.state.channel_axis] if named else None
    constants = {}
    for index in range(1, len(op.node.inputs)):
        if op.node.inputs[index] is not None:
            array = op.constant(index)
            if isinstance(array, Refusal):
                return array
            if array.shape == (count,):
                constants[index] = array[op.state.channels(array.size)]
            elif array.size > 1:
                return Refusal("constant-varies", f"a constant has the extents {array.shape}")
    return Carried(result.shapes, constants)


def _product(op: Op) -> Carried | Refusal:
    result = _broadcasting(op)
    for index, shape in enumerate(op.shapes):
        factor = op.constant(index) if shape is None else None
        if isinstance(factor, np.ndarray) and op.overflows(factor):
            return _OVERFLOW
    return result


_OVERFLOW = Refusal(
    "overflow", "the weight of the layer before it would overflow if the runtime merges the two"
)


def _normalization(op: Op) -> Carried | Refusal:
    if op.integer("training_mode", 0) or not op.integer("spatial", 1):
        return Refusal("not-inference", "statistics are computed, or differ per position")
    result = _per_channel(op, 1)
    if isinstance(result, Carried) and not result.constants:
        return Refusal("other-axis", "its channels are another axis")
    scale, variance = op.constant(1), op.constant(4)
    if isinstance(scale, Refusal) or isinstance(variance, Refusal):
        return result
    with np.errstate(all="ignore"):  # nonsense becomes NaN, which counts as too large
        factor = scale / np.sqrt(variance.astype(np.float64) + op.real("epsilon", 1e-5))
    return _OVERFLOW if op.overflows(factor) else result


def _quantization(op: Op) -> Carried | Refusal:
    if op.document.opset < 13:
        return _pointwise(op)
    if op.integer("block_size", 0):
        return Refusal("constant-varies", "the scale differs along blocks")
    return _per_channel(op, op.integer("axis", 1))


def _concat(op: Op) -> Carried | Refusal:
    shapes = [shape for shape in op.shapes if shape is not None]
    if len(shapes) < len(op.shapes):
        return Refusal("not-packed", "an input is not there in the state")
    first = shapes[0]
    joins = op.state.names_channels(op.integer("axis", 0), len(first))
    if not joins or not op.state.channel_major:
        return Refusal("other-axis", "it joins along another axis, or digits lie in between")
    channel = op.state.channel_axis % len(first)
    total = sum(shape[channel] or 0 for shape in shapes)
    joined = {_with(shape, channel, total) for shape in shapes}
    if len(joined) > 1:
        return Refusal("shapes-differ", f"extents {[list(shape) for shape in shapes]}")
    return Carried(tuple(joined))


def _with(shape: Dims, axis: int, extent: int | None) -> Dims:
    """The extents with another one at an axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _split(op: Op) -> Carried | Refusal:
    """Parts of channels: every channel brings along all that lies in it."""
    result = _pointwise(op)
    if isinstance(result, Refusal):
        return result
    (shape,), count = result.shapes, len(op.node.outputs)
    channel = op.state.channel_axis % len(shape)
    channels = shape[channel] or 0
    splits = op.state.names_channels(op.integer("axis", 0), len(shape))
    if not splits or not op.state.channel_major:
        return Refusal("other-axis", "it splits along another axis, or digits lie in between")
    if "split" in op.node.attributes:
        return Refusal("not-carried", "the sizes of its parts are an attribute")
    sizes, constants = np.full(count, channels // count), {}
    if len(op.node.inputs) > 1 and op.node.inputs[1] is not None:
        array = op.constant(1)
        if isinstance(array, Refusal):
            return array
        sizes, constants = array, {1: array * (op.state.channels(channels).size // channels)}
    if sizes.shape != (count,) or sizes.sum() != channels or sizes.min() < 1:
        return Refusal("uneven-parts", f"{channels} channels are split into {count} parts")
    return Carried(tuple(_with(shape, channel, int(size)) for size in sizes), constants)


def _along(op: Op) -> Carried | Refusal:
    """It acts along axes that the state leaves alone; all but input 0 says how."""
    result = _pointwise(op)
    if isinstance(result, Refusal):
        return result
    (shape,) = result.shapes
    if op.state.rank(len(shape)) != len(shape):
        return Refusal("other-rank", "it counts its axes")
    changed = ALONG[op.node.op_type](op, shape)
    if isinstance(changed, Refusal):
        return changed
    if op.state.involved(len(shape)) & changed.keys():
        return Refusal("along-folded-axis", f"it acts along the axes {sorted(changed)}")
    after = tuple(changed.get(axis, extent) for axis, extent in enumerate(shape))
    return Carried((after,), _sizes(op, after))


def _sizes(op: Op, after: Dims) -> Mapping[int, Array]:
    """Extents that an input names, as those of the packed tensor."""
    if op.node.op_type != "Resize" or len(op.node.inputs) <= SIZES:
        return {}
    for step in op.state.steps(after):
        if isinstance(step, Transpose):
            after = tuple(after[i] for i in step.order)
        else:
            after = step.extents
    return {SIZES: np.array(after, np.int64)}


CARRY: Mapping[str, Rule] = {
    **dict.fromkeys(sorted(UNARY), _pointwise),
    **dict.fromkeys(sorted(BROADCASTING), _broadcasting),
    **dict.fromkeys(ALONG, _along),
    "Mul": _product,
    "BatchNormalization": _normalization,
    "Clip": _pointwise,
    "Concat": _concat,
    "DequantizeLinear": _quantization,
    "QuantizeLinear": _quantization,
    "Split": _split,
}
"""By operator: the rule that carries it."""
