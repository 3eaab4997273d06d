"""Keep results as lines of JSON, written as they come, so that an interrupt loses none.

A later run appends to the file, and measures only missing results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Row = dict[str, Any]

FILE = "results.jsonl"
KEPT_SAMPLES = 200
SUBJECT = ("what", "model", "layer", "dtype", "layout", "form")
"""Fields that say what a row is about; a row without any of them is about its whole part."""


class Results:
    """A file that rows are appended to, and the rows of earlier runs.

    Args:
        folder: where the file lies; a last line that was cut off is removed.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        rows = read(folder)
        self._rows = {_subject(row): row for row in rows if "error" not in row}
        self._failed = {_subject(row) for row in rows if "error" in row}
        self._file = (folder / FILE).open("ab+", buffering=0)
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)

    def add(self, part: str, **fields: Any) -> Row:
        """Write a row; it is in the file when this returns.

        Raises:
            ValueError: a number is not finite.
        """
        row = {"part": part, **fields}
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        if "error" not in row:
            self._rows[_subject(row)] = row
        return row

    def row(self, part: str, **fields: Any) -> Row | None:
        """Return the result, also of an earlier run; None without one, or after an error."""
        return self._rows.get(_subject({"part": part, **fields}))

    def has_failed(self, part: str, **fields: Any) -> bool:
        """True if an earlier run found an error; failed measurements are best tried again last."""
        return _subject({"part": part, **fields}) in self._failed

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(folder: Path) -> list[Row]:
    """Read all rows, none where there is no file; a last line that was cut off is left out."""
    file = folder / FILE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def latest(rows: Sequence[Row]) -> list[Row]:
    """Return the newest row of every subject.

    Rows about a whole part come from the last run that took the part.
    """
    newest: dict[object, Row] = {}
    for number, row in enumerate(rows):
        if row["part"] == "run":
            over = {"run", "end", *row["parts"]}
            newest = {k: r for k, r in newest.items() if r["part"] not in over or not is_lone(r)}
        newest[number if is_lone(row) else _subject(row)] = row
    return list(newest.values())


def is_lone(row: Row) -> bool:
    """True if a row is about its whole part, not about one measurement."""
    return not row.keys() & set(SUBJECT)


def of(rows: Sequence[Row], part: str) -> list[Row]:
    """Return the rows of one part."""
    return [row for row in rows if row["part"] == part]


def us(seconds: npt.NDArray[np.float64]) -> list[float]:
    """Return evenly taken samples in microseconds."""
    step = max(1, -(-len(seconds) // KEPT_SAMPLES))
    return [round(float(value) * 1e6, 3) for value in seconds[::step]]


def _subject(row: Row) -> tuple[object, ...]:
    return (row["part"], *(row.get(field) for field in SUBJECT))
