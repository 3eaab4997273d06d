"""The samples of a timing as CSV."""

from __future__ import annotations

import csv

from msgspec.structs import replace

from tests.reports.sample import passing
from widthfold_onnx.reports.data.samples import HEADER, render


def test_each_run_is_a_line_that_says_where_it_ran() -> None:
    report = passing()
    assert report.timing is not None
    rows = list(csv.DictReader(render(report).splitlines()))
    for side, name in (
        (report.timing.original, "original"),
        (report.timing.rewritten, "rewritten"),
    ):
        own = [row for row in rows if row["model"] == name]
        assert [float(row["ms"]) for row in own] == side.runs_ms
        for row in own[:: len(own) // 7]:
            process, session, run = (int(row[key]) for key in HEADER[1:4])
            assert float(row["ms"]) == side.samples_ms[process][session][run]
    assert len(rows) == len(report.timing.original.runs_ms) + len(report.timing.rewritten.runs_ms)


def test_without_a_timing_there_are_no_lines() -> None:
    assert render(replace(passing(), timing=None)) == ",".join(HEADER) + "\n"
