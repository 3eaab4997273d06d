"""Writes report files in one step, and replaces no file that is not a report of widthfold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.atomic import (
    PLAN_MARK,
    check_target,
    head_of,
    place,
    temporary,
    writing,
)
from widthfold_onnx.text import quoted

_SIGNATURES = (b'"schema": "widthfold.', b"<!-- widthfold.")
"""Every report has one of these among its first bytes."""


def signature(schema: str) -> str:
    """Return the comment by which a report in XML, Markdown or HTML is known as ours."""
    return f"<!-- {schema} -->"


def check_report(path: Path, protected: Sequence[Path]) -> None:
    """Check, before the work, that a report may be written.

    Args:
        path: the file; an existing file must be empty or a report of ours.
        protected: files that it must not replace, whether they are there or not.

    Raises:
        UsageError: the path is no place for a report.
    """
    check_target(path, [])
    if any(place(other) == place(path) for other in protected):
        raise UsageError(f"the report would replace {quoted(str(path))}; choose another name")
    head = head_of(path)
    is_report = PLAN_MARK not in head and any(mark in head for mark in _SIGNATURES)
    if head and not is_report:
        raise UsageError(f"{quoted(str(path))} exists and is no report; choose another name")


def write_report(text: str, path: Path, protected: Sequence[Path]) -> None:
    """Write a rendered report in one step.

    Args:
        text: the report.
        path: the file.
        protected: files that it must not replace.

    Raises:
        UsageError: the path is no place for a file, or the disk is full.
    """
    check_report(path, protected)
    with temporary(path) as file, writing(path):
        file.write(text.encode())
        file.finish()
        file.publish()
