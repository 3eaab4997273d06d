"""Run a rewritten model on the inputs of the original, and say what differs.

Both models run without the optimizations of the runtime, as these have faults, and with all of them
on, as they would be deployed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from widthfold_onnx.evidence.exact_kernels import holds_bytes, saturates
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.parity.as_deployed import compare_as_deployed
from widthfold_onnx.evidence.parity.judgement import (
    Rows,
    failed_rows,
    faults,
    judge,
    nearness,
    report_rows,
    stored_faults,
)
from widthfold_onnx.evidence.parity.original_runs import OriginalRuns
from widthfold_onnx.evidence.parity.runs import Runs
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.results import LevelName, OutputParity, Witness
from widthfold_onnx.runtime.provider_traits import Level

UNDEPLOYED = "not compared as deployed, as neither model runs with the runtime's own optimizations"


@dataclass(frozen=True)
class ModelParity:
    """The comparison of the outputs of two models.

    Attributes:
        findings: the outputs that differ, and what limits the comparison.
        outputs: one row per output and level.
        input_sets: how many sets were judged.
        saturates_further: as `VerifyReport.saturates_further`.
        witness: an input set on which an output differs; None if there is none.
    """

    findings: Findings
    outputs: Sequence[OutputParity] = ()
    input_sets: int = 0
    saturates_further: bool = False
    witness: Witness | None = None


def model_parity(original: OriginalRuns, rewritten: LoadedModel, *, is_proved: bool) -> ModelParity:
    """Run a rewritten model and judge its outputs.

    Args:
        original: the runs of the original.
        rewritten: the rewritten model.
        is_proved: True if both are proved to be the same function. Then outputs may be further
            apart, overflow of the original excuses NaN and Inf, and outputs may show nothing.
    """
    plain_runs = original.run(rewritten, Level.DISABLED)
    if plain_runs.failure:
        reason = f"the original runs, the rewritten model does not: {plain_runs.failure}"
        return ModelParity(Findings(failures=(reason,)))
    optimized_runs = original.run(rewritten, Level.ALL)
    runs: dict[LevelName, Runs] = {"disabled": plain_runs, "all": optimized_runs}
    rows, remarks = judge(original, runs, is_proved=is_proved)
    left_out = _overflows(original, rows) if is_proved else {}
    rows = {key: row for key, row in rows.items() if key.input_set not in left_out}
    remarks = [*original.inputs.remarks, *remarks]
    remarks += [f"left out {original.inputs.sets[i].label}: {line}" for i, line in left_out.items()]
    failures = faults(rows, original, "disabled") + stored_faults(original, plain_runs.outputs)
    if not failures:
        lines = faults(rows, original, "all")
        if optimized_runs.failure and original.optimized_runs.failure:
            remarks.append(f"{UNDEPLOYED}: {original.optimized_runs.failure}")
        elif optimized_runs.failure:
            lines.insert(0, optimized_runs.failure)
        failures = [f"only with the runtime's own optimizations: {line}" for line in lines]
    deployed_findings = Findings()
    protos = original.model.proto, rewritten.proto
    if not failures and saturates(original.options.provider) and holds_bytes(*protos):
        deployed_findings = compare_as_deployed(original, rewritten, optimized_runs)
        failures += deployed_findings.failures
        remarks += deployed_findings.remarks
    doubts, outputs = [*original.doubts], report_rows(rows)
    if not any(row.level == "disabled" and row.caveat != "meaningless" for row in outputs):
        overflows = "the original overflows on every input set"
        reason = overflows if left_out else "no output shows anything on these inputs"
        if is_proved:
            remarks.append(f"{reason}: the proof alone decides")
        else:
            doubts.append(f"{reason}; pass --inputs with real ones")
    return ModelParity(
        Findings(failures=tuple(failures), doubts=tuple(doubts), remarks=tuple(remarks)),
        outputs=tuple(outputs),
        input_sets=len(original.inputs.sets) - len(left_out),
        saturates_further=bool(deployed_findings.failures),
        witness=_witness(original, rows),
    )


def _witness(original: OriginalRuns, rows: Rows) -> Witness | None:
    """Return the worst difference, without the runtime's optimizations if one shows there."""
    failed = failed_rows(rows)
    if not failed:
        return None
    key, row = max(
        failed.items(), key=lambda item: (item[0].level == "disabled", nearness(item[1]))
    )
    item = original.inputs.sets[key.input_set]
    shapes = {name: list(array.shape) for name, array in item.feeds.items()}
    return Witness(input_set=item.label, shapes=shapes, output=row)


def _overflows(original: OriginalRuns, rows: Rows) -> dict[int, str]:
    """Return the random input sets on which Inf or NaN of the original explains a difference."""
    suspects = {k.input_set for k, row in failed_rows(rows).items() if not row.nonfinite_match}
    random = [index for index in sorted(suspects) if original.inputs.sets[index].random]
    return {index: reason for index in random if (reason := original.overflow(index))}
