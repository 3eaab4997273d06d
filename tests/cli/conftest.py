"""Models that several files of tests start from."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.cli.tool import widthfold
from tests.small_models import LAYER, build, save


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two Convs, alone in its folder."""
    folder = tmp_path / "in"
    folder.mkdir()
    return save(build(), folder / "model.onnx")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output that is not there yet, in a folder of its own."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "out.onnx"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A layer, and the same folded by 4 along the width, with copies before and after."""
    folder = tmp_path_factory.mktemp("pair")
    model, out = save(build(LAYER), folder / "model.onnx"), folder / "out.onnx"
    run = widthfold("optimize", model, out, "--factor", 4, "--axis", "width", "--seeds", 1)
    assert run.code == 0
    kinds = [node.op_type for node in onnx.load(out).graph.node]
    moves = ["Reshape", "Transpose", "Reshape"]
    assert kinds == [*moves, "Conv", "Relu", *moves]
    return model, out
