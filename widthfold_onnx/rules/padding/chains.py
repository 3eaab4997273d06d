"""Find the tensors of a graph that can be padded, and the nodes that prevent it for others.

Every Conv makes a run of channels. Ops carry runs on, cut and merge them (`PADDING`). A run can be
padded if all of its makers can write zeros, and everything that reads it carries padding. A dense
Conv is a border only: its rows and its columns are padded independently of each other. At a
multiple of 4:

    before:  x - Conv 3 -> 6 - Relu [N, 6, ...] - Conv 6 -> 6 - y
    after:   x - Conv 3 -> 8 - Relu [N, 8, ...] - Conv 8 -> 6 - y

Rows 6 and 7 of the first weight are zero, and columns 6 and 7 of the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from widthfold_onnx.algebra.layouts import PaddedLayout
from widthfold_onnx.arrays import Array, Dims, round_up
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.model.messages import connected
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.op import IN_A_BODY, RETURNED, rule_problem
from widthfold_onnx.rules.padding.channels import (
    CHANNELS,
    LaidOp,
    Line,
    PaddedNode,
    RelatedOp,
    Run,
    current_runs,
)
from widthfold_onnx.rules.padding.operators import PADDING
from widthfold_onnx.rules.propagation import SEVERAL

NOT_PADDED = Refusal(Code.NOT_PACKED, "it reads a tensor that is not padded, too")


@dataclass(frozen=True)
class ChannelPadding:
    """The padding of the channels of a graph; nothing is changed yet.

    Attributes:
        layouts: of the tensors that are padded.
        nodes: the nodes that read or write them, in running order, on padded tensors.
        widths: channels, and channels with padding, that nodes make.
        chains: these nodes by what joins them: padded tensors and the nodes between them.
        refused: nodes that make channels that cannot be padded: where these end, and why.
    """

    layouts: Mapping[Value, PaddedLayout]
    nodes: Mapping[Node, PaddedNode]
    widths: Mapping[Node, tuple[int, int]]
    chains: Sequence[Sequence[Node]]
    refused: Mapping[Node, Mapping[Node, Refusal]]


class Chains:
    """The chains of the main graph: the channels of its tensors, as runs.

    Args:
        document: the model.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._lines: dict[Value, Line] = {}
        for node in document.main:
            lines = self._related(node)
            if isinstance(lines, Refusal):
                self._stop(node, lines)
            else:
                self._lines |= dict(zip(node.outputs, lines, strict=False))
        for value, line in self._lines.items():
            maker = value.producer()
            if maker is not None and document.must_stay(value):
                _end(line, maker, RETURNED)
            for user, _ in value.uses():
                if user.graph is not document.main:
                    _end(line, user, IN_A_BODY)

    def plan(self, multiple: int, makers: Set[Node] | None = None) -> ChannelPadding:
        """Plan the padding of all channels that can be padded to a multiple.

        Args:
            multiple: divides the padded channels of every run.
            makers: nodes that make the channels; None for all. Channels that several nodes make
                are padded if all of these are named.
        """
        while True:
            runs = dict.fromkeys(run for line in self._lines.values() for run in current_runs(line))
            targets = {
                run: round_up(run.count, multiple)
                for run in runs
                if run.makers and (makers is None or run.makers.keys() <= makers)
            }
            widths = {run: width for run, width in targets.items() if not run.ends}
            layouts = {value: _layout(line, widths) for value, line in self._lines.items()}
            layouts = {value: layout for value, layout in layouts.items() if layout.is_padded}
            nodes = self._nodes(layouts, widths)
            if nodes is not None:
                break
        refused_runs = [run for run, width in targets.items() if run.ends and width > run.count]
        refused: dict[Node, dict[Node, Refusal]] = {}
        for run in refused_runs:
            for maker in run.makers:
                refused.setdefault(maker, {}).update(run.ends)
        padded_makers = {maker for run in widths if widths[run] > run.count for maker in run.makers}
        padded_channels = {
            node: layouts[node.outputs[0]] for node in nodes if node in padded_makers
        }
        sharing: dict[Value, list[Node]] = defaultdict(list)
        for node in nodes:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value in layouts:
                    sharing[value].append(node)
        groups = connected([*([node] for node in nodes), *sharing.values()])
        return ChannelPadding(
            layouts,
            nodes,
            {node: (layout.channels, layout.width) for node, layout in padded_channels.items()},
            [[node for node in group if node in padded_makers] for group in groups],
            refused,
        )

    def _nodes(
        self, layouts: Mapping[Value, PaddedLayout], widths: Mapping[Run, int]
    ) -> dict[Node, PaddedNode] | None:
        """Return the nodes on padded tensors; None, to start again, if a refusal ended a run."""
        nodes: dict[Node, PaddedNode] = {}
        paddings: dict[Value, Array | None] = {}
        zeros: set[Value] = set()
        for node in self._document.main:
            values = (*node.inputs, *node.outputs)
            if not any(value in layouts for value in values):
                continue
            op = self._op(node)
            laid = LaidOp(
                **vars(op),
                inputs=tuple(None if line is None else _layout(line, widths) for line in op.lines),
                outputs=tuple(_layout(self._lines[value], widths) for value in node.outputs),
                paddings=tuple(
                    paddings.get(value) if value is not None else None for value in node.inputs
                ),
                zeros=tuple(value in zeros for value in node.inputs),
            )
            result = PADDING[node.op_type].pad(laid)
            if isinstance(result, Refusal):
                self._stop(node, result)
                for value in node.outputs:
                    _end(self._lines[value], node, result)
                return None
            nodes[node] = result
            if laid.makes_zeros(result.padding):
                zeros |= {*node.outputs}
            paddings |= dict.fromkeys((v for v in node.outputs if v in layouts), result.padding)
        return nodes

    def _stop(self, node: Node, refusal: Refusal) -> None:
        """End the runs that a node reads."""
        for value in node.inputs:
            if value is not None and value in self._lines:
                _end(self._lines[value], node, refusal)

    def _op(self, node: Node) -> RelatedOp:
        values = node.inputs
        return RelatedOp(
            self._document,
            node,
            tuple(None if value is None else self._shape(value) for value in values),
            tuple(None if value is None else self._line(value, node) for value in values),
        )

    def _shape(self, value: Value) -> Dims | None:
        return self._document.shapes.get("", value.name or "")

    def _related(self, node: Node) -> Sequence[Line] | Refusal:
        is_linear = is_default(node, "Conv", "ConvTranspose")
        if not is_linear and not any(value in self._lines for value in node.inputs):
            return []
        op = self._op(node)
        problem = rule_problem(op, PADDING, "pads {}")
        if problem is not None:
            return problem
        if not is_linear and op.lines[0] is None and node.op_type not in SEVERAL:
            return Refusal(Code.UNKNOWN_SHAPE, "the channels of its input are not known")
        rule = PADDING[node.op_type]
        for value in node.inputs[rule.constants]:
            constant = None if value is None else self._document.constant(value)
            if isinstance(constant, Refusal):
                return constant
        lines = rule.relate(op)
        if not isinstance(lines, Refusal) and len(lines) != len(node.outputs):
            return Refusal(Code.MORE_OUTPUTS, f"{node.op_type} has {len(node.outputs)} outputs")
        return lines

    def _line(self, value: Value, reader: Node) -> Line | None:
        """Return the channels of a tensor; None of a constant, or where they are not known."""
        if value in self._lines:
            return self._lines[value]
        dims = self._shape(value)
        is_constant = not isinstance(self._document.constant(value), Refusal)
        count = dims[CHANNELS] if dims is not None and len(dims) > CHANNELS + 1 else None
        return None if is_constant or not count else (Run(count, ends={reader: NOT_PADDED}),)


def _end(line: Line, node: Node, refusal: Refusal) -> None:
    for run in current_runs(line):
        run.ends.setdefault(node, refusal)


def _layout(line: Line, widths: Mapping[Run, int]) -> PaddedLayout:
    return PaddedLayout(
        tuple((run.count, widths.get(run, run.count)) for run in current_runs(line))
    )
