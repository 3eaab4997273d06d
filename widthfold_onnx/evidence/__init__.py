"""Check that a rewritten model computes the function of the original, and measure its speed.

`verify` starts `checks` in a child process. There each check asks a `pair` of models for what it
needs: the runs of the original, `proof`, `integers`, `parity` and `timing`, each made once. The
worst finding is the verdict. Models run with `exact_kernels`. `saturation` excludes forms before a
search, `delivery` writes a folded model that passed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence.timing.requirement import read_report, with_baseline
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import Listener, progress, progress_to
from widthfold_onnx.results import VerifyReport
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.environment import StartReadings, environment
from widthfold_onnx.runtime.inputs.cases import for_model
from widthfold_onnx.text import quoted


def verify(original: LoadedModel, rewritten: LoadedModel, options: VerifyOptions) -> VerifyReport:
    """Compare two models: interface, proof, outputs, time, in a child that may crash or hang.

    The child loads each file again, and ONNX Runtime opens it. A file that changed since it was
    loaded here is an error, so that all checks are of the same bytes.

    Args:
        original: the model before.
        rewritten: the model after.
        options: inputs, sizes, tolerances, provider and the checks to run.

    Returns:
        The report; its verdict is pass, fail or unverified.

    Raises:
        UsageError: a path, an input, a shape, a value or an option of the provider that does not
            fit.
        InvalidModelError: a file that was changed since it was read.
    """
    outputs = {value.name: value.type for value in original.proto.graph.output}
    for name in options.tolerance.per_output:
        # An output that is a sequence has the names out[0], out[1], ...
        sequence = outputs.get(name.rpartition("[")[0])
        if name not in outputs and (sequence is None or sequence.HasField("tensor_type")):
            raise UsageError(f"a tolerance is given for {quoted(name)}, which is no output")
    if options.baseline is None:
        return _verify_in_child(original, rewritten, options)
    saved_report = read_report(options.baseline)
    run_options = dataclasses.replace(options, fail_under=None)
    report = _verify_in_child(original, rewritten, run_options)
    return with_baseline(saved_report, report, options.baseline.name, options.fail_under)


def _verify_in_child(
    original: LoadedModel, rewritten: LoadedModel, options: VerifyOptions
) -> VerifyReport:
    """Compare two models; a failure of the child makes them unverified."""
    options = for_model(options, original.proto)
    state = StartReadings()
    try:
        return isolated(_run, original.source, rewritten.source, options, on_message=progress)
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


def _run(
    original: tuple[Path, str, str],
    rewritten: tuple[Path, str, str],
    options: VerifyOptions,
    *,
    send: Listener,
) -> VerifyReport:
    from widthfold_onnx.evidence.checks import verification_of

    with progress_to(send):
        return verification_of(load(*original), load(*rewritten), options)
