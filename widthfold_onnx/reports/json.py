"""Results as JSON: the structs of `results` as they are, names escaped to ASCII.

Escaping everything outside ASCII keeps control and bidi characters of a hostile model out of
whatever shows the file. `schemas/` in this package holds the JSON Schema of each report.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.atomic import check_target, temporary, writing
from widthfold_onnx.results import InspectReport, OptimizeReport, Result, VerifyReport
from widthfold_onnx.text import quoted

REPORTS: dict[str, type[Result]] = {
    "optimize": OptimizeReport,
    "verify": VerifyReport,
    "inspect": InspectReport,
}


_SCHEMA = b'"schema": "widthfold.'
_HEAD = 200
"""The first bytes of a file, among which every report names its schema."""


def check_report(path: Path, protected: Sequence[Path]) -> None:
    """Check, before the work, that a report may be written.

    Args:
        path: the JSON file; one that is there must be empty or a report of ours.
        protected: files that it must not replace, whether they are there or not.

    Raises:
        UsageError: the path is no place for a report.
    """
    check_target(path, [])
    place = (path.parent.resolve(), path.name)
    if any((other.parent.resolve(), other.name) == place for other in protected):
        raise UsageError(f"the report would replace {quoted(str(path))}; choose another name")
    with writing(path):
        if path.exists() and path.stat().st_size and _SCHEMA not in _head(path):
            raise UsageError(f"{quoted(str(path))} exists and is no report; choose another name")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD)


def write_report(result: Result, path: Path, protected: Sequence[Path]) -> None:
    """Write a result in one step.

    Args:
        result: the result of a verb.
        path: the JSON file.
        protected: files that it must not replace.

    Raises:
        UsageError: the path is no place for a file, or the disk is full.
    """
    check_report(path, protected)
    with temporary(path) as file, writing(path):
        file.write(encode(result))
        file.finish()
        file.publish()


def encode(result: Result) -> bytes:
    """The result as indented ASCII JSON."""
    built = msgspec.to_builtins(result)
    return json.dumps(built, indent=2, allow_nan=False).encode("ascii") + b"\n"


def schema_of(verb: str) -> dict[str, Any]:
    """The JSON Schema of a verb's report, as shipped in `schemas/`."""
    return msgspec.json.schema(REPORTS[verb])
