"""Show the draft of a search: the outcome of each layer, the figures, and the plan with its origin.

Everything that is told here lies in the draft, or in the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from widthfold_onnx.decide.decisions import Decision, decisions_of
from widthfold_onnx.decide.hints import Hints, size_finder_of
from widthfold_onnx.decide.outcomes import (
    Decided,
    Outcomes,
    companion_reports,
    padding_report,
    site_report,
    unpaddable,
)
from widthfold_onnx.options import Shapes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import Gain, PaddingReport, SearchReport, SizeGain
from widthfold_onnx.rewrite.plan import LayerGain, Origin, PlanTimes
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Answer
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.runtime.environment import version
from widthfold_onnx.runtime.inputs.sizes import assumption_report
from widthfold_onnx.runtime.intervals import noise
from widthfold_onnx.runtime.session import ports_of
from widthfold_onnx.tuning.identity import device_name, runtime_of
from widthfold_onnx.tuning.measurement import AS_IS, Measurement
from widthfold_onnx.tuning.search.level_race import PREDICTED_GAIN, LevelRace, pays
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession
from widthfold_onnx.tuning.search.trials import verdict_of

NEGLIGIBLE = "by prediction it can save too little of the model's time"


def decided(session: SearchSession, draft: SearchDraft) -> Decided:
    """Return the draft with the outcomes of all layers, and the origin of its plan."""
    reading, options = session.read(draft), session.fold_options
    decisions = decisions_of(
        reading, options.selection, lambda layer: _answer(session, draft, layer)
    )
    hints = Hints(
        reading, options, size_finder_of(session.model.path, session.search_options.cases)
    )
    exchanged_companions = {part.companion for part in draft.companions}
    outcomes = Outcomes(
        sites=[site_report(d, hints.of(d), _gain(draft, d.layer)) for d in decisions],
        companions=companion_reports(
            draft.companion_matches, exchanged_companions, "not measured", draft.companion_gains
        ),
        padding=_padding_report(session, draft),
        search=_search_report(session, draft),
        assumed=assumption_report(
            ports_of(session.model.proto), options.input_shapes, session.sizes
        ),
        origin=_origin(session, draft),
        measured=_times(session, draft, decisions),
    )
    return Decided(reading, draft, outcomes)


def _answer(session: SearchSession, draft: SearchDraft, layer: Layer) -> Answer:
    """Return the form of a layer, or the reason why it has none."""
    form = draft.forms.get(layer.node_name)
    if form is not None:
        return form
    for padded in () if draft.padding is None else draft.padding.layers:
        if padded.name == layer.node_name:
            why = f"its {padded.channels} channels are padded to {padded.padded}"
            return Refusal(Code.PADDED, why)
    subject = draft.race.layers.subject(layer)
    if isinstance(subject, Refusal):
        return subject
    if subject in draft.specs:  # the open extents of this layer do not allow the form
        return form_of(layer, draft.specs[subject], session.fold_options)
    return Refusal(Code.NO_GAIN, _why_not(draft.race, subject))


def _gain(draft: SearchDraft, layer: Layer | None) -> Gain | None:
    """Return the gain of a layer alone: in its form, or in the best if it has none.

    A layer with padded channels was not measured alone.
    """
    race = draft.race
    if layer is None or isinstance(subject := race.layers.subject(layer), Refusal):
        return None
    if draft.padding is not None:
        measured = race.layers.measured.get(layer.node_name)
        if measured is None or measured.structure != layer.structure:
            return None
    if subject in draft.specs:
        return race.gain(subject, draft.specs[subject])
    best = race.best(subject)
    return None if best is None else best[1]


def _origin(session: SearchSession, draft: SearchDraft) -> Origin:
    options, measure = session.search_options, session.search_options.measure
    is_timed = measure or draft.finals[0] is not None
    return Origin(
        widthfold=version("widthfold-onnx"),
        decision="measured" if measure else "predicted",
        provider=options.provider.value,
        provider_options=dict(options.provider_options),
        session_options=dict(options.session_options),
        threads=options.threads,
        device=device_name(options.provider) if measure else session.target.name,
        runtime=runtime_of(session.bench.machine) if is_timed else "",
    )


def _times(session: SearchSession, draft: SearchDraft, decisions: Sequence[Decision]) -> PlanTimes:
    final = draft.finals[0]
    gains = {d.name: _gain(draft, d.layer) for d in decisions if d.name in draft.forms}
    return PlanTimes(
        whole=None if final is None else final.gain,
        setting=_setting(final),
        sizes=tuple(map(dict, session.sizes)),
        layers=tuple(
            LayerGain(graph=name.graph, node=name.node, gain=gain)
            for name, gain in sorted(gains.items(), key=lambda item: item[0])
            if gain is not None
        ),
    )


def _padding_report(session: SearchSession, draft: SearchDraft) -> PaddingReport | None:
    """Return the report of padded channels; None if no chain was timed and none was asked for."""
    paddable, gain = draft.paddable, draft.padding_gain
    if paddable is None:
        return None
    if gain is None:
        reason = "not timed" if paddable.chains else unpaddable(session.fold_options)
    else:
        reason = "not in the fastest model" if gain.is_surely_faster else "not surely faster"
    is_padded = draft.padding is not None
    return padding_report(paddable, is_padded=is_padded, reason=reason, gain=gain)


def _search_report(session: SearchSession, draft: SearchDraft) -> SearchReport:
    """Return the figures of the search."""
    options, race, final = session.search_options, draft.race, draft.finals[0]
    workloads, all_to_extended = race.layers.workloads, draft.all_to_extended
    best = [race.best(subject) for subject in workloads]
    last = final or all_to_extended
    return SearchReport(
        provider=options.provider.value,
        threads=options.threads,
        target=session.target.name,
        sizes=list(map(_at_size, session.sizes, draft.finals)),
        layers=len(workloads),
        forms=sum(len(workload.forms) for workload in workloads.values()),
        measured=sum(len(level_race.bench.new_measurements) for level_race in draft.races),
        pending=len(_unmeasured(draft)) if options.measure else 0,
        predicted=sum(choice is not None and choice[1].predicted for choice in best),
        interrupted=draft.is_interrupted,
        store_read_only=session.bench.store.read_only,
        whole=None if final is None else final.gain,
        accepted=draft.is_changing,
        control=0.0 if final is None else final.control,
        bar=0.0 if final is None else noise(final.control),
        failure="" if final is None else final.reason,
        note="" if last is None else last.note,
        original_setting=final.original_setting if final else _fastest(all_to_extended),
        folded_setting=_setting(final) if draft.is_changing else "",
    )


def _why_not(race: LevelRace, subject: str) -> str:
    count = len(race.layers.workloads[subject].forms)
    best = race.best(subject)
    if best is None and subject in race.negligible():
        return NEGLIGIBLE
    if best is None:
        return f"none of its {count} forms {_why_unmeasured(race, subject)}"
    gain = best[1]
    if gain.predicted:
        why = f"is predicted at {gain.ratio:.2f}x; {PREDICTED_GAIN}x would be folded unmeasured"
    else:
        why = f"ran at {gain.ratio:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"
    where = ", but not in the whole model" if pays(gain) else ""
    return f"the best of its {count} forms {why}{where}"


def _why_unmeasured(race: LevelRace, subject: str) -> str:
    """Return why no form of a layer has a measured gain: the end of "none of its N forms ...".

    The reason is the most common one among the lost measurements of the layer and its forms.
    """
    measurement_of, forms = race.bench.measurement, race.layers.workloads[subject].forms
    results = [measurement_of(subject, AS_IS)]
    results += [measurement_of(subject, form.spec) for form in forms]
    reasons = Counter(m.reason for m in results if m is not None and m.reason)
    return f"ran: {reasons.most_common(1)[0][0]}" if reasons else "was measured"


def _unmeasured(draft: SearchDraft) -> set[str]:
    """Return the subjects of the layers that still lack a measurement."""
    pending = [w for race in draft.races for w in race.bench.pending(race.promising())]
    return draft.race.layers.subjects_of(pending)


def _fastest(all_to_extended: Measurement | None) -> str:
    """Return the level at which the model is fastest before layers take forms; "" if not timed."""
    if all_to_extended is None:
        return ""
    is_slower_at_all = all_to_extended.ratio > 1
    return all_to_extended.setting if is_slower_at_all else all_to_extended.original_setting


def _setting(final: Measurement | None) -> str:
    """Return the setting at which the new model is fastest; "" if it was not timed."""
    return "" if final is None or final.status == "lost" else final.setting


def _at_size(shapes: Shapes, final: Measurement | None) -> SizeGain:
    """Return the row of the report for one size."""
    row = SizeGain(shapes={name: list(dims) for name, dims in shapes.items()})
    if final is None:
        return row
    if final.status == "lost":
        return msgspec.structs.replace(row, verdict="slower", note=final.reason)
    return msgspec.structs.replace(
        row,
        gain=final.gain,
        verdict=verdict_of(final),
        original_ms=1e3 * final.ratio * final.seconds,
    )
