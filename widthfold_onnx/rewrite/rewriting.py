"""Replace sites by their forms, all at once, and list the regions for reports.

Neighbours share layouts. So the ops that run packed between sites, and the nodes that one guard
covers, depend on all forms together. Regions and guards are settled before anything is changed.

Two nodes belong to one region if one reads a packed tensor that the other returns, or if both read
one value in one layout. A region ends at a node that reads such a value in another layout, and at a
folded node whose own output is not packed; `region_reports` gives each end its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx

from widthfold_onnx.model.graph.document import Document, Graph, Node, graph_of
from widthfold_onnx.model.graph.names import NodeName
from widthfold_onnx.model.proto.walk import retain
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import RegionReport, Stop
from widthfold_onnx.rewrite.emission import Emission
from widthfold_onnx.rewrite.guard_groups import GuardGroups, SiteForms
from widthfold_onnx.rewrite.parameters import Parameters
from widthfold_onnx.rewrite.record import NONFINITE_KEY, RUNTIME_KEY
from widthfold_onnx.rewrite.regions import Regions
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.forms.legality import needed_extents
from widthfold_onnx.rules.match.sites import LinearSite


@dataclass(frozen=True)
class Rewriting:
    """The plan of a rewriting, as a value; the document is unchanged so far.

    Attributes:
        document: the model.
        forms: the forms of the sites that are replaced, by graph.
        groups: the regions and guarded groups that they make, by graph.
        runtime: the version of ONNX Runtime that the forms were measured with; "" if none was.
    """

    document: Document
    forms: Mapping[Graph, SiteForms]
    groups: Mapping[Graph, GuardGroups]
    runtime: str = ""

    @classmethod
    def of(
        cls,
        document: Document,
        chosen: Iterable[tuple[LinearSite, Reformulation]],
        runtime: str = "",
    ) -> Rewriting:
        """Settle regions and guards for the forms."""
        forms: dict[Graph, SiteForms] = {}
        for site, form in chosen:
            forms.setdefault(graph_of(site.node), {})[site.node] = (site, form)
        groups = {
            graph: GuardGroups.of(document, list(graph), sites) for graph, sites in forms.items()
        }
        return cls(document, forms, groups, runtime)

    def guarded(self) -> dict[str, set[NodeName]]:
        """Return the layers for which a guard was made, by each value that the guard may return."""
        layers: dict[str, set[NodeName]] = {}
        for graph, forms in self.forms.items():
            for group in self.groups[graph].groups:
                sites = [
                    forms[n][0] for n in group.nodes if n in forms and needed_extents(*forms[n])
                ]
                names = {NodeName(site.scope.path, site.name) for site in sites}
                for value in (value for node in group.nodes for value in node.outputs):
                    layers.setdefault(value.name or "", set()).update(names)
        return layers

    def carry_out(self) -> onnx.ModelProto:
        """Replace all sites and the ops between them; the document is consumed."""
        document = self.document
        parameters = Parameters(document)
        emissions = [
            Emission(document, graph, forms, self.groups[graph], parameters)
            for graph, forms in self.forms.items()
        ]
        for emission in emissions:
            emission.emit()  # all before any is put in place: bodies read values of graphs around
        for emission in emissions:
            emission.put()
        model = document.finish()
        spreads = [
            spread_of(site, form) for forms in self.forms.values() for site, form in forms.values()
        ]
        spread = max(spreads, default=1.0)
        _note(model, NONFINITE_KEY, f"spread:{spread:g}" if spread > 1.0 else "")
        _note(model, RUNTIME_KEY, self.runtime)
        return model


def spread_of(site: LinearSite, form: Reformulation) -> float:
    """Return how many outputs Inf or NaN in one input may reach, after / before the fold.

    A structural zero times Inf is NaN, so a non-finite input reaches every output that shares its
    reduction, within its sample. The mean number of outputs reached grows by the number of elements
    of the folded weight / the number of elements that are no structural zeros.
    """
    return 1.0 if site.is_finite else round(form.fold.spread(), 2)


def _note(model: onnx.ModelProto, key: str, value: str) -> None:
    """Write an entry of the metadata in place of an older entry; remove that if the value is ""."""
    retain(model.metadata_props, lambda entry: entry.key != key)
    if value:
        model.metadata_props.add(key=key, value=value)


RETURNED = Refusal(Code.OUTPUT, "the graph returns its output")
OTHERWISE = Refusal(Code.ANOTHER_FOLD, "it is folded in another way")
IN_A_BODY = Refusal(Code.IN_A_BODY, "it lies in the body of another node")
NO_GAIN = Refusal(Code.MOVES_MORE, "running it packed would copy more elements than it saves")


def region_reports(rewriting: Rewriting, names: Mapping[Node, str]) -> list[RegionReport]:
    """Return the regions of all graphs; folded nodes without a packed tensor make none.

    Args:
        rewriting: all changes of the model.
        names: names of its sites, for nodes without one.
    """
    paths = {scope.graph: scope.path for scope in rewriting.document.scopes}

    def name(node: Node) -> str:
        return names.get(node) or node.name or node.outputs[0].name or ""

    reports = []
    for graph, groups in rewriting.groups.items():
        for nodes in groups.regions.connected():
            stops = dict.fromkeys(s for node in nodes for s in _stops(groups.regions, node))
            if len(nodes) > 1 or stops:
                propagated = [node for node in nodes if node in groups.regions.propagated]
                reports.append(
                    RegionReport(
                        graph=paths[graph],
                        folded=[name(node) for node in nodes if node in groups.regions.sites],
                        carried=[f"{node.op_type} {name(node)}" for node in propagated],
                        stops=[
                            Stop(node=name(n), op=n.op_type, code=why.code.value, reason=why.reason)
                            for n, why in stops
                        ],
                    )
                )
    return reports


def _stops(regions: Regions, node: Node) -> Iterator[tuple[Node, Refusal]]:
    """Yield the nodes at which the packed outputs of a node end, with reasons."""
    ends = regions.sites.get(node)
    if ends is not None and ends.logical_because is not None:
        yield node, ends.logical_because
    for value in node.outputs:
        layout = regions.home(value)
        if layout is None:
            continue
        forms = regions.forms(value, layout)
        if any(map(regions.is_fixed, forms)):
            yield node, RETURNED
        for user, index in (use for form in forms for use in form.uses()):
            if user.outputs[0] in forms:
                continue  # a DequantizeLinear of the same region is no end
            if user in regions.sites and index == regions.sites[user].data:
                if regions.sites[user].input_layout != layout:
                    yield user, OTHERWISE
            elif user not in regions.propagated or regions.propagated[user].layout != layout:
                inside = user.graph is not node.graph
                yield user, IN_A_BODY if inside else regions.refusals.get(user, NO_GAIN)
