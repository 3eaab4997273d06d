"""Runs `olive run` for real, on the configs that docs/pipelines.md shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.running import opened, run
from tests.shared import ROOT

MODEL = ROOT / "models" / "pitch_cnn.onnx"
PAGE = (ROOT / "docs" / "pipelines.md").read_text().partition("## A pass of Olive")[2]
PASSES, AUTO, FIXED = map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
COMMAND = re.findall(r"^olive run .*$", PAGE, re.MULTILINE)[0].split()
(PRINTED,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.skipif(
    find_spec("olive") is None,
    reason="the pass of Olive is NOT tested: it is not installed; scripts/nightly makes an "
    "environment with the extra olive",
)


def olive(folder: Path, config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the command of the page in a folder."""
    (folder / "passes.json").write_text(json.dumps(PASSES))
    (folder / "run.json").write_text(json.dumps(config))
    words = [Path(sys.executable).with_name(COMMAND[0]), *COMMAND[1:]]
    environment = {**os.environ, "CI": "1"}  # Olive sends nothing
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)


def fixed(**parameters: object) -> dict[str, Any]:
    """The fixed run of the page with other parameters, without a pass of Olive."""
    return {**FIXED, "passes": {"fold": {**FIXED["passes"]["fold"], **parameters}}}


def check_equal(model: Path, out: Path) -> None:
    numbers = np.random.default_rng(0).integers(-3, 4, (2, 1, 16384)).astype(np.float32)
    feeds = {opened(model).get_inputs()[0].name: numbers}
    for ours, theirs in zip(run(out, feeds), run(model, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def widest(model: Path) -> int:
    weights = (weight for weight in onnx.load(model).graph.initializer if len(weight.dims) > 2)
    return max(weight.dims[0] for weight in weights)


def in_files(folder: Path) -> Path:
    """The model with its weights in a file beside it."""
    folder.mkdir()
    saved = {"save_as_external_data": True, "size_threshold": 0, "location": "weights"}
    onnx.save(onnx.load(MODEL), folder / "model.onnx", **saved)
    return folder / "model.onnx"


def test_a_fixed_factor(tmp_path: Path) -> None:
    model = shutil.copy(MODEL, tmp_path / "model.onnx")
    result = olive(tmp_path, FIXED)
    assert result.returncode == 0, result.stderr
    assert PRINTED.rstrip() in result.stdout
    out = tmp_path / "out" / "model.onnx"
    assert widest(out) > widest(model)
    check_equal(model, out)

    again = olive(tmp_path, FIXED)
    assert again.returncode == 0, again.stderr
    assert "Loaded model from cache" in again.stdout
    assert "nodes folded" not in again.stdout


def test_what_was_measured_to_be_faster(tmp_path: Path) -> None:
    """No time is judged here: nothing may pay on a busy machine."""
    model = shutil.copy(MODEL, tmp_path / "model.onnx")
    first = olive(tmp_path, AUTO)
    assert first.returncode == 0, first.stderr
    assert re.search(r"search on cpu: .* [1-9]\d* measurements taken", first.stdout)
    check_equal(model, tmp_path / "out" / "model.onnx")

    once_more = olive(tmp_path, {**AUTO, "clean_cache": True})
    assert "all measured before" in once_more.stdout
    settings = json.loads((tmp_path / "out" / "model_config.json").read_text())["config"]
    level = re.search(r"deploy it at level (\w+)", once_more.stdout)
    count = level and {"all": 99, "extended": 2}[level[1]]
    assert settings["inference_settings"] == (
        {"session_options": {"graph_optimization_level": count}} if count else None
    )


def test_external_data_is_kept_where_olive_is_asked_to(tmp_path: Path) -> None:
    model = in_files(tmp_path / "given")
    config = fixed(save_as_external_data=True)
    config["input_model"] = {"type": "ONNXModel", "model_path": "given/model.onnx"}
    result = olive(tmp_path, config)
    assert result.returncode == 0, result.stderr
    out = tmp_path / "out" / "model.onnx"
    weights = {w.name: w for w in onnx.load(out, load_external_data=False).graph.initializer}
    assert weights["context_w/widthfold"].data_location == onnx.TensorProto.EXTERNAL
    check_equal(model, out)


def test_a_model_in_which_nothing_folds_goes_on_as_it_is(tmp_path: Path) -> None:
    model = in_files(tmp_path / "given")
    config = fixed(skip=["*"])
    config["input_model"] = {"type": "ONNXModel", "model_path": "given/model.onnx"}
    result = olive(tmp_path, config)
    assert result.returncode == 0, result.stderr
    assert "0 of 4 Conv nodes folded, 4 kept; model.onnx is a copy of model.onnx" in result.stdout
    out = onnx.load(tmp_path / "out" / "model.onnx")
    assert [entry.key for entry in out.metadata_props] == ["olive_version"]
    del out.metadata_props[:]
    assert out == onnx.load(model)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"factor": 1}, "factor is 1; it must lie in 2..4096"),
        ({"input_shapes": {"nobody": [1, 2]}}, "nobody"),
    ],
)
def test_a_refusal_ends_the_run(tmp_path: Path, parameters: dict[str, Any], why: str) -> None:
    shutil.copy(MODEL, tmp_path / "model.onnx")
    result = olive(tmp_path, fixed(**parameters))
    assert result.returncode == 1, result.stdout
    last = result.stderr.rstrip().rsplit("\n", 1)[-1]
    assert last.startswith("ValueError: widthfold: ")
    assert why in last
    assert not (tmp_path / "out" / "model.onnx").exists()


def test_the_provider_is_that_of_the_accelerator(tmp_path: Path) -> None:
    shutil.copy(MODEL, tmp_path / "model.onnx")
    there = {"device": "gpu", "execution_providers": ["ROCMExecutionProvider"]}
    system = {"type": "LocalSystem", "config": {"accelerators": [there]}}
    result = olive(tmp_path, {**fixed(), "systems": {"there": system}, "target": "there"})
    assert result.returncode == 1, result.stdout
    assert "this ONNX Runtime has no ROCMExecutionProvider" in result.stderr
