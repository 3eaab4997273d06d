"""Decide the forms of layers at a fixed factor, or of their strides, and the layout of forms."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from widthfold_onnx.decide.decisions import decisions_of, forms_of, selected_chains
from widthfold_onnx.decide.hints import Hints, SizeFinder
from widthfold_onnx.decide.outcomes import (
    Decided,
    Outcomes,
    companion_reports,
    padding_report,
    site_report,
    unpaddable,
)
from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import FoldOptions, FormName, Layout, Provider, RuntimeOptions
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.plan import Origin
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rules.selection import preferred_form
from widthfold_onnx.runtime.environment import version
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.runtime.providers import OFF


def decide_fixed(
    model: Model, options: FoldOptions, size_finder: SizeFinder | None = None
) -> Decided:
    """Return the forms that fold every layer that the rules allow, by the factor of the options.

    Args:
        model: the model.
        options: which layers, how far, in which form; the layout is decided.
        size_finder: finds sizes for hints; None for a model in memory, which is not run.

    Raises:
        UsageError: no factor is given, or an option does not fit.
        InvalidModelError: the graph library cannot read the model.
    """
    if options.is_measured:
        raise UsageError("without measurements a plan needs a factor, or form strides")
    draft = Draft.first(model, options)
    matches = draft.matches(model, options.active_companions)
    draft = draft.with_companions(matches)
    reading, padding = Reading.of(model, draft), None
    if options.pad_channels and not reading.is_folded:
        paddable = selected_chains(reading, options, options.pad_channels)
        draft = replace(draft, padding=paddable.plan)
        reading = Reading.of(model, draft)
        is_padded, reason = bool(paddable.chains), unpaddable(options)
        padding = padding_report(paddable, is_padded=is_padded, reason=reason)
    decisions = decisions_of(reading, options.selection, partial(preferred_form, options=options))
    hints = Hints(reading, options, size_finder)
    sites = [site_report(decision, hints.of(decision)) for decision in decisions]
    name = "strides" if options.form is FormName.STRIDES else f"factor {options.factor}"
    origin = Origin(widthfold=version("widthfold-onnx"), decision=name)
    companions = companion_reports(matches, options.active_companions, "")
    outcomes = Outcomes(sites, companions, padding, origin=origin)
    return Decided(reading, draft.with_forms(forms_of(decisions)), outcomes)


def decide_layout(options: FoldOptions, runtime: RuntimeOptions) -> FoldOptions:
    """Return the options with the layout of the provider in place of `Layout.AUTO`.

    Where forms are measured it stays: both layouts race.

    Args:
        options: which layers, how far, in which form.
        runtime: where the model will run; `Provider.AUTO` counts as CUDA.

    >>> decide_layout(FoldOptions(factor=8), RuntimeOptions(provider=Provider.CUDA)).layout
    <Layout.NCHW: 'nchw'>
    >>> nhwc = RuntimeOptions(provider=Provider.CUDA, provider_options={"prefer_nhwc": "1"})
    >>> decide_layout(FoldOptions(factor=8), nhwc).layout
    <Layout.NHWC: 'nhwc'>
    """
    if options.layout is not Layout.AUTO or options.is_measured:
        return options
    provider = traits_of(Provider.CUDA if runtime.provider is Provider.AUTO else runtime.provider)
    prefers_nhwc = runtime.provider_options.get(provider.channels_last, "0").lower() not in OFF
    return replace(options, layout=Layout.NHWC if prefers_nhwc else provider.layout)
