"""Put guards around folded nodes: If(condition) folded nodes, else the nodes of the original.

Nodes that share a packed tensor form a group, because the original nodes read logical tensors only.
A group has one guard and runs as one node, so no path may lead out of the group and back into it.

The guard tests the extents of the values that the group reads. Where tiles divide these extents, a
folded node returns extents that the tiles of its result divide, and ops between keep the folded
extents. So a node of a group may put no condition on a tensor inside the group besides the
conditions of the tensor's layout. A group is split if a node puts one, or if nothing reads a value
that the group returns. Each of its nodes that needs a guard then has its own, between logical
tensors.

The folded nodes move into one branch, copies of the original nodes into the other:

    x -+- Shape -+- Gather(axes) - Sub(offsets) - Mod(moduli) - ReduceMax -+
       |         +- ReduceMin - Sign --------------------------------------+- Less - If - y
       +- then_branch: pack - Conv' - unpack
       +- else_branch: Conv
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np

from widthfold_onnx.algebra.axis import Congruence
from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.model.document import Attributes, Document, Graph, Node, Value
from widthfold_onnx.model.linking import reads
from widthfold_onnx.rewrite.new_nodes import NodeBuilder, base_name
from widthfold_onnx.rewrite.record import GUARD_KEY
from widthfold_onnx.rewrite.regions import Regions
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.legality import EXTENTS, guard_conditions
from widthfold_onnx.rules.quantization import runtime_moves_dequantizer

LayerForms = dict[Node, tuple[Layer, Form]]

Conditions = tuple[tuple[int, Congruence], ...]
"""Conditions on the extents of one value, by axis; an axis may have several."""


@dataclass(frozen=True)
class GuardedGroup:
    """Nodes with one guard, in running order, and the conditions that it tests."""

    nodes: tuple[Node, ...]
    conditions: Mapping[Value, Conditions]


@dataclass(frozen=True)
class GuardedRegions:
    """The regions of one graph, and the groups of their nodes that are guarded.

    Attributes:
        regions: the regions; nodes that run by themselves read and return logical tensors.
        groups: the guarded groups.
    """

    regions: Regions
    groups: Sequence[GuardedGroup]

    @classmethod
    def of(cls, document: Document, nodes: Sequence[Node], forms: LayerForms) -> GuardedRegions:
        """Group the folded nodes of a graph.

        A group is split if it cannot have one guard, or if its outputs lead back into it: its
        guarded layers then run between logical tensors. Then all nodes are grouped again, until
        nothing is split.

        Args:
            document: the model.
            nodes: all nodes of the graph, in an order in which they can run.
            forms: the forms of its layers.
        """
        ends = {node: form.ends for node, (_, form) in forms.items()}
        while True:
            grouping = _Grouping(Regions.of(document, nodes, ends), forms)
            node_groups = filter(grouping.is_guarded, grouping.regions.node_groups())
            groups = {members: grouping.group(members) for members in node_groups}
            split_groups = [members for members, group in groups.items() if group is None]
            # Without conditions there is no guard, and the nodes do not become one node.
            units = [members for members, group in groups.items() if not group or group.conditions]
            split_groups += _on_a_cycle(nodes, units)
            if not split_groups:
                result = [group for group in groups.values() if group and group.conditions]
                return cls(grouping.regions, result)
            split_nodes = [
                n
                for members in split_groups
                for n in members
                if n in forms and grouping.is_guarded([n])
            ]
            ends = ends | {
                n: replace(ends[n], input_layout=None, output_layout=None) for n in split_nodes
            }


@dataclass(frozen=True)
class _Grouping:
    """The groups that regions would make."""

    regions: Regions
    forms: LayerForms

    def is_guarded(self, group: Iterable[Node]) -> bool:
        """Check whether a node of a group needs a guard."""
        return any(map(self._conditions, group))

    def _conditions(self, node: Node) -> dict[int, Congruence]:
        return guard_conditions(*self.forms[node]) if node in self.forms else {}

    def group(self, nodes: tuple[Node, ...]) -> GuardedGroup | None:
        """Return the group with its test; None if its nodes must run by themselves."""
        tensors = [tensor for node in nodes for tensor in self.regions.packed_tensors(node)]
        if any(tensor in self.regions.dequantized for tensor in tensors):
            return None  # the integers are packed there, and no logical tensor is left to test
        outputs = {value for node in nodes for value in node.outputs}
        conditions_of: dict[Value, dict[tuple[int, Congruence], None]] = {}
        for node in nodes:
            for value, layout, conditions in self._reads(node):
                if value not in outputs:
                    conditions_of.setdefault(value, {}).update(dict.fromkeys(conditions.items()))
                elif conditions and not self._is_implied(value, layout, conditions):
                    return None
        if not any(self._is_returned(value, nodes) for value in outputs):
            return None  # an If has an output, and a folded node alone returns a logical tensor
        # A layer alone is not planned with a guard there (`rules.legality`).
        if len(nodes) > 1 and any(map(runtime_moves_dequantizer, conditions_of)):
            return None
        return GuardedGroup(nodes, {value: tuple(c) for value, c in conditions_of.items() if c})

    def _reads(
        self, node: Node
    ) -> Iterator[tuple[Value, PackedLayout | None, Mapping[int, Congruence]]]:
        """Yield the data of a folded or packed node, with its layout and its conditions."""
        if node in self.forms:
            layer, _ = self.forms[node]
            layout = self.regions.input_layout(node, layer.data_index)
            yield layer.data, layout, self._conditions(node)
            return
        for index, value in enumerate(node.inputs):
            layout = self.regions.input_layout(node, index)
            if value is not None and layout is not None:
                yield value, layout, layout.conditions(self.regions.shapes[value, layout])

    def _is_returned(self, value: Value, nodes: Sequence[Node]) -> bool:
        """Check whether a group of nodes returns a value, as a logical tensor."""
        layout = self.regions.made_in(value)
        if layout is not None and self.regions.read_in(value) <= {layout}:
            return False
        return self.regions.document.must_stay(value) or _is_used_outside([value], {*nodes})

    def _is_implied(
        self, value: Value, layout: PackedLayout | None, conditions: Mapping[int, Congruence]
    ) -> bool:
        """Check whether a tensor of a group meets conditions that its packed layout needs, too."""
        if layout is None or self.regions.made_in(value) != layout:
            return False
        layout_conditions = layout.conditions(self.regions.shapes[value, layout])
        return conditions.items() <= layout_conditions.items()


def _on_a_cycle(
    nodes: Sequence[Node], groups: Sequence[tuple[Node, ...]]
) -> list[tuple[Node, ...]]:
    """Return the groups whose outputs lead back into them, directly or through others."""
    if not groups:
        return []
    group_of = {node: group for group in groups for node in group}
    makers = {v: node for node in nodes for v in node.outputs}
    order: TopologicalSorter[object] = TopologicalSorter()
    for node in nodes:
        unit = group_of.get(node, node)
        for value in reads(node):
            maker = makers.get(value)
            maker_unit = None if maker is None else group_of.get(maker, maker)
            if maker_unit is not None and maker_unit is not unit:
                order.add(unit, maker_unit)
    try:
        order.prepare()
    except CycleError as error:
        return [group for group in groups if len(group) > 1 and group in error.args[1]]
    return []


class GuardBuilder(NodeBuilder):
    """Builds the nodes of a guard: first the nodes of its test, then its If."""

    def all_of(self, conditions: Mapping[Value, Conditions]) -> Value:
        """Return the value that is true if the folded nodes may run.

        Args:
            conditions: conditions on the extents, by value.
        """
        result, *tests = [self._meets(*pair) for pair in conditions.items()]
        for test in tests:
            result = self._add("And", "guard_all", [result, test])
        return result

    def _meets(self, value: Value, conditions: Conditions) -> Value:
        """Return the value that is true if a value is not empty, and meets all conditions."""
        axes = self._constant("axes", [axis for axis, _ in conditions])
        offsets = self._constant("offsets", [c.remainder for _, c in conditions])
        moduli = self._constant("moduli", [c.modulus for _, c in conditions])
        shape = self._add("Shape", "guard_shape", [value])
        extents = self._add("Gather", "guard_extents", [shape, axes])
        differences = self._add("Sub", "guard_above", [extents, offsets])
        remainders = self._add("Mod", "guard_rest", [differences, moduli])
        largest = self._add("ReduceMax", "guard_largest", [remainders], {"keepdims": 0})
        smallest = self._add("ReduceMin", "guard_smallest", [shape], {"keepdims": 0})
        # Where all remainders are 0 and no extent is, the largest remainder 0 is below the sign 1.
        sign = self._add("Sign", "guard_some", [smallest])
        return self._add("Less", "guard_fits", [largest, sign])

    def _constant(self, suffix: str, numbers: Iterable[int]) -> Value:
        array = np.array(list(numbers), np.int64)
        return self._add("Constant", f"guard_{suffix}", [], {"value": array})

    def _add(
        self,
        op_type: str,
        suffix: str,
        inputs: Sequence[Value],
        attributes: Attributes | None = None,
    ) -> Value:
        return self.add(
            op_type, suffix, inputs, attributes or {}, metadata={GUARD_KEY: ""}
        ).outputs[0]


class Guard(NamedTuple):
    """The nodes that choose between the original and the folded nodes of a group.

    Attributes:
        nodes: the test and the If, in running order.
        outputs: outputs of the If by the value that they replace.
        branches: the graphs of the If.
    """

    nodes: list[Node]
    outputs: dict[Value, Value]
    branches: list[Graph]


def make_guard(
    document: Document,
    group: GuardedGroup,
    replacements: Mapping[Node, Sequence[Node]],
    logical: Mapping[Value, Value],
) -> Guard:
    """Put the new nodes of a group into a guard, which other nodes read from now on.

    Args:
        document: the model.
        group: the nodes that are replaced, and the test.
        replacements: the new nodes by the node that they replace.
        logical: new values by the value that they replace.
    """
    base = base_name(group.nodes[0])
    new_nodes = [new for old in group.nodes for new in replacements[old]]
    group_nodes = {*new_nodes, *group.nodes}
    outputs = {value: logical.get(value) for old in group.nodes for value in old.outputs}
    ports = {
        value: new
        for value, new in outputs.items()
        if new is not None
        and (document.must_stay(value) or _is_used_outside((value, new), group_nodes))
    }
    originals, copies = _copied(document, group.nodes)
    returned = {value: copies[value] for value in ports}
    guard = GuardBuilder(document, group.nodes[0])
    test = guard.all_of(group.conditions)
    branches = {
        "else_branch": _branch(document, base, "original", originals, returned),
        "then_branch": _branch(document, base, "folded", new_nodes, ports),
    }
    metadata = {GUARD_KEY: EXTENTS}
    choice = guard.add("If", "guard", [test], branches, metadata=metadata, outputs=len(ports))
    for output, new in zip(choice.outputs, ports.values(), strict=True):
        for user, index in list(new.uses()):
            if user not in group_nodes:
                user.replace_input_with(index, output)
    chosen_outputs = dict(zip(ports, choice.outputs, strict=True))
    return Guard(guard.nodes, chosen_outputs, list(branches.values()))


def _is_used_outside(values: Iterable[Value], group_nodes: set[Node]) -> bool:
    """Check whether something outside a group uses a value: another node, or no node at all."""
    users = [user for value in values for user, _ in value.uses()]
    return not users or any(user not in group_nodes for user in users)


def _copied(document: Document, nodes: Iterable[Node]) -> tuple[list[Node], dict[Value, Value]]:
    """Copy nodes that may read each other; return the copies, and the copies of their outputs."""
    new_nodes: list[Node] = []
    copies: dict[Value, Value] = {}
    for node in nodes:
        inputs = [v if v is None else copies.get(v, v) for v in node.inputs]
        copy = document.new_node(
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
            new.name = old.name
            copies[old] = new
        new_nodes.append(copy)
    return new_nodes, copies


def _branch(
    document: Document,
    base: str,
    branch: str,
    nodes: Sequence[Node],
    ports: Mapping[Value, Value],
) -> Graph:
    """Return a body that computes the values of `ports`, under new names."""
    for value, output in ports.items():
        output.name = document.fresh(f"{value.name}/widthfold/{branch}")
        output.type, output.shape = value.type, value.shape
    return Graph([], list(ports.values()), nodes=nodes, name=f"{base}/{branch}")
