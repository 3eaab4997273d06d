"""The GPU script with the CPU, and with a pretended CUDA, in the place of a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from widthfold_onnx.errors import CheckFailedError, UnverifiedError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime import session as session_module
from widthfold_onnx.runtime.binding import Bound, place

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "gpu_bench.py"
EXTRAS = ("msgspec", "onnx_ir", "platformdirs", "scipy", "click", "jinja2", "rich", "matplotlib")
HIDDEN = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({(*EXTRAS, "torch")}))
sys.argv = sys.argv[1:]
sys.path.insert(0, {str(BENCH.parent)!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script as if these packages were not installed."""


def bench(*arguments: object, hidden: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(["-c", HIDDEN] if hidden else []), BENCH, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def rows_of(folder: Path, part: str) -> list[dict[str, Any]]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["part"] == part]


def test_the_whole_run_with_the_processor(tmp_path: Path) -> None:
    done = bench("--provider", "cpu", "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["dtype"] for row in rows_of(tmp_path, "conv")] == ["float32", "float16"]
    assert len(rows_of(tmp_path, "end")) == 1
    assert not [row for row in rows_of(tmp_path, "grid") if "error" in row or "wrong" in row]
    timed = [row for row in rows_of(tmp_path, "grid") if "ratio" in row]
    assert {row["layout"] for row in timed} == {"nchw", "nhwc"}
    assert {row["form"] for row in timed} >= {"pad 8", "batch 8", "block 8", "block 64", "band 8"}
    for row in timed + [row for row in rows_of(tmp_path, "gemm") if "ratio" in row]:
        sides = row["samples_us"]
        assert len(sides["base"]) == len(sides["form"]) == len(sides["copy"]) >= 1
        assert row["low"] <= row["ratio"] <= row["high"]
        assert row["difference"] < 1e-2
    (model,) = rows_of(tmp_path, "models")
    assert model["model"] == "pitch_cnn"
    assert "error" not in model
    assert 0 <= model["left"] <= model["layers"] == 4
    table = (tmp_path / "table.md").read_text()
    titles = ("Ceilings", "Layers", "Matrix products", "Whole models", "Against the fastest rival")
    for title in titles:
        assert f"## {title}\n" in table
    assert "A quick run: the figures say nothing." in table
    assert "The claim" not in table
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "floor-float16.svg",
        "ratios-float16-nchw.svg",
        "ratios-float16-nhwc.svg",
    }


def test_numpy_onnx_and_the_runtime_are_enough_for_parts_1_to_4(tmp_path: Path) -> None:
    done = bench("--provider", "cpu", "--quick", "--out", tmp_path, hidden=True)
    assert done.returncode == 0, done.stderr
    assert [row for row in rows_of(tmp_path, "gemm") if "ratio" in row]
    (torch,) = rows_of(tmp_path, "torch")
    assert torch["reason"].startswith("PyTorch cannot be imported")
    (models,) = rows_of(tmp_path, "models")
    assert models["reason"] == "the package needs msgspec, onnx_ir, platformdirs, scipy"
    assert "| 1->1 5x1 | float16 | nchw | none |" in done.stdout  # Markdown where rich is missing
    assert "no pictures without matplotlib" in done.stderr


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    bare = subprocess.run(
        [sys.executable, "-I", "-S", BENCH, "--out", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert bare.returncode == 4
    assert bare.stderr == "gpu_bench: not installed: numpy, onnx, onnxruntime\n"
    for begun in (False, True):  # a run that was killed may leave a file without rows
        if begun:
            (tmp_path / "results.jsonl").write_text('{"part": "ru')
        nothing = bench("--report", tmp_path)
        assert nothing.returncode == 2
        assert nothing.stderr == f"gpu_bench: no results in {tmp_path / 'results.jsonl'}\n"
    absent = bench("--provider", "cpu", "--out", tmp_path, tmp_path / "x.onnx")
    assert absent.returncode == 2
    assert absent.stderr == f"gpu_bench: no such file: {tmp_path / 'x.onnx'}\n"
    (tmp_path / "file").touch()
    blocked = bench("--provider", "cpu", "--quick", "--out", tmp_path / "file")
    assert blocked.returncode == 2
    assert blocked.stderr.startswith("gpu_bench: [Errno 17] File exists")
    unusable = bench("--out", tmp_path)
    if unusable.returncode != 0:  # there is no GPU
        assert unusable.returncode == 4
        assert unusable.stderr.splitlines()[-1].startswith(
            "gpu_bench: provider cuda cannot be used: "
        )


def test_what_was_measured_before_the_run_was_cut_off_is_published(tmp_path: Path) -> None:
    run = {"part": "run", "device": "X", "provider": "cuda", "onnxruntime": "1", "python": "3"}
    run |= {"quick": False, "date": "2026-01-01", "command": "gpu_bench.py"}
    copy = {"part": "ceilings", "what": "copy", "dtype": "float16", "us": 2.0, "bytes": 4_000_000}
    slow, fast = (
        {"part": "state", "during": during, "sm_mhz": [low, 1000, 1000, 1000, high]}
        for during, low, high in (("ceilings", 990, 1010), ("grid", 900, 1100))
    )
    layer = {"part": "grid", "layer": "1->1 3x3", "dtype": "float16", "bytes": 1_000_000}
    none = layer | {"layout": "nchw", "form": "none", "us": 4.0, "transposes": [0, 0]}
    last = layer | {"layout": "nhwc", "form": "none", "us": 2.0, "transposes": [0, 2]}
    kept = layer | {"layout": "nhwc", "form": "pad 8", "us": 1.5, "transposes": [1, 2]}
    form = layer | {"layout": "nchw", "form": "block 8", "us": 1.0, "transposes": [0, 0]}
    form |= {"ratio": 3.9, "low": 3.5, "high": 4.1, "control": 0.01, "rounds": 6}
    kept |= {"ratio": 1.3, "low": 1.2, "high": 1.4, "control": 0.01, "rounds": 5}
    wrong = layer | {"layout": "nchw", "form": "band 8", "wrong": 0.5}
    left = {"part": "grid", "unmeasured": 7, "reason": "no time was left"}
    fault = {"part": "torch", "reason": "a fault"}
    lines = map(json.dumps, [run, copy, slow, fast, none, last, kept, form, wrong, left, fault])
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + '\n{"part": "gri')
    assert bench("--report", tmp_path).returncode == 0
    table = (tmp_path / "table.md").read_text()
    assert "The run was cut off" in table
    # 1 MB at 2 TB/s is 0.5 us; the best layer as it is takes 2 us.
    block = "| 1->1 3x3 | float16 | nchw | block 8 | 1.0 | 1000 | 50% |"
    assert f"{block} 3.90x [3.50, 4.10] | 2.00x | 1.01 | 0/0 |" in table
    assert "| 1.30x (5 rounds) | 1.33x | 1.01 | 1/2 |" in table
    assert "Of 2 channels-last models, which hold two Transposes around the Conv, " in table
    assert "the runtime cancelled both of 1." in table
    assert "\na fault.\n" in table
    rivals = "| 1->1 3x3 | float16 | 2.0 nhwc | 1.5 nhwc |  | 1.0 | block 8, nchw | 1.50x | 50% |"
    assert rivals in table
    assert "0 of 1 layers reach it against the fastest rival; 1 are faster at all; " in table
    assert "the median is 1.50x. PyTorch was measured on 0 of them." in table
    assert "| band 8 |  |  |  | WRONG by 5.0e-01 |" in table
    assert "7 more were not measured: no time was left." in table
    assert "SM clock during ceilings: 994 to 1006 MHz." in table
    assert "SM clock during grid: 940 to 1060 MHz: it moved, the figures are void." in table


def test_a_whole_model_says_what_was_left_and_which_transposes_stay(
    scripts: Path, tmp_path: Path
) -> None:
    tables = importlib.import_module("gpu.tables")
    row = {"part": "models", "model": "m", "options": {"prefer_nhwc": "1"}, "convs": 9, "folded": 2}
    row |= {"layers": 5, "left": 3, "base_us": 4000.0, "us": 2000.0, "ratio": 2.0, "low": 1.9}
    row |= {"high": 2.1, "control": 0.01, "rounds": 30, "transposes": [[1, 3], [1, 7]]}
    hidden = row | {"transposes": [None, None], "options": {}}  # TensorRT
    run = {"part": "run", "device": "X", "provider": "cuda", "onnxruntime": "1", "python": "3"}
    run |= {"quick": False, "date": "2026-01-01", "command": "gpu_bench.py"}
    text = tables.sections([run, row, hidden])[1].markdown()
    shown = "2/9 | 4.000 | 2.000 | 2.00x [1.90, 2.10] | 1.01 |"
    assert f"| m | nhwc | 3/5 | {shown} 1/3 1/7 |" in text
    assert f"| m | nchw | 3/5 | {shown}   |" in text


# ---------------------------------------------------------------- pretended CUDA


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The CPU under the name of CUDA; collects the options of all sessions."""
    seen: list[dict[str, str]] = []
    cpu = "CPUExecutionProvider"

    def chain(provider: Provider, chosen: dict[str, str], *, tf32: bool) -> list[Any]:
        if provider is Provider.CUDA:
            seen.append({**chosen, "tf32": str(int(tf32))})
        return [(cpu, {})]

    monkeypatch.setattr(session_module, "chain", chain)
    monkeypatch.setattr(session_module, "choose", lambda runtime, failures, provider: provider)
    monkeypatch.setattr(session_module, "NAMES", dict.fromkeys(Provider, cpu))
    monkeypatch.setattr(session_module, "place", lambda r, v, device: place(r, v, ("cpu", 0)))
    monkeypatch.setattr(
        session_module,
        "Bound",
        lambda r, s, feeds, outputs, device, *rest: Bound(r, s, feeds, outputs, ("cpu", 0), *rest),
    )
    return seen


@pytest.fixture
def stage(scripts: Path, tmp_path: Path) -> Iterator[Any]:
    module, results = (importlib.import_module(f"gpu.{name}") for name in ("stage", "results"))
    kept = results.Results(tmp_path)
    ends = time.perf_counter() + 60
    monkey = {"provider": Provider.CUDA, "folder": tmp_path, "results": kept}
    with contextlib.closing(kept):
        yield module.Stage(**monkey, scale=module.QUICK, ends=ends)


def test_layers_on_cuda_are_timed_at_their_best_and_forms_at_the_heuristic(
    stage: Any, pretended: list[dict[str, str]], tmp_path: Path
) -> None:
    grid = importlib.import_module("gpu.grid")
    layer = grid.layer_of((1, 4), (1, 5), 1, "float16", 1 << 16)
    grid.run_grid(stage, [layer], None)
    plain = [row for row in rows_of(tmp_path, "grid") if row["form"] == "none"]
    assert [set(row["searches_us"]) for row in plain] == [{"HEURISTIC", "EXHAUSTIVE"}] * 2
    assert all(row["us"] == min(row["searches_us"].values()) for row in plain)
    assert {row["layout"] for row in rows_of(tmp_path, "grid") if "ratio" in row} == {
        "nchw",
        "nhwc",
    }
    assert {options["tf32"] for options in pretended} == {"1"}
    assert {options["prefer_nhwc"] for options in pretended} == {"0", "1"}


def test_parts_that_take_too_long_say_what_is_left(stage: Any, pretended: Any, tmp_path: Path):
    grid, products = (importlib.import_module(f"gpu.{name}") for name in ("grid", "products"))
    late = stage.until(-1.0)
    grid.run_grid(late, grid.layers(1 << 16)[:2], None)
    products.run_products(late)
    (layers,), (rest,) = rows_of(tmp_path, "grid"), rows_of(tmp_path, "gemm")
    assert layers["reason"] == rest["reason"] == "no time was left"
    assert layers["unmeasured"] > 20
    assert rest["unmeasured"] == 16


def test_no_model_is_begun_for_which_the_time_will_not_do(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes = importlib.import_module("gpu.wholes")
    clock = SimpleNamespace(
        provider=Provider.CUDA, results=stage.results, options=stage.options, left=100.0
    )
    begun: list[tuple[str, dict[str, str]]] = []

    def model(inner: Any, path: Path, options: dict[str, str]) -> None:
        begun.append((path.stem, options))
        clock.left -= 35.0

    monkeypatch.setattr(wholes, "_model", model)
    wholes.run_models(clock, [Path("a.onnx"), Path("b.onnx")])
    assert begun == [("a", {}), ("a", {"prefer_nhwc": "1"})]  # of four: each in both layouts
    (rest,) = rows_of(tmp_path, "models")
    assert rest["unmeasured"] == 2


def test_hopeless_forms_are_not_run_and_wrong_ones_get_no_ratio(
    stage: Any, pretended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = importlib.import_module("gpu.grid")
    layer = grid.layer_of((1, 1), (1, 5), 1, "float32", 1 << 16)
    grid.run_grid(stage, [layer], rate=1.0)
    assert {row.get("reason") for row in rows_of(tmp_path, "grid") if row["form"] != "none"} == {
        "its multiply-adds alone would take longer"
    }
    folded = importlib.import_module("gpu.layers").fold_weight
    monkeypatch.setattr("gpu.layers.fold_weight", lambda weight, fold: folded(weight, fold) * 1.1)
    grid.run_grid(stage, [layer], None)
    folds = [row for row in rows_of(tmp_path, "grid") if row["form"] in ("block 8", "band 8")]
    assert len([row for row in folds if row.get("wrong", 0) > 0.09]) == 4
    assert not any("ratio" in row for row in folds)


def test_launches_on_cuda_are_recorded_as_well(
    stage: Any, pretended: list[dict[str, str]], tmp_path: Path
) -> None:
    importlib.import_module("gpu.device").ceilings(stage)
    found = {row["what"]: row for row in rows_of(tmp_path, "ceilings")}
    assert {"copy", "transpose", "product", "cached", "launch", "recorded launch"} <= set(found)
    assert "identical" in found
    assert not [row for row in found.values() if "error" in row]
    recorded = [options for options in pretended if options.get("enable_cuda_graph") == "1"]
    assert len(recorded) == 2  # the two chains


def test_a_device_that_computes_wrong_ends_the_run(
    stage: Any, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = importlib.import_module("gpu.device")
    device.check(stage)
    assert [options["tf32"] for options in pretended] == ["0", "1"]  # float16 by tensor cores
    real = session_module.open_session
    for off, found in ((1.001, r"\d"), (np.nan, "nan")):

        def broken(path: Path, provider: Provider, *more: Any, off=off, **named: Any) -> Any:
            session = real(path, provider, *more, **named)
            by = off if provider is Provider.CUDA else 1.0
            return SimpleNamespace(run=lambda x: {k: v * by for k, v in session.run(x).items()})

        monkeypatch.setattr(device, "open_session", broken)
        with pytest.raises(CheckFailedError, match=f"a float32 Conv on cuda differs by {found}"):
            device.check(stage)


def test_tensorrt_is_not_asked_for_its_graph_and_compares_on_cuda(
    stage: Any, pretended: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, module = (importlib.import_module(f"gpu.{name}") for name in ("grid", "stage"))
    real, asked = module.open_session, []

    def seen(path: Path, provider: Provider, *more: Any, optimized: Any, **named: Any) -> Any:
        asked.append((provider, optimized is not None))
        return real(path, provider, *more, optimized=optimized, **named)

    monkeypatch.setattr(module, "open_session", seen)
    layer = grid.layer_of((1, 4), (1, 5), 1, "float16", 1 << 16)
    grid.run_grid(dataclasses.replace(stage, provider=Provider.TENSORRT), [layer], None)
    assert asked[:2] == [(Provider.CUDA, True)] * 2  # the comparisons of both types
    assert set(asked[2:]) == {(Provider.TENSORRT, False)}
    timed = [row for row in rows_of(tmp_path, "grid") if "ratio" in row]
    assert len(timed) > 8
    assert {row["transposes"] for row in timed} == {None}


def test_a_fault_of_one_part_costs_no_other_part(tmp_path: Path) -> None:
    script = f"""
import runpy, sys
sys.path[:0] = [{str(BENCH.parent)!r}, {str(BENCH.parents[1])!r}]
import gpu.grid, gpu.rival, gpu.wholes
from widthfold_onnx.errors import UnverifiedError
def grid(*x): raise UnverifiedError("no comparison")
def torch(*x): raise AttributeError("renamed")
gpu.grid.run_grid, gpu.rival.run_rival = grid, torch
gpu.wholes.run_models = lambda *x: None
sys.argv = [{str(BENCH)!r}, "--provider", "cpu", "--quick", "--out", {str(tmp_path)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 70
    assert "AttributeError: renamed" in done.stderr
    table = (tmp_path / "table.md").read_text()
    assert "\nno comparison.\n" in table
    assert "\na fault of gpu_bench: AttributeError('renamed').\n" in table
    assert rows_of(tmp_path, "gemm")
    assert rows_of(tmp_path, "end")


@pytest.mark.parametrize("lines", [1, 30])
def test_a_run_that_is_killed_leaves_what_it_measured(tmp_path: Path, lines: int) -> None:
    command = [sys.executable, BENCH, "--provider", "cpu", "--quick", "--out", tmp_path]
    file = tmp_path / "results.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        end = time.monotonic() + 60
        while time.monotonic() < end and run.poll() is None:
            if file.exists() and file.read_bytes().count(b"\n") >= lines:
                break
            time.sleep(0.002)
        run.kill()
    assert run.returncode == -9
    whole = file.read_bytes().count(b"\n")
    assert whole >= lines
    done = bench("--report", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The run was cut off; what is here was measured before." in done.stdout


def test_what_does_not_run_is_a_row_with_its_reason(stage: Any, tmp_path: Path) -> None:
    with stage.guarded("grid", layer="x"):
        raise UnverifiedError("out of memory")
    assert rows_of(tmp_path, "grid") == [{"part": "grid", "layer": "x", "error": "out of memory"}]


# ---------------------------------------------------------------- what stands beside


def test_the_clock_is_watched_while_parts_run(
    scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    lines = ["NVIDIA X, 580.1, 1980, [N/A], 0x0", "NVIDIA X, 580.1, 1965, 41, 0x4", "NVIDIA X, 5"]
    words = " ".join(f"'{line}'" for line in lines)
    tool.write_text(
        f"#!/bin/sh\n[ $3 = --query-gpu=name ] && echo NVIDIA X && exit\n"
        f"printf '%s\\n%s\\n%s' {words}\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    watch = importlib.import_module("gpu.watch")
    assert watch.name() == "NVIDIA X"
    with watch.Watch() as seen:
        end = time.monotonic() + 20
        while not (found := seen.take()) and time.monotonic() < end:
            time.sleep(0.01)
        assert found["sm_mhz"] == [1980, 1965]
        assert found["celsius"] == [41]
        assert found["throttled"] == ["0x0", "0x4"]
        assert (found["device"], found["driver"]) == ("NVIDIA X", "580.1")
        assert seen.take() == {}
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert watch.name() == ""
    with watch.Watch() as seen:
        assert seen.take() == {}


def test_nvidia_smi_ends_with_a_run_that_is_killed(scripts: Path, tmp_path: Path) -> None:
    tool, ended = tmp_path / "nvidia-smi", tmp_path / "ended"
    tool.write_text(f"#!/bin/sh\ntrap '' PIPE\nwhile echo x; do sleep 0.01; done; >{ended}\n")
    tool.chmod(0o755)
    code = "import time, gpu.watch as w\nwith w.Watch(): print(flush=True); time.sleep(60)"
    paths = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(scripts)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | paths) as run:
        assert run.stdout is not None
        run.stdout.readline()
        run.kill()
    end = time.monotonic() + 20
    while not ended.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert ended.exists()


class FakeTorch:
    """As much of PyTorch as part 6 uses, on a device called cuda."""

    __version__ = "0"
    channels_last, contiguous_format = "last", "first"

    def __init__(self) -> None:
        cudnn = SimpleNamespace(benchmark=False, allow_tf32=False, version=lambda: 90000)
        self.backends = SimpleNamespace(cudnn=cudnn)
        self.cuda = SimpleNamespace(is_available=lambda: True, synchronize=lambda: None)
        self.formats: list[str] = []
        events = [("copy", 3.0), ("sm90_xmma_fprop", 50.0), ("cudaLaunchKernel", 0.0)]
        averages = [SimpleNamespace(key=key, device_time_total=t) for key, t in events]
        found = contextlib.nullcontext(SimpleNamespace(key_averages=lambda: averages))
        kind = SimpleNamespace(CUDA="cuda")
        self.profiler = SimpleNamespace(profile=lambda activities: found, ProfilerActivity=kind)
        self.nn = SimpleNamespace(functional=SimpleNamespace(conv2d=self.conv2d))

    def from_numpy(self, array: np.ndarray) -> Any:
        tensor = SimpleNamespace(shape=array.shape)

        def to(device: str = "", memory_format: str = "") -> Any:
            self.formats += [memory_format] if memory_format else []
            return tensor

        tensor.to = to
        return tensor

    def inference_mode(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def conv2d(self, x: Any, w: Any, stride: int, padding: Sequence[int]) -> str:
        assert x.shape[1] == w.shape[1]
        if w.shape[0] == 16:
            raise RuntimeError("CUDA out of memory\nsecond line")
        return "y"

    def neg(self, y: str) -> str:
        return y


def test_pytorch_without_a_device_is_no_reference(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch()
    torch.cuda.is_available = lambda: False
    monkeypatch.setitem(sys.modules, "torch", torch)
    importlib.import_module("gpu.rival").run_rival(stage, [])
    (row,) = rows_of(tmp_path, "torch")
    assert row["reason"] == "PyTorch 0 sees no CUDA device"


def test_pytorch_tunes_and_names_kernels(
    stage: Any, pretended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    grid, rival = (importlib.import_module(f"gpu.{name}") for name in ("grid", "rival"))
    layers = [grid.layer_of((1, n), (3, 3), 1, "float16", 1 << 14) for n in (4, 16)]
    rival.run_rival(stage, layers)
    about, *rows = rows_of(tmp_path, "torch")
    assert about["cudnn"] == 90000
    assert torch.backends.cudnn.benchmark
    assert [row["layout"] for row in rows] == ["nchw", "nhwc"] * 2
    for name in ("kernels", "runtime_kernels"):
        assert rows[0][name] == ["sm90_xmma_fprop", "copy"]
    assert rows[0]["us"] > 0
    assert [row["error"] for row in rows[2:]] == ["CUDA out of memory"] * 2
    formats = [*itertools.chain(["first"] * 2, ["last"] * 2)]
    assert torch.formats == formats * 2
