"""Compare two whole models on the same inputs, output by output.

Both run without the optimizations of the runtime, as these have faults, and with all of them on, as
they would be deployed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from widthfold_onnx.evidence.exact_kernels import holds_bytes, saturates
from widthfold_onnx.evidence.model_runs import Outputs
from widthfold_onnx.evidence.parity.judgement import (
    failed_cells,
    faults,
    judge,
    output_rows,
    stored_faults,
)
from widthfold_onnx.evidence.parity.reference import Reference
from widthfold_onnx.evidence.parity.saturated import compare_as_deployed
from widthfold_onnx.options import Provider, Sizes
from widthfold_onnx.results import LevelName, OutputParity, Verdict
from widthfold_onnx.runtime.sessions.session import Level


@dataclass(frozen=True, kw_only=True)
class ModelParity:
    """The result of comparing two models.

    Attributes:
        failures: how outputs differ that a second run repeats, one line each.
        doubts: why no statement is possible.
        remarks: what limits the comparison.
        outputs: one row per output and level.
        input_sets: how many sets were judged.
        provider: where both models ran, None if none did.
        sizes: sizes of the random input sets, empty if there is no random set.
        saturates_further: as `VerifyReport.saturates_further`.
        unrun: why the runtime can run neither model: which kernel is missing; "" if none is.
    """

    failures: Sequence[str] = ()
    doubts: Sequence[str] = ()
    remarks: Sequence[str] = ()
    outputs: Sequence[OutputParity] = ()
    input_sets: int = 0
    provider: Provider | None = None
    sizes: Sizes = ()
    saturates_further: bool = False
    unrun: str = ""

    @property
    def verdict(self) -> Verdict:
        """Fail if anything failed, unverified if anything is left open, else pass."""
        return "fail" if self.failures else "unverified" if self.doubts else "pass"

    @property
    def reasons(self) -> tuple[str, ...]:
        """All lines; failures come before remarks, as a message may be cut at its end."""
        return (*self.failures, *self.doubts, *self.remarks)


def judged(reference: Reference, rewritten: Path, *, is_proved: bool) -> ModelParity:
    """Run a rewritten model and judge its outputs.

    Args:
        reference: the original.
        rewritten: model file.
        is_proved: whether both are proved to be the same function. Then rounding and overflow
            explain more, and outputs that show nothing are no obstacle.
    """
    provider, sizes, sets = reference.options.provider, reference.inputs.sizes, reference.sets
    outputs = reference.run(rewritten, Level.DISABLED)
    if isinstance(outputs, str):
        reason = f"the original runs, the rewritten model does not: {outputs}"
        return ModelParity(failures=[reason], provider=provider, sizes=sizes)
    optimized_outputs = reference.run(rewritten, Level.ALL)
    runs: dict[LevelName, list[Outputs] | str] = {"disabled": outputs, "all": optimized_outputs}
    cells, remarks = judge(reference, runs, is_proved=is_proved)
    masks = {key[-1] for key, cell in failed_cells(cells).items() if not cell.nonfinite_match}
    suspects = [number for number in sorted(masks) if is_proved and sets[number].random]
    left_out = {number: reason for number in suspects if (reason := reference.overflow(number))}
    cells = {key: cell for key, cell in cells.items() if key[-1] not in left_out}
    remarks = [*reference.inputs.remarks, *remarks]
    remarks += [f"left out {sets[number].label}: {reason}" for number, reason in left_out.items()]
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
    doubts, rows = reference.doubts, output_rows(cells)
    if not any(row.level == "disabled" and row.caveat != "meaningless" for row in rows):
        reason = "no output shows anything on these inputs"
        reason = "the original overflows on every input set" if left_out else reason
        if is_proved:
            remarks.append(f"{reason}: the proof alone decides")
        else:
            doubts.append(f"{reason}; pass --inputs with real ones")
    return ModelParity(
        failures=failures,
        doubts=doubts,
        remarks=remarks,
        outputs=tuple(rows),
        input_sets=len(sets) - len(left_out),
        provider=provider,
        sizes=sizes,
        saturates_further=bool(byte_failures),
    )
