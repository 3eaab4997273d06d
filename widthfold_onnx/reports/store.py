"""Prints the store as tables, one for each machine and setting."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby

from widthfold_onnx.reports.described import Table
from widthfold_onnx.reports.text.console import printing, say, table
from widthfold_onnx.results import Entry, Key, Measurement, StoreReport

_AGES = (("d", 86_400), ("h", 3_600), ("min", 60))


@printing()
def show_store(report: StoreReport) -> None:
    """Print every measurement, then how many there are."""
    for (machine, setting), entries in groupby(sorted(report.measurements, key=_place), _place):
        say(f"machine: {machine}")
        say(f"setting: {setting}")
        columns = ["subject", "candidate", "as-is / candidate", "status", "age"]
        rows = [_row(entry.key, entry.measurement) for entry in entries]
        table(Table("measurements", columns, rows, sentences=False))
    say(f"{len(report.measurements)} measurement(s)")


def store_report(items: Iterable[tuple[Key, Measurement]]) -> StoreReport:
    """Return the report on the items of a store."""
    return StoreReport(measurements=[Entry(key=key, measurement=value) for key, value in items])


def _place(entry: Entry) -> tuple[str, str]:
    return entry.key.machine, entry.key.setting


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
