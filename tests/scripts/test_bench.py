"""The benchmark's table and picture; the runs themselves are the bench."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("bench_report")


def suite(report: ModuleType):
    timed = {"original_ms": 2.0, "ms": 1.0, "low": 1.9, "high": 2.1, "control": 0.01}
    cells = {
        "factor 8": report.Cell(note="as it is"),
        "auto": report.Cell(note="faster", ratio=2.0, folded=1, **timed),
        "channel pad": report.Cell(note="slower", ratio=0.5, folded=3, **timed | {"low": 0.4}),
        "OpenVINO": report.Cell(note="does not run: a | b"),
    }
    ranks = report.Ranks(forms=9, overall=0.8, layers={"a": 0.9, "b": 0.5, "c": None}, scale=1.2)
    rows = [report.Row(model="chain", layers=4, cells=cells)]
    return report.Suite(rows=rows, ranks=ranks, environment=None)


def test_a_line_per_model_with_intervals_or_the_reason(report: ModuleType) -> None:
    text = suite(report).markdown()
    row = (
        "| chain | 4 | 2.000 | as it is | 2.00x [1.90, 2.10] | 0.50x [0.40, 2.10] "
        "| does not run: a / b | 1.01 |"
    )
    assert row in text.splitlines()
    assert "rank correlation 0.80, within 2 layers 0.70 in the mean" in text


def test_the_picture_and_the_numbers_are_the_same_every_time(
    report: ModuleType, tmp_path: Path
) -> None:
    found = suite(report)
    for name in ("one", "two"):
        report.draw(found, tmp_path / f"{name}.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    again = msgspec.json.decode(msgspec.json.encode(found), type=report.Suite)
    assert again == found


def test_without_openvino_the_column_says_so(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rival = importlib.import_module("bench_openvino")
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr(rival, "find_spec", lambda name: None)
    rival.installed.cache_clear()
    assert rival.against_openvino(Path("no.onnx"), {}, 1.0).note == "not installed"
    assert "OpenVINO is NOT compared" in capsys.readouterr().err
    rival.installed.cache_clear()
