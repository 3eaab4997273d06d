"""The table of docs/mlir.md: one line of it, timed briefly; no time is judged."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("iree.compiler", reason="no IREE: pip install 'widthfold-onnx[mlir]'")


def test_a_line_has_a_cell_for_every_form(scripts: Path) -> None:
    bench = importlib.import_module("mlir_bench")
    name = next(iter(bench.CASES))
    _, first, before, *cells, control, _ = bench.timed(name, 0.2).split("|")
    assert first.strip() == name
    assert float(before) > 0
    assert len(cells) == len(bench.FORMS)
    assert all("x [" in cell for cell in cells)
    assert float(control) >= 1


def test_a_fold_that_computes_something_else_is_not_timed(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = importlib.import_module("mlir_bench")
    name = next(iter(bench.CASES))
    other, _ = bench.conv(bench.NHWC, [1, 32, 64, 1], 5, 1, 1, 1)
    shifted = other.replace("linalg.fill ins(%start", "linalg.fill ins(%one").replace(
        "  %empty", "  %one = arith.constant 1.0 : f32\n  %empty"
    )
    monkeypatch.setattr(bench, "folded", lambda *_, **__: shifted)
    with pytest.raises(SystemExit, match="computes something else"):
        bench.timed(name, 0.2)
