from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import widthfold_onnx
from tests.cli.tool import (
    MODELS,
    build,
    names,
    on_terminal,
    process,
    save,
    snapshot,
    widthfold,
)
from tests.plan.tool import conv

SCHEMA = json.loads((Path(widthfold_onnx.__file__).parent / "schemas" / "inspect.json").read_text())


def report_of(path: Path) -> dict:
    report = json.loads(path.read_bytes())
    jsonschema.validate(report, SCHEMA)
    return report


def inspect(path: Path, *options: object) -> dict:
    report = path.with_name("report.json")
    run = widthfold("inspect", path, *options, "--report", report)
    assert (run.code, run.err) == (0, "")
    return report_of(report)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(build(), tmp_path / "model.onnx")


def test_a_pipe_gets_plain_text(model: Path) -> None:
    run = process("inspect", model, env={"FORCE_COLOR": "1"})
    assert (run.code, run.err) == (0, "")
    assert "\x1b" not in run.out
    for name in ("first", "second"):
        assert sum(line.split()[:1] == [name] for line in run.out.splitlines()) == 1
    assert run.out.splitlines()[-1].startswith("model.onnx: 3 nodes, 2 Conv, opset 17")


def test_a_terminal_gets_a_framed_table(model: Path) -> None:
    run = on_terminal("inspect", model)
    assert run.code == 0
    assert "───" in run.out


def test_every_site_with_its_figures(model: Path) -> None:
    report = inspect(model, "--factor", 4)
    assert report["schema"] == "widthfold.inspect/1"
    assert (report["opset"], report["ir_version"], report["nodes"]) == (17, 8, 3)
    first, second = report["sites"]
    assert (first["node"], first["op"], first["graph"]) == ("first", "Conv", "")
    assert first["input_shape"] == [1, 2, 6, 16]
    assert first["weight_shape"] == [3, 2, 3, 3]
    assert first["output_shape"] == [1, 3, 6, 16]
    assert first["flops"] == 3 * 6 * 16 * 2 * 9
    assert second["flops"] == 2 * 6 * 16 * 3 * 5
    for site in (first, second):
        assert site["channels"]
        assert site["alignment"]
        assert {c["factor"] for c in site["choices"]} == {4}
        assert {c["axis"] for c in site["choices"]} >= {"width"}
        assert site["refusals"]
        for choice in site["choices"]:
            assert choice["flops_ratio"] > 0
            assert choice["bytes_ratio"] > 0
            assert 0 <= choice["structural_zeros"] < 1
            assert choice["form"].split()[0] in ("view", "move")


def test_what_inspect_lists_is_what_optimize_takes(tmp_path: Path) -> None:
    for path in sorted(MODELS.glob("*.onnx")):
        plan = tmp_path / "plan.json"
        run = widthfold("optimize", path, "--factor", 8, "--dry-run", "--report", plan)
        assert run.code == 0
        shown = tmp_path / "shown.json"
        assert widthfold("inspect", path, "--factor", 8, "--report", shown).code == 0
        sites = json.loads(plan.read_bytes())["sites"]
        surveyed = report_of(shown)["sites"]
        assert [s["node"] for s in sites] == [s["node"] for s in surveyed]
        for site, survey in zip(sites, surveyed, strict=True):
            forms = {(c["axis"], c["form"]) for c in survey["choices"]}
            assert (site["status"] == "folded") == bool(forms)
            if forms:
                assert (site["axis"], site["form"]) in forms
            else:
                assert survey["refusals"]


def test_a_folded_node_shows_how(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert widthfold("optimize", model, out, "--factor", 8, "--seeds", 1).code == 0
    for site in inspect(out)["sites"]:
        assert " by 8, " in site["folded_as"]
        assert site["choices"] == []
    assert widthfold("inspect", out).out.count("folded: ") == 2


def test_a_layer_that_falls_into_groups_says_so(tmp_path: Path) -> None:
    whole, parts = (conv([1, 4, 6, 8], (4, 4, 3, 3), blocks=n) for n in (1, 2))
    for model, said in ((whole, False), (parts, True)):
        (site,) = inspect(save(model, tmp_path / "model.onnx"))["sites"]
        assert (", falls into 2 groups" in site["attributes"]) == said


def test_input_shape_opens_folds(tmp_path: Path) -> None:
    path = MODELS / "dynamic_batch.onnx"
    report = tmp_path / "report.json"
    assert widthfold("inspect", path, "--report", report).code == 0
    (name, *_), (shape, *_) = zip(
        *((s["node"], s["input_shape"]) for s in report_of(report)["sites"]), strict=True
    )
    assert name
    assert shape[0] == "?"


def test_it_writes_nothing_but_the_report(model: Path) -> None:
    before = snapshot(model.parent)
    assert widthfold("inspect", model).code == 0
    assert snapshot(model.parent) == before
    run = widthfold("inspect", model, "--report", model)
    assert run.code == 2
    assert "choose another name" in run.line
    assert snapshot(model.parent) == before
    assert names(model.parent) == ["model.onnx"]


def test_errors_are_one_line(model: Path) -> None:
    for args, code in (
        ((), 2),
        ((model.with_name("gone.onnx"),), 2),
        ((model, "--factor", 0), 2),
        ((model, "--input-shape", "q:1"), 2),
        ((save(build(), model).parent,), 3),
        ((Path(__file__),), 3),
    ):
        run = widthfold("inspect", *args)
        assert run.code == code, (args, run)
        assert run.line


def test_a_glob_that_matches_no_node_is_exit_2(model: Path) -> None:
    run = widthfold("inspect", model, "--nodes", "third")
    assert run.code == 2
    assert "no linear node is named 'third'" in run.line
