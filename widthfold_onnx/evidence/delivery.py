"""Deliver a folded model that passed its checks: into a file, or in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import onnx

from widthfold_onnx.decide.outcomes import Decided, unread_remark
from widthfold_onnx.errors import CheckFailedError, UnverifiedError, WidthfoldError
from widthfold_onnx.evidence import verify
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.model.atomic import check_target
from widthfold_onnx.model.loader import LoadedModel, Model, load
from widthfold_onnx.model.proto.walk import frozen, unread_weights
from widthfold_onnx.model.writer import copy_model
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import OptimizeReport, Proof
from widthfold_onnx.rewrite.rewriting import Rewriting


class Delivery(NamedTuple):
    """A model that was delivered, or the reason why not.

    Attributes:
        report: the full report.
        model: the model, or its file; None if it did not pass, or none was to be made.
        proof: of the model; None without one.
        error: raised if no layer can be left out instead; None where the report gives the reason.
    """

    report: OptimizeReport
    model: onnx.ModelProto | Path | None = None
    proof: Proof | None = None
    error: WidthfoldError | None = None


class Target(ABC):
    """Where a folded model goes, and the checks that it has to pass."""

    def send(self, decided: Decided, rewriting: Rewriting, report: OptimizeReport) -> Delivery:
        """Deliver the new model if it passes; the original where nothing is changed.

        Args:
            decided: what was decided.
            rewriting: makes the new model of it, once.
            report: the report, so far without file and verification.
        """
        if not decided.draft.is_changing:
            return self.keep(report)
        return self.deliver(decided, rewriting, report)

    @abstractmethod
    def keep(self, report: OptimizeReport) -> Delivery:
        """Deliver the original, as nothing is changed."""

    @abstractmethod
    def deliver(self, decided: Decided, rewriting: Rewriting, report: OptimizeReport) -> Delivery:
        """Deliver the new model if it passes, as `send` does."""


@dataclass(frozen=True)
class InMemory(Target):
    """A model in memory, which is proved and not run.

    Attributes:
        original: the original.
        no_verify: do not prove the model.
    """

    original: Model
    no_verify: bool = False

    def keep(self, report: OptimizeReport) -> Delivery:
        """Return the original itself."""
        return Delivery(report, self.original.proto)

    def deliver(self, decided: Decided, rewriting: Rewriting, report: OptimizeReport) -> Delivery:
        """Return the new model with its proof; no model if it is not proved equal."""
        original, new = self.original, rewriting.carry_out()
        report = _completed(report, original.proto, new, new.ByteSize())
        if self.no_verify:
            return Delivery(report, new)
        draft = decided.draft
        frozen_proto = frozen(original.proto) if draft.frozen else original.proto
        old_program = Program.of(frozen_proto, original.folder)
        proof = proof_report(old_program, Program.of(new, original.folder), draft.sizes, {})
        error = _error(proof)
        return Delivery(report, None if error else new, proof, error)


def _error(proof: Proof) -> WidthfoldError | None:
    """Return why a model in memory cannot be given back; None if it is equal."""
    if proof.verdict == "equal":
        return None
    kind = CheckFailedError if proof.verdict == "different" else UnverifiedError
    return kind(f"proof: {proof.verdict}: {proof.reason}")


@dataclass(frozen=True)
class IntoFile(Target):
    """A file, which is replaced in one step, and only by a model that was verified.

    Attributes:
        original: the original; its files are never changed.
        path: the file.
        verify_options: how the model is verified; None writes it unverified.
        other_inputs: other files that must not be replaced.
    """

    original: LoadedModel
    path: Path
    verify_options: VerifyOptions | None
    other_inputs: Sequence[Path] = ()

    def __post_init__(self) -> None:
        """Check the path, before minutes of measuring.

        Raises:
            UsageError: no file can be written there, or it is an input.
        """
        check_target(self.path, self._inputs)

    @property
    def _inputs(self) -> list[Path]:
        return [*self.other_inputs, *self.original.files]

    def keep(self, report: OptimizeReport) -> Delivery:
        """Copy the original, byte for byte.

        Raises:
            InvalidModelError: a file of the original was changed since it was loaded.
        """
        copy_model(self.original, self.path)
        return Delivery(msgspec.structs.replace(report, written=self.path.name), self.path)

    def deliver(self, decided: Decided, rewriting: Rewriting, report: OptimizeReport) -> Delivery:
        """Write a temporary file, verify it, and move it to `path` if it passes.

        Raises:
            UsageError: a path or an option that does not fit.
            InvalidModelError: the written file is not a valid model.
        """
        progress(Step("writing"))
        with rewriting.written(self.path, self._inputs) as file:
            new = load(file.path, self.path.name)  # checks it
            report, passes = self._verified(new, decided, report)
            proof = None if report.verification is None else report.verification.proof
            if not passes:
                return Delivery(report, None, proof)
            file.publish()
        report = _completed(report, self.original.proto, new.proto, self.path.stat().st_size)
        report = msgspec.structs.replace(report, written=self.path.name)
        return Delivery(report, self.path, proof)

    def _verified(
        self, new: LoadedModel, decided: Decided, report: OptimizeReport
    ) -> tuple[OptimizeReport, bool]:
        """Return the report with the verification, and whether the model passes.

        The proof is enough where the runtime lacks a kernel, unless the decision was measured.
        """
        if self.verify_options is None:
            return report, True
        options = replace(
            self.verify_options,
            input_shapes=decided.draft.sizes,
            needs_proof=True,
            freeze_weights=bool(decided.draft.frozen),
        )
        verification = verify(self.original, new, options)
        may_be_unrun = decided.outcomes.search is None and bool(verification.unrun)
        passes = verification.verdict == "pass" or (
            may_be_unrun and verification.verdict == "unverified"
        )
        return msgspec.structs.replace(report, verification=verification), passes


def _completed(
    report: OptimizeReport, old: onnx.ModelProto, new: onnx.ModelProto, size: int
) -> OptimizeReport:
    """Return a report with the bytes of the new model and the count of weights it leaves unread."""
    count = len(unread_weights(new) - unread_weights(old))
    return msgspec.structs.replace(
        report,
        summary=msgspec.structs.replace(report.summary, bytes_after=size),
        remarks=[*report.remarks, *([unread_remark(count)] if count else [])],
    )
