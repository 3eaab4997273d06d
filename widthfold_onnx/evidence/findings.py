"""What a check finds; the worst finding is the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from widthfold_onnx.results import Verdict


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings of one check or of several, one line each.

    Attributes:
        failures: faults of the rewritten model.
        doubts: why no statement is possible.
        remarks: what limits a check.
    """

    failures: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __add__(self, other: Findings) -> Findings:
        """Return the findings of both."""
        return Findings(
            failures=self.failures + other.failures,
            doubts=self.doubts + other.doubts,
            remarks=self.remarks + other.remarks,
        )

    @property
    def verdict(self) -> Verdict:
        """Fail if anything failed, unverified if anything is left open, else pass."""
        return "fail" if self.failures else "unverified" if self.doubts else "pass"

    @property
    def reasons(self) -> tuple[str, ...]:
        """All lines; failures come before remarks, as a message may be cut at its end."""
        return (*self.failures, *self.doubts, *self.remarks)
