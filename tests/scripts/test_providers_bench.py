"""The table of providers; the runs themselves are the bench."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench(scripts: Path) -> ModuleType:
    return importlib.import_module("providers_bench")


def side(bench: ModuleType, provider: str, folded: bool, ms: float, other: float = 99.0):
    levels = {"all": [other] * 4, "disabled": [ms * step for step in (1, 1.01, 0.99, 1)]}
    return bench.Side(provider, folded, levels)


def row(bench: ModuleType, *times: float, folds: int = 2):
    cases = [("cpu", False), ("cpu", True), ("openvino", False), ("openvino", True)]
    sides = [side(bench, *case, ms) for case, ms in zip(cases, times, strict=True)]
    return bench.Row("net", {"cpu": "1.32.0"}, {"cpu": folds, "openvino": 2}, sides)


def test_a_side_counts_at_its_better_level(bench: ModuleType) -> None:
    assert side(bench, "cpu", False, 2.0).level == "disabled"
    slower = side(bench, "cpu", False, 2.0, other=1.0)
    assert (slower.level, slower.ms) == ("all", [1.0] * 4)


def test_the_table_says_what_to_take(bench: ModuleType) -> None:
    *_, line = bench.table([row(bench, 4, 2, 2, 1)]).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:2] == ["net", "4 ms (disabled)"]
    assert [cell.split("x ")[0] for cell in cells[2:5]] == ["2.00", "2.00", "4.00"]
    assert cells[5] == "openvino folded"
    *_, line = bench.table([row(bench, 4, 1, 2, 1.001)]).splitlines()
    assert line.endswith("| cpu folded or openvino folded |")


def test_a_fold_that_did_not_pay_is_not_offered(bench: ModuleType) -> None:
    *_, line = bench.table([row(bench, 4, 1, 2, 3, folds=0)]).splitlines()
    assert "| nothing pays |" in line
    assert line.endswith("| openvino as it is |")


def test_a_ratio_has_an_interval_that_knows_how_sessions_usually_differ(bench: ModuleType) -> None:
    middle, low, high = bench.ratio(side(bench, "a", False, 4), side(bench, "b", False, 2))
    assert middle == pytest.approx(2)
    assert 1.8 < low < 1.99 < 2.01 < high < 2.2
