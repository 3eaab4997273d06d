"""Group the folded nodes that one guard covers, and list what the guard tests.

Nodes that share a packed tensor belong together, because the original nodes read logical tensors
only. A group runs as one node, so no path may lead out of it and back into it, and the extents at
its border must determine those inside. If this fails, every node of the group that needs a guard
runs by itself, between logical tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.graph.messages import reads
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rewrite.regions import Regions
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.forms.open_extents import EXACT, Extent, needed_extents
from widthfold_onnx.rules.match.dequantized import is_dequantized_anew
from widthfold_onnx.rules.match.site import LinearSite

Plans = dict[Node, tuple[LinearSite, Reformulation]]


@dataclass(frozen=True)
class Group:
    """Nodes that are guarded together, in an order in which they can run, and the test."""

    nodes: tuple[Node, ...]
    extents: Mapping[Value, Mapping[int, Extent]]


@dataclass(frozen=True)
class GuardGroups:
    """The guarded groups of one graph.

    Attributes:
        regions: the regions; nodes that run by themselves read and return logical tensors.
        groups: the guarded groups.
    """

    regions: Regions
    groups: Sequence[Group]

    @classmethod
    def of(
        cls, document: Document, nodes: Sequence[Node], plans: Plans, options: FoldOptions
    ) -> GuardGroups:
        """Group the folded nodes of a graph.

        Args:
            document: the model.
            nodes: all nodes of the graph, in an order in which they can run.
            plans: the reformulations of its sites.
            options: tell which extents are to be guarded.
        """
        ends = {node: form.ends for node, (_, form) in plans.items()}
        while True:
            trial = _Grouping(Regions.of(document, nodes, ends), plans, options)
            members = [group for group in trial.regions.connected() if trial.is_guarded(group)]
            groups = {group: trial.group(group) for group in members}
            alone = [group for group, made in groups.items() if made is None]
            alone += _on_a_cycle(nodes, members)
            if not alone:
                return cls(trial.regions, [made for made in groups.values() if made is not None])
            loose = [n for group in alone for n in group if n in plans and trial.is_guarded([n])]
            ends = ends | {n: replace(ends[n], reads=None, returns=None) for n in loose}


@dataclass(frozen=True)
class _Grouping:
    """The groups that regions would make."""

    regions: Regions
    plans: Plans
    options: FoldOptions

    def is_guarded(self, group: Iterable[Node]) -> bool:
        """Check whether a node of a group needs a guard."""
        return any(map(self._extents, group))

    def _extents(self, node: Node) -> dict[int, Extent]:
        return needed_extents(*self.plans[node], self.options) if node in self.plans else {}

    def _data(self, node: Node) -> list[Value]:
        """Return the data inputs of a folded or packed node."""
        propagated_op = self.regions.propagated.get(node)
        if propagated_op is None:
            return [self.plans[node][0].data]
        return [value for i in sorted(propagated_op.data) if (value := node.inputs[i]) is not None]

    def group(self, nodes: tuple[Node, ...]) -> Group | None:
        """Return the group with its test; None if its nodes must run by themselves."""
        tensors = [tensor for node in nodes for tensor in self.regions.packed(node)]
        if any(tensor in self.regions.dequantized for tensor in tensors):
            return None  # the integers are packed there, and no logical tensor is left to test
        made = {value for node in nodes for value in node.outputs}
        border = list(dict.fromkeys(v for node in nodes for v in self._data(node) if v not in made))
        # A site alone is not planned with a guard there (`rules.forms.open_extents`).
        if len(nodes) > 1 and any(map(is_dequantized_anew, border)):
            return None
        extents = self._border_extents(nodes, border)
        return None if extents is None else Group(nodes, extents)

    def _border_extents(
        self, nodes: tuple[Node, ...], border: Sequence[Value]
    ) -> dict[Value, dict[int, Extent]] | None:
        """Return the conditions on the border's extents; None if they do not fix those inside."""
        needed = [self._extents(node) for node in nodes]
        if len(nodes) == 1:
            return {border[0]: needed[0]}
        axes = sorted({axis for one in needed for axis in one})
        sites = [self.plans[node][0] for node in nodes if node in self.plans]
        shapes = {site.data: [site.planned[axis] for axis in site.stored_axes] for site in sites}
        result = {}
        for value in border:
            planned = shapes.get(value)
            if planned is None or len(planned) <= axes[-1]:
                return None
            if None in (planned[axis] for axis in axes):
                return None
            result[value] = {axis: Extent(planned[axis] or 0, EXACT) for axis in axes}
        return result


def _on_a_cycle(
    nodes: Sequence[Node], groups: Sequence[tuple[Node, ...]]
) -> list[tuple[Node, ...]]:
    """Return the groups whose outputs lead back into them, directly or through others."""
    if not groups:
        return []
    belongs = {node: group for group in groups for node in group}
    makers = {v: node for node in nodes for v in node.outputs}
    order: TopologicalSorter[object] = TopologicalSorter()
    for node in nodes:
        here = belongs.get(node, node)
        for value in reads(node):
            maker = makers.get(value)
            before = None if maker is None else belongs.get(maker, maker)
            if before is not None and before is not here:
                order.add(here, before)
    try:
        order.prepare()
    except CycleError as error:
        return [group for group in groups if len(group) > 1 and group in error.args[1]]
    return []
