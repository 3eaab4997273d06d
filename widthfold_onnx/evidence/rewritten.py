"""One graph of the rewritten model beside that of the original: who claims what.

The proof goes by local steps. A tensor that no new node made is the value of its own name. The
new nodes state in their metadata what they return (`rewrite.record`); each step - a folded node,
an op that was carried, a chain of moves - is checked to return what it claims if its inputs are
what they claim. By induction in graph order every value that is read natural again is that of the
original. Nothing else may read a packed tensor, and a packed tensor may not have the name of a
value of the original.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt
from onnx import helper

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import Claim, content, packed_claim, read, state_record
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.model.messages import Scope
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY, STATE_KEY
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]

CONVERSIONS = ("Reshape", "Transpose", "DepthToSpace")


class Rewritten:
    """One graph of the rewritten model beside that of the original.

    Args:
        old: the original.
        new: the rewritten model.
        before: the graph of the original; None if it has no such graph.
        after: the graph of the rewritten model.
    """

    def __init__(self, old: Document, new: Document, before: Scope | None, after: Scope) -> None:
        self.old, self.new, self.before = old, new, before
        nodes = list(before.graph) if before is not None else []
        self._values = {v.name or "": v for node in nodes for v in node.outputs}
        self._makers = {name: value.producer() for name, value in self._values.items()}
        self._names = {*self._makers}
        if before is not None and before.proto is not None:
            described = (*before.proto.input, *before.proto.initializer)
            self._names |= {item.name for item in described}
            self._names |= {sparse.values.name for sparse in before.proto.sparse_initializer}
        self.nodes = [node for node in after.graph if self._is_new(node)]
        self._set = set(self.nodes)

    def extents(self, value: Value) -> Dims | None:
        """Extents of a value of the original, as far as the model itself fixes them."""
        assert self.before is not None
        return self.old.shapes.get(self.before.path, value.name or "")

    def element(self, value: Value) -> npt.DTypeLike:
        """Element type of a value of the original.

        Raises:
            UnverifiedError: it is not known.
        """
        assert self.before is not None
        kind = self.old.shapes.element(self.before.path, value.name or "")
        if not kind:
            raise UnverifiedError(f"the element type of {printable(value.name or '')} is not known")
        return helper.tensor_dtype_to_np_dtype(kind)

    def _is_new(self, node: Node) -> bool:
        """Whether a fold made a node; one that the original has as well is the original's."""
        if not node.metadata_props.keys() & {ORIGIN_KEY, FOLD_KEY, STATE_KEY}:
            return False
        known = self._makers.get(node.outputs[0].name or "")
        return known is None or not _same(self.old, known, self.new, node)

    def value(self, name: str) -> Value | None:
        """A value that a node of the original makes."""
        return self._values.get(name)

    def original(self, node: Node) -> Node | None:
        """The node of the original that made the value for which a node stands."""
        return self._makers.get(node.metadata_props.get(ORIGIN_KEY, ""))

    @property
    def replaced(self) -> set[str]:
        """First outputs of the nodes of the original for which new ones stand."""
        stands = (n for n in self.nodes if FOLD_KEY in n.metadata_props or self.is_passenger(n))
        return {node.metadata_props.get(ORIGIN_KEY, "") for node in stands}

    def is_passenger(self, node: Node) -> bool:
        """Whether a node is an op that was carried, and neither a folded node nor a move."""
        keys = node.metadata_props
        kept = FOLD_KEY not in keys and node.op_type not in CONVERSIONS
        return STATE_KEY in keys and kept and not self._ends_conversion(node)

    def _ends_conversion(self, node: Node) -> bool:
        """Whether a node ends a chain of moves that is quantized again (`evidence.requantized`)."""
        given = node.inputs[0] if node.inputs else None
        quantizes = is_default(node, "QuantizeLinear", "DequantizeLinear")
        return quantizes and given is not None and not self._is_claimed(given)

    def _is_claimed(self, value: Value) -> bool:
        """Whether a tensor claims to hold something; one inside of a chain of moves does not."""
        node = value.producer()
        if node is None or node not in self._set or STATE_KEY in node.metadata_props:
            return True
        return value.name == node.metadata_props.get(ORIGIN_KEY, "")

    def claim(self, value: Value) -> Claim | None:
        """What a tensor claims to hold; None inside of a chain of moves.

        Raises:
            Mismatch: the claim makes no sense, or cannot be read.
        """
        node = value.producer()
        if not self._is_claimed(value):
            return None
        if node is None or node not in self._set or STATE_KEY not in node.metadata_props:
            return Claim(value.name or "")
        origin, text = node.metadata_props.get(ORIGIN_KEY, ""), node.metadata_props[STATE_KEY]
        record, index = state_record(text), list(node.outputs).index(value)
        known = self.original(node)
        if index:
            origin = known.outputs[index].name or "" if known and index < len(known.outputs) else ""
        if len(record.shapes) != len(node.outputs):
            raise Mismatch("its state does not describe its outputs")
        return packed_claim(origin, record, index)

    def line_to(self, value: Value) -> tuple[Value, list[Node]]:
        """The moves that lead to a tensor inside of a chain, and where they start."""
        line: list[Node] = []
        while not self._is_claimed(value):
            node = value.producer()
            source = node.inputs[0] if node is not None and node.inputs else None
            if node is None or source is None or FOLD_KEY in node.metadata_props:
                break
            line.insert(0, node)
            value = source
        return value, line

    def line_from(self, value: Value) -> tuple[Value, list[Node]]:
        """The moves that a tensor inside of a chain goes through, and where they end."""
        line: list[Node] = []
        while not self._is_claimed(value):
            users = [node for node, index in value.uses() if index == 0 and node in self._set]
            if len(users) != 1:
                raise Mismatch("the new nodes do not follow each other")
            line.append(users[0])
            value = users[0].outputs[0]
        return value, line

    def check_readers(self, node: Node) -> None:
        """Check that only new nodes read what a new node returns packed, under a name of its own.

        Raises:
            Mismatch: something else does.
        """
        for value in node.outputs:
            claim = self.claim(value)
            if claim is not None and claim.state is None:
                continue
            if value.name in self._names or value.is_graph_output():
                raise Mismatch(
                    f"{printable(value.name or '')} is packed, in the original it is not"
                )
            for user, _ in value.uses():
                if user not in self._set:
                    raise Mismatch(f"{printable(user.op_type)} reads a packed tensor")

    def alike(self, old: Value, new: Value) -> bool:
        """Whether a value that is read as it is is the same in both models."""
        try:
            return content(read(self.old, old)) == content(read(self.new, new))
        except Mismatch:
            return old.name == new.name

    def constants(
        self, nodes: Sequence[Node], given: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        """Everything but the first input of each new node, by name.

        Args:
            nodes: the new nodes.
            given: what need not be constant.

        Raises:
            Mismatch: one is not constant.
        """
        given = given or {}
        values = [value for node in nodes for value in node.inputs[1:] if value is not None]
        read_ones = {
            value.name or "": read(self.new, value) for value in values if value.name not in given
        }
        return {**read_ones, **given}

    def owner(self, node: Node) -> Node:
        """The folded node to which a new one belongs: the nearest before it, else behind it.

        A node beside which no folded one stands belongs to itself.
        """
        for backward in (True, False):
            for near in self._folded_around(node, backward=backward):
                return near
        return node

    def _folded_around(self, node: Node, *, backward: bool) -> Iterator[Node]:
        seen, waiting = {node}, [node]
        while waiting:
            top = waiting.pop(0)
            if FOLD_KEY in top.metadata_props:
                yield top
                continue
            if backward:
                near = [value.producer() for value in top.inputs if value is not None]
            else:
                near = [user for value in top.outputs for user, _ in value.uses()]
            fresh = [n for n in near if n is not None and n in self._set and n not in seen]
            seen.update(fresh)
            waiting += fresh


def label(node: Node) -> str:
    """What a node is called in reports."""
    return node.name or f"{node.op_type} -> {node.metadata_props.get(ORIGIN_KEY, '')}"


def _same(old: Document, first: Node, new: Document, second: Node) -> bool:
    """Whether two nodes and the constants that they read are the same."""
    messages = (old.message(first), new.message(second))
    if len({message.SerializeToString(deterministic=True) for message in messages}) > 1:
        return False
    for one, other in zip(first.inputs, second.inputs, strict=True):
        if one is not None and other is not None:
            pair = (old.constant(one), new.constant(other))
            arrays = [
                None if isinstance(c, Refusal) else content(d.read(c))
                for c, d in zip(pair, (old, new), strict=True)
            ]
            if arrays[0] != arrays[1]:
                return False
    return True
