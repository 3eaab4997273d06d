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
from widthfold_onnx.rewrite.plan import Plan

REPORTS: dict[str, type[Result]] = {
    "optimize": OptimizeReport,
    "verify": VerifyReport,
    "inspect": InspectReport,
    "tune": TuneReport,
}
SCHEMAS: dict[str, type[msgspec.Struct]] = {**REPORTS, "plan": Plan}
"""Files that have a JSON Schema: a report by its command, and the plan."""


def encode(result: Result) -> bytes:
    """Encode the result as indented ASCII JSON."""
    built = msgspec.to_builtins(result)
    return json.dumps(built, indent=2, allow_nan=False).encode("ascii") + b"\n"


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a file of `SCHEMAS`, as shipped in `schemas/`."""
    text = msgspec.json.encode(msgspec.json.schema(SCHEMAS[name]))  # makes lists of tuples
    return msgspec.json.decode(text, type=dict[str, Any])
