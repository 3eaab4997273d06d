"""Describe every site for `inspect`: the decision, and the preferred form of each axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from widthfold_onnx.algebra.channels import CHANNEL_MULTIPLES
from widthfold_onnx.arrays import Dims, round_up
from widthfold_onnx.decide.decisions import Decision, decisions_of, selected_chains
from widthfold_onnx.decide.hints import Hints, size_finder_of
from widthfold_onnx.decide.outcomes import KEPT, companion_reports, model_remarks, padding_report
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import FoldOptions, Provider, RuntimeOptions, Values
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import AssumedSizes, FormChoice, InspectReport, InspectSite
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.record import FOLD_KEY, read_fold
from widthfold_onnx.rules.companions import COMPANIONS
from widthfold_onnx.rules.enumeration import forms_at_factor
from widthfold_onnx.rules.form import Form, lanes_growth
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.legality import EXTENTS, guard_conditions, wide_problem
from widthfold_onnx.rules.selection import nearest_refusals, preference, preferred_form
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.cases import cases, values_for_report
from widthfold_onnx.runtime.inputs.sizes import (
    assumption_report,
    input_dimensions,
    provider_and_sizes,
)
from widthfold_onnx.runtime.session import ports_of

LEFT_ALONE = "left alone unless --companion names it"

TILE = 8
"""Channels of one tensor-core tile in half precision (NVIDIA convolution guide)."""

ANY_AXIS = "any axis"
"""Key of a refusal that holds for all axes."""


def inspect_model(
    loaded: LoadedModel, options: FoldOptions, runtime_options: RuntimeOptions
) -> InspectReport:
    """Describe a model and every site with its shapes, cost, legal forms and refusals.

    Args:
        loaded: the model.
        options: which layers, by which factor, in which form.
        runtime_options: values of its inputs.

    Raises:
        UsageError: no factor, a node pattern that matches no site, or a value or an assumed input
            shape that does not fit.
        InvalidModelError: the graph library cannot read the model.
    """
    if options.is_measured:
        raise UsageError(
            "inspect measures nothing and shows the forms of one factor: give a number; what auto "
            "takes is shown by `optimize MODEL`"
        )
    combinations = cases(loaded.proto, runtime_options.values)
    draft = Draft.first(loaded, options)
    matches = draft.matches(loaded, tuple(COMPANIONS))
    draft = draft.with_companions(draft.matches(loaded, options.active_companions))
    reading = Reading.of(loaded, draft)
    multiple = options.pad_channels or CHANNEL_MULTIPLES[0]
    paddable = selected_chains(reading, options, multiple)
    assumed = _assumed(loaded, options, combinations)
    hints = Hints(reading, options, size_finder_of(loaded.path, combinations))
    choose = partial(preferred_form, options=options)
    return InspectReport(
        model=loaded.path.name,
        opset=reading.document.opset,
        ir_version=loaded.proto.ir_version,
        nodes=len(loaded.proto.graph.node),
        sites=[
            _site(decision, reading, hints.of(decision), options)
            for decision in decisions_of(reading, options.selection, choose)
        ],
        companions=companion_reports(matches, options.active_companions, LEFT_ALONE),
        padding=padding_report(paddable, is_padded=False) if paddable.chains else None,
        assumed=assumed,
        values=values_for_report(combinations),
        remarks=model_remarks(loaded.proto, reading.planned_shapes),
    )


def _assumed(
    loaded: LoadedModel, options: FoldOptions, combinations: Sequence[Values]
) -> AssumedSizes | None:
    """Return sizes at which the model runs; None if nothing is open, or none was found."""
    ports = ports_of(loaded.proto)
    if not input_dimensions(ports, options.input_shapes[0]).open_inputs:
        return None
    runtime_options = RuntimeOptions(provider=Provider.CPU, cases=tuple(combinations))
    try:
        _, sizes = isolated(provider_and_sizes, loaded.path, runtime_options, options.input_shapes)
    except UnverifiedError:
        return None
    return assumption_report(ports, options.input_shapes, sizes)


def _site(decision: Decision, reading: Reading, hint: str, options: FoldOptions) -> InspectSite:
    """Describe a site. A site that was skipped before it was read is read now, for its shapes."""
    site, layer, answer = decision.site, decision.layer, decision.answer
    earlier_fold = read_fold(site.node).form if FOLD_KEY in site.node.metadata_props else None
    choices, refusals = ([], {}) if earlier_fold is not None else _choices(decision, options)
    if layer is None and isinstance(answer, Refusal) and answer.code in KEPT:
        result = reading.layer(site)
        layer = None if isinstance(result, Refusal) else result
    inspected_site = partial(
        InspectSite,
        node=site.name,
        graph=site.scope.path,
        op=site.op,
        earlier_fold=earlier_fold,
        choices=choices,
        refusals={axis: f"{r.code}: {r.reason}" for axis, r in refusals.items()},
        hint=hint,
    )
    if layer is None:
        return inspected_site()
    inputs, outputs = layer.channels
    return inspected_site(
        input_shape=_extents(layer.planned_shape),
        weight_shape=list(layer.weight.shape),
        output_shape=_extents(layer.output_shape),
        attributes=layer.attributes_text + _groups_text(layer, options),
        channels=f"{inputs} -> {outputs}",
        alignment=f"{inputs} of {_aligned(inputs)} -> {outputs} of {_aligned(outputs)}",
        flops=layer.macs,
    )


def _groups_text(layer: Layer, options: FoldOptions) -> str:
    """Return the groups of a layer whose weight is zero between more of them, for reports."""
    if wide_problem(layer, options) is None and layer.weight_groups != layer.group:
        return f", falls into {layer.weight_groups} groups"
    return ""


def _choices(
    decision: Decision, options: FoldOptions
) -> tuple[list[FormChoice], dict[str, Refusal]]:
    """Return the preferred form of each axis, best first, and the refusals of the other axes."""
    layer, answer = decision.layer, decision.answer
    if isinstance(answer, Refusal) and (layer is None or not answer.code.is_of_a_form):
        return [], {ANY_AXIS: answer}
    assert layer is not None
    forms: list[tuple[str, Form]] = []
    refusals: list[tuple[str, Refusal]] = []
    for axis, form_or_refusal in forms_at_factor(layer, options):
        if isinstance(form_or_refusal, Refusal):
            refusals.append((axis, form_or_refusal))
        else:
            forms.append((axis, form_or_refusal))
    preferred_forms: dict[str, Form] = {}
    for axis, form in sorted(forms, key=lambda item: preference(layer, item[1], options)):
        preferred_forms.setdefault(axis, form)
    choices = [_choice(layer, form) for form in preferred_forms.values()]
    return choices, {
        axis: r for axis, r in nearest_refusals(refusals).items() if axis not in preferred_forms
    }


def _choice(layer: Layer, form: Form) -> FormChoice:
    inputs, outputs = layer.channels
    return FormChoice(
        axis=form.spec.axis,
        factor=form.spec.factor,
        form=form.label,
        channels="{} -> {}".format(*form.fold.channels(inputs, outputs)),
        flops_ratio=round(form.flops_ratio, 4),
        lanes_ratio=round(lanes_growth(layer, form), 4),
        bytes_ratio=round(form.bytes_ratio, 4),
        structural_zeros=round(form.fold.structural_zeros(), 4),
        guard=EXTENTS if guard_conditions(layer, form) else "",
    )


def _extents(dims: Dims) -> list[int | str]:
    return ["?" if extent is None else extent for extent in dims]


def _aligned(channels: int) -> int:
    """Return the channels with padding up to whole tiles."""
    return round_up(channels, TILE)
