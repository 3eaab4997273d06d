"""The models of the repository: made again with the same bytes, valid, alive."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the script made
import pytest

from tests.lacking import needs_names
from tests.shared import ROOT

MODELS = sorted((ROOT / "models").glob("*.onnx"))
SYMBOLS = {"batch": 2, "rows": 9, "columns": 11}
DTYPES = {"tensor(float)": np.float32, "tensor(bool)": np.bool_}
LIMIT = 2_000_000


def make(out: Path, hash_seed: str) -> dict[str, bytes]:
    subprocess.run(
        [sys.executable, ROOT / "scripts/make_models.py", out],
        check=True,
        capture_output=True,
        cwd=out.parent,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
    )
    return {path.name: path.read_bytes() for path in out.iterdir()}


@needs_names
def test_every_run_writes_the_committed_bytes(tmp_path):
    committed = {path.name: path.read_bytes() for path in MODELS}
    assert sum(map(len, committed.values())) < LIMIT
    assert make(tmp_path / "one", "1") == committed
    assert make(tmp_path / "two", "2") == committed


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_model_is_valid_and_says_what_it_shows(path):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.doc_string.endswith(".")
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_model_runs_and_its_outputs_are_alive(path):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(7)
    feeds = {
        value.name: generator.normal(size=[SYMBOLS.get(dim, dim) for dim in value.shape]).astype(
            DTYPES[value.type]
        )
        for value in session.get_inputs()
    }
    for declared, result in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert list(result.shape) == [SYMBOLS.get(dim, dim) for dim in declared.shape]
        assert np.isfinite(result).all()
        assert result.std() > 0.01
