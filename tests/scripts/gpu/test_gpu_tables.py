"""Tables of rows that were measured."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from tests.scripts.gpu.gpu_runs import bench


def test_what_was_measured_before_the_run_was_cut_off_is_published(tmp_path: Path) -> None:
    run = {"part": "run", "device": "X", "provider": "cuda", "onnxruntime": "1", "python": "3"}
    run |= {"quick": False, "date": "2026-01-01", "command": "gpu_bench.py", "parts": ["grid"]}
    copy = {"part": "ceilings", "what": "copy", "dtype": "float16", "us": 2.0, "bytes": 4_000_000}
    slow, fast = (
        {"part": "state", "during": during, "sm_mhz": [low, 1000, 1000, 1000, high]}
        for during, low, high in (("ceilings", 990, 1010), ("grid", 900, 1100))
    )
    layer = {"part": "grid", "layer": "1->1 3x3", "dtype": "float16", "bytes": 1_000_000}
    none = layer | {"layout": "nchw", "form": "none", "us": 4.0, "transposes": [0, 0]}
    last = layer | {"layout": "nhwc", "form": "none", "us": 2.0, "transposes": [0, 2]}
    row = layer | {"layout": "nhwc", "form": "pad 8", "us": 1.5, "transposes": [1, 2]}
    form = layer | {"layout": "nchw", "form": "block 8", "us": 1.0, "transposes": [0, 0]}
    form |= {"ratio": 3.9, "low": 3.5, "high": 4.1, "control": 0.01, "rounds": 6}
    row |= {"ratio": 1.3, "low": 1.2, "high": 1.4, "control": 0.01, "rounds": 5}
    wrong = layer | {"layout": "nchw", "form": "band 8", "wrong": 0.5}
    rest = {"part": "grid", "unmeasured": 7, "reason": "no time was left"}
    fault = {"part": "torch", "reason": "a fault"}
    lines = map(json.dumps, [run, copy, slow, fast, none, last, row, form, wrong, rest, fault])
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


def test_a_whole_model_says_what_was_left_and_why_it_failed(scripts: Path) -> None:
    tables = importlib.import_module("gpu.tables")
    row = {"part": "models", "model": "m", "layout": "nhwc", "convs": 9, "folded": 2}
    row |= {"layers": 5, "pending": 3, "base_us": 4000.0, "us": 2000.0, "ratio": 2.0, "low": 1.9}
    row |= {"high": 2.1, "control": 0.01, "rounds": 30}
    failed = {"part": "models", "model": "n", "layout": "nchw", "error": "optimize ended with 4: x"}
    run = {"part": "run", "device": "X", "provider": "cuda", "onnxruntime": "1", "python": "3"}
    run |= {"quick": False, "date": "2026-01-01", "command": "gpu_bench.py", "parts": ["models"]}
    text = tables.sections([run, row, failed])[1].markdown()
    assert "| m | nhwc | 3/5 | 2/9 | 4.000 | 2.000 | 2.00x [1.90, 2.10] | 1.01 |" in text
    assert "| n | nchw |  |  |  |  | optimize ended with 4: x |  |" in text


def test_published_layers_stand_beside_what_was_published(scripts: Path) -> None:
    tables, module = (importlib.import_module(f"gpu.{name}") for name in ("tables", "published"))
    run = {"part": "run", "device": "X", "provider": "cuda", "onnxruntime": "1", "python": "3"}
    run |= {"quick": False, "date": "2026-01-01", "command": "gpu_bench.py", "parts": []}
    layer = {"part": "published", "layer": "einnet_conv5x5", "dtype": "float32", "bytes": 1}
    none = layer | {"layout": "nchw", "form": "none", "us": 900.0, "transposes": [0, 0]}
    last = none | {"layout": "nhwc", "us": 800.0}
    fold = none | {"form": "batch 8", "us": 400.0, "ratio": 2.0, "low": 1.9, "high": 2.1}
    fold |= {"control": 0.01, "rounds": 30}
    torch = {"part": "torch", "us": 700.0, "layout": "nchw"}
    torch |= {key: layer[key] for key in ("layer", "dtype", "bytes")}
    other = none | {"layer": "1->1 3x3"}
    section = tables.sections([run, none, last, fold, torch, other])[-1]
    (entry,) = (it for it in module.PUBLISHED if str(it.layer) == "einnet_conv5x5")
    assert section.title == "Beside published times"
    assert section.body == [
        ["einnet_conv5x5", "float32", "800.0", "", "700.0", "400.0", *entry.cells]
    ]


def test_the_newest_row_of_a_subject_counts_and_what_a_part_said_last(scripts: Path) -> None:
    results = importlib.import_module("gpu.results")
    run = {"part": "run", "parts": ["grid", "torch"]}
    row = {"part": "grid", "layer": "a", "dtype": "float16", "layout": "nchw", "form": "none"}
    rest = {"part": "grid", "unmeasured": 3, "reason": "no time was left"}
    fault = {"part": "torch", "reason": "a fault"}
    first = [run, row | {"error": "x"}, rest, fault, {"part": "end"}]
    again = [run | {"parts": ["grid"]}, row | {"us": 1.0}, row | {"us": 2.0, "form": "pad 8"}]
    assert results.latest([*first, *again]) == [row | {"us": 1.0}, fault, *again[::2]]


def test_a_line_that_was_cut_off_is_replaced(scripts: Path, tmp_path: Path) -> None:
    module = importlib.import_module("gpu.results")
    row = {"part": "ceilings", "what": "copy", "dtype": "float16"}
    failed = row | {"what": "product", "error": "x"}
    lines = [json.dumps(row | {"us": 1.0}), json.dumps(failed), '{"part": "ceil']
    (tmp_path / "results.jsonl").write_text("\n".join(lines))
    results = module.Results(tmp_path)
    assert results.row(**row) == row | {"us": 1.0}
    assert results.row("ceilings", what="product", dtype="float16") is None
    results.add("ceilings", what="cached", us=2.0)
    assert results.row("ceilings", what="cached")
    results.close()
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert lines == [row | {"us": 1.0}, failed, {"part": "ceilings", "what": "cached", "us": 2.0}]
