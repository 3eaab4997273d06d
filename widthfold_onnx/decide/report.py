"""Report what a plan does to a model: to every layer, region and companion."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from widthfold_onnx.decide.decisions import DecidedPlan, Decision, refused_site, unchanged_site
from widthfold_onnx.options import Companion, FoldOptions, NonFinite
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import (
    MISFIT,
    CompanionReport,
    Gain,
    OptimizeReport,
    OptimizeSummary,
    PaddedChannels,
    PaddingReport,
    SiteReport,
    Stop,
)
from widthfold_onnx.rewrite.exchange import Match
from widthfold_onnx.rewrite.fit import FittedPlan
from widthfold_onnx.rewrite.plan import PaddingPlan, Plan
from widthfold_onnx.rewrite.rewriting import spread_of
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.legality import EXTENTS, guard_conditions

STATUSES = ("folded", "kept", "refused")

NOT_PLANNED = "not-planned"
"""Code of a layer that a plan does not name."""


def optimize_report(
    model: str, size: int, fitted_plan: FittedPlan, decided_plan: DecidedPlan
) -> OptimizeReport:
    """Return the report of a command before anything is written.

    Args:
        model: name of the file.
        size: its bytes.
        fitted_plan: the plan at this model.
        decided_plan: the outcome of every layer and companion, and the measurements.
    """
    names = {site.node: site.name for site in fitted_plan.reading.sites}
    sites, plan = decided_plan.sites, fitted_plan.plan
    counts = {status: sum(site.status == status for site in sites) for status in STATUSES}
    return OptimizeReport(
        model=model,
        sites=list(sites),
        regions=fitted_plan.rewriting.region_reports(names),
        companions=list(decided_plan.companions),
        padding=decided_plan.padding,
        summary=OptimizeSummary(
            **counts,
            bytes_before=size,
            bytes_after=size,
            exchanged=len(plan.companions),
            frozen=len(plan.frozen),
            padded=0 if plan.padding is None else len(plan.padding.layers),
        ),
        assumed=decided_plan.assumed,
        search=decided_plan.search,
        fixed_sizes=(
            {name: list(shape) for name, shape in plan.sizes[0].items()}
            if plan.limits.fixed_shapes and plan.changes
            else {}
        ),
        written=None,
        verification=None,
    )


def applied_plan(fitted_plan: FittedPlan, plan: Plan) -> DecidedPlan:
    """Return the outcome of every layer of a model to which a plan is applied.

    Layers and other parts of the plan that do not fit come last.
    """
    names = {layer.name for layer in plan.layers}
    layers = {site.node: (site, form) for site, form in fitted_plan.layers}
    sites = [
        _folded_layer(*layers[site.node])
        if site.node in layers
        else unchanged_site(name, site.op, "kept", NOT_PLANNED, "the plan does not name it")
        for site in fitted_plan.reading.sites
        if (name := site.node_name) not in names or site.node in layers
    ]
    sites += [
        unchanged_site(m.name, m.op, "refused", MISFIT, m.reason) for m in fitted_plan.misfits
    ]
    padding = padding_report(fitted_plan.plan.padding, (), is_padded=True)
    return DecidedPlan(fitted_plan.plan, fitted_plan.reading, sites, padding=padding)


def site_report(decision: Decision, hint: str = "", gain: Gain | None = None) -> SiteReport:
    """Return the line of a site in the report.

    Args:
        decision: the decision for the site.
        hint: options that would fold the site if it is refused (`decide.hints`), or "".
        gain: the measured gain of the site alone.
    """
    outcome = decision.outcome
    if isinstance(outcome, Refusal):
        reason = "; ".join(filter(None, (outcome.reason, hint)))
        return refused_site(decision.name, decision.site.op, replace(outcome, reason=reason), gain)
    assert decision.layer is not None
    return _folded_layer(decision.layer, outcome, gain)


def _folded_layer(layer: Layer, form: Form, gain: Gain | None = None) -> SiteReport:
    """Return the line of a layer that is replaced by a form."""
    inputs, outputs = layer.channels
    guard = EXTENTS if guard_conditions(layer, form) else ""
    return SiteReport(
        node=layer.name,
        graph=layer.scope.path,
        op=layer.op,
        status="folded",
        axis=form.spec.axis,
        factor=form.spec.factor,
        form=form.label,
        code="folded",
        reason=f"{inputs} -> {outputs} channels became {form.channels_text(inputs, outputs)}"
        + (f", guarded ({guard})" if guard else ""),
        flops_ratio=round(form.flops_ratio, 4),
        spread=spread_of(layer, form),
        guard=guard,
        gain=gain,
    )


def companion_reports(
    matches: Sequence[Match],
    exchanged_companions: Collection[Companion],
    default_reason: str,
    gains: Mapping[Companion, Sequence[Gain]] | None = None,
) -> list[CompanionReport]:
    """Return one report for each companion that matches a node.

    Args:
        matches: the nodes that they match.
        exchanged_companions: the companions that were exchanged.
        default_reason: why other nodes are left alone, where that was not measured.
        gains: measured gains: on random inputs, and on smooth ones.
    """
    reports = []
    for name in dict.fromkeys(match.companion for match in matches):
        outcomes = [(match, match.outcome) for match in matches if match.companion is name]
        exchanges = [(m.name.node, ops) for m, ops in outcomes if not isinstance(ops, Refusal)]
        companion_gains = (gains or {}).get(name, ())
        is_exchanged = name in exchanged_companions
        reason = _not_taken(companion_gains) if companion_gains else default_reason
        reports.append(
            CompanionReport(
                name=name.value,
                status="refused" if not exchanges else "exchanged" if is_exchanged else "kept",
                nodes=[node for node, _ in exchanges],
                replacements=list(dict.fromkeys(", ".join(ops) for _, ops in exchanges)),
                refused=[
                    Stop(node=m.name.node, op=m.op, code=refusal.code.value, reason=refusal.reason)
                    for m, refusal in outcomes
                    if isinstance(refusal, Refusal)
                ],
                reason="" if is_exchanged or not exchanges else reason,
                gain=companion_gains[0] if companion_gains else None,
                gain_on_smooth=companion_gains[1] if len(companion_gains) > 1 else None,
            )
        )
    return reports


def _not_taken(gains: Sequence[Gain]) -> str:
    """Return why a companion was left alone, by its gains on random and smooth inputs."""
    if gains[0].low <= 1:
        return "not surely faster"
    if any(gain.high < 1 for gain in gains):
        return "slower on smooth inputs"
    return "not surely faster in every trial"


def padding_report(
    plan: PaddingPlan | None,
    stops: Sequence[Stop],
    *,
    is_padded: bool,
    reason: str = "",
    gain: Gain | None = None,
) -> PaddingReport | None:
    """Return the report of padded channels; None if no layer could be padded.

    Args:
        plan: the layers.
        stops: what stops channels that are not padded.
        is_padded: whether the plan is carried out.
        reason: why it is not, where that was not measured.
        gain: of the whole model with it, where that was measured.
    """
    if plan is None:
        return None
    return PaddingReport(
        status="padded" if is_padded else "kept",
        multiple=plan.multiple,
        layers=[
            PaddedChannels(node=layer.node, channels=layer.channels, padded=layer.padded)
            for layer in plan.layers
        ],
        stops=list(stops),
        reason="" if is_padded else reason,
        gain=gain,
    )


def unpadded_report(multiple: int, stops: Sequence[Stop], options: FoldOptions) -> PaddingReport:
    """Return the report if no channels are padded.

    Args:
        multiple: divides the channels that were to be padded.
        stops: what stops channels.
        options: select the layers, and say what may become of Inf and NaN.
    """
    reason = "channels of selected layers are multiples already, or cannot be padded"
    if options.nonfinite is NonFinite.REFUSE:
        reason = "zeros of the padding make NaN of an Inf (--nonfinite refuse)"
    return PaddingReport(
        status="kept", multiple=multiple, layers=[], stops=list(stops), reason=reason
    )
