"""Which ops between folded nodes run on packed tensors, so that a fold is paid once.

First every op is taken along that can be: one of its inputs comes out of a folded node, or of an
op that was taken along, and the others are there in the same state. Then those go back that cost
more bytes moved by folds and unfolds than they save: in reverse order, where natural wins a tie,
so that what follows a costly op is no reason to keep it; then in order, where packed wins a tie,
because the runtime fuses a folded node only with what stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from widthfold_onnx.fold.state import State
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.model.propagate import Dims
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import Ends
from widthfold_onnx.rules.carry import carry
from widthfold_onnx.rules.legality import elements
from widthfold_onnx.rules.operand import Carried, Op


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
        nodes: of the graph.
        sites: the folded nodes.
        carried: the ops that run on packed tensors.
        refusals: why other ops cannot, of those that read one.
        shapes: natural extents of every tensor in a state that it has or could have, as far as
            fixed; a state fixes those of the axes that it folds.
    """

    def __init__(
        self, document: Document, nodes: Iterable[Node], sites: Mapping[Node, Ends]
    ) -> None:
        self.nodes = list(nodes)
        self.sites = sites
        self.carried: dict[Node, Passenger] = {}
        self.refusals: dict[Node, Refusal] = {}
        self.shapes: dict[tuple[Value, State], Dims] = {}
        self._document = document
        self._homes: dict[Value | None, State | None] = {}
        self._folded: set[tuple[Value, State]] = set()
        for node, ends in sites.items():
            self._homes[node.outputs[0]] = ends.returns
            data = node.inputs[ends.data]
            if ends.reads is not None and data is not None:
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
        """The state in which a value is made; None for natural."""
        return self._homes.get(value)

    def is_fixed(self, value: Value) -> bool:
        """Whether something else than nodes of the graph reads a value, which so stays natural."""
        return self._document.is_fixed(value)

    def needed(self, value: Value) -> set[State | None]:
        """The states in which a value is read; None for natural."""
        states: set[State | None] = {None} if self.is_fixed(value) else set()
        for node, index in value.uses():
            passenger, site = self.carried.get(node), self.sites.get(node)
            if passenger is not None:
                states.add(passenger.state if index in passenger.data else None)
            else:
                states.add(site.reads if site is not None and index == site.data else None)
        return states

    def _take_along(self, node: Node) -> None:
        """Carry a node if it can be."""
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
        """Carry a node, or with None leave it natural, unless that moves more than now."""
        values = {value for value in (*node.inputs, *node.outputs) if value is not None}
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
        """Elements that are copied so that a value is there in all states in which it is read."""
        home = self.home(value)
        others = self.needed(value) - {home}
        if home is not None and others:
            others |= {None, home}  # every other state is folded from the natural tensor
        shapes = [(s, self.shapes[value, s]) for s in others if s is not None]
        return sum(elements(shape) for s, shape in shapes if not s.is_view(shape))
