"""Put guards around folded nodes: If(condition) folded nodes, else the nodes of the original.

The folded nodes move into one branch, copies of the original nodes into the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence

import numpy as np

from widthfold_onnx.model.graph.document import Attributes, Document, Graph, Node, Value
from widthfold_onnx.rewrite.guard_groups import Conditions, Group
from widthfold_onnx.rewrite.new_nodes import NewNodes, base_name
from widthfold_onnx.rules.forms.legality import EXTENTS

GUARD_KEY = "widthfold.guard"
"""Metadata key of the nodes of a guard; for its If, the value names what the guard tests."""


class GuardNodes(NewNodes):
    """The nodes of a guard: first the nodes of its test, then its If."""

    def all_of(self, extents: Mapping[Value, Conditions]) -> Value:
        """Return the value that is true if the folded nodes may run.

        Args:
            extents: conditions on the extents, by value.
        """
        chosen, *more = [self._extents(*condition) for condition in extents.items()]
        for test in more:
            chosen = self._add("And", "guard_all", [chosen, test])
        return chosen

    def _extents(self, value: Value, conditions: Conditions) -> Value:
        axes = self._constant("axes", [axis for axis, _ in conditions])
        offsets = self._constant("offsets", [extent.offset for _, extent in conditions])
        moduli = self._constant("moduli", [extent.modulus for _, extent in conditions])
        shape = self._add("Shape", "guard_shape", [value])
        extents = self._add("Gather", "guard_extents", [shape, axes])
        above = self._add("Sub", "guard_above", [extents, offsets])
        rest = self._add("Mod", "guard_rest", [above, moduli])
        largest = self._add("ReduceMax", "guard_largest", [rest], {"keepdims": 0})
        smallest = self._add("ReduceMin", "guard_smallest", [shape], {"keepdims": 0})
        some = self._add("Sign", "guard_some", [smallest])
        return self._add("Less", "guard_fits", [largest, some])

    def _constant(self, what: str, numbers: Iterable[int]) -> Value:
        array = np.array(list(numbers), np.int64)
        return self._add("Constant", f"guard_{what}", [], {"value": array})

    def _add(
        self, op_type: str, what: str, inputs: Sequence[Value], attributes: Attributes | None = None
    ) -> Value:
        return self.add(op_type, what, inputs, attributes or {}, metadata={GUARD_KEY: ""}).outputs[
            0
        ]


def put_guard(
    document: Document,
    group: Group,
    chains: MutableMapping[Node, list[Node]],
    logical: MutableMapping[Value, Value],
) -> list[Graph]:
    """Put the new nodes of a group into a guard; return its branches.

    Args:
        document: the model.
        group: the nodes that are replaced, and the test.
        chains: the new nodes by the node that they replace: the guard takes their place.
        logical: new values by the value that they replace: outputs of the guard take their place.
    """
    base = base_name(group.nodes[0])
    folded = [new for old in group.nodes for new in chains[old]]
    inside = {*folded, *group.nodes}
    outputs = {value: logical.pop(value, None) for old in group.nodes for value in old.outputs}
    ports = {
        value: new
        for value, new in outputs.items()
        if new is not None and (document.is_fixed(value) or _is_read((value, new), inside))
    }
    originals, copies = _copied(document, group.nodes)
    returned = {value: copies[value] for value in ports}
    guard = GuardNodes(document, group.nodes[0])
    test = guard.all_of(group.extents)
    branches = {
        "else_branch": _branch(document, base, "original", originals, returned),
        "then_branch": _branch(document, base, "folded", folded, ports),
    }
    metadata = {GUARD_KEY: EXTENTS}
    choice = guard.add("If", "guard", [test], branches, metadata=metadata, outputs=len(ports))
    for output, (value, new) in zip(choice.outputs, ports.items(), strict=True):
        for user, index in list(new.uses()):
            if user not in inside:
                user.replace_input_with(index, output)
        logical[value] = output
    chains.update({old: [] for old in group.nodes})
    chains[group.nodes[-1]] = guard.nodes
    return list(branches.values())


def _is_read(values: Iterable[Value], inside: set[Node]) -> bool:
    """Check whether other nodes read a value, or none at all, so that something else uses it."""
    users = [user for value in values for user, _ in value.uses()]
    return not users or any(user not in inside for user in users)


def _copied(document: Document, nodes: Iterable[Node]) -> tuple[list[Node], dict[Value, Value]]:
    """Copy nodes that may read each other; return the copies, and the copies of their outputs."""
    new_nodes: list[Node] = []
    copies: dict[Value, Value] = {}
    for node in nodes:
        inputs = [v if v is None else copies.get(v, v) for v in node.inputs]
        copy = document.node(
            node.op_type,
            inputs,
            node.attributes,
            name="",
            metadata=node.metadata_props,
            outputs=len(node.outputs),
            domain=node.domain,
        )
        copy.name, copy.doc_string = node.name, node.doc_string
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name, copies[old] = old.name, new
        new_nodes.append(copy)
    return new_nodes, copies


def _branch(
    document: Document,
    base: str,
    what: str,
    nodes: Sequence[Node],
    ports: Mapping[Value, Value],
) -> Graph:
    """Return a body that computes the values of `ports`, under new names."""
    for value, output in ports.items():
        output.name = document.fresh(f"{value.name}/widthfold/{what}")
        output.type, output.shape = value.type, value.shape
    return Graph([], list(ports.values()), nodes=nodes, name=f"{base}/{what}")
