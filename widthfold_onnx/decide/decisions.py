"""Decide what every layer of a model becomes; the result is a plan, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import onnx

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.graph.messages import NodeName
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import (
    AssumedSizes,
    CompanionReport,
    Gain,
    PaddingReport,
    SearchReport,
    SiteReport,
)
from widthfold_onnx.rewrite.apply import ALREADY_FOLDED, Reading
from widthfold_onnx.rewrite.plan import LayerPlan, Plan, structure_of
from widthfold_onnx.rewrite.rewriting import spread_of
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.forms.legality import EXTENTS, needed_extents
from widthfold_onnx.rules.match.sites import LinearSite, Site
from widthfold_onnx.text import quoted

Choose = Callable[[LinearSite], Reformulation | Refusal]

KEPT = frozenset(
    {Code.ALREADY_FOLDED, Code.NOT_SELECTED, Code.NO_STRIDES, Code.NO_GAIN, Code.PADDED}
)
"""Codes of sites that are left alone without a fault."""


@dataclass(frozen=True)
class Decision:
    """A site and its outcome.

    Attributes:
        linear: the same site as it was read; None where it could not or need not be read.
    """

    site: Site
    linear: LinearSite | None
    outcome: Reformulation | Refusal

    @property
    def name(self) -> NodeName:
        """The name of the layer."""
        return NodeName(self.site.scope.path, self.site.name)

    def report(self, hint: str, gain: Gain | None = None) -> SiteReport:
        """Return the line of the report.

        Args:
            hint: options that would fold the site if it is refused (`decide.hints`), or "".
            gain: the measured gain of the site alone.
        """
        graph, node = self.name
        if isinstance(self.outcome, Refusal):
            return SiteReport(
                node=node,
                graph=graph,
                op=self.site.op,
                status="kept" if self.outcome.code in KEPT else "refused",
                code=self.outcome.code.value,
                reason="; ".join(filter(None, (self.outcome.reason, hint))),
                gain=gain,
            )
        assert self.linear is not None
        return folded_report(self.linear, self.outcome, gain)


@dataclass(frozen=True)
class Decided:
    """A plan, and the outcome of every layer.

    Attributes:
        plan: the plan.
        reading: the model as it was read under the plan.
        sites: the line of each layer in the report.
        companions: the line of each companion that matches a node.
        padding: the line of padded channels; None if there is none.
        search: the measurements; None where nothing was measured.
        assumed: sizes that were assumed; None where nothing was left open, or nothing was run.
    """

    plan: Plan
    reading: Reading
    sites: Sequence[SiteReport]
    companions: Sequence[CompanionReport] = ()
    padding: PaddingReport | None = None
    search: SearchReport | None = None
    assumed: AssumedSizes | None = None

    def explained(self, reasons: Mapping[str, str]) -> Decided:
        """Return this with other reasons for layers that are left alone, by name of the layer."""
        sites = [
            msgspec.structs.replace(s, reason=reasons.get(s.node, s.reason)) for s in self.sites
        ]
        return replace(self, sites=sites)

    def without(
        self,
        layers: Collection[NodeName],
        refusal: Refusal,
        proto: onnx.ModelProto,
        folder: Path | None,
    ) -> Decided:
        """Return this with some layers refused; the model is read anew."""
        plan = msgspec.structs.replace(
            self.plan, layers=tuple(part for part in self.plan.layers if part.name not in layers)
        )
        sites = [
            SiteReport(
                node=site.node,
                graph=site.graph,
                op=site.op,
                gain=site.gain,
                status="refused",
                code=refusal.code.value,
                reason=refusal.reason,
            )
            if NodeName(site.graph, site.node) in layers
            else site
            for site in self.sites
        ]
        reading = Reading.of(proto, folder, plan)
        return replace(self, plan=plan, sites=sites, reading=reading)


def folded_report(layer: LinearSite, form: Reformulation, gain: Gain | None = None) -> SiteReport:
    """Return the line of the report of a layer that is replaced by a form."""
    inputs, outputs = layer.channels
    guard = EXTENTS if needed_extents(layer, form) else ""
    return SiteReport(
        node=layer.name,
        graph=layer.scope.path,
        op=layer.op,
        status="folded",
        axis=form.spec.axis,
        factor=form.spec.factor,
        form=form.form,
        code="folded",
        reason=f"{inputs} -> {outputs} channels became {form.became(inputs, outputs)}"
        + (f", guarded ({guard})" if guard else ""),
        flops_ratio=round(form.flops_ratio, 4),
        spread=spread_of(layer, form),
        guard=guard,
        gain=gain,
    )


def decide(reading: Reading, options: FoldOptions, choose: Choose) -> list[Decision]:
    """Return one decision for every site of the model, in graph order.

    Args:
        reading: the model.
        options: which sites.
        choose: returns the form or refusal of a site that can be read.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    return [
        Decision(site, None, layer)
        if isinstance(layer, Refusal)
        else Decision(site, layer, choose(layer))
        for site, layer in read_sites(reading, options)
    ]


def read_sites(
    reading: Reading, options: FoldOptions
) -> Iterator[tuple[Site, LinearSite | Refusal]]:
    """Yield every site in graph order, read or refused.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    for pattern in (*options.nodes, *options.skip):
        if not any(fnmatchcase(site.name, pattern) for site in reading.sites):
            raise UsageError(f"no layer is named {quoted(pattern)}; `inspect` lists them")
    for site in reading.sites:
        if reading.is_folded:
            yield site, ALREADY_FOLDED
        elif not is_selected(site.name, options):
            yield site, Refusal(Code.NOT_SELECTED, "left alone by --nodes or --skip")
        else:
            yield site, reading.layer(site)


def with_layers(draft: Plan, decisions: Iterable[Decision]) -> Plan:
    """Return a plan with the layers to which decisions give a form, sorted by name."""
    layers = [
        planned_layer(decision.linear, decision.outcome)
        for decision in decisions
        if decision.linear is not None and isinstance(decision.outcome, Reformulation)
    ]
    return msgspec.structs.replace(draft, layers=tuple(sorted(layers, key=lambda p: p.name)))


def planned_layer(layer: LinearSite, form: Reformulation) -> LayerPlan:
    """Return the part of a plan that replaces a layer by a form."""
    return LayerPlan(
        graph=layer.scope.path,
        node=layer.name,
        structure=structure_of(layer),
        form=form.spec,
    )


def is_selected(name: str, options: FoldOptions) -> bool:
    """Check whether the options let a node be changed."""
    is_named = not options.nodes or any(fnmatchcase(name, p) for p in options.nodes)
    return is_named and not any(fnmatchcase(name, p) for p in options.skip)
