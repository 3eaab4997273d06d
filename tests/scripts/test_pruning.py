"""The script that races what the search leaves out."""

from __future__ import annotations

import importlib
from pathlib import Path

import onnx
import pytest

from tests.shared import ROOT
from tests.small_models import conv

SCRIPTS = ROOT / "scripts"


def test_both_races_are_of_the_same_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    pruning = importlib.import_module("pruning")
    halving = pruning.successive_halving
    before = halving.PEAK_MARGIN, halving.HOPELESS_RATIO
    path = tmp_path / "model.onnx"
    onnx.save(conv([1, 2, 5, 8], (3, 2, 3, 3), pads=[1, 1, 1, 1]), path)
    row = pruning.compare(path, 30.0)
    assert (row.model, row.layers, row.note) == ("model", 1, "")
    assert row.forms > row.unrun + row.given_up
    assert before == (halving.PEAK_MARGIN, halving.HOPELESS_RATIO)
    (line,) = pruning.table([row])
    assert line.startswith(f"| model | 1 | {row.forms} | {row.unrun} | {row.given_up} | ")
    assert line.count("|") == pruning.HEAD[0].count("|")
