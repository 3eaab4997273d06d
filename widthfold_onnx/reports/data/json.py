"""Encodes results as JSON: the structs of `results` as they are, names escaped to ASCII.

Escaping everything outside ASCII keeps control and bidi characters of a hostile model out of
whatever shows the file. `schemas/` in this package holds the JSON Schema of each report.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from widthfold_onnx.results import (
    InspectReport,
    OptimizeReport,
    Result,
    TuneReport,
    VerifyReport,
)

REPORTS: dict[str, type[Result]] = {
    "optimize": OptimizeReport,
    "verify": VerifyReport,
    "inspect": InspectReport,
    "tune": TuneReport,
}


def encode(result: Result) -> bytes:
    """Encode the result as indented ASCII JSON."""
    built = msgspec.to_builtins(result)
    return json.dumps(built, indent=2, allow_nan=False).encode("ascii") + b"\n"


def schema_of(verb: str) -> dict[str, Any]:
    """Return the JSON Schema of a verb's report, as shipped in `schemas/`."""
    return msgspec.json.schema(REPORTS[verb])
