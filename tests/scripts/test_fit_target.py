"""A target fitted from made-up results finds the numbers that made them."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from widthfold_onnx.tuning import targets
from widthfold_onnx.tuning.cost import layer_seconds
from widthfold_onnx.tuning.targets import Target, load_target

REAL = {
    "memory_bandwidth": 4.3e12,
    "cache_bandwidth": 7.1e12,
    "transpose": 0.37,
    "launch": 2.3e-6,
    "efficiency": 0.11,
}
RATE = {"FLOAT": 190e12, "FLOAT16": 395e12}
BASE = load_target("h200")
DEVICE = msgspec.structs.replace(BASE, **REAL, rate=RATE)
"""A device that differs from its data sheet."""


@pytest.fixture
def fit(scripts: Path) -> ModuleType:
    return importlib.import_module("fit_target")


def row(part: str, **fields: Any) -> dict[str, Any]:
    return {"part": part, **fields}


def ceilings() -> list[dict[str, Any]]:
    size, cached = 2 * (512 << 20), 2 * (8 << 20)
    copy = size / REAL["memory_bandwidth"] * 1e6
    half = {"dtype": "float16"}
    return [
        row("ceilings", what="copy", us=copy, bytes=size, **half),
        row("ceilings", what="transpose", us=copy / REAL["transpose"], bytes=size, **half),
        row("ceilings", what="cached", us=cached / REAL["cache_bandwidth"] * 1e6, bytes=cached),
        row("ceilings", what="launch", us=REAL["launch"] * 1e6),
        *(
            row("ceilings", what="product", dtype=dtype, macs=8192**3, us=8192**3 / rate * 1e6)
            for dtype, rate in zip(("float32", "float16"), RATE.values(), strict=True)
        ),
    ]


def grid(fit: ModuleType, device: Target) -> list[dict[str, Any]]:
    """The layers of the grid, at the times that the cost model gives for a device."""
    module = importlib.import_module("gpu.layers")
    rows = []
    for layer in module.paper("float16", 512 << 20) + module.paper("float32", 512 << 20):
        fields = {
            "layer": str(layer),
            "dtype": layer.dtype,
            "layout": "nchw",
            "form": "none",
            "shape": list(layer.shapes[0]),
            "weight": list(layer.weight_shape),
            "layer_macs": layer.macs,
        }
        ((work, _),) = fit.as_is([row("grid", **fields, us=1.0)])
        assert work.outputs == layer.shapes[1][0] * layer.shapes[1][1] * (
            layer.shapes[1][2] * layer.shapes[1][3]
        )
        rows.append(row("grid", **fields, us=layer_seconds(work, device) * 1e6))
    return rows


def run(*, quick: bool = False) -> dict[str, Any]:
    fields = {"date": "2026-11-21", "onnxruntime": "1.31.1", "provider": "cuda", "parts": []}
    return row("run", device="NVIDIA H200", quick=quick, **fields)


def test_what_made_the_results_is_found_and_named(fit: ModuleType) -> None:
    target = fit.fitted([run(), *ceilings(), *grid(fit, DEVICE)], BASE, "x")
    for name, value in REAL.items():
        assert getattr(target, name) == pytest.approx(value, rel=0.02), name
        start = "measured by gpu_bench.py on NVIDIA H200, 2026-11-21, "
        assert target.source[name].startswith(start)
    assert target.rate == pytest.approx(RATE, rel=1e-3)
    measured = {*REAL, "rate"}
    for name, words in BASE.source.items():
        assert (target.source[name] == words) == (name not in measured)


def test_what_was_not_measured_stays_that_of_the_base(fit: ModuleType) -> None:
    broken = [{**entry, "us": None, "error": "x"} for entry in ceilings()]
    for entry in broken:
        del entry["us"]
    target = fit.fitted([run(), *broken], BASE, "h200")
    assert target == BASE
    fast = msgspec.structs.replace(DEVICE, efficiency=1.0, rate={"FLOAT": 1e18, "FLOAT16": 1e18})
    row = [entry for entry in ceilings() if entry["what"] != "product"]
    aim = msgspec.structs.replace(BASE, rate=fast.rate)
    target = fit.fitted([run(), *row, *grid(fit, fast)], aim, "h200")
    assert target.efficiency == BASE.efficiency  # bandwidth alone decided


def test_a_quick_run_is_refused(
    fit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps(run(quick=True)) + "\n")
    monkeypatch.setattr("sys.argv", ["fit_target.py", str(tmp_path), "h200"])
    assert fit.main() == 2
    assert "a quick run measures nothing" in capsys.readouterr().err


def test_a_run_of_another_device_is_refused_but_makes_a_target_of_its_own(fit: ModuleType) -> None:
    other = run() | {"device": "NVIDIA X 24GB"}
    with pytest.raises(ValueError, match="the run is of NVIDIA X 24GB, h200 stands for H200"):
        fit.fitted([other], BASE, "h200")
    assert fit.fitted([other], BASE, "x").device == "NVIDIA X 24GB"
    assert fit.fitted([run()], BASE, "x").device == "H200"
    with pytest.raises(ValueError, match="the run is of cpu, h200 stands for cuda"):
        fit.fitted([run() | {"provider": "cpu"}], BASE, "x")


@pytest.mark.parametrize(
    ("name", "message"), [("nope", "no target is called 'nope'"), ("h200", "there are no results")]
)
def test_what_cannot_be_fitted_is_one_line(
    fit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name, message
) -> None:
    monkeypatch.setattr("sys.argv", ["fit_target.py", str(tmp_path), name])
    assert fit.main() == 2
    assert capsys.readouterr().err.startswith(f"fit_target: {message}")


def test_a_target_is_written_where_predictions_read_it(fit: ModuleType) -> None:
    assert (fit.FOLDER / f"h200{targets.SUFFIX}").is_file()


def test_the_file_is_a_target_and_says_how_well_it_predicts(
    fit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [run(), *ceilings(), *grid(fit, DEVICE)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    out = tmp_path / "mine.toml"
    command = ["fit_target.py", str(tmp_path), "mine", "--base", "h200", "--out", str(out)]
    monkeypatch.setattr("sys.argv", command)
    assert fit.main() == 0
    text = out.read_text()
    target = msgspec.convert(tomllib.loads(text), Target)
    assert target == fit.fitted(rows, BASE, "mine")
    assert "# 70 layers as they are: predictions off by 1.0" in text
    assert "rank correlation 1.00" in text
