#!/usr/bin/env python3
"""Write the JSON Schema of every report into the package, from the structs in `results.py`."""

from __future__ import annotations

import json
from pathlib import Path

from widthfold_onnx.reports.data.json import REPORTS, schema_of

FOLDER = Path(__file__).parents[1] / "widthfold_onnx" / "schemas"


def main() -> None:
    for verb in REPORTS:
        text = json.dumps(schema_of(verb), indent=2) + "\n"
        (FOLDER / f"{verb}.json").write_text(text)


if __name__ == "__main__":
    main()
