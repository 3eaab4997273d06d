"""Runs the steps of every command but `tune`, which is in `plan.search.tuning`.

A command checks its files before it imports the rest of the package: a file that is no model is
refused in a tenth of the time that the imports take.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from widthfold_onnx.errors import UsageError
from widthfold_onnx.evidence.files import check_file, verify_files
from widthfold_onnx.model.read.loader import load
from widthfold_onnx.model.write.atomic import check_target
from widthfold_onnx.options import FoldOptions, SearchOptions, VerifyOptions
from widthfold_onnx.progress import Progress, Step, silent
from widthfold_onnx.results import InspectReport, OptimizeReport, VerifyReport

BY_DEFAULT = SearchOptions()
PROVE_ONLY = VerifyOptions(thorough=False, timing=False)
"""Default verification of `optimize`: checks that a wrong fold cannot pass; `verify` does more."""


def optimize(
    model: Path | str,
    out: Path | str | None,
    options: FoldOptions,
    verify_options: VerifyOptions | None = PROVE_ONLY,
    search_options: SearchOptions = BY_DEFAULT,
    *,
    require_fold: bool = False,
    on_progress: Progress = silent,
) -> OptimizeReport:
    """Fold the sites where it pays, or at a fixed factor every site that the rules allow.

    Args:
        model: the model file; it is never changed.
        out: where the result goes, replaced in one step and only after it passed verification;
            None plans only. If nothing is folded it becomes a copy, byte for byte.
        options: which sites, how far, in which form.
        verify_options: how the result is verified; by default proved and compared, but not timed.
            None writes it unverified. Where the runtime has no kernel to run the model, the proof
            alone must do, at a fixed factor.
        search_options: how candidates are measured; at a fixed factor only its options of the
            provider count, which decide the emitted form where that is left open.
        require_fold: write nothing if nothing is changed.
        on_progress: called with every step.

    Returns:
        The outcome of every site. `written` is None if verification did not pass.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
        UnverifiedError: nothing can be measured, for want of a runtime or of usable inputs.
    """
    on_progress(Step("reading the model"))
    model, out = Path(model), None if out is None else Path(out)
    loaded = load(model)
    from widthfold_onnx.delivery import write_verified
    from widthfold_onnx.model.proto.external import data_files
    from widthfold_onnx.planning import planned_of

    # Read before folding: it drops tensors, and with them the names of the files that must stay.
    protected = [model, *data_files(loaded.proto, loaded.folder)]
    left: dict[str, str] = {}
    if out is not None:
        check_target(out, protected)  # before minutes of measuring
    if out is not None and verify_options is not None and options.fixed is None:
        on_progress(Step("running the model as its values are judged"))
        shapes = {**options.input_shapes, **verify_options.input_shapes}
        judged = replace(verify_options, input_shapes=shapes)
        if check_file(model, judged):  # before measuring, too
            from widthfold_onnx.saturating_forms import usable_forms

            on_progress(Step("trying which folds saturate no further than the model"))
            options, left = usable_forms(loaded, options, judged)
    planned = planned_of(loaded, options, search_options, on_progress, left)
    if out is None or (require_fold and not planned.report.summary.changes):
        return planned.report
    return write_verified(
        planned, out, verify_options, protected=protected, on_progress=on_progress
    )


def verify(
    original: Path | str,
    rewritten: Path | str,
    options: VerifyOptions,
    *,
    on_progress: Progress = silent,
) -> VerifyReport:
    """Compare two models on the runtime: interface, outputs, proof, time.

    Args:
        original: the model before.
        rewritten: the model after.
        options: inputs, tolerances, provider and the checks to run.
        on_progress: called with every step.

    Returns:
        The report; its verdict is pass, fail or unverified.

    Raises:
        UsageError: a path, an input, a shape or an option of the provider that does not fit.
        InvalidModelError: a file that is no model.
    """
    return verify_files(
        Path(original), Path(rewritten), options, lambda line: on_progress(Step(line))
    )


def inspect(model: Path | str, options: FoldOptions) -> InspectReport:
    """List every site with its shapes, cost, legal reformulations and refusals.

    Args:
        model: the model file.
        options: as for `optimize`.

    Raises:
        UsageError: an option or path that does not fit.
        InvalidModelError: the model is broken or not supported.
    """
    if options.fixed is None:
        raise UsageError(
            "inspect measures nothing and shows the forms of one factor: give a number; what auto "
            "takes is shown by `optimize MODEL`"
        )
    loaded = load(Path(model))
    from widthfold_onnx.survey import survey

    return survey(loaded, options, options.fixed)
