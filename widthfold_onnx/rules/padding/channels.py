"""Define segments of channels, and the rule by which an operator passes padding on.

The channels of a tensor are a sequence of segments. A segment is cut where a Concat, a Split or a
group ends in it, and merged with a segment that must have the same padding. A rule ties the
channels of an op together (`OpWithChannels`), and then puts its node on padded tensors
(`OpInPadding` -> `PaddedOp`).

    a Concat of (a: 6) and (b: 10) has the segments (a, b)
    a Split of it into 4 and 12 cuts a into a0: 4 and a1: 2; its outputs have (a0) and (a1, b)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from onnx import helper

from widthfold_onnx.algebra.layouts import PaddedLayout
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.document import Attribute, Node
from widthfold_onnx.model.linking import message_of
from widthfold_onnx.model.proto.constant_folding import run_reference
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.op import Op

CHANNELS = 1
"""The axis of the channels."""

WRITING_ZEROS = frozenset({"BatchNormalization", "Conv", "ConvTranspose"})
"""Ops whose new weights make padding of zeros, for any padding of their inputs."""

DECIDING = frozenset(
    {
        *("Cast", "GlobalMaxPool", "HardSigmoid", "Less", "Max", "Min", "Pow", "ReduceMax"),
        *("ReduceMin", "Resize", "ThresholdedRelu", "Where"),
    }
)
"""Ops that may make another number of zeros: an attribute or another operand decides."""


@dataclass(eq=False)
class Segment:
    """Channels that are padded as one, wherever they occur.

    Args:
        count: number of channels.
        makers: the nodes that can write padding behind them.
        stops: the nodes that keep them from being padded, with the reasons.

    Attributes:
        parts: the segments that took its place, if it was cut or merged.
    """

    count: int
    makers: dict[Node, None] = field(default_factory=dict)
    stops: dict[Node, Refusal] = field(default_factory=dict)
    parts: tuple[Segment, ...] = ()

    def part(self, count: int) -> Segment:
        """Return a new segment of `count` of its channels, with its makers and stops."""
        return Segment(count, dict(self.makers), dict(self.stops))


Segments = tuple[Segment, ...]


def current_segments(segments: Iterable[Segment]) -> Segments:
    """Return segments as they are now: a segment that was cut or merged gives its parts."""
    result, stack = [], list(segments)[::-1]
    while stack:
        segment = stack.pop()
        if segment.parts:
            stack += segment.parts[::-1]
        else:
            result.append(segment)
    return tuple(result)


def count_of(segments: Iterable[Segment]) -> int:
    """Return the number of channels of segments."""
    return sum(segment.count for segment in segments)


def cut(segments: Segments, borders: Iterable[int]) -> None:
    """Cut segments at the borders, which count channels from the first one on."""
    for border in borders:
        start = 0
        for segment in current_segments(segments):
            if start < border < start + segment.count:
                segment.parts = (
                    segment.part(border - start),
                    segment.part(start + segment.count - border),
                )
                break
            start += segment.count


def channel_range(segments: Segments, begin: int, end: int) -> Segments:
    """Return the channels from `begin` up to `end`."""
    cut(segments, (begin, end))
    segments = current_segments(segments)
    ends = accumulate(segment.count for segment in segments)
    pairs = zip(segments, ends, strict=True)
    return tuple(segment for segment, last in pairs if begin < last <= end)


def merge(first: Segments, second: Segments) -> None:
    """Make equally many channels share their segments, so that both are padded alike."""
    while (borders := _borders(first)) != _borders(second):
        cut(first, _borders(second))
        cut(second, borders)
    for first_segment, second_segment in zip(
        current_segments(first), current_segments(second), strict=True
    ):
        (first_segment,), (second_segment,) = (
            current_segments([first_segment]),
            current_segments([second_segment]),
        )
        if first_segment is not second_segment:
            first_segment.makers |= second_segment.makers
            first_segment.stops |= second_segment.stops
            second_segment.parts = (first_segment,)


def _borders(segments: Segments) -> list[int]:
    return list(accumulate(segment.count for segment in current_segments(segments)))


@dataclass(frozen=True)
class OpWithChannels(Op):
    """A node with the channels that it reads.

    Attributes:
        channels: of each input; None where it is a constant or has none.
    """

    channels: tuple[Segments | None, ...]

    @property
    def data(self) -> Segments:
        """The channels of input 0."""
        segments = self.channels[0]
        assert segments is not None
        return segments

    @property
    def rank(self) -> int:
        """The rank of the tensors that have channels; 0 if it is not known."""
        pairs = zip(self.shapes, self.channels, strict=True)
        return max((len(shape) for shape, segments in pairs if segments and shape), default=0)

    def constant(self, index: int) -> Constant:
        """Return an input that is a constant (`PaddingRule.constants`)."""
        value = self.node.inputs[index]
        constant = None if value is None else self.document.constant(value)
        assert isinstance(constant, Constant)
        return constant

    def array(self, index: int) -> Array:
        """Return the numbers of an input that is a constant."""
        return self.document.read(self.constant(index))


@dataclass(frozen=True)
class OpInPadding(OpWithChannels):
    """A node whose tensors have padded layouts.

    Attributes:
        inputs: the layout of each input; None where it has no channels.
        outputs: the layout of each output.
        paddings: the number in the padding of each input, of its element type; None where there
            is no padding.
        zeros: whether the padding of each input is 0 by sums and products alone (`makes_zeros`).
    """

    inputs: tuple[PaddedLayout | None, ...]
    outputs: tuple[PaddedLayout, ...]
    paddings: tuple[Array | None, ...]
    zeros: tuple[bool, ...]

    @property
    def padding(self) -> Array | None:
        """The number in the padding of input 0."""
        return self.paddings[0]

    def makes_zeros(self, padding: Array | None) -> bool:
        """Check whether `padding`, which the op makes, is 0 by sums and products alone.

        The proof knows only such zeros. To it, a zero by any other function may be any number.
        """
        name = self.node.op_type
        if padding is None or padding != 0 or name in DECIDING:
            return False
        pairs = zip(self.zeros, self.paddings, strict=True)
        operands = [zero for zero, number in pairs if number is not None]
        quantifier = any if name in ("Div", "Mul") else all
        return name in WRITING_ZEROS or quantifier(operands)

    @property
    def zero(self) -> Array:
        """A zero of the element type of input 0."""
        value = self.node.inputs[0]
        assert value is not None
        kind = self.document.element_type(self.document.main, value.name or "")
        return np.zeros((), helper.tensor_dtype_to_np_dtype(kind) if kind else np.float32)

    def apply_to_padding(self, operands: Sequence[Array | None]) -> Array | Refusal:
        """Return what the op makes of single numbers, if it is finite."""
        name = self.node.op_type
        # NumPy before 2.0 computes with arrays of rank 0 as with Python's numbers, in float64.
        vectors = [None if array is None else array.reshape(1) for array in operands]
        try:
            results = run_reference(message_of(self.node), vectors, self.document.opset)
        except ValueError:
            results = None
        if not results or results[0].size != 1:
            return Refusal(Code.PADDING_UNKNOWN, f"what {name} makes of padding is not known")
        result = results[0].reshape(())
        if not np.isfinite(result.astype(np.float64)):
            return Refusal(Code.PADDING_NOT_FINITE, f"{name} makes {result} of padding")
        return result


@dataclass(frozen=True)
class PaddedOp:
    """A node on padded tensors.

    Attributes:
        padding: the number in the padding of its outputs; None where they have none.
        constants: new numbers for inputs, by index; padded tensors replace the data, and all other
            inputs stay.
        attributes: new attributes, by name; None takes one away, and all others stay.
        vanishes: whether it only returns its padded input.
    """

    padding: Array | None
    constants: Mapping[int, Array] = field(default_factory=dict)
    attributes: Mapping[str, Attribute | None] = field(default_factory=dict)
    vanishes: bool = False


class PaddingRule(NamedTuple):
    """The effect of an operator on padded channels.

    Attributes:
        relate: ties the channels of its inputs together and returns those of its outputs; or says
            why none of them can be padded.
        pad: returns the node on padded tensors, or why there is none.
        constants: the inputs that must be constants.
    """

    relate: Callable[[OpWithChannels], Sequence[Segments] | Refusal]
    pad: Callable[[OpInPadding], PaddedOp | Refusal]
    constants: slice = slice(0)
