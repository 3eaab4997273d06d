"""Choose the ops between folded nodes that run on packed tensors, so that packing is paid once.

    each by itself:  x - pack - Conv' - unpack - Relu - pack - Conv' - unpack - y
    one region:      x - pack - Conv' ---------- Relu -------- Conv' - unpack - y
                                              +- unpack - a reader of the logical tensor

1. Every op that can run packed does: one of its inputs comes from a folded or packed node, and its
   other data is available in the same layout.
2. An op becomes logical again if moves copy more elements while it runs packed. This is tried in
   reverse order, where a tie makes the op logical. So an op does not stay packed only because the
   ops behind it are packed. Then it is tried in order, where a tie keeps the op packed, because
   the runtime fuses a folded node only with its neighbours.

A DequantizeLinear is free: a copy stands before each reader, in the layout in which that reader
reads. So its result is in the layout of its integers.

Two nodes belong to one region if one reads a packed tensor that the other returns, or if both read
one value in one layout. A region stops at a node that reads such a value in another layout, and at
a folded node whose own output is not packed; `region_reports` gives each such stop its reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.arrays import Dims, connected
from widthfold_onnx.model.document import (
    Document,
    Node,
    Value,
    constant_of,
    first_output,
    input_of,
)
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import RegionReport, Stop
from widthfold_onnx.rules.form import Ends, nominal_size
from widthfold_onnx.rules.op import IN_A_BODY, OUTPUT
from widthfold_onnx.rules.propagation import OpInLayout, PackedOp, propagate

PackedTensor = tuple[Value, PackedLayout]


@dataclass(eq=False)
class Regions:
    """The folded nodes of one graph, and the ops that run packed between them.

    It changes while `of` chooses the ops, and not any more after that.

    Attributes:
        document: the model.
        nodes: all nodes of the graph, in an order in which they can run.
        ends_of: the two ends of the form of each node that is folded.
        sources: the integers that every DequantizeLinear reads, by its result.
        packed_ops: the ops that run on packed tensors.
        refusals: why other ops that read a packed tensor cannot run on it.
        dequantized: the DequantizeLinear that run on packed tensors, by result and layout.
        shapes: logical extents of every tensor, by each layout that it has or could have; a layout
            fixes the extents of the axes that it folds, others may be open.
        output_layouts: the layout of each output; None is logical. Results of DequantizeLinear are
            in `dequantized`.
        folded_data: tensors that folded nodes read in a layout.
    """

    document: Document
    nodes: Sequence[Node]
    ends_of: Mapping[Node, Ends]
    sources: Mapping[Value, Value]
    packed_ops: dict[Node, PackedOp] = field(default_factory=dict)
    refusals: dict[Node, Refusal] = field(default_factory=dict)
    dequantized: dict[PackedTensor, PackedOp] = field(default_factory=dict)
    shapes: dict[PackedTensor, Dims] = field(default_factory=dict)
    output_layouts: dict[Value, PackedLayout | None] = field(default_factory=dict)
    folded_data: set[PackedTensor] = field(default_factory=set)

    @classmethod
    def of(cls, document: Document, nodes: Sequence[Node], ends_of: Mapping[Node, Ends]) -> Regions:
        """Choose the ops that run packed; see the attributes."""
        regions = cls(document, nodes, ends_of, _sources(nodes))
        regions._choose_ops()
        return regions

    def made_in(self, value: Value | None) -> PackedLayout | None:
        """Return the layout in which a value is made; None for logical."""
        if value is None:
            return None
        source = self.sources.get(value)
        if source is None:
            return self.output_layouts.get(value)
        layout = self.output_layouts.get(source)
        return layout if layout is not None and (value, layout) in self.dequantized else None

    def read_in(self, value: Value) -> set[PackedLayout | None]:
        """Return the layouts in which a value is read; None for logical."""
        layouts: set[PackedLayout | None] = {None} if self.document.must_stay(value) else set()
        for node, index in value.uses():
            result = first_output(node)
            if result is not None and self.sources.get(result) is value and index == 0:
                # A result that nobody reads is logical.
                reads = self.read_in(result) or {None}
                layouts |= {
                    layout if layout and (result, layout) in self.dequantized else None
                    for layout in reads
                }
            else:
                layouts.add(self.input_layout(node, index))
        return layouts

    def input_layout(self, node: Node, index: int) -> PackedLayout | None:
        """Return the layout in which a node reads an input; None for logical."""
        op, ends = self.packed_ops.get(node), self.ends_of.get(node)
        if op is not None:
            return op.layout if op.reads_packed(index) else None
        return ends.input_layout if ends is not None and index == ends.data_index else None

    def packed_tensors(self, node: Node) -> list[PackedTensor]:
        """Return the packed tensors that a folded or packed node reads and returns."""
        tensors = [(v, self.input_layout(node, index)) for index, v in enumerate(node.inputs)]
        tensors += [(value, self.output_layouts.get(value)) for value in node.outputs]
        return [(value, layout) for value, layout in tensors if value and layout]

    def node_groups(self) -> list[tuple[Node, ...]]:
        """Return the groups of folded and packed nodes that share packed tensors, in order."""
        order = {
            n: i for i, n in enumerate(self.nodes) if n in self.ends_of or n in self.packed_ops
        }
        sharing: dict[PackedTensor, list[Node]] = defaultdict(list)
        for node in order:
            for value, layout in self.packed_tensors(node):
                # A DequantizeLinear stands between its integers and its readers.
                sharing[self.stored_value(value, layout), layout].append(node)
        groups = connected([*([node] for node in order), *sharing.values()])
        return [tuple(sorted(group, key=order.__getitem__)) for group in groups]

    def is_superseded(self, node: Node) -> bool:
        """Check whether the result of a DequantizeLinear is read in packed layouts only."""
        result = first_output(node)
        if result is None or result not in self.sources:
            return False
        layouts = self.read_in(result)
        return bool(layouts) and all(
            layout and (result, layout) in self.dequantized for layout in layouts
        )

    def stored_value(self, value: Value, layout: PackedLayout) -> Value:
        """Return the integers of a value that is dequantized in a layout, else the value."""
        return self.sources[value] if (value, layout) in self.dequantized else value

    def values_in(self, value: Value, layout: PackedLayout) -> list[Value]:
        """Return a value in a layout, and the values that are dequantized from it there."""
        results = [result for user, _ in value.uses() for result in user.outputs[:1]]
        return [
            value,
            *(r for r in results if r in self.sources and self.stored_value(r, layout) is value),
        ]

    def signed_quantization(self, value: Value, layout: PackedLayout) -> tuple[Value, Value] | None:
        """Return scale and zero point of signed bytes between (de)quantizers in a layout, or None.

        ONNX Runtime on x86 computes in integers with unsigned bytes only, and converts signed ones
        where a QuantizeLinear stands right before a DequantizeLinear (qdq_s8_to_u8.cc). So such
        bytes are not moved between the two: they are dequantized, moved and quantized again.
        """
        maker = value.producer()
        node = maker if maker in self.packed_ops else None
        for user, _ in value.uses():
            result = first_output(user)
            if result is None or (result, layout) not in self.dequantized:
                continue
            if self.sources.get(result) is value:
                node = user
        if node is None or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return None
        scale, zero = input_of(node, 1), input_of(node, 2)
        step, offset = (constant_of(self.document, constant) for constant in (scale, zero))
        if scale is None or zero is None or step is None or offset is None:
            return None
        has_one_each = math.prod(offset.shape) == math.prod(step.shape) == 1
        return (scale, zero) if has_one_each and offset.dtype == "INT8" else None

    def _choose_ops(self) -> None:
        """Let every op run packed that can, then make those logical whose moves cost more."""
        for node, ends in self.ends_of.items():
            self._record_folded(node, ends)
        for node in self.nodes:
            if node not in self.ends_of:
                self._propagate_through(node)
        packed_ops = list(self.packed_ops.items())
        for node, _ in reversed(packed_ops):
            self._try_choice(node, None)
        for node, packed_op in packed_ops:
            if any(self.made_in(value) == packed_op.layout for value in node.inputs):
                self._try_choice(node, packed_op)

    def _record_folded(self, node: Node, ends: Ends) -> None:
        """Record the packed tensors that a folded node reads and returns."""
        result, data = node.outputs[0], node.inputs[ends.data_index]
        self.output_layouts[result] = ends.output_layout
        if ends.input_layout is not None and data is not None:
            self._record_dequantized(data, ends.input_layout, ends.fixed_in_shape)
            self.shapes[data, ends.input_layout] = ends.fixed_in_shape
            self.folded_data.add((data, ends.input_layout))
        if ends.output_layout is not None:
            self.shapes[result, ends.output_layout] = ends.fixed_out_shape

    def _record_dequantized(self, value: Value, layout: PackedLayout, shape: Dims) -> None:
        """Record that a DequantizeLinear makes a value in a layout, if it can."""
        source, node = self.sources.get(value), value.producer()
        if source is None or node is None:
            return
        absent_shapes = (None,) * (len(node.inputs) - 1)
        packed_op = propagate(OpInLayout(self.document, node, (shape, *absent_shapes), layout))
        if isinstance(packed_op, PackedOp):
            self.dequantized[value, layout] = packed_op
            self.shapes[source, layout] = self.shapes[value, layout] = shape
            self.folded_data.add((source, layout))

    def _propagate_through(self, node: Node) -> None:
        """Let an op run packed if it can, in the first layout of its inputs that it accepts."""
        result = first_output(node)
        if result is not None and result in self.sources:
            source = self.sources[result]
            layout = self.output_layouts.get(source)
            if layout is not None:
                self._record_dequantized(result, layout, self.shapes[source, layout])
            return
        for layout in dict.fromkeys(self.made_in(value) for value in node.inputs):
            if layout is None:
                continue
            packed_shapes = {
                i: self.shapes[value, layout]
                for i, value in enumerate(node.inputs)
                if value and (self.made_in(value) == layout or (value, layout) in self.folded_data)
            }
            shapes = tuple(packed_shapes.get(i) for i in range(len(node.inputs)))
            packed_op = propagate(OpInLayout(self.document, node, shapes, layout))
            if isinstance(packed_op, PackedOp):
                for value, shape in zip(node.outputs, packed_op.shapes, strict=True):
                    self.shapes[value, layout] = shape
                self._set(node, packed_op)
                self.refusals.pop(node, None)
                return
            self.refusals[node] = packed_op

    def _try_choice(self, node: Node, choice: PackedOp | None) -> None:
        """Let a node run as `choice` says (None: on logical tensors), unless that copies more."""
        values = {value for value in (*node.inputs, *node.outputs) if value is not None}
        values |= {self.sources[value] for value in values if value in self.sources}
        original_op = self.packed_ops.get(node)
        original_count = sum(map(self._moved_elements, values))
        self._set(node, choice)
        if sum(map(self._moved_elements, values)) > original_count:
            self._set(node, original_op)

    def _set(self, node: Node, choice: PackedOp | None) -> None:
        if choice is None:
            self.packed_ops.pop(node, None)
        else:
            self.packed_ops[node] = choice
        for value in node.outputs:
            self.output_layouts[value] = None if choice is None else choice.layout

    def _moved_elements(self, value: Value) -> int:
        """Return the number of elements copied to provide a value in all layouts that are read."""
        own_layout = self.made_in(value)
        layouts = self.read_in(value) - {own_layout}
        if value in self.sources:  # a dequantized layout is paid for by moving its integers
            layouts = {s for s in layouts if s is not None and (value, s) not in self.dequantized}
        if own_layout is not None and layouts:
            layouts |= {None, own_layout}  # every other layout is packed from the logical tensor
        shapes = [(s, self.shapes[value, s]) for s in layouts if s is not None]
        return sum(nominal_size(shape) for s, shape in shapes if not s.is_view(shape))


def _sources(nodes: Iterable[Node]) -> dict[Value, Value]:
    """Return the integers that every DequantizeLinear reads, by its result."""
    makers = [node for node in nodes if is_default(node, "DequantizeLinear")]
    return {node.outputs[0]: node.inputs[0] for node in makers if node.inputs[0] is not None}


ANOTHER_FOLD = Refusal(Code.ANOTHER_FOLD, "it is folded in another way")
MOVES_MORE = Refusal(Code.MOVES_MORE, "running it packed would copy more elements than it saves")


def region_reports(
    regions: Regions, path: str, names: Mapping[Node, str]
) -> Iterator[RegionReport]:
    """Yield the regions of a graph with their stops; a lone folded node without stops makes none.

    Args:
        regions: the folded nodes of the graph, and the ops that run packed.
        path: path of the graph.
        names: names of the folded nodes, for nodes without one.
    """

    def name(node: Node) -> str:
        first = first_output(node)
        return names.get(node) or node.name or (first and first.name) or ""

    for nodes in regions.node_groups():
        stops = dict.fromkeys(stop for node in nodes for stop in _stops(regions, node))
        if len(nodes) > 1 or stops:
            yield RegionReport(
                graph=path,
                folded=[name(node) for node in nodes if node in regions.ends_of],
                carried=[f"{n.op_type} {name(n)}" for n in nodes if n in regions.packed_ops],
                stops=[
                    Stop(node=name(n), op=n.op_type, code=r.code.value, reason=r.reason)
                    for n, r in stops
                ],
            )


def _stops(regions: Regions, node: Node) -> Iterator[tuple[Node, Refusal]]:
    """Yield the nodes that stop the packed outputs of a node, with reasons."""
    ends = regions.ends_of.get(node)
    if ends is not None and ends.logical_reason is not None:
        yield node, ends.logical_reason
    for value in node.outputs:
        layout = regions.made_in(value)
        if layout is None:
            continue
        values = regions.values_in(value, layout)
        if any(map(regions.document.must_stay, values)):
            yield node, OUTPUT
        for user, index in (use for v in values for use in v.uses()):
            if first_output(user) in values:
                continue  # a DequantizeLinear of the same region is no stop
            if user in regions.ends_of and index == regions.ends_of[user].data_index:
                if regions.ends_of[user].input_layout != layout:
                    yield user, ANOTHER_FOLD
            elif user not in regions.packed_ops or regions.packed_ops[user].layout != layout:
                is_in_body = user.graph is not node.graph
                yield user, IN_A_BODY if is_in_body else regions.refusals.get(user, MOVES_MORE)
