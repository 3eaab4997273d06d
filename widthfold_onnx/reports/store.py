"""Prints the store as tables, one for each machine and setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

from widthfold_onnx.reports.described import Table
from widthfold_onnx.reports.text.console import printing, say, table
from widthfold_onnx.results import Key, Measurement

_AGES = (("d", 86_400), ("h", 3_600), ("min", 60))


@printing()
def show_store(measurements: Sequence[tuple[Key, Measurement]]) -> None:
    """Print every measurement, then how many there are."""
    for (machine, setting), entries in groupby(sorted(measurements, key=_place), _place):
        say(f"machine: {machine}")
        say(f"setting: {setting}")
        columns = ["subject", "candidate", "as-is / candidate", "status", "age"]
        rows = [_row(key, measurement) for key, measurement in entries]
        table(Table("measurements", columns, rows, sentences=False))
    say(f"{len(measurements)} measurement(s)")


def _place(entry: tuple[Key, Measurement]) -> tuple[str, str]:
    key, _ = entry
    return key.machine, key.setting


def _row(key: Key, measurement: Measurement) -> list[str]:
    ratio = f"{measurement.ratio:.2f} [{measurement.low:.2f}, {measurement.high:.2f}]"
    return [
        _plain(key.subject),
        _plain(key.candidate),
        measurement.reason or ratio,
        "skipped" if measurement.skipped else measurement.status,
        _age(measurement.time),
    ]


def _plain(text: str) -> str:
    """Return canonical JSON without its punctuation, other text as it is."""
    if not text.startswith("{"):
        return text
    bare = re.sub(r'[{}"]', "", text)
    return bare.replace(":", " ").replace(",", ", ")


def _age(time: datetime) -> str:
    seconds = (datetime.now(UTC) - time).total_seconds()
    for unit, length in _AGES:
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return "new"
