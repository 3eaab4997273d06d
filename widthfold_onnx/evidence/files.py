"""Verify two files: read them and check the options here, then compare them in a child process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.options.progress import Progress, silent
from widthfold_onnx.results import VerifyReport
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.environment import Before, environment
from widthfold_onnx.text import quoted


def verify_files(
    original: Path, rewritten: Path, options: VerifyOptions, on_progress: Progress
) -> VerifyReport:
    """Compare two model files; the runtime runs in a child process that may crash or hang.

    Args:
        original: the model before.
        rewritten: the model after.
        options: what to run and where.
        on_progress: called with every step.

    Raises:
        UsageError: a path, an input, a shape, a value or an option of the provider that does not
            fit.
        InvalidModelError: a file that is no model.
    """
    proto = load(original).proto
    outputs = [value.name for value in proto.graph.output]
    load(rewritten)
    for name in options.tolerance.per_output:
        # An output that is a sequence has the names out[0], out[1], ...
        if name not in outputs and name.rpartition("[")[0] not in outputs:
            raise UsageError(f"a tolerance is given for {quoted(name)}, which is no output")
    if options.baseline is not None:
        from widthfold_onnx.evidence.timing.requirement import (  # needs numpy
            read_report,
            with_baseline,
        )

        saved_report, least = read_report(options.baseline), options.fail_under
        plain_options = dataclasses.replace(options, baseline=None, fail_under=None)
        report = verify_files(original, rewritten, plain_options, on_progress)
        return with_baseline(saved_report, report, options.baseline.name, least)
    from widthfold_onnx.runtime.inputs.cases import with_cases  # needs numpy

    options = with_cases(options, proto)
    state = Before()
    try:
        return isolated(_run, original, rewritten, options, on_message=on_progress)
    except UnverifiedError as error:
        # No runtime, or the child crashed: that is a result too, and goes into the report.
        return VerifyReport(
            original=original.name,
            rewritten=rewritten.name,
            outputs=[],
            proof=None,
            integers=None,
            folds=[],
            timing=None,
            verdict="unverified",
            reasons=[str(error)],
            input_sets=0,
            environment=environment(options, state),
        )


def may_saturate(original: Path, options: VerifyOptions) -> bool:
    """Run a model as its values are judged; return whether kernels of this CPU may saturate on it.

    Args:
        original: the model before.
        options: what to run and where.

    Raises:
        UnverifiedError: it does not run, or not twice alike.
        UsageError: stored inputs or shapes that do not fit it.
    """
    return isolated(_may_saturate, original, options)


def saturation_objections(
    original: Path, folds: Sequence[Path], options: VerifyOptions
) -> list[list[str]]:
    """Return why folds may not be deployed on this CPU, whose kernels saturate.

    Returns:
        For each fold its objections, which are empty unless it saturates further than the original.

    Raises:
        UnverifiedError: the original does not run.
    """
    return isolated(_saturation_objections, original, folds, options)


def _may_saturate(original: Path, options: VerifyOptions) -> bool:
    from widthfold_onnx.evidence.exact_kernels import holds_bytes, saturates
    from widthfold_onnx.evidence.parity.reference import reference_of
    from widthfold_onnx.runtime.session import resolved

    check_options = dataclasses.replace(resolved(options), seeds=0 if options.inputs else 1)
    if doubts := reference_of(original, check_options, silent).doubts:
        raise UnverifiedError(doubts[0])
    return saturates(check_options) and holds_bytes(original)


def _saturation_objections(
    original: Path, folds: Sequence[Path], options: VerifyOptions
) -> list[list[str]]:
    from widthfold_onnx.evidence.parity.reference import reference_of
    from widthfold_onnx.evidence.parity.saturated import compare_as_deployed
    from widthfold_onnx.runtime.descriptions import Level
    from widthfold_onnx.runtime.session import resolved

    reference = reference_of(original, resolved(options), silent)
    results = [
        compare_as_deployed(reference, fold, reference.run(fold, Level.ALL)) for fold in folds
    ]
    return [[*failures, *remarks] if failures else [] for failures, remarks in results]


def _run(
    original: Path, rewritten: Path, options: VerifyOptions, *, send: Progress
) -> VerifyReport:
    from widthfold_onnx.evidence.run import verified

    return verified(original, rewritten, options, on_progress=send)
