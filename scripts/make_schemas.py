#!/usr/bin/env python3
"""Write the JSON Schema of every report and of the plan into the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from widthfold_onnx.results import InspectReport, OptimizeReport, TuneReport, VerifyReport
from widthfold_onnx.rewrite.plan import Plan

FOLDER = Path(__file__).parents[1] / "widthfold_onnx" / "schemas"
STRUCTS = {
    "optimize": OptimizeReport,
    "verify": VerifyReport,
    "inspect": InspectReport,
    "tune": TuneReport,
    "plan": Plan,
}


def schema_of(name: str) -> dict[str, Any]:
    text = msgspec.json.encode(msgspec.json.schema(STRUCTS[name]))  # makes lists of tuples
    return msgspec.json.decode(text, type=dict[str, Any])


def main() -> None:
    for name in STRUCTS:
        text = json.dumps(schema_of(name), indent=2) + "\n"
        (FOLDER / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
