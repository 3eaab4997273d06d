"""Find the tensors of a graph that can be padded, and the nodes that prevent it for others.

Every Conv makes a segment of channels. Ops pass segments on, cut and merge them (`PADDING`). A
segment can be padded if all of its makers can write zeros, and everything that reads it takes
padding. A segment ends at a dense Conv, and another begins there: rows and columns of its weight
are padded independently. At a multiple of 4:

    before:  x - Conv 3 -> 6 - Relu [N, 6, ...] - Conv 6 -> 6 - y
    after:   x - Conv 3 -> 8 - Relu [N, 8, ...] - Conv 8 -> 6 - y

Rows 6 and 7 of the first weight are zero, and columns 6 and 7 of the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from widthfold_onnx.algebra.layouts import PaddedLayout
from widthfold_onnx.arrays import Array, Dims, connected, round_up
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.op import IN_A_BODY, MULTI_INPUT, OUTPUT, SAME_NAME, rule_problem
from widthfold_onnx.rules.padding.channels import (
    CHANNELS,
    OpInPadding,
    OpWithChannels,
    PaddedOp,
    Segment,
    Segments,
    current_segments,
)
from widthfold_onnx.rules.padding.operators import PADDING, UNKNOWN_CHANNELS

UNPADDED_OPERAND = Refusal(Code.NOT_PACKED, "it reads a tensor that is not padded, too")


@dataclass(frozen=True)
class ChannelPadding:
    """The padding of the channels of a graph; nothing is changed yet.

    Attributes:
        layouts: of the tensors that are padded.
        nodes: the nodes that read or write them, in running order, on padded tensors.
        maker_layouts: the padded layouts of the channels that nodes make.
        chains: the nodes of `maker_layouts` by chain.
        refused: by node whose channels cannot be padded: the nodes that prevent it, and why.
    """

    layouts: Mapping[Value, PaddedLayout]
    nodes: Mapping[Node, PaddedOp]
    maker_layouts: Mapping[Node, PaddedLayout]
    chains: Sequence[Sequence[Node]]
    refused: Mapping[Node, Mapping[Node, Refusal]]


class Chains:
    """The chains of the main graph of a model: the channels of its tensors, as segments."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._channels: dict[Value, Segments] = {}
        for node in document.main:
            channels = self._output_channels(node)
            if isinstance(channels, Refusal):
                self._stop(node, channels)
            else:
                self._channels |= dict(zip(node.outputs, channels, strict=False))
        for value, segments in self._channels.items():
            maker = value.producer()
            if maker is not None and document.must_stay(value):
                _stop_segments(segments, maker, OUTPUT)
            for user, _ in value.uses():
                if user.graph is not document.main:
                    _stop_segments(segments, user, IN_A_BODY)

    def plan(self, multiple: int, makers: Set[Node] | None = None) -> ChannelPadding:
        """Plan the padding of all channels that can be padded to a multiple.

        Args:
            multiple: divides the padded channels of every segment.
            makers: pad only channels of these nodes; None for all. Channels that several nodes
                make are padded if all of them are named.
        """
        nodes = None
        while nodes is None:
            targets = self._targets(multiple, makers)
            widths = {segment: width for segment, width in targets.items() if not segment.stops}
            layouts = {value: _layout(parts, widths) for value, parts in self._channels.items()}
            layouts = {value: layout for value, layout in layouts.items() if layout.is_padded}
            nodes = self._nodes(layouts, widths)
        refused: dict[Node, dict[Node, Refusal]] = {}
        padded_makers: set[Node] = set()
        for segment, width in targets.items():
            if width > segment.count and segment.stops:
                for maker in segment.makers:
                    refused.setdefault(maker, {}).update(segment.stops)
            elif width > segment.count:
                padded_makers |= segment.makers.keys()
        maker_layouts = {node: layouts[node.outputs[0]] for node in nodes if node in padded_makers}
        sharing: dict[Value, list[Node]] = defaultdict(list)
        for node in nodes:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value in layouts:
                    sharing[value].append(node)
        groups = connected([*([node] for node in nodes), *sharing.values()])
        return ChannelPadding(
            layouts,
            nodes,
            maker_layouts,
            [[node for node in group if node in padded_makers] for group in groups],
            refused,
        )

    def _targets(self, multiple: int, makers: Set[Node] | None) -> dict[Segment, int]:
        """Return the padded width of every segment that these nodes make."""
        segments = chain.from_iterable(map(current_segments, self._channels.values()))
        return {
            segment: round_up(segment.count, multiple)
            for segment in dict.fromkeys(segments)
            if segment.makers and (makers is None or segment.makers.keys() <= makers)
        }

    def _nodes(
        self, layouts: Mapping[Value, PaddedLayout], widths: Mapping[Segment, int]
    ) -> dict[Node, PaddedOp] | None:
        """Return the nodes on padded tensors.

        None if a node refuses: its segments are stopped then, and the rest must be planned anew.
        """
        nodes: dict[Node, PaddedOp] = {}
        paddings: dict[Value, Array | None] = {}
        zeros: set[Value] = set()
        for node in self._document.main:
            values = (*node.inputs, *node.outputs)
            if not any(value in layouts for value in values):
                continue
            op_with_channels = self._op(node)
            op = OpInPadding(
                **vars(op_with_channels),
                inputs=tuple(
                    None if segments is None else _layout(segments, widths)
                    for segments in op_with_channels.channels
                ),
                outputs=tuple(_layout(self._channels[value], widths) for value in node.outputs),
                paddings=tuple(
                    paddings.get(value) if value is not None else None for value in node.inputs
                ),
                zeros=tuple(value in zeros for value in node.inputs),
            )
            result = PADDING[node.op_type].pad(op)
            if isinstance(result, Refusal):
                self._stop(node, result)
                for value in node.outputs:
                    _stop_segments(self._channels[value], node, result)
                return None
            nodes[node] = result
            if op.makes_zeros(result.padding):
                zeros |= {*node.outputs}
            paddings |= dict.fromkeys((v for v in node.outputs if v in layouts), result.padding)
        return nodes

    def _stop(self, node: Node, refusal: Refusal) -> None:
        """Stop the segments that a node reads."""
        for value in node.inputs:
            if value is not None and value in self._channels:
                _stop_segments(self._channels[value], node, refusal)

    def _op(self, node: Node) -> OpWithChannels:
        values = node.inputs
        return OpWithChannels(
            self._document,
            node,
            tuple(None if value is None else self._shape(value) for value in values),
            tuple(None if value is None else self._segments(value, node) for value in values),
        )

    def _shape(self, value: Value) -> Dims | None:
        return self._document.dims(self._document.main, value)

    def _output_channels(self, node: Node) -> Sequence[Segments] | Refusal:
        is_linear = is_default(node, "Conv", "ConvTranspose")
        if not is_linear and not any(value in self._channels for value in node.inputs):
            return []
        if not self._document.has_own_name(node):
            return SAME_NAME  # plans name makers, and a new node gets the name of the old one
        op = self._op(node)
        problem = rule_problem(op, PADDING, "no rule pads {}")
        if problem is not None:
            return problem
        if not is_linear and op.channels[0] is None and node.op_type not in MULTI_INPUT:
            return UNKNOWN_CHANNELS
        rule = PADDING[node.op_type]
        for value in node.inputs[rule.constants]:
            constant = None if value is None else self._document.constant(value)
            if isinstance(constant, Refusal):
                return constant
        channels = rule.relate(op)
        if not isinstance(channels, Refusal) and len(channels) != len(node.outputs):
            return Refusal(Code.MORE_OUTPUTS, f"{node.op_type} has {len(node.outputs)} outputs")
        return channels

    def _segments(self, value: Value, reader: Node) -> Segments | None:
        """Return the channels of a tensor; None of a constant, or where they are not known."""
        if value in self._channels:
            return self._channels[value]
        dims = self._shape(value)
        is_constant = not isinstance(self._document.constant(value), Refusal)
        count = dims[CHANNELS] if dims is not None and len(dims) > CHANNELS + 1 else None
        if is_constant or not count:
            return None
        return (Segment(count, stops={reader: UNPADDED_OPERAND}),)


def _stop_segments(segments: Segments, node: Node, refusal: Refusal) -> None:
    for segment in current_segments(segments):
        segment.stops.setdefault(node, refusal)


def _layout(segments: Segments, widths: Mapping[Segment, int]) -> PaddedLayout:
    return PaddedLayout(
        tuple(
            (segment.count, widths.get(segment, segment.count))
            for segment in current_segments(segments)
        )
    )
