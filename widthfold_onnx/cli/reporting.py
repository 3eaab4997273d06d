"""Defines the options that say where a result goes, shared by all commands that have one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from widthfold_onnx.cli.common import Word
from widthfold_onnx.reports import Format

if TYPE_CHECKING:
    from widthfold_onnx.reports.formats import Destinations
    from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport

    R = TypeVar("R", VerifyReport, OptimizeReport, InspectReport, TuneReport)


@dataclass(frozen=True)
class ReportArguments:
    """The arguments as typed."""

    paths: tuple[Path, ...]
    wanted: Format | None

    def destinations(self, kind: type[R], protected: Sequence[Path]) -> Destinations:
        """Return the destinations of a result of `kind`, checked before the work.

        Raises:
            UsageError: an unknown suffix, a form that is not offered, or an unfit path.
        """
        from widthfold_onnx.reports.formats import destinations

        return destinations(self.paths, self.wanted, kind, protected)


def deliver(result: R, to: Destinations, model: Path, show: Callable[[R], None]) -> None:
    """Write the files, then print the wanted form, or the tables of `show`.

    Raises:
        UsageError: a path is no place for a file, or the disk is full.
    """
    from widthfold_onnx.reports.formats import render
    from widthfold_onnx.reports.text.console import printing, write

    to.write(result, model)
    if to.printed is None:
        show(result)
        return
    with printing():
        write(render(to.printed, result, model))


def report_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command gets one `reporting` argument of type ReportArguments."""

    @functools.wraps(command)
    def collect(**arguments: Any) -> Any:
        reporting = ReportArguments(arguments.pop("paths"), arguments.pop("wanted"))
        return command(reporting=reporting, **arguments)

    decorators = [
        click.option(
            "--report",
            "paths",
            type=click.Path(path_type=Path, dir_okay=False),
            multiple=True,
            metavar="FILE",
            help="Write a report, too; the suffix chooses its form: .json, .md (not of tune), "
            ".xml, .html or .csv (of verify and compare).",
        ),
        click.option(
            "--format",
            "wanted",
            type=Word(Format),
            help="Print this form instead of tables; with a --report FILE of another suffix, write "
            "it there.",
        ),
    ]
    for decorator in reversed(decorators):
        collect = decorator(collect)
    return collect
