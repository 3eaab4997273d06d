from __future__ import annotations

import re

from msgspec.structs import replace

from tests.reports.sample import timing
from widthfold_onnx.reports.text.histogram import BAR, BINS, histogram
from widthfold_onnx.results import Timing


def shared(first: list[float], second: list[float]) -> Timing:
    made = timing()
    sides = []
    for side, samples in ((made.original, first), (made.rewritten, second)):
        ordered = sorted(samples)
        p50, p90, p99 = (ordered[int(len(ordered) * q)] for q in (0.5, 0.9, 0.99))
        sides.append(replace(side, samples_ms=[[samples]], median_ms=p50, p90=p90, p99=p99))
    return replace(made, original=sides[0], rewritten=sides[1])


def lengths(rows: list[list[str]], column: int) -> list[int]:
    """Whole characters of each bar."""
    return [row[column].count("█") for row in rows]


def test_one_axis_for_both_models() -> None:
    rows = histogram(shared([2.0] * 100, [1.0] * 100))
    assert len(rows) == BINS
    edges = [float(row[0].removesuffix("+")) for row in rows]
    assert edges == sorted(edges)
    assert edges[0] == 1.0
    assert lengths(rows, 1) == [0] * (BINS - 1) + [BAR]
    assert lengths(rows, 2) == [BAR] + [0] * (BINS - 1)
    assert rows[0][2].endswith("p50 p90 p99")
    assert rows[-1][0].endswith("+")


def test_one_scale_for_both_models() -> None:
    rows = histogram(shared([1.0] * 50 + [2.0] * 50, [1.0] * 100))
    assert lengths(rows, 1)[0] == BAR // 2
    assert lengths(rows, 2)[0] == BAR


def test_a_slow_run_is_counted_last_and_stretches_nothing() -> None:
    rows = histogram(shared([1.0] * 990 + [1.1] * 109 + [900.0], [1.0] * 100))
    assert float(rows[-1][0].removesuffix("+")) < 1.2
    assert rows[-1][1].endswith("p90 p99")
    assert sum(bool(row[1]) for row in rows) == 2


def test_every_percentile_is_marked_once() -> None:
    rows = histogram(timing())
    for column in (1, 2):
        text = " ".join(row[column] for row in rows)
        assert re.findall(r"p\d+", text) == ["p50", "p90", "p99"]


def test_runs_that_take_the_same_time_are_one_bar() -> None:
    rows = histogram(shared([1.0] * 3, [1.0] * 3))
    assert lengths(rows, 1)[0] == lengths(rows, 2)[0] == BAR
