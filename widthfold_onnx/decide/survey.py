"""Describes every site for `inspect`: the decision at a fixed factor, and all forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from widthfold_onnx.decide.decisions import KEPT, Decision, decide
from widthfold_onnx.decide.draft import (
    companion_reports,
    drafted,
    matches_of,
    padding_of,
    padding_report,
    with_companions,
)
from widthfold_onnx.decide.hints import Hints, none_runs, ran
from widthfold_onnx.errors import InvalidModelError, UnverifiedError
from widthfold_onnx.model.graph.document import Node
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.options import FoldOptions, Provider, RuntimeOptions, Values
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import AssumedSizes, FormChoice, InspectReport, InspectSite
from widthfold_onnx.rewrite.apply import Reading
from widthfold_onnx.rewrite.padding import MULTIPLES, joined
from widthfold_onnx.rewrite.record import FOLD_KEY, read_record
from widthfold_onnx.rules.companions import COMPANIONS
from widthfold_onnx.rules.forms.enumeration import forms_at_factor
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.sites import LinearSite
from widthfold_onnx.rules.selection import furthest, preference, reformulate, width_problem
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.cases import reported
from widthfold_onnx.runtime.inputs.dimensions import Dimensions, assumed_sizes
from widthfold_onnx.runtime.inputs.sizes import running
from widthfold_onnx.runtime.sessions.ports import ports_of

LEFT_ALONE = "left alone unless --companion names it"

TILE = 8
"""Channels of one tensor-core tile in half precision (NVIDIA convolution guide)."""


ANY = "any axis"
"""Key of a refusal that holds for all axes."""


def survey(
    loaded: LoadedModel, options: FoldOptions, factor: int, cases: Sequence[Values]
) -> InspectReport:
    """Describe a model and every site; legal and refused forms are those at the factor.

    Args:
        loaded: the model.
        options: which layers, how far, in which form.
        factor: the factor.
        cases: values of the inputs that choose between parts of the model.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    draft = drafted(loaded.proto, options)
    proto, folder = loaded.proto, loaded.folder
    matches = matches_of(proto, folder, draft, tuple(COMPANIONS))
    draft = with_companions(draft, matches_of(proto, folder, draft, options.exchanges))
    reading = Reading.of(proto, folder, draft)
    chains, stops = padding_of(reading, options, options.pad_channels or MULTIPLES[0])
    assumed = _assumed(loaded, options, cases)
    run = partial(ran, loaded.path, cases) if assumed is not None else none_runs
    return InspectReport(
        model=loaded.path.name,
        opset=reading.document.opset,
        ir_version=loaded.proto.ir_version,
        nodes=len(loaded.proto.graph.node),
        sites=_sites(reading, options, factor, Hints(reading, options, run)),
        companions=companion_reports(matches, options.exchanges, LEFT_ALONE),
        padding=padding_report(joined(chains), stops, done=False),
        assumed=assumed,
        values=reported(cases),
    )


def _assumed(
    loaded: LoadedModel, options: FoldOptions, cases: Sequence[Values]
) -> AssumedSizes | None:
    """Return sizes at which the model runs; None if nothing is open, or none was found."""
    ports = ports_of(loaded.proto)
    if not Dimensions(ports, options.input_shapes[0]).open_inputs:
        return None
    how = RuntimeOptions(provider=Provider.CPU, cases=tuple(cases))
    try:
        _, sizes = isolated(running, loaded.path, how, options.input_shapes)
    except UnverifiedError:
        return None
    return assumed_sizes(ports, options.input_shapes, sizes)


def _sites(reading: Reading, options: FoldOptions, factor: int, hints: Hints) -> list[InspectSite]:
    choose = partial(reformulate, options=options, factor=factor)

    def read(decision: Decision) -> LinearSite | Refusal:
        """Return the site of a decision, and read it if the decision left it unread."""
        if decision.linear is not None:
            return decision.linear
        assert isinstance(decision.outcome, Refusal)
        if decision.outcome.code in KEPT:
            return reading.layer(decision.site)
        return decision.outcome

    return [
        _describe(decision, read(decision), hints.of(decision), options, factor)
        for decision in decide(reading, options, choose)
    ]


def _describe(
    decision: Decision,
    linear: LinearSite | Refusal,
    hint: str,
    options: FoldOptions,
    factor: int,
) -> InspectSite:
    """Describe a site; `linear` is a refusal if the site cannot be read."""
    site = decision.site
    place = {"node": site.name, "graph": site.scope.path, "op": site.op, "hint": hint}
    folded_as = _folded_as(site.node) if FOLD_KEY in site.node.metadata_props else None
    legal, refusals = ({}, {}) if folded_as is not None else _outcomes(decision, options, factor)
    reasons = {axis: f"{r.code}: {r.reason}" for axis, r in refusals.items()}
    if isinstance(linear, Refusal):
        return InspectSite(
            **place,
            input_shape=None,
            weight_shape=None,
            output_shape=None,
            attributes="",
            channels="",
            alignment="",
            flops=None,
            folded_as=folded_as,
            choices=[],
            refusals=reasons,
        )
    inputs, outputs = linear.channels
    wide = width_problem(linear, options)
    return InspectSite(
        **place,
        input_shape=_shown(linear.planned),
        weight_shape=list(linear.weight.shape),
        output_shape=_shown(linear.output),
        attributes=linear.attributes + ("" if wide is not None else _falls(linear)),
        channels=f"{inputs} -> {outputs}",
        alignment=f"{inputs} of {_padded(inputs)} -> {outputs} of {_padded(outputs)}",
        flops=linear.macs,
        folded_as=folded_as,
        choices=[
            _choice(linear, form)
            for form in sorted(legal.values(), key=lambda form: preference(linear, form, factor))
        ],
        refusals=reasons,
    )


def _outcomes(
    decision: Decision, options: FoldOptions, factor: int
) -> tuple[dict[str, Reformulation], dict[str, Refusal]]:
    """Return the preferred form by axis, and the refusal of each axis without one."""
    linear, outcome = decision.linear, decision.outcome
    if isinstance(outcome, Refusal) and (linear is None or not outcome.code.is_of_a_form):
        return {}, {ANY: outcome}
    assert linear is not None
    legal: dict[str, list[Reformulation]] = {}
    refused: list[tuple[str, Refusal]] = []
    for axis, form in forms_at_factor(linear, options, factor):
        if isinstance(form, Refusal):
            refused.append((axis, form))
        else:
            legal.setdefault(axis, []).append(form)
    preferred = {
        axis: min(forms, key=lambda form: preference(linear, form, factor))
        for axis, forms in legal.items()
    }
    return preferred, {axis: r for axis, r in furthest(refused).items() if axis not in legal}


def _falls(linear: LinearSite) -> str:
    """Say how many groups the weight falls into, if not `group`; not called for wide layers."""
    if linear.groups == linear.group:
        return ""
    return f", falls into {linear.groups} groups"


def _folded_as(node: Node) -> str:
    try:
        return read_record(node.metadata_props[FOLD_KEY]).form
    except InvalidModelError:
        return "how is not known: its record cannot be read"


def _choice(linear: LinearSite, outcome: Reformulation) -> FormChoice:
    inputs, outputs = linear.channels
    fold = outcome.fold
    return FormChoice(
        axis=outcome.spec.axis,
        factor=outcome.spec.factor,
        form=outcome.form,
        channels="{} -> {}".format(*fold.channels(inputs, outputs)),
        flops_ratio=round(outcome.flops_ratio, 4),
        bytes_ratio=round(outcome.bytes_ratio, 4),
        structural_zeros=round(fold.structural_zeros(), 4),
    )


def _shown(dims: Dims) -> list[int | str]:
    return ["?" if extent is None else extent for extent in dims]


def _padded(channels: int) -> int:
    return -(-channels // TILE) * TILE
