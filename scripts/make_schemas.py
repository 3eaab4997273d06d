#!/usr/bin/env python3
"""Write the JSON Schema of every report and of the plan into the package."""

from __future__ import annotations

import json
from pathlib import Path

from widthfold_onnx.reports.json import SCHEMAS, schema_of

FOLDER = Path(__file__).parents[1] / "widthfold_onnx" / "schemas"


def main() -> None:
    for name in SCHEMAS:
        text = json.dumps(schema_of(name), indent=2) + "\n"
        (FOLDER / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
