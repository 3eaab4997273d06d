"""Guards: does the original compute wherever the folded nodes would not be good for the data?

The folded branch is proved like nodes that no guard stands around, at the extents of their records
and for finite data. What is left to show of a guard:

1. Its other branch is the original, node by node (`elsewhere`).
2. Its condition (`evidence.conditions`) holds only where every extent that the model leaves open is
   one that the folded nodes are good for.
3. It holds only where all that reaches a structural zero is finite: what the branch reads is, and
   nothing that it computes can leave its element type (`rules.bounds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.branches import FOLDED, ORIGINAL, Choice, choices, taken
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import fold_record, state_record
from widthfold_onnx.evidence.conditions import Tested, tested
from widthfold_onnx.evidence.elsewhere import Place, first_change
from widthfold_onnx.evidence.extents import (
    fixed_extents,
    needed_by_fold,
    source_of,
    unguarded_folds,
)
from widthfold_onnx.evidence.rewritten import CONVERSIONS, Rewritten, label
from widthfold_onnx.evidence.wanted import check_size
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Graph, Node
from widthfold_onnx.model.order import nodes_of
from widthfold_onnx.options import EXTENTS, FINITE
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.record import (
    FOLD_KEY,
    ORIGIN_KEY,
    STATE_KEY,
    FoldRecord,
    fold_again,
)
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.base import LinearSite, Site
from widthfold_onnx.rules.bounds import largest_data
from widthfold_onnx.rules.guarding import EXACT, Extent
from widthfold_onnx.rules.windowed import WindowedSite
from widthfold_onnx.text import printable


def check_guards(
    old: Document, model: onnx.ModelProto, folder: Path | None, folded: Mapping[str, Rewritten]
) -> list[ExactSite]:
    """One result per guard of a model, and one per fold that misses one.

    Args:
        old: the original.
        model: the rewritten model, with its guards.
        folder: where its external data lies.
        folded: the graphs of the model in which every guard took the folded branch, by path.
    """
    by_output = {
        (path, node.outputs[0].name or ""): (graph, node)
        for path, graph in folded.items()
        for node in graph.nodes
    }
    results = list(unguarded_folds(model, by_output))
    found = list(choices(model.graph))
    try:
        changed = _change(old, model, folder) if found else ""
    except Mismatch as error:
        changed = str(error)
    for choice in found:
        name = choice.node.name or choice.node.output[0]
        try:
            what = _Guard(old, choice, by_output).check()
            if changed:
                raise Mismatch(f"the nodes of the original are not those it had ({changed})")
        except Mismatch as error:
            said = ExactSite(node=name, verdict="different", reason=str(error), guard=True)
        except UnverifiedError as error:
            said = ExactSite(node=name, verdict="skipped", reason=str(error), guard=True)
        else:
            said = ExactSite(node=name, verdict="exact", reason=what, guard=True)
        results.append(said)
    return results


def _change(old: Document, model: onnx.ModelProto, folder: Path | None) -> str:
    """Where the rewritten model is not the original if all guards take the original's branch.

    Raises:
        Mismatch: as `branches.taken`.
    """
    new = Document(taken(model, ORIGINAL), folder)
    graphs = {scope.path: scope for scope in old.scopes}
    replaced: set[Place] = set()
    added: set[Place] = set()
    for scope in new.scopes:
        if scope.proto is not None:
            graph = Rewritten(old, new, graphs.get(scope.path), scope)
            added |= {(scope.path, node.outputs[0].name or "") for node in graph.nodes}
            replaced |= {(scope.path, name) for name in graph.replaced}
    return first_change(old, new, replaced, added)


class _Guard:
    """One guard.

    Args:
        old: the original.
        choice: the If.
        folded: the new nodes of the folded branches, by their place, with their graphs.
    """

    def __init__(
        self,
        old: Document,
        choice: Choice,
        folded: Mapping[Place, tuple[Rewritten, Node]],
    ) -> None:
        self._old = old
        self._choice = choice
        made = [node.output[0] for node in choice.nodes(FOLDED)]
        self._nodes = [folded[choice.path, n] for n in made if (choice.path, n) in folded]
        others = {name for name in made if (choice.path, name) not in folded}
        if not self._nodes or others & {*choice.node.output} or others - self._constants():
            raise Mismatch("its first branch holds more than folded nodes")
        self._graph = self._nodes[0][0]

    def _constants(self) -> set[str]:
        """The constants that folded nodes read: a weight is dequantized beside them."""
        read = ((graph, value) for graph, node in self._nodes for value in node.inputs if value)
        return {v.name or "" for graph, v in read if isinstance(graph.new.constant(v), Constant)}

    def check(self) -> str:
        """What the guard is for.

        Raises:
            Mismatch: it does not do that.
        """
        purpose = self._choice.purpose
        found = tested(self._choice.graph, self._choice.node.input[0])
        for value, wanted in self._needed_extents():
            for axis, extent in wanted.items():
                known = found.extents.get(value, {}).get(axis)
                if EXTENTS in purpose and (known is None or not _implies(known, extent)):
                    raise Mismatch(
                        f"its condition lets axis {axis} of {printable(value)} pass where the "
                        "fold is not good for it"
                    )
        if FINITE in purpose:
            self._check_finite(found)
        said = {
            FINITE: "all data is finite and small enough to stay so",
            EXTENTS: "the extents are those of the folds",
        }
        where = " and ".join(said.get(word, printable(word)) for word in purpose)
        return f"the folded nodes compute only where {where}; else the original's do, bit for bit"

    def _needed_extents(self) -> Iterator[tuple[str, dict[int, Extent]]]:
        """What the extents must be of each value that the branch reads natural."""
        for graph, node in self._nodes:
            metadata = node.metadata_props
            if FOLD_KEY in metadata:
                claim = graph.claim(source_of(graph, node))
                if claim is not None and claim.state is None:
                    yield claim.value, needed_by_fold(graph, node, claim.value)
            elif STATE_KEY in metadata and node.op_type in CONVERSIONS:
                record, value = state_record(metadata[STATE_KEY]), metadata.get(ORIGIN_KEY, "")
                shape = record.shapes[0]
                packed = record.state.involved(len(shape))
                fixed = fixed_extents(graph, value, len(shape))
                yield (
                    value,
                    {
                        axis: Extent(extent, EXACT)
                        for axis, extent in enumerate(shape)
                        if axis in packed and extent is not None and fixed[axis] is None
                    },
                )

    def _check_finite(self, found: Tested) -> None:
        """Nothing that is not finite may reach a structural zero."""
        sites: dict[Node, LinearSite] = {}
        spreading: set[Node] = set()
        names = set()
        for graph, node in self._nodes:
            known = graph.original(node)
            if FOLD_KEY in node.metadata_props and known is not None:
                sites[known], zeros = _site_of(graph, known, node)
                spreading |= {known} if zeros else set()
            if FOLD_KEY in node.metadata_props or graph.is_passenger(node):
                names.add(node.metadata_props.get(ORIGIN_KEY, ""))
        before = self._graph.before
        assert before is not None
        assert isinstance(before.graph, Graph)
        nodes = [n for n in nodes_of(before.graph) if n.outputs[0].name in names]
        made = {value for node in nodes for value in node.outputs}
        limit = largest_data(self._old, nodes, sites)
        inside = any(sites[node].data in made for node in spreading)
        for value in dict.fromkeys(v for node in nodes for v in node.inputs):
            if value is None or value in made or isinstance(self._old.constant(value), Constant):
                continue
            name = value.name or ""
            if name not in found.below:
                raise Mismatch(f"its condition does not test whether {printable(name)} is finite")
            if inside and not (limit and found.below[name] <= limit):
                raise Mismatch(f"{printable(name)} may pass so large that Inf meets a zero inside")


def _site_of(graph: Rewritten, known: Node, node: Node) -> tuple[LinearSite, bool]:
    """The original of a folded node as a site, and whether its fold has structural zeros."""
    record = fold_record(node.metadata_props[FOLD_KEY])
    if isinstance(record, FoldRecord):
        dims: Dims = (record.samples, None, *(axis.length for axis in record.axes))
    else:
        dims = tuple(record.shape)
    if not is_default(known, *LINEAR):
        raise Mismatch("the original has no such linear node")
    assert graph.before is not None
    place = Site(known, graph.before, label(known), known.op_type)
    site = LINEAR[known.op_type](graph.old, place, lambda _: dims, lambda _: dims)
    if isinstance(site, Refusal):
        raise Mismatch(f"the fold cannot be repeated on the original: {site.reason}")
    if not isinstance(record, FoldRecord) or not isinstance(site, WindowedSite):
        return site, True
    check_size(record)
    fold = fold_again(record, site.axes, site.grouping)
    if isinstance(fold, Refusal):
        raise Mismatch(f"the fold cannot be repeated on the original: {fold.reason}")
    return site, fold.structural_zeros() > 0 or fold.regrouping.leaves_out


def _implies(known: Extent, wanted: Extent) -> bool:
    """Whether all extents that one lets pass are among those of the other."""
    return (
        known.modulus % wanted.modulus == 0 and (known.offset - wanted.offset) % wanted.modulus == 0
    )
