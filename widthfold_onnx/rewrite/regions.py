"""Choose the ops between folded nodes that run on packed tensors, so that a fold is paid once.

First every op is carried that can be: one of its inputs comes from a folded or carried node, and
its other data is available in the same state. A DequantizeLinear costs nothing by itself: it stands
before each reader of its result, in the state that is read, so its result is in the state of its
integers. Then ops become natural again if carrying them moves more elements by folds and unfolds
than it saves: first in reverse order, where natural wins a tie, so that no op is kept only for the
ops behind it; then in order, where packed wins a tie, because the runtime fuses a folded node only
with its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from widthfold_onnx.fold.packed_layout import State
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.domain import is_default
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.forms.form import Ends, elements
from widthfold_onnx.rules.propagation.op import Carried, Op
from widthfold_onnx.rules.propagation.table import carry


@dataclass(frozen=True)
class Passenger:
    """An op that runs in a state; `data` are the inputs that it reads in that state."""

    state: State
    form: Carried
    data: frozenset[int]


class Region:
    """The folded nodes of one graph, and the ops that are carried between them.

    Args:
        document: the model.
        nodes: all nodes of the graph, in an order in which they can run.
        sites: the folded nodes.

    Attributes:
        nodes: the nodes of the graph.
        sites: the folded nodes.
        carried: the ops that run on packed tensors.
        refusals: why other ops that read a packed tensor cannot run on it.
        dequantized: the DequantizeLinear that run on packed tensors, by result and state.
        shapes: natural extents of every tensor, by each state that it has or could have; a state
            fixes the extents of the axes that it folds, others may be open.
    """

    def __init__(
        self, document: Document, nodes: Iterable[Node], sites: Mapping[Node, Ends]
    ) -> None:
        self.nodes = list(nodes)
        self.sites = sites
        self.carried: dict[Node, Passenger] = {}
        self.refusals: dict[Node, Refusal] = {}
        self.dequantized: dict[tuple[Value, State], Passenger] = {}
        self.shapes: dict[tuple[Value, State], Dims] = {}
        self._document = document
        self._sources = _sources(self.nodes)
        self._homes: dict[Value | None, State | None] = {}
        self._folded: set[tuple[Value, State]] = set()
        for node, ends in sites.items():
            self._homes[node.outputs[0]] = ends.returns
            data = node.inputs[ends.data]
            if ends.reads is not None and data is not None:
                self._dequantize(data, ends.reads, ends.in_shape)
                self.shapes[data, ends.reads] = ends.in_shape
                self._folded.add((data, ends.reads))
            if ends.returns is not None:
                self.shapes[node.outputs[0], ends.returns] = ends.out_shape
        for node in self.nodes:
            if node not in sites:
                self._take_along(node)
        candidates = list(self.carried.items())
        for node, _ in reversed(candidates):
            self._settle(node, None)
        for node, passenger in candidates:
            if any(self.home(value) == passenger.state for value in node.inputs):
                self._settle(node, passenger)

    def home(self, value: Value | None) -> State | None:
        """Return the state in which a value is made; None for natural."""
        source = None if value is None else self._sources.get(value)
        if value is None or source is None:
            return self._homes.get(value)
        home = self._homes.get(source)
        return home if home is not None and (value, home) in self.dequantized else None

    def is_fixed(self, value: Value) -> bool:
        """Check whether anything but nodes of the graph reads a value, so that it stays natural."""
        return self._document.is_fixed(value)

    def needed(self, value: Value) -> set[State | None]:
        """Return the states in which a value is read; None for natural."""
        states: set[State | None] = {None} if self.is_fixed(value) else set()
        for node, index in value.uses():
            passenger, site = self.carried.get(node), self.sites.get(node)
            result = node.outputs[0]
            if self._sources.get(result) is value and index == 0:
                read = self.needed(result)
                states |= {s if s and (result, s) in self.dequantized else None for s in read}
            elif passenger is not None:
                states.add(passenger.state if index in passenger.data else None)
            else:
                states.add(site.reads if site is not None and index == site.data else None)
        return states

    def is_superseded(self, node: Node) -> bool:
        """Check whether the result of a DequantizeLinear is read in packed states only."""
        states = self.needed(node.outputs[0]) if node.outputs[0] in self._sources else set()
        return bool(states) and all(s and (node.outputs[0], s) in self.dequantized for s in states)

    def origin(self, value: Value, state: State) -> Value:
        """Return the integers of a value that is dequantized in a state, else the value."""
        return self._sources[value] if (value, state) in self.dequantized else value

    def forms(self, value: Value, state: State) -> list[Value]:
        """Return a value in a state, and the values that are dequantized from it there."""
        results = [user.outputs[0] for user, _ in value.uses()]
        return [
            value,
            *(r for r in results if r in self._sources and self.origin(r, state) is value),
        ]

    def signed(self, value: Value, state: State) -> tuple[Value, Value] | None:
        """Return scale and zero point of signed bytes between (de)quantizers in a state.

        ONNX Runtime on x86 computes in integers with unsigned bytes only, and converts signed ones
        where a QuantizeLinear stands right before a DequantizeLinear (qdq_s8_to_u8.cc). So such
        bytes are not moved between the two: they are dequantized, moved and quantized again.
        """
        maker = value.producer()
        node = maker if maker in self.carried else None
        for user, _ in value.uses():
            if (user.outputs[0], state) in self.dequantized and self._sources.get(
                user.outputs[0]
            ) is value:
                node = user
        if node is None or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return None
        if len(node.inputs) < 3:
            return None
        _, scale, zero = node.inputs[:3]
        assert scale is not None
        known = None if zero is None else self._document.constant(zero)
        step = self._document.constant(scale)
        if zero is None or not isinstance(known, Constant) or not isinstance(step, Constant):
            return None
        one = math.prod(known.shape) == math.prod(step.shape) == 1
        return (scale, zero) if one and known.dtype == "INT8" else None

    def _dequantize(self, value: Value, state: State, shape: Dims) -> None:
        """Record that a DequantizeLinear makes a value in a state, if it can."""
        source, node = self._sources.get(value), value.producer()
        if source is None or node is None:
            return
        others = (None,) * (len(node.inputs) - 1)
        form = carry(Op(self._document, node, state, (shape, *others)))
        if isinstance(form, Carried):
            self.dequantized[value, state] = Passenger(state, form, frozenset({0}))
            self.shapes[source, state] = self.shapes[value, state] = shape
            self._folded.add((source, state))

    def _take_along(self, node: Node) -> None:
        """Carry a node if it can be."""
        if node.outputs[0] in self._sources:
            source = self._sources[node.outputs[0]]
            state = self._homes.get(source)
            if state is not None:
                self._dequantize(node.outputs[0], state, self.shapes[source, state])
            return
        for state in dict.fromkeys(self.home(value) for value in node.inputs):
            if state is None:
                continue
            there = {
                i: self.shapes[value, state]
                for i, value in enumerate(node.inputs)
                if value and (self.home(value) == state or (value, state) in self._folded)
            }
            shapes = tuple(there.get(i) for i in range(len(node.inputs)))
            form = carry(Op(self._document, node, state, shapes))
            if isinstance(form, Carried):
                for value, shape in zip(node.outputs, form.shapes, strict=True):
                    self.shapes[value, state] = shape
                self._set(node, Passenger(state, form, frozenset(there)))
                self.refusals.pop(node, None)
                return
            self.refusals[node] = form

    def _settle(self, node: Node, choice: Passenger | None) -> None:
        """Carry a node, or with None make it natural, unless that moves more elements."""
        values = {value for value in (*node.inputs, *node.outputs) if value is not None}
        values |= {self._sources[value] for value in values if value in self._sources}
        now = self.carried.get(node)
        before = sum(map(self._moved, values))
        self._set(node, choice)
        if sum(map(self._moved, values)) > before:
            self._set(node, now)

    def _set(self, node: Node, choice: Passenger | None) -> None:
        if choice is None:
            self.carried.pop(node, None)
        else:
            self.carried[node] = choice
        for value in node.outputs:
            self._homes[value] = None if choice is None else choice.state

    def _moved(self, value: Value) -> int:
        """Return the number of elements copied to provide a value in all states that are read."""
        home = self.home(value)
        others = self.needed(value) - {home}
        if value in self._sources:  # a dequantized state is paid for by moving its integers
            others = {s for s in others if s is not None and (value, s) not in self.dequantized}
        if home is not None and others:
            others |= {None, home}  # every other state is folded from the natural tensor
        shapes = [(s, self.shapes[value, s]) for s in others if s is not None]
        return sum(elements(shape) for s, shape in shapes if not s.is_view(shape))


def _sources(nodes: Iterable[Node]) -> dict[Value, Value]:
    """Return the integers that every DequantizeLinear reads, by its result."""
    makers = [node for node in nodes if is_default(node, "DequantizeLinear")]
    return {node.outputs[0]: node.inputs[0] for node in makers if node.inputs[0] is not None}
