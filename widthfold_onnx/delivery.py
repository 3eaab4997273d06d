"""Write the model that a plan makes, once it is verified."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec

from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.evidence.files import verify_files
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.model.writer import copy_model, write_model
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.options.progress import Progress, Step
from widthfold_onnx.results import OptimizeReport, VerifyReport
from widthfold_onnx.rewrite.apply import Fitting


@dataclasses.dataclass(frozen=True)
class Delivery:
    """A plan on its way into a file.

    Attributes:
        loaded: the original model.
        fitting: the plan at this model; carrying it out consumes it.
        report: the report, so far without file and verification.
        by_measurement: whether the plan was decided by measurement just now; a model that cannot be
            run is written only if it was not.
    """

    loaded: LoadedModel
    fitting: Fitting
    report: OptimizeReport
    by_measurement: bool

    def write(
        self,
        out: Path,
        verify_options: VerifyOptions | None,
        *,
        protected: Sequence[Path],
        on_progress: Progress,
    ) -> OptimizeReport:
        """Carry out the plan, and replace `out` if the result passes.

        Args:
            out: where the result goes; a copy of the model where nothing is changed.
            verify_options: how the result is verified; None writes it unverified.
            protected: files of the model, which must not be overwritten.
            on_progress: called with every step.

        Returns:
            The report, with the written file and its verification.

        Raises:
            UsageError: a path or an option that does not fit.
            InvalidModelError: the result is no model that could be read again.
            UnverifiedError: no statement is possible without a runtime.
        """
        if not self.fitting.plan.changes:
            copy_model(self.loaded.path, out, proto=self.loaded.proto)
            return msgspec.structs.replace(self.report, written=out.name)
        verification: list[VerifyReport] = []

        def check(written: Path) -> None:
            if verify_options is None:
                load(written)  # verification does that itself
                return
            result = self._verified(written, out.name, verify_options, on_progress)
            verification.append(result)
            if not self._suffices(result):
                raise CheckFailedError(result.verdict)

        rewriting = self.fitting.rewriting
        proto = rewriting.carry_out()
        on_progress(Step("writing"))
        try:
            write_model(
                proto,
                out,
                source_folder=self.loaded.folder,
                check=check,
                protected=protected,
                externalize=rewriting.document.external_names,
            )
        except CheckFailedError:
            return msgspec.structs.replace(self.report, verification=verification[0])
        summary = msgspec.structs.replace(self.report.summary, bytes_after=out.stat().st_size)
        return msgspec.structs.replace(
            self.report,
            summary=summary,
            written=out.name,
            verification=verification[0] if verification else None,
        )

    def _verified(
        self, written: Path, final: str, options: VerifyOptions, on_progress: Progress
    ) -> VerifyReport:
        """Verify a temporary file, and return the report under its final name."""
        options = dataclasses.replace(
            options,
            input_shapes=self.fitting.plan.sizes,
            needs_proof=True,
            freeze_weights=bool(self.fitting.plan.frozen),
        )
        report = verify_files(
            self.loaded.path,
            written,
            options,
            lambda line: on_progress(Step(line.replace(written.name, final))),
        )
        reasons = [reason.replace(written.name, final) for reason in report.reasons]
        return msgspec.structs.replace(report, rewritten=final, reasons=reasons)

    def _suffices(self, result: VerifyReport) -> bool:
        """Check whether a file may be written; see `by_measurement`."""
        return result.verdict == "pass" or (not self.by_measurement and bool(result.unrun))
