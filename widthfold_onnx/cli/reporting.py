"""Defines the options that say where a result goes, shared by all commands that have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from widthfold_onnx.cli.options import Help, options_of
from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports import Format

if TYPE_CHECKING:
    from widthfold_onnx.reports.formats import Destinations
    from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport

    R = TypeVar("R", VerifyReport, OptimizeReport, InspectReport, TuneReport)


@dataclass(frozen=True)
class ReportArguments:
    """The arguments as typed."""

    reports: tuple[Path, ...] = ()
    format: Format | None = None
    details: bool = False

    def destinations(self, kind: type[R], protected: Sequence[Path]) -> Destinations:
        """Return the destinations of a result of `kind`, checked before the work.

        Raises:
            UsageError: an unknown suffix, a form that is not offered, an unfit path, or details of
                a form that always has them.
        """
        from widthfold_onnx.reports.formats import destinations

        to = destinations(self.reports, self.format, kind, protected, details=self.details)
        if to.printed is not None and self.details:
            raise UsageError(f"--details belongs to the tables, not to --format {to.printed}")
        return to


def deliver(result: R, to: Destinations, model: Path) -> None:
    """Write the files, then print a form of the result, or tables and lines.

    Args:
        result: the result.
        to: its destinations.
        model: the model file as the caller named it.

    Raises:
        UsageError: a path is no place for a file, or the disk is full.
    """
    from widthfold_onnx.reports.console import printing, show, write
    from widthfold_onnx.reports.described import described
    from widthfold_onnx.reports.description import Detail
    from widthfold_onnx.reports.formats import render

    to.write(result, model)
    if to.printed is None:
        show(described(result, Detail.FULL if to.details else Detail.BRIEF))
        return
    with printing():
        write(render(to.printed, result, model))


FILES: Help = {
    "--report FILE": {
        "type": click.Path(path_type=Path, dir_okay=False),
        "help": "Write a report, too; the suffix chooses its form: .json, .md, .html, or of "
        "verify .xml.",
    },
    "--format": "Print this form instead of tables; with a --report FILE of another suffix, "
    "write it there.",
}
DETAILS: Help = {
    "--details": "Print everything: all layers and forms, regions, times of nodes, the proof. "
    "Reports hold it anyway.",
}

file_arguments = options_of("reporting", ReportArguments, FILES)
report_arguments = options_of("reporting", ReportArguments, {**DETAILS, **FILES})
"""Adds the shared options, also `--details` for a result that has a brief form.

The command gets one `reporting` argument of type ReportArguments.
"""
