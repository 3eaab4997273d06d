"""Chooses the forms of a result, by the suffix of a file or by `--format`, and renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import assert_never

from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports import MISSING, SUFFIXES, Format
from widthfold_onnx.reports.described import Report
from widthfold_onnx.reports.files import check_report, write_report
from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport
from widthfold_onnx.text import quoted

OFFERED: dict[type[Report], tuple[Format, ...]] = {
    VerifyReport: tuple(Format),
    OptimizeReport: (Format.JSON, Format.MARKDOWN, Format.HTML, Format.GITHUB),
    InspectReport: (Format.JSON, Format.MARKDOWN, Format.HTML),
    TuneReport: (Format.JSON, Format.MARKDOWN, Format.HTML),
}


@dataclass(frozen=True)
class Destinations:
    """The destinations of a result.

    Attributes:
        files: report files with their forms.
        printed: the form on standard output; None means tables.
        protected: files that no report may replace.
        details: the tables on standard output hold everything.
    """

    files: tuple[tuple[Path, Format], ...]
    printed: Format | None
    protected: tuple[Path, ...]
    details: bool = False

    def write(self, result: Report, model: Path) -> None:
        """Write every file, each in one step.

        Raises:
            UsageError: a path is no place for a file, or the disk is full.
        """
        for path, form in self.files:
            write_report(render(form, result, model), path, self.protected)


def destinations(
    paths: Sequence[Path],
    form_of_others: Format | None,
    kind: type[Report],
    protected: Sequence[Path],
    *,
    details: bool = False,
) -> Destinations:
    """Decide, before the work, which forms are made, and check that they can be.

    Args:
        paths: the report files; a known suffix decides the form of a file.
        form_of_others: the form of the other files; without such a file, of standard output.
        kind: type of the result.
        protected: files that no report may replace.
        details: the tables on standard output hold everything.

    Raises:
        UsageError: an unknown suffix, a form that this result or machine does not offer, or a
            path that is no place for a report.
    """
    files: list[tuple[Path, Format]] = []
    printed = form_of_others
    for path in paths:
        check_report(path, [*protected, *(other for other, _ in files)])
        form = SUFFIXES.get(path.suffix.lower())
        if form is None:
            form, printed = form_of_others, None
        if form is None or form is Format.GITHUB:
            suffixes = ", ".join(suffix for suffix, it in SUFFIXES.items() if it in OFFERED[kind])
            names = ", ".join(it for it in OFFERED[kind] if it is not Format.GITHUB)
            raise UsageError(
                f"the suffix of report {quoted(str(path))} says no form: use {suffixes}, or "
                f"--format with one of {names}"
            )
        files.append((path, form))
    for form in {form for _, form in files} | ({printed} if printed else set()):
        _check_offered(form, kind)
    return Destinations(tuple(files), printed, tuple(protected), details)


def _check_offered(form: Format, kind: type[Report]) -> None:
    if form not in OFFERED[kind]:
        offered = ", ".join(OFFERED[kind])
        raise UsageError(f"no {form} report of this command; it offers {offered}")
    if form is Format.HTML and find_spec("matplotlib") is None:
        raise UsageError(MISSING)


def render(form: Format, result: Report, model: Path) -> str:
    """Render a result in one form; its libraries are imported only then.

    Args:
        form: a format that is offered for this result.
        result: the result of a verb.
        model: the model file as the caller named it, for annotations of that file.

    Raises:
        UsageError: the result does not offer the form, or a library for it is missing.
    """
    _check_offered(form, type(result))
    match form:
        case Format.JSON:
            from widthfold_onnx.reports import json

            return json.encode(result).decode("ascii")
        case Format.MARKDOWN:
            from widthfold_onnx.reports import markdown

            return markdown.render(result)
        case Format.GITHUB:
            from widthfold_onnx.reports import github

            assert not isinstance(result, InspectReport | TuneReport)
            return github.render(result, model)
        case Format.JUNIT:
            from widthfold_onnx.reports import junit

            assert isinstance(result, VerifyReport)
            return junit.render(result)
        case Format.HTML:
            from widthfold_onnx.reports.page import html

            return html.page(result)
        case _:
            assert_never(form)
