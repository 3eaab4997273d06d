"""Run all checks of `verify`, in a child process: interface, proof, integers, outputs, time.

A check is a function of the `Pair` that returns its findings. The verdict is the worst of them.
"""

from __future__ import annotations

from widthfold_onnx.evidence.declarations import wrong_declarations
from widthfold_onnx.evidence.exact_kernels import holds_bytes
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.pair import Pair, Unrun
from widthfold_onnx.evidence.parity.comparison import ModelParity
from widthfold_onnx.evidence.timing.profile import fallback_lines
from widthfold_onnx.evidence.timing.requirement import gate, slowest
from widthfold_onnx.model.document import Document
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.results import Timing, VerifyReport
from widthfold_onnx.rewrite.record import recorded_folds, recorded_runtime
from widthfold_onnx.runtime.environment import StartReadings, environment, other_runtime
from widthfold_onnx.runtime.inputs.cases import values_for_report
from widthfold_onnx.runtime.inputs.sizes import assumption_report
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.session import ports_of
from widthfold_onnx.text import printable


def verification_of(
    original: LoadedModel, rewritten: LoadedModel, options: VerifyOptions
) -> VerifyReport:
    """Compare two models in this process; `evidence.verify` starts one for it.

    ONNX Runtime opens their files again, so these must be unchanged at the end: all checks are of
    the bytes that were loaded.

    Raises:
        UsageError: an input, a shape or an option of the provider that does not fit.
        InvalidModelError: a file was changed meanwhile.
    """
    pair = Pair(original, rewritten, options, StartReadings())
    findings = sum((check(pair) for check in CHECKS), Findings())
    original.check_unchanged()
    rewritten.check_unchanged()
    return _report(pair, findings)


def check_interface(pair: Pair) -> Findings:
    """Compare what callers rely on: names, types and extents of inputs and outputs."""
    return pair.interface


def check_proof(pair: Pair) -> Findings:
    """Prove that both models are the same function.

    If it stays open and is not needed, that is a remark: the comparison of outputs decides.
    """
    if pair.proof is None or pair.is_equal:
        return Findings()
    lines = (f"proof: {pair.proof.verdict}: {pair.proof.reason}",)
    is_open, is_needed = pair.proof.verdict == "not provable", pair.options.needs_proof
    if pair.proof.verdict == "different" or (is_open and is_needed):
        return Findings(failures=lines)
    return Findings(doubts=lines) if is_needed else Findings(remarks=lines)


def check_integers(pair: Pair) -> Findings:
    """Run the nodes that changed on integers, where the proof holds."""
    if pair.integers is None or pair.integers.verdict != "different":
        return Findings()
    line = f"on integers the runtime does not compute {pair.integers.reason}"
    return Findings(failures=(line,))


def check_parity(pair: Pair) -> Findings:
    """Compare the outputs on the runtime."""
    if isinstance(pair.runs, Unrun) and pair.runs.reason:
        return Findings(doubts=(pair.runs.reason,))
    if pair.parity is None:
        return Findings()
    is_proof_open = pair.proof is None or pair.proof.verdict == "skipped"
    if pair.parity.findings.verdict == "pass" and is_proof_open:
        return pair.parity.findings + Findings(doubts=_unexplained(pair.parity))
    return pair.parity.findings


def _unexplained(parity: ModelParity) -> tuple[str, ...]:
    """Name outputs, one line each, that passed beyond the tolerance because rounding moves them.

    Rounding explains a difference only if something shows that both compute the same function.
    """
    names = [row.name for row in parity.outputs if row.caveat == "ill-conditioned"]
    return tuple(
        f"output {printable(name)} differs by more than the tolerance, and nothing proves that "
        "both models compute the same function"
        for name in dict.fromkeys(names)
    )


def check_declarations(pair: Pair) -> Findings:
    """Look for declared extents that do not hold, at the first sizes."""
    (shapes, *_) = pair.sizes or pair.options.input_shapes
    protos = pair.comparable.proto, pair.rewritten.proto
    return Findings(remarks=wrong_declarations(*protos, shapes, pair.returned))


def check_timing(pair: Pair) -> Findings:
    """Compare the speed, and judge it by the gain that the caller requires."""
    timing = pair.timing
    if isinstance(timing, str):
        return Findings(doubts=(timing,) if timing else ())
    findings = Findings(remarks=tuple(fallback_lines(timing.sides, timing.provider, heavy=True)))
    if timing.fail_under is None:
        return findings
    verdict, reason = gate(slowest(timing), timing.fail_under)
    if verdict == "pass":
        return findings
    lines = (reason,)
    return findings + (Findings(failures=lines) if verdict == "fail" else Findings(doubts=lines))


CHECKS = (
    check_interface,
    check_proof,
    check_integers,
    check_parity,
    check_declarations,
    check_timing,
)


def _report(pair: Pair, findings: Findings) -> VerifyReport:
    runs, parity = pair.runs, pair.parity
    timing = pair.timing if isinstance(pair.timing, Timing) else None
    old, new = pair.original.proto, pair.rewritten.proto
    compared_sizes = () if isinstance(runs, Unrun) or parity is None else runs.inputs.compared
    byte_error = u8s8_error() if holds_bytes(old, new) else None
    missing_kernel = runs.reason if isinstance(runs, Unrun) and runs.lacks_kernel else ""
    return VerifyReport(
        original=pair.original.name,
        rewritten=pair.rewritten.name,
        outputs=[] if parity is None else list(parity.outputs),
        proof=pair.proof,
        integers=pair.integers,
        folds=recorded_folds(Document(new, pair.rewritten.folder, OPERATORS)),
        timing=timing,
        verdict=findings.verdict,
        reasons=list(findings.reasons),
        input_sets=0 if parity is None else parity.input_sets,
        environment=environment(runs.options, pair.start, byte_error),
        assumed=assumption_report(
            ports_of(old), pair.options.input_shapes, pair.sizes if timing else compared_sizes
        ),
        saturates_further=parity is not None and parity.saturates_further,
        unrun=missing_kernel if pair.is_equal else "",
        note=other_runtime(recorded_runtime(new)),
        values=values_for_report(pair.options.cases),
        witness=pair.witness,
    )
