"""The script that races what the search leaves out."""

from __future__ import annotations

import importlib
from pathlib import Path

import onnx
import pytest

from tests.shared import ROOT
from tests.tuning.workload.tool import conv

SCRIPTS = ROOT / "scripts"


def test_both_races_are_of_the_same_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    pruning = importlib.import_module("pruning")
    before = pruning.successive_halving.PEAK_MARGIN, pruning.successive_halving.HOPELESS
    path = tmp_path / "model.onnx"
    onnx.save(conv([1, 2, 5, 8], (3, 2, 3, 3), pads=[1, 1, 1, 1]), path)
    row = pruning.compare(path, 30.0)
    assert (row.model, row.layers, row.note) == ("model", 1, "")
    assert row.forms > row.unrun + row.given_up
    assert before == (pruning.successive_halving.PEAK_MARGIN, pruning.successive_halving.HOPELESS)
    (line,) = pruning.table([row])
    assert line.startswith(f"| model | 1 | {row.forms} | {row.unrun} | {row.given_up} | ")
    assert line.count("|") == pruning.HEAD[0].count("|")
