"""Write a Slice behind a Conv as smaller pads of the Conv, and a Pad before it as larger ones.

Causal nets (a TCN, a WaveNet, the decoders of EnCodec) pad both ends of an axis and cut one off
again. The Slice is a copy, and the Conv computes positions that it takes away. With b positions
taken away at the beginning of an axis and e at its end, of a Conv of stride s:

    Conv           pad_begin - s * b     pad_end - s * e     as long as neither is below 0
    ConvTranspose  pad_begin + b         pad_end + e

With a kernel of 3:

    before:  x [N, C, L] - Conv, pads (2, 2) - [N, O, L + 2] - Relu - Slice [: -2] - y [N, O, L]
    after:   x [N, C, L] - Conv, pads (2, 0) - [N, O, L] ----- Relu ---------------- y [N, O, L]

Matches: a Conv or ConvTranspose that is followed by one or several Slices of spatial axes with
    steps of 1. Each op between acts on each element alone, or is a Squeeze or Unsqueeze; nothing
    else reads their results. Bounds are constant, or follow from extents (`lengths`). Also a Conv
    that reads the result of a Pad of spatial axes with zeros.
Rewrites: to the Conv with other pads, with copies of the ops between. A Slice still removes the
    positions that no pad can remove.
Exact: each remaining position reads the same elements as before, zeros included. A runtime may add
    up in another order. The new pads are right at every extent of an open axis: those at the end do
    not depend on what the stride leaves unread, and at the smallest extent at which the Conv runs
    at least one position is left. An open extent is at least 1.
Refuses: bounds that depend on the size, a Slice that takes more than pads of the Conv give, and
    extents at which nothing would be left.
Leaves alone: operands from a DequantizeLinear, which a runtime may compute in integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.model.document import Attributes, Document, Node, Value, constant_of, input_of
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.model.shapes.arithmetic import BROADCAST_OPSET
from widthfold_onnx.operators.base import int_attribute
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.companions.companion import Exchange, NodeSpec, Operand
from widthfold_onnx.rules.companions.lengths import (
    Lengths,
    Trim,
    conv_axes,
    trims,
)
from widthfold_onnx.rules.op import BOUNDS_OPSET, BROADCASTING, UNARY, as_inputs, statistics_problem
from widthfold_onnx.rules.quantization import dequantizer

POINTWISE = UNARY | BROADCASTING | {"BatchNormalization", "Clip"}

AXES_OPSET = 13
"""First operator set in which a Squeeze or Unsqueeze is given its axes as an input."""

END = (1 << 63) - 1
"""The end of a Slice that takes nothing away there."""

MAX_BEHIND = 32
"""Nodes that are followed from a Shape to the bounds of a Slice."""

NEW_AXIS = -1
"""Stands for an axis that an Unsqueeze added, which is no axis of the layer's result."""

NO_TRIM = Trim(0, 0)
NO_PADS = Refusal(Code.NO_PADS, "the Slice takes away what no pad of the layer adds")
DEPENDS = Refusal(
    Code.UNKNOWN_EXTENT, "how much the Slice takes away depends on an extent that is not known"
)
EMPTY = Refusal(
    Code.EMPTY_TENSOR, "at the smallest extent at which the layer runs, the Slice leaves nothing"
)


def crop(document: Document, node: Node) -> Exchange | Refusal | None:
    """Return the Conv with other pads, and the ops up to the last Slice that the pads replace."""
    if document.opset < BROADCAST_OPSET or any(map(dequantizer, node.inputs)):
        return None
    lengths = Lengths.around(document, node)
    axes = conv_axes(lengths, node)
    if axes is None or int_attribute(node, "output_shape", []):
        return None
    signal, merged_axes = _merge_pad(lengths, node, axes)
    is_transposed = node.op_type != "Conv"
    cropped_axes = [_CroppedAxis.of(a, is_transposed=is_transposed) for a in merged_axes]
    tail = _tail(lengths, node, cropped_axes)
    if not isinstance(tail, _Tail):
        if signal is node.inputs[0]:
            return tail
        tail = _Tail(node, tuple(cropped_axes), ())
    attributes = _attributes(node, [cropped_axis.axis for cropped_axis in tail.cropped_axes])
    conv = NodeSpec(node.op_type, (signal, *node.inputs[1:]), attributes, node)
    return Exchange(tail.end, (conv, *tail.nodes))


@dataclass(frozen=True)
class _CroppedAxis:
    """A spatial axis of a layer that may lose positions of its result.

    Attributes:
        axis: the axis, with the pads that are left.
        spare: positions that it can lose at the smallest extent at which the layer runs.
        is_transposed: whether the layer is a ConvTranspose, whose pads can take away any number.
    """

    axis: ConvAxis
    spare: int
    is_transposed: bool

    @classmethod
    def of(cls, axis: ConvAxis, *, is_transposed: bool) -> _CroppedAxis:
        """Return an axis before anything is taken away."""
        overhang = axis.dilation * (axis.kernel - 1) - axis.pad_begin - axis.pad_end
        least = axis.length or max(1, -(-overhang // axis.base_dilation) + 1)
        extent = replace(axis, length=least).out_length
        assert extent is not None
        return cls(axis, extent - 1, is_transposed)

    def absorb(self, trim: Trim) -> tuple[_CroppedAxis, Trim]:
        """Take positions away as far as the pads allow; return the remaining trim."""
        axis, stride = self.axis, self.axis.stride
        begin, end = min(trim.begin, self.spare), trim.end
        if not self.is_transposed:
            begin = min(begin, axis.pad_begin // stride)
            end = min(end, (axis.pad_end + self._unread_positions) // stride)
        end = min(end, self.spare - begin)
        pads = axis.pad_begin - stride * begin, axis.pad_end - stride * end
        last = pads[1] if self.is_transposed else max(0, pads[1])
        new_axis = replace(axis, pad_begin=pads[0], pad_end=last)
        remaining = Trim(trim.begin - begin, trim.end - end)
        return replace(self, axis=new_axis, spare=self.spare - begin - end), remaining

    @property
    def _unread_positions(self) -> int:
        """Positions that could be added at the end before the result had one more."""
        if self.axis.length is None:
            return 0
        reach = self.axis.dilation * (self.axis.kernel - 1)
        padded_length = self.axis.length + self.axis.pad_begin + self.axis.pad_end
        return self.axis.stride - 1 - (padded_length - 1 - reach) % self.axis.stride


@dataclass(frozen=True)
class _Tail:
    """The ops behind a layer that are copied.

    Attributes:
        end: the last node that is replaced.
        cropped_axes: the axes of the new layer.
        nodes: the copies; the first one reads the new layer.
    """

    end: Node
    cropped_axes: tuple[_CroppedAxis, ...]
    nodes: tuple[NodeSpec, ...]


def _tail(
    lengths: Lengths, conv: Node, cropped_axes: Sequence[_CroppedAxis]
) -> _Tail | Refusal | None:
    """Return the ops up to the last Slice that pads take over; None if no Slice follows."""
    result: _Tail | Refusal | None = None
    layer_axes = list(range(len(cropped_axes) + 2))  # the axis of the layer's result, for each axis
    value = conv.outputs[0]
    nodes = list[NodeSpec]()
    pending_slices = set[Node]()
    while (reader := _reader(lengths.document, value, pending_slices)) is not None:
        if is_default(reader, "Slice"):
            absorption = _absorb(lengths, reader, layer_axes, cropped_axes)
            if absorption is None or isinstance(absorption, Refusal):
                return result or absorption
            cropped_axes, remainders = absorption
            if remainders:
                nodes.append(_slice(lengths.document, len(nodes), reader, remainders))
            pending_slices.discard(reader)
            if not pending_slices:
                result = _Tail(reader, tuple(cropped_axes), tuple(nodes))
            if remainders:
                return result
        else:
            layer_axes = _layer_axes(lengths, reader, value, layer_axes)
            if not layer_axes:
                return result
            inputs = tuple(len(nodes) if v is value else v for v in reader.inputs)
            nodes.append(NodeSpec(reader.op_type, inputs, reader.attributes, reader))
        value = reader.outputs[0]
    return result


def _reader(document: Document, value: Value, pending_slices: set[Node]) -> Node | None:
    """Return the operator of the same graph that alone reads a value, if it has one output.

    A Shape may read the value, too, if nothing but the bounds of Slices follows from it: these
    Slices are added to `pending_slices`, and must become pads.
    """
    users = [user for user, _ in value.uses()]
    maker = value.producer()
    shapes = [user for user in users if is_default(user, "Shape")]
    if len(users) - len(shapes) != 1 or maker is None or document.must_stay(value):
        return None
    (reader,) = (user for user in users if user not in shapes)
    for node in shapes:  # the loop appends to it
        if len(shapes) > MAX_BEHIND or any(map(document.must_stay, node.outputs)):
            return None
        for user, index in (use for output in node.outputs for use in output.uses()):
            if is_default(user, "Slice") and index:
                pending_slices.add(user)
            else:
                shapes.append(user)
    is_plain = reader.graph is maker.graph and len(reader.outputs) == 1
    return reader if is_plain and not reader.device_configurations else None


def _layer_axes(lengths: Lengths, node: Node, value: Value, layer_axes: list[int]) -> list[int]:
    """Return the axis of the layer's result for each axis of an op's result.

    [] if the op may not stand between the layer and a Slice.
    """
    if is_default(node, "Squeeze", "Unsqueeze"):
        return _reshape_axes(lengths, node, layer_axes)
    if not is_default(node, *POINTWISE):
        return []
    if node.op_type == "BatchNormalization":
        return layer_axes if statistics_problem(node) is None and layer_axes[1] == 1 else []
    if node.op_type in BROADCASTING:
        constants = [constant_of(lengths.document, v) for v in node.inputs if v is not value]
        for constant in constants:
            if constant is None or len(constant.shape) > len(layer_axes):
                return []
            pairs = zip(reversed(constant.shape), reversed(layer_axes), strict=False)
            if any(extent != 1 and layer_axis not in (0, 1) for extent, layer_axis in pairs):
                return []
    return layer_axes


def _reshape_axes(lengths: Lengths, node: Node, layer_axes: list[int]) -> list[int]:
    """Return what `_layer_axes` does for a Squeeze or Unsqueeze, [] if its axes are not known."""
    numbers: Sequence[int | None] = int_attribute(node, "axes", [])
    if lengths.document.opset >= AXES_OPSET:
        numbers = lengths.numbers(input_of(node, 1))
    axes = [axis for axis in numbers if axis is not None]
    if not axes or len(axes) < len(numbers):
        return []
    if node.op_type == "Squeeze":
        squeezed_axes = {axis % len(layer_axes) for axis in axes}
        return [layer_axis for i, layer_axis in enumerate(layer_axes) if i not in squeezed_axes]
    rank = len(layer_axes) + len(axes)
    old_axes = iter(layer_axes)
    new_axes = {axis % rank for axis in axes}
    return [NEW_AXIS if i in new_axes else next(old_axes) for i in range(rank)]


def _absorb(
    lengths: Lengths, node: Node, layer_axes: Sequence[int], cropped_axes: Sequence[_CroppedAxis]
) -> tuple[Sequence[_CroppedAxis], Mapping[int, Trim]] | Refusal | None:
    """Let the pads of the layer take away as much of what a Slice takes away as they can.

    Args:
        lengths: the extents around it.
        node: the Slice.
        layer_axes: the axis of the layer's result, for each axis that the Slice reads.
        cropped_axes: the axes of the layer.

    Returns:
        The axes of the new layer, and the remaining trim, by axis of the Slice; None if
        it takes nothing away along an axis of the layer.
    """
    trim_of = trims(lengths, node) or {}
    spatial = {axis: layer_axes[axis] - 2 for axis in trim_of if layer_axes[axis] >= 2}
    if all(trim_of[axis] == NO_TRIM for axis in spatial):
        return None
    new_axes = list(cropped_axes)
    remainders = {}
    for axis, trim in trim_of.items():
        if trim is None:
            return DEPENDS
        remainders[axis] = trim
        if (index := spatial.get(axis)) is not None:
            new_axes[index], remainders[axis] = new_axes[index].absorb(trim)
    if new_axes == list(cropped_axes):
        is_empty = any(cropped_axes[index].spare < 1 for index in spatial.values())
        return EMPTY if is_empty else NO_PADS
    return new_axes, {axis: trim for axis, trim in remainders.items() if trim != NO_TRIM}


def _slice(document: Document, data: int, node: Node, remainders: Mapping[int, Trim]) -> NodeSpec:
    """Return the Slice that takes away the positions that no pad could."""
    bounds = {
        "starts": [trim.begin for trim in remainders.values()],
        "ends": [-trim.end or END for trim in remainders.values()],
        "axes": list(remainders),
    }
    inputs, attributes = as_inputs(document, BOUNDS_OPSET, bounds)
    numbers = (np.array(vector, np.int64) for vector in inputs.values())
    return NodeSpec("Slice", (data, *numbers), attributes, node)


def _merge_pad(
    lengths: Lengths, conv: Node, axes: Sequence[ConvAxis]
) -> tuple[Operand, Sequence[ConvAxis]]:
    """Merge a Pad of zeros into the Conv that reads it: return its new data, and its axes.

    Both stay as they are if there is no such Pad.
    """
    signal = conv.inputs[0]
    assert signal is not None
    pad = signal.producer()
    rank = len(axes) + 2
    if conv.op_type != "Conv" or pad is None or not is_default(pad, "Pad"):
        return signal, axes
    dims = lengths.dims(pad.inputs[0])
    pads = _zeros(lengths, pad, rank)
    is_apart = pad.graph is not conv.graph or dequantizer(pad.inputs[0]) is not None
    if is_apart or dims is None or pads is None or pads[:2] != [(0, 0)] * 2:
        return signal, axes
    if 0 in dims:  # ONNX Runtime pads an empty tensor, and refuses a Conv that reads one
        return signal, axes
    return pad.inputs[0], [
        replace(
            axis,
            length=length,
            pad_begin=axis.pad_begin + begin,
            pad_end=axis.pad_end + end,
        )
        for axis, length, (begin, end) in zip(axes, dims[2:], pads[2:], strict=True)
    ]


def _zeros(lengths: Lengths, pad: Node, rank: int) -> list[tuple[int, int]] | None:
    """Return the zeros that a Pad adds before and behind each axis, None if it adds no zeros."""
    if pad.attributes.get_string("mode", "constant") != "constant":
        return None
    vector = input_of(pad, 1)
    if vector is None:
        number = pad.attributes.get_float("value", 0.0)
        numbers: Sequence[int | None] = int_attribute(pad, "pads", [])
        axes: Sequence[int | None] = range(rank)
    else:
        fill = input_of(pad, 2)
        constant = None if fill is None else constant_of(lengths.document, fill)
        if fill is not None and (constant is None or len(constant.shape) > 1):
            return None
        number = 0.0 if constant is None else float(lengths.document.read(constant).item())
        numbers, axes_input = lengths.numbers(vector), input_of(pad, 3)
        axes = range(rank) if axes_input is None else lengths.numbers(axes_input)
    pads = [n for n in numbers if n is not None and n >= 0]
    padded_axes = [axis % rank for axis in axes if axis is not None]
    if (
        number
        or np.signbit(number)
        or len(pads) != 2 * len(padded_axes)
        or len(pads) < len(numbers)
    ):
        return None
    sides = dict(zip(padded_axes, zip(pads, pads[len(padded_axes) :], strict=False), strict=True))
    return [sides.get(axis, (0, 0)) for axis in range(rank)]


def _attributes(node: Node, axes: Sequence[ConvAxis]) -> Attributes:
    """Return the attributes of a layer with explicit pads of these axes."""
    attributes = {n: a for n, a in node.attributes.items() if n not in ("auto_pad", "pads")}
    if node.op_type == "Conv":
        begins, ends = ([getattr(a, side) for a in axes] for side in ("pad_begin", "pad_end"))
        return {**attributes, "pads": [*begins, *ends]}
    output_padding = int_attribute(node, "output_padding", [0] * len(axes))
    reaches = [axis.dilation * (axis.kernel - 1) for axis in axes]
    begins = [reach - axis.pad_begin for reach, axis in zip(reaches, axes, strict=True)]
    ends = [r - a.pad_end + n for r, a, n in zip(reaches, axes, output_padding, strict=True)]
    return {**attributes, "pads": [*begins, *ends]}
