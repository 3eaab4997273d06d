"""Compare two whole models on the same inputs, output by output.

Both run without the optimizations of the runtime, as these have faults, and with all of them on, as
they would be deployed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from widthfold_onnx.evidence.exact_kernels import holds_bytes, saturates
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.model_runs import Outputs
from widthfold_onnx.evidence.parity.judgement import (
    Cells,
    failed_cells,
    faults,
    judge,
    output_rows,
    stored_faults,
)
from widthfold_onnx.evidence.parity.reference import Reference
from widthfold_onnx.evidence.parity.saturated import compare_as_deployed
from widthfold_onnx.results import LevelName, OutputParity
from widthfold_onnx.runtime.sessions.session import Level


@dataclass(frozen=True)
class ModelParity:
    """The comparison of the outputs of two models.

    Attributes:
        findings: the outputs that differ, and what limits the comparison.
        outputs: one row per output and level.
        input_sets: how many sets were judged.
        saturates_further: as `VerifyReport.saturates_further`.
    """

    findings: Findings
    outputs: Sequence[OutputParity] = ()
    input_sets: int = 0
    saturates_further: bool = False


def model_parity(reference: Reference, rewritten: Path, *, is_proved: bool) -> ModelParity:
    """Run a rewritten model and judge its outputs.

    Args:
        reference: the original.
        rewritten: model file.
        is_proved: whether both are proved to be the same function. Then rounding and overflow
            explain more, and outputs that show nothing are no obstacle.
    """
    outputs = reference.run(rewritten, Level.DISABLED)
    if isinstance(outputs, str):
        reason = f"the original runs, the rewritten model does not: {outputs}"
        return ModelParity(Findings(failures=(reason,)))
    optimized_outputs = reference.run(rewritten, Level.ALL)
    runs: dict[LevelName, list[Outputs] | str] = {"disabled": outputs, "all": optimized_outputs}
    cells, remarks = judge(reference, runs, is_proved=is_proved)
    left_out = _overflows(reference, cells) if is_proved else {}
    cells = {key: cell for key, cell in cells.items() if key.input_set not in left_out}
    remarks = [*reference.inputs.remarks, *remarks]
    remarks += [f"left out {reference.sets[i].label}: {line}" for i, line in left_out.items()]
    failures = faults(cells, reference, "disabled") + stored_faults(reference, outputs)
    if not failures:
        lines = faults(cells, reference, "all")
        if isinstance(optimized_outputs, str) and not isinstance(reference.optimized_outputs, str):
            lines.insert(0, optimized_outputs)
        failures = [f"only with the runtime's own optimizations: {line}" for line in lines]
    byte_failures: list[str] = []
    if not failures and saturates(reference.options) and holds_bytes(reference.model, rewritten):
        byte_failures, byte_remarks = compare_as_deployed(reference, rewritten, optimized_outputs)
        failures += byte_failures
        remarks += byte_remarks
    doubts, rows = [*reference.doubts], output_rows(cells)
    if not any(row.level == "disabled" and row.caveat != "meaningless" for row in rows):
        overflows = "the original overflows on every input set"
        reason = overflows if left_out else "no output shows anything on these inputs"
        if is_proved:
            remarks.append(f"{reason}: the proof alone decides")
        else:
            doubts.append(f"{reason}; pass --inputs with real ones")
    return ModelParity(
        Findings(failures=tuple(failures), doubts=tuple(doubts), remarks=tuple(remarks)),
        outputs=tuple(rows),
        input_sets=len(reference.sets) - len(left_out),
        saturates_further=bool(byte_failures),
    )


def _overflows(reference: Reference, cells: Cells) -> dict[int, str]:
    """Return the random input sets on which Inf or NaN of the original explains a difference."""
    suspects = {k.input_set for k, c in failed_cells(cells).items() if not c.nonfinite_match}
    random = [index for index in sorted(suspects) if reference.sets[index].random]
    return {index: reason for index in random if (reason := reference.overflow(index))}
