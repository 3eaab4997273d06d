"""Results are lines of JSON, written as they come: what was measured survives being cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Row = dict[str, Any]

FILE = "results.jsonl"
KEPT_SAMPLES = 200


class Results:
    """Appends rows to a file.

    Args:
        folder: where the file lies; an older one is replaced.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / FILE).open("w", encoding="utf-8", buffering=1)

    def add(self, part: str, **fields: Any) -> Row:
        """Write a row; it is in the file when this returns.

        Raises:
            ValueError: a number is not finite.
        """
        row = {"part": part, **fields}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        return row

    def close(self) -> None:
        """No more rows."""
        self._file.close()


def read(folder: Path) -> list[Row]:
    """All rows of a run, none where there is none; a last line that was cut off is left out."""
    file = folder / FILE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def of(rows: list[Row], part: str) -> list[Row]:
    """The rows of one part."""
    return [row for row in rows if row["part"] == part]


def us(seconds: npt.NDArray[np.float64]) -> list[float]:
    """Evenly taken samples in microseconds."""
    step = max(1, -(-len(seconds) // KEPT_SAMPLES))
    return [round(float(value) * 1e6, 3) for value in seconds[::step]]
