"""The parts of the GPU script with a pretended CUDA in the place of a GPU."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.scripts.gpu.gpu_runs import rows_of
from widthfold_onnx.errors import CheckFailedError, UnverifiedError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime import session as session_module


@pytest.mark.slow
def test_layers_on_cuda_are_timed_at_their_best_and_forms_at_the_heuristic(
    stage: Any, pretended: list[dict[str, str]], tmp_path: Path
) -> None:
    grid, layers = (importlib.import_module(f"gpu.{name}") for name in ("grid", "layers"))
    layer = layers.paper_layer((1, 4), (1, 5), 1, "float16", 1 << 16)
    grid.run_grid(stage, "grid", [layer], None)
    plain = [row for row in rows_of(tmp_path, "grid") if row["form"] == "none"]
    assert [set(row["searches_us"]) for row in plain] == [{"HEURISTIC", "EXHAUSTIVE"}] * 2
    assert all(row["us"] == min(row["searches_us"].values()) for row in plain)
    assert {row["layout"] for row in rows_of(tmp_path, "grid") if "ratio" in row} == {
        "nchw",
        "nhwc",
    }
    assert {options["tf32"] for options in pretended} == {"1"}
    assert {options["prefer_nhwc"] for options in pretended} == {"0", "1"}


def test_a_part_that_takes_too_long_says_what_is_left(stage: Any, pretended: Any, tmp_path: Path):
    grid, layers = (importlib.import_module(f"gpu.{name}") for name in ("grid", "layers"))
    grid.run_grid(dataclasses.replace(stage, ends=0), "grid", layers.paper("float16", 1 << 16), 1.0)
    (row,) = rows_of(tmp_path, "grid")
    assert row["reason"] == "no time was left"
    assert row["unmeasured"] == sum(
        2 * (1 + len(layers.forms(layer))) for layer in layers.paper("float16", 1 << 16)
    )


def test_no_model_is_begun_for_which_the_time_will_not_do(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes = importlib.import_module("gpu.wholes")
    clock = SimpleNamespace(provider=Provider.CUDA, results=stage.results, seconds_left=100.0)
    stage.results.add("models", model="a", layout="nchw", folded=0)  # an earlier run's
    begun: list[tuple[str, bool]] = []

    def model(inner: Any, path: Path, *, nhwc: bool) -> dict[str, Any]:
        begun.append((path.stem, nhwc))
        clock.seconds_left -= 35.0
        return {}

    monkeypatch.setattr(wholes, "_model", model)
    wholes.run_models(clock, [Path("a.onnx"), Path("b.onnx"), Path("c.onnx")])
    assert begun == [("b", False), ("c", False)]
    rest = rows_of(tmp_path, "models")[-1]
    assert rest["unmeasured"] == 3


def test_whole_models_go_through_the_command_line(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both commands are called, and rows hold the figures of their reports."""
    wholes = importlib.import_module("gpu.wholes")
    search = {"layers": 3, "pending": 1}
    side = {"median_ms": 2.0}
    timing = {"rewritten": side, "original": {"median_ms": 4.0}, "speedup": 2.0, "low": 1.9}
    timing |= {"high": 2.1, "control": 0.01, "verdict": "faster", "pairs": 40}
    reports = {
        "optimize": {"sites": [1] * 9, "search": search, "written": "y"},
        "verify": {"timing": timing},
    }
    counts = {"folded": 2, "exchanged": 0}
    reports["optimize"]["summary"] = counts
    calls: list[tuple[Any, ...]] = []

    def widthfold(inner: Any, command: str, *arguments: Any) -> dict[str, Any]:
        calls.append((command, *map(str, arguments)))
        return reports[command]

    monkeypatch.setattr(wholes, "_widthfold", widthfold)
    wholes.run_models(stage, [Path("m.onnx")])
    first, second = rows_of(tmp_path, "models")
    assert (first["layout"], second["layout"]) == ("nchw", "nhwc")
    assert first["us"] == 2000
    assert (first["ratio"], first["folded"], first["convs"], first["pending"]) == (2.0, 2, 9, 1)
    assert [call[0] for call in calls] == ["optimize", "verify"] * 2
    assert ["prefer_nhwc=1" in call for call in calls] == [False, False, True, False]
    for exchanged, commands in ((1, ["optimize", "verify"]), (0, ["optimize"])):
        calls.clear()
        counts |= {"folded": 0, "exchanged": exchanged}
        stage.results.row = lambda *part, **fields: None
        wholes.run_models(stage, [Path("m.onnx")])
        assert [call[0] for call in calls] == commands * 2
    counts["folded"] = 2
    reports["verify"] = {"error": "verify ended with 1: differs"}
    wholes.run_models(stage, [Path("m.onnx")])
    assert rows_of(tmp_path, "models")[-1]["error"] == "verify ended with 1: differs"


def test_a_command_that_fails_leaves_its_last_line(stage: Any, tmp_path: Path) -> None:
    wholes = importlib.import_module("gpu.wholes")
    cpu = dataclasses.replace(stage, provider=Provider.CPU)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    wholes.run_models(cpu, [tmp_path / "bad.onnx"])
    (row,) = rows_of(tmp_path, "models")
    assert row["error"].startswith("optimize ended with 3: ")


def test_hopeless_forms_are_not_run_and_wrong_ones_get_no_ratio(
    stage: Any, pretended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, layers = (importlib.import_module(f"gpu.{name}") for name in ("grid", "layers"))
    layer = layers.paper_layer((1, 1), (1, 5), 1, "float32", 1 << 16)
    grid.run_grid(stage, "grid", [layer], 1.0)
    assert {row.get("skipped") for row in rows_of(tmp_path, "grid") if row["form"] != "none"} == {
        "its multiply-adds alone would take longer"
    }
    folded = importlib.import_module("gpu.graphs").fold_weight
    monkeypatch.setattr("gpu.graphs.fold_weight", lambda weight, fold: folded(weight, fold) * 1.1)
    other = layers.paper_layer((1, 2), (1, 5), 1, "float32", 1 << 16)
    grid.run_grid(stage, "grid", [other], None)
    folds = [row for row in rows_of(tmp_path, "grid") if row["form"] in ("block 8", "band 8")]
    assert len([row for row in folds if row.get("wrong", 0) > 0.09]) == 4
    assert not any("ratio" in row for row in folds)


def test_every_ceiling_has_a_figure(
    stage: Any, pretended: list[dict[str, str]], tmp_path: Path
) -> None:
    device = importlib.import_module("gpu.device")
    device.ceilings(stage)
    rows = rows_of(tmp_path, "ceilings")
    both = {
        (what, dtype) for what in ("copy", "transpose", "product") for dtype in device.TOLERANCE
    }
    assert {(row["what"], row.get("dtype")) for row in rows} == {
        *both,
        ("cached", None),
        ("launch", None),
    }
    assert not [row for row in rows if "error" in row]
    stage.results.add("grid", layer="x", form="block 8", macs=1e30, us=1e-9)  # no ceiling
    products = [row["macs"] / row["us"] * 1e6 for row in rows if "macs" in row]
    assert len(products) == 2
    assert device.rate(tmp_path) == max(products)
    device.ceilings(stage)
    assert len(rows_of(tmp_path, "ceilings")) == len(rows)  # nothing is measured again


def test_a_device_that_computes_wrong_ends_the_run(
    stage: Any, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = importlib.import_module("gpu.device")
    device.check(stage)
    assert [options["tf32"] for options in pretended] == ["0", "1"]  # float16 by tensor cores
    real = session_module.open_session
    for off, rows in ((1.001, r"\d"), (np.nan, "nan")):

        def broken(path: Path, options: RuntimeOptions, *more: Any, off=off, **named: Any) -> Any:
            session = real(path, options, *more, **named)
            by = off if options.provider is Provider.CUDA else 1.0
            return SimpleNamespace(run=lambda x: {k: v * by for k, v in session.run(x).items()})

        monkeypatch.setattr(device, "open_session", broken)
        with pytest.raises(CheckFailedError, match=f"a float32 Conv on cuda differs by {rows}"):
            device.check(stage)


@pytest.mark.slow
def test_tensorrt_is_not_asked_for_its_graph_and_compares_on_cuda(
    stage: Any, pretended: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("grid", "stage", "layers")
    grid, module, layers = (importlib.import_module(f"gpu.{name}") for name in names)
    real, calls = module.open_session, []

    def seen(path: Path, options: RuntimeOptions, *more: Any, optimized: Any, **named: Any) -> Any:
        calls.append((options.provider, optimized is not None))
        return real(path, options, *more, optimized=optimized, **named)

    monkeypatch.setattr(module, "open_session", seen)
    layer = layers.paper_layer((1, 4), (1, 5), 1, "float16", 1 << 16)
    grid.run_grid(dataclasses.replace(stage, provider=Provider.TENSORRT), "grid", [layer], None)
    assert calls[0] == (Provider.CUDA, True)  # the comparison
    assert set(calls[1:]) == {(Provider.TENSORRT, False)}
    timed = [row for row in rows_of(tmp_path, "grid") if "ratio" in row]
    assert len(timed) > 8
    assert {row["transposes"] for row in timed} == {None}


def test_what_does_not_run_is_a_row_with_its_reason(
    stage: Any, pretended: Any, tmp_path: Path
) -> None:
    with stage.guarded("grid", layer="x"):
        raise UnverifiedError("out of memory")
    assert rows_of(tmp_path, "grid") == [{"part": "grid", "layer": "x", "error": "out of memory"}]


def test_a_lost_device_ends_a_part_and_what_lost_it_is_tried_last(
    stage: Any, pretended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, layers, results = (
        importlib.import_module(f"gpu.{name}") for name in ("grid", "layers", "results")
    )
    layer = layers.paper_layer((1, 1), (1, 5), 1, "float16", 1 << 14)
    module, real, lost = importlib.import_module("gpu.grid"), grid.model, False

    def model(layer: Any, weight: Any, form: Any, *, last: bool) -> bytes:
        nonlocal lost
        lost = lost or form.name == "batch 8"
        return real(layer, weight, form, last=last)

    def load(self: Any, *arguments: Any) -> Any:
        if lost:
            raise UnverifiedError("illegal access")
        return loaded(self, *arguments)

    loaded = type(stage).load
    monkeypatch.setattr(module, "model", model)
    monkeypatch.setattr(type(stage), "load", load)
    with pytest.raises(CheckFailedError, match="the device is lost: illegal access"):
        grid.run_grid(stage, "grid", [layer], None)
    forms = [(row["form"], "error" in row) for row in rows_of(tmp_path, "grid")]
    assert forms == [("none", False), ("pad 8", False), ("batch 8", True)]

    monkeypatch.undo()
    stage.results.close()
    again = results.Results(tmp_path)
    missing = grid._missing(dataclasses.replace(stage, results=again), "grid", layer, False)
    assert missing[-1].name == "batch 8"
    assert {form.name for form in missing} == {
        form.name for form in layers.forms(layer) if form.name != "pad 8"
    }
    again.close()
