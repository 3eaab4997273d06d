"""Leave out forms that saturate on this CPU, before minutes are spent on measuring them.

Without VNNI, a kernel adds pairs of 8-bit products in 16 bits and saturates (`runtime.kernels`). A
fold pairs other products than the original, so other sums saturate; `compare_as_deployed` says how
much further from the exact results that may take it. Which products form a pair depends on axis and
layout, not on the factor, so one fold by 2 of each is compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from glob import escape
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.exact_kernels import holds_bytes, saturates
from widthfold_onnx.evidence.parity.as_deployed import compare_as_deployed
from widthfold_onnx.evidence.parity.original_runs import original_runs_of
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import AxisName, FoldOptions, Layout, VerifyOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import resolved

if TYPE_CHECKING:
    from widthfold_onnx.model.linking import NodeName
    from widthfold_onnx.rewrite.rewriting import Rewriting
    from widthfold_onnx.rewrite.scratch import Scratch


def run_as_judged(original: LoadedModel, options: VerifyOptions) -> bool:
    """Run the original as verification will, to refuse early what cannot be judged.

    Returns:
        True if kernels of this CPU may saturate on it.

    Raises:
        UnverifiedError: it does not run, or a second run gives other values.
        UsageError: stored inputs or shapes that do not fit it.
        InvalidModelError: a file that was changed since it was read.
    """
    return isolated(_run_as_judged, original.source, options)


def _run_as_judged(source: tuple[Path, str, str], options: VerifyOptions) -> bool:
    original = load(*source)
    check_options = replace(resolved(options), seeds=0 if options.inputs else 1)
    if doubts := original_runs_of(original, check_options).doubts:
        raise UnverifiedError(doubts[0])
    return saturates(check_options.provider) and holds_bytes(original.proto)


@dataclass(frozen=True)
class FoldCheck:
    """A fold by 2, checked for saturation.

    Attributes:
        options: the options of the fold.
        names: the layers that it folded.
        objection: the reason against it, "" if there is none.
    """

    options: FoldOptions
    names: Sequence[NodeName]
    objection: str

    @property
    def refusals(self) -> dict[NodeName, Refusal]:
        """The objection as a refusal of each folded layer; empty without one."""
        refusal = Refusal(Code.SATURATES, f"left alone, as its fold is {self.objection}")
        return dict.fromkeys(self.names, refusal) if self.objection else {}


def usable_forms(
    model: LoadedModel, options: FoldOptions, verify_options: VerifyOptions
) -> tuple[FoldOptions, dict[NodeName, Refusal]]:
    """Exclude forms, or else layers, that saturate further than the original.

    A form is an axis in a layout. If all pass, all stay. If some pass, one layout stays in which
    every axis passes; if there is no such layout, one form. If none passes, layers are excluded and
    the others tried again.

    Args:
        model: the model, on which kernels of this CPU saturate.
        options: the forms to search.
        verify_options: how the result will be verified.

    Returns:
        The remaining options, and the excluded layers with the reason: those that fail when they
        are folded alone, or all layers if none of them does.
    """
    # Not at the top: the child that runs the model imports this module, and folds nothing.
    from widthfold_onnx.rewrite.scratch import Scratch

    with tempfile.TemporaryDirectory(prefix="widthfold-") as folder:
        return _usable_forms(Scratch(model, Path(folder)), options, verify_options)


def _usable_forms(
    scratch: Scratch, options: FoldOptions, verify_options: VerifyOptions
) -> tuple[FoldOptions, dict[NodeName, Refusal]]:
    excluded: dict[NodeName, Refusal] = {}
    while True:
        skip = (*options.skip, *(escape(name.node) for name in excluded))
        remaining_options = replace(options, skip=skip)
        checks = _checks(scratch, _choices(remaining_options), verify_options)
        passing = [check.options for check in checks if not check.objection]
        failing = [check.options for check in checks if check.objection]
        if not failing:
            return remaining_options, excluded
        if passing:  # a layout in which every form passes, else one form
            layouts = {o.layout for o in passing} - {o.layout for o in failing}
            return (
                replace(remaining_options, layout=min(layouts)) if layouts else passing[0]
            ), excluded
        excluded |= _failing_layers(scratch, checks, verify_options)


def _failing_layers(
    scratch: Scratch, checks: Iterable[FoldCheck], verify_options: VerifyOptions
) -> dict[NodeName, Refusal]:
    """Fold each layer alone, in each form, and return the layers that fail with the reason.

    The form with the fewest such layers counts. If no layer fails alone, all are returned.
    """
    by_form: list[dict[NodeName, Refusal]] = []
    all_layers: dict[NodeName, Refusal] = {}
    for check in checks:
        all_layers |= check.refusals
        nodes = dict.fromkeys(name.node for name in check.names)
        single_layers = [replace(check.options, nodes=(escape(node),)) for node in nodes]
        singles = _checks(scratch, single_layers, verify_options)
        by_form.append(dict(chain.from_iterable(single.refusals.items() for single in singles)))
    return min(filter(None, by_form), key=len, default=all_layers)


def _checks(
    scratch: Scratch, choices: Iterable[FoldOptions], verify_options: VerifyOptions
) -> list[FoldCheck]:
    """Return one check for each choice of options that folds something."""
    from widthfold_onnx.decide.fixed import decide_fixed
    from widthfold_onnx.rewrite.rewriting import rewrite

    model = scratch.original
    folds: list[tuple[FoldOptions, list[NodeName]]] = []

    def rewritings() -> Iterator[Rewriting]:
        for options in choices:
            reading, draft, _ = decide_fixed(model, replace(options, factor=2))
            if names := sorted(draft.forms):
                folds.append((options, names))
                yield rewrite(reading, draft.forms)

    with scratch.models(rewritings()) as files:
        if not files:
            return []
        objections = isolated(_saturation_objections, model.source, files, verify_options)
    return [
        FoldCheck(options, names, objection)
        for (options, names), objection in zip(folds, objections, strict=True)
    ]


def _choices(options: FoldOptions) -> Iterator[FoldOptions]:
    axes = set(AxisName) - {AxisName.AUTO} if options.axis is AxisName.AUTO else {options.axis}
    any_layout = options.layout is Layout.AUTO
    layouts = (Layout.NCHW, Layout.NHWC) if any_layout else (options.layout,)
    for layout, axis in product(layouts, sorted(axes, key=str)):
        yield replace(options, axis=axis, layout=layout)


def _saturation_objections(
    source: tuple[Path, str, str], folds: Sequence[Path], options: VerifyOptions
) -> list[str]:
    """Return for each fold why it may not be deployed on this CPU, whose kernels saturate.

    An objection is "" unless the fold saturates further than the original.

    Raises:
        UnverifiedError: the original does not run.
    """
    original_runs = original_runs_of(load(*source), resolved(options))
    results = [
        compare_as_deployed(original_runs, fold, original_runs.run(fold, Level.ALL))
        for fold in map(load, folds)
    ]
    return ["; ".join(findings.reasons) if findings.failures else "" for findings in results]
