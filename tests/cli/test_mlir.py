"""`widthfold mlir` where IREE is missing; tests/mlir is run where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.shared import ROOT
from widthfold_onnx.cli import main
from widthfold_onnx.mlir import BINDINGS


@pytest.mark.parametrize("name", ["in.mlir", "in.onnx"])
def test_without_iree_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in BINDINGS.values():
        monkeypatch.setitem(sys.modules, module, None)
    model = ROOT / "models" / "paper_conv.onnx"
    (tmp_path / name).write_bytes(model.read_bytes())
    run = CliRunner().invoke(main, ["mlir", str(tmp_path / name), str(tmp_path / "out.mlir")])
    assert run.exit_code == 2
    assert run.output == "widthfold: MLIR needs IREE: pip install 'widthfold-onnx[mlir]'\n"
    assert not (tmp_path / "out.mlir").exists()
