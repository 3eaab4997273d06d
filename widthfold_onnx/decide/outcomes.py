"""Report what is done to a model, to every layer, region and companion: its outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import onnx

from widthfold_onnx.decide.decisions import Decision
from widthfold_onnx.decide.match import Misfit
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.model.proto.walk import model_nodes
from widthfold_onnx.model.shapes.declarations import declaration_remarks
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import Companion, FoldOptions, NonFinite
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import (
    AssumedSizes,
    CompanionReport,
    Gain,
    OptimizeReport,
    OptimizeSummary,
    PaddedChannels,
    PaddingReport,
    SearchReport,
    SiteReport,
    SizeGain,
    Stop,
)
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.exchange import Match
from widthfold_onnx.rewrite.padding import PaddableChains
from widthfold_onnx.rewrite.plan import Origin, Plan, PlanTimes, plan_of
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.rewriting import Rewriting
from widthfold_onnx.rules.form import Form, spread_of
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.legality import EXTENTS, guard_conditions

STATUSES = ("folded", "kept", "refused")

KEPT = frozenset(
    {
        *(Code.ALREADY_FOLDED, Code.NOT_SELECTED, Code.SATURATES),
        *(Code.NO_STRIDES, Code.NO_GAIN, Code.PADDED, Code.NOT_PLANNED),
    }
)
"""Codes of sites that are left alone without a fault."""

NOT_PLANNED = Refusal(Code.NOT_PLANNED, "the plan does not name it")


@dataclass(frozen=True)
class Outcomes:
    """What was decided, as lines of the report and of a plan file.

    Attributes:
        sites: of each layer.
        companions: of each companion that matches a node.
        padding: of padded channels; None where none were to be padded, or the model contains folds.
        search: the figures of the search; None at a fixed factor.
        assumed: sizes that were assumed; None where nothing was left open, or nothing was run.
        origin: where the decision comes from.
        measured: times of the run that decided.
    """

    sites: Sequence[SiteReport]
    companions: Sequence[CompanionReport] = ()
    padding: PaddingReport | None = None
    search: SearchReport | None = None
    assumed: AssumedSizes | None = None
    origin: Origin | None = None
    measured: PlanTimes = field(default_factory=PlanTimes)

    def with_refusals(self, refusals: Mapping[NodeName, Refusal]) -> Outcomes:
        """Return the same with the refusals of layers that are not folded."""
        sites = [
            _unfolded_site(name, site.op, refusals[name], site.gain)
            if (name := NodeName(site.graph, site.node)) in refusals
            else site
            for site in self.sites
        ]
        return replace(self, sites=sites)

    def untimed(self, *, accepted: bool) -> Outcomes:
        """Return the same without figures of the whole model: another model was timed.

        `accepted` tells whether the model is changed still.
        """
        measured = PlanTimes(sizes=self.measured.sizes)
        if self.search is None:
            return replace(self, measured=measured)
        figures = {
            field.name: field.default
            for field in msgspec.structs.fields(SearchReport)
            if field.default is not msgspec.NODEFAULT
        }
        sizes = [SizeGain(shapes=row.shapes) for row in self.search.sizes]
        search = msgspec.structs.replace(
            self.search, **figures, whole=None, sizes=sizes, accepted=accepted
        )
        return replace(self, search=search, measured=measured)


class Decided(NamedTuple):
    """What was decided for a model.

    Attributes:
        reading: the model, read under the draft.
        draft: what is done to it.
        outcomes: why.
    """

    reading: Reading
    draft: Draft
    outcomes: Outcomes

    @property
    def runtime(self) -> str:
        """The version of ONNX Runtime that the forms were measured with; "" if none was."""
        return self.outcomes.origin.runtime if self.outcomes.origin else ""

    @property
    def plan(self) -> Plan:
        """The draft as a plan, which a file can hold."""
        return plan_of(self.draft, self.outcomes.origin, self.outcomes.measured)

    def without(self, refusals: Mapping[NodeName, Refusal], model: Model) -> Decided:
        """Return the same without some forms; the model is read anew, for another rewriting."""
        draft = self.draft.without(refusals)
        outcomes = self.outcomes.with_refusals(refusals).untimed(accepted=draft.is_changing)
        return Decided(Reading.of(model, draft), draft, outcomes)


BLOCKED_DOMAIN = "com.microsoft.nchwc"
"""Domain of the runtime's blocked layers, which it writes for the processor at hand."""


def model_remarks(model: onnx.ModelProto, table: ShapeTable) -> list[str]:
    """Return what the caller should know of a model before its layers are looked at.

    Args:
        model: the model.
        table: its shapes at the planned sizes.
    """
    remarks = declaration_remarks("the model", table.wrong_declarations)
    count = sum(node.domain == BLOCKED_DOMAIN for node in model_nodes(model))
    if not count:
        return remarks
    return [
        *remarks,
        f"nodes in a blocked layout of ONNX Runtime ({BLOCKED_DOMAIN}), which are no layers here: "
        f"{count}; the runtime saved this file at level all: give the model that it was made from",
    ]


def unread_remark(count: int) -> str:
    """Say that weights which were replaced are inputs still: a file of IR version 3 lists them."""
    return (
        f"replaced weights that stay among the inputs, unread: {count}; IR version 3 lists weights "
        "there, and --freeze-weights leaves them out"
    )


def optimize_report(
    model: Model,
    decided: Decided,
    rewriting: Rewriting,
    *,
    values: Sequence[dict[str, list[float]]] = (),
    note: str = "",
) -> OptimizeReport:
    """Return the report of a command before anything is written.

    Args:
        model: the model.
        decided: what was decided for it.
        rewriting: how it is carried out; not done yet.
        values: combinations of values of inputs that choose between parts of the model.
        note: what the caller should know of the plan.
    """
    reading, draft, outcomes = decided
    names, sites = {site.node: site.name for site in reading.sites}, outcomes.sites
    counts = {status: sum(site.status == status for site in sites) for status in STATUSES}
    return OptimizeReport(
        model=model.name,
        sites=list(sites),
        regions=rewriting.region_reports(names),
        companions=list(outcomes.companions),
        padding=outcomes.padding,
        summary=OptimizeSummary(
            **counts,
            bytes_before=model.size,
            bytes_after=model.size,
            exchanged=len(draft.companions),
            frozen=len(draft.frozen),
            padded=0 if draft.padding is None else len(draft.padding.layers),
        ),
        assumed=outcomes.assumed,
        search=outcomes.search,
        fixed_sizes=(
            {name: list(shape) for name, shape in draft.sizes[0].items()}
            if draft.limits.fixed_shapes and draft.is_changing
            else {}
        ),
        written=None,
        verification=None,
        values=list(values),
        note=note,
        remarks=model_remarks(reading.document.proto, reading.planned_shapes),
    )


def applied(reading: Reading, draft: Draft, misfits: Sequence[Misfit], plan: Plan) -> Decided:
    """Return what a plan decides for a model, as far as it fits.

    Args:
        reading: the model.
        draft: the parts of the plan that fit.
        misfits: the other parts; they come last in the report.
        plan: the plan.
    """
    planned = {layer.name for layer in plan.layers}
    sites = []
    for site in reading.sites:
        name = site.node_name
        if name in draft.forms:
            layer = reading.layer(site)
            assert isinstance(layer, Layer)
            sites.append(_folded_site(layer, draft.forms[name]))
        elif name not in planned:
            sites.append(_unfolded_site(name, site.op, NOT_PLANNED))
    sites += [
        _unfolded_site(misfit.name, misfit.op, Refusal(Code.MISFIT, misfit.reason))
        for misfit in misfits
    ]
    padding = None
    if draft.padding is not None:
        chains = PaddableChains(draft.padding.multiple, [draft.padding], [])
        padding = padding_report(chains, is_padded=True)
    outcomes = Outcomes(sites, padding=padding, origin=plan.origin, measured=plan.measured)
    return Decided(reading, draft, outcomes)


def site_report(decision: Decision, hint: str = "", gain: Gain | None = None) -> SiteReport:
    """Return the line of a site in the report.

    Args:
        decision: the decision for the site.
        hint: options that would fold the site if it is refused (`decide.hints`), or "".
        gain: the measured gain of the site alone.
    """
    answer = decision.answer
    if isinstance(answer, Refusal):
        reason = "; ".join(filter(None, (answer.reason, hint)))
        refusal = replace(answer, reason=reason)
        return _unfolded_site(decision.name, decision.site.op, refusal, gain)
    assert decision.layer is not None
    return _folded_site(decision.layer, answer, gain)


def _unfolded_site(
    name: NodeName, op: str, refusal: Refusal, gain: Gain | None = None
) -> SiteReport:
    """Return the line of a site that is left alone, or of a part of a plan that does not fit."""
    return SiteReport(
        node=name.node,
        graph=name.graph,
        op=op,
        status="kept" if refusal.code in KEPT else "refused",
        code=refusal.code.value,
        reason=refusal.reason,
        gain=gain,
    )


def _folded_site(layer: Layer, form: Form, gain: Gain | None = None) -> SiteReport:
    """Return the line of a site that is replaced by a form."""
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
        pairs = [(match, match.replacements) for match in matches if match.companion is name]
        exchanges = [(m.name.node, ops) for m, ops in pairs if not isinstance(ops, Refusal)]
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
                    for m, refusal in pairs
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
    if not gains[0].is_surely_faster:
        return "not surely faster"
    if any(gain.is_surely_slower for gain in gains):
        return "slower on smooth inputs"
    return "not surely faster in every trial"


def padding_report(
    paddable: PaddableChains, *, is_padded: bool, reason: str = "", gain: Gain | None = None
) -> PaddingReport:
    """Return the report of padded channels.

    Args:
        paddable: the chains, and what stops channels that are not padded.
        is_padded: whether the chains are padded.
        reason: why it is not.
        gain: of the whole model with it, where that was measured.
    """
    plan = paddable.plan
    return PaddingReport(
        status="padded" if is_padded else "kept",
        multiple=paddable.multiple,
        layers=[
            PaddedChannels(node=layer.node, channels=layer.channels, padded=layer.padded)
            for layer in (plan.layers if plan else ())
        ],
        stops=list(paddable.stops),
        reason="" if is_padded else reason,
        gain=gain,
    )


def unpaddable(options: FoldOptions) -> str:
    """Return why no channels of the selected layers can be padded."""
    if options.nonfinite is NonFinite.REFUSE:
        return "zeros of the padding make NaN of an Inf (--nonfinite refuse)"
    return "channels of selected layers are multiples already, or cannot be padded"
