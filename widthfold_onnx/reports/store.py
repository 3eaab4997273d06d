"""Prints the store as tables, one for each machine and setting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

from widthfold_onnx.reports.description import Column, tabulated
from widthfold_onnx.reports.text.console import printing, say, table
from widthfold_onnx.results import Key, Measurement

Entry = tuple[Key, Measurement]
"""A measurement and its key."""

_AGES = (("d", 86_400), ("h", 3_600), ("min", 60))


@printing()
def show_store(measurements: Sequence[Entry]) -> None:
    """Print every measurement, then how many there are."""
    for (machine, setting), entries in groupby(sorted(measurements, key=_place), _place):
        say(f"machine: {machine}")
        say(f"setting: {setting}")
        for each in tabulated("measurements", COLUMNS, entries):
            table(each)
    say(f"{len(measurements)} measurement(s)")


def _place(entry: Entry) -> tuple[str, str]:
    key, _ = entry
    return key.machine, key.setting


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


def _ratio(measurement: Measurement) -> str:
    ratio = f"{measurement.ratio:.2f} [{measurement.low:.2f}, {measurement.high:.2f}]"
    return measurement.reason or ratio


COLUMNS: tuple[Column[Entry], ...] = (
    Column("subject", lambda entry: _plain(entry[0].subject)),
    Column("candidate", lambda entry: _plain(entry[0].candidate)),
    Column("as-is / candidate", lambda entry: _ratio(entry[1])),
    Column("status", lambda entry: "skipped" if entry[1].skipped else entry[1].status),
    Column("age", lambda entry: _age(entry[1].time)),
)
