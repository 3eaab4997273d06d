"""Refusals of `optimize`: outputs that it does not write, exit codes, no runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import onnx
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself
import pytest

from tests.cli.tool import FAST, OLD, Run, names, optimize_report, snapshot, widthfold
from tests.folding import optimize
from tests.reports.sample import passing
from tests.small_models import build, nothing_to_fold, save
from widthfold_onnx.cli.common import leave_unwritten
from widthfold_onnx.options import FoldOptions

# ---------------------------------------------------------------- refused outputs


@pytest.mark.parametrize(
    ("count", "names"),
    [(1, "conv0"), (3, "conv0, conv1, conv2"), (5, "conv0, conv1, conv2 and 2 more")],
)
def test_a_failed_check_says_which_layers_can_be_left_out(
    count: int, names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = " ".join(f"[conv{k}] v{k + 1} = Conv(v{k}, w)" for k in range(5))
    text = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[1, 2, 8, 8] v0) => (float[1, 2, 8, 8] v5)
    <float[2, 2, 1, 1] w = {0.3, 0.7, -0.9, 0.1}> { %s }"""
    path = save(onnx.parser.parse_model(text % layers), tmp_path / "in.onnx")
    options = FoldOptions(factor=4, nodes=tuple(f"conv{k}" for k in range(count)))
    report = optimize(path, None, options, None)
    for verdict, hint in (("fail", f"; skip them; folded: {names}"), ("unverified", "")):
        wrong = msgspec.structs.replace(passing(), verdict=verdict, reasons=["output y"])
        with pytest.raises(click.exceptions.Exit):
            leave_unwritten(msgspec.structs.replace(report, verification=wrong), "skip them")
        assert capsys.readouterr().err == f"widthfold: OUT is not written: output y{hint}\n"


def test_a_model_that_does_not_run_is_not_proved(out: Path, tmp_path: Path) -> None:
    """The answer is known when no inputs are found: a proof would only delay it."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (seq(float[1, 3, 8, 8]) x, int64 i) => (float[1, 1, 8, 8] y)
    <float[1, 3, 1, 1] w = {1, 2, 3}> { a = SequenceAt(x, i) y = Conv(a, w) }"""
    path = save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    out.unlink(missing_ok=True)
    run = widthfold("optimize", path, out, "--factor", 4)
    assert (run.code, out.exists()) == (4, False)
    assert "verdict: unverified; 0 input sets" in run.out
    assert "proof" not in run.out
    assert "no random values are made" in run.err


def test_the_input_is_no_output(model: Path, tmp_path: Path) -> None:
    hard = tmp_path / "hard.onnx"
    os.link(model, hard)
    before = snapshot(tmp_path)
    for path in (model, hard, model.parent / ".." / "in" / "model.onnx"):
        run = widthfold("optimize", model, path, "--factor", 8)
        assert run.code == 2
        assert "is an input or another output; choose another name" in run.line
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "option", [["--inputs", "in.npz"], ["--inputs", "sets"], ["--store", "in.db"]]
)
def test_what_options_name_is_no_output(model: Path, tmp_path: Path, option: list[str]) -> None:
    folder = tmp_path / "sets" / "test_data_set_0"
    folder.mkdir(parents=True)
    places = {"in.npz": "in.npz", "in.db": "in.db", "sets": "sets/test_data_set_0/output_0.pb"}
    for place in places.values():
        (tmp_path / place).write_bytes(OLD)
    before = snapshot(tmp_path)
    name, value = option
    run = widthfold(
        "optimize", model, tmp_path / places[value], "--factor", 8, name, tmp_path / value
    )
    assert run.code == 2
    assert "is an input or another output; choose another name" in run.line
    assert snapshot(tmp_path) == before


def test_a_link_is_no_output(model: Path, out: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(OLD)
    for link_to in (target, tmp_path / "dangling"):
        out.unlink(missing_ok=True)
        out.symlink_to(link_to)
        run = widthfold("optimize", model, out, "--factor", 8)
        assert run.code == 2
        assert "is a symbolic link" in run.line
        assert out.is_symlink()
    assert target.read_bytes() == OLD
    assert not (tmp_path / "dangling").exists()


def test_other_places_that_are_no_output(model: Path, tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "missing" / "out.onnx", "its folder does not exist"),
        (tmp_path, "is not a regular file"),
        ("/dev/null", "is not a regular file"),
        ("/proc/out.onnx", "cannot write"),
    ):
        run = widthfold("optimize", model, path, "--factor", 8)
        assert run.code == 2
        assert words in run.line


@pytest.mark.parametrize("exists", [True, False])
def test_the_report_replaces_neither_model(model: Path, out: Path, exists: bool) -> None:
    if exists:
        out.write_bytes(OLD)
    before = snapshot(model.parent.parent)
    for report in (out, model, out.parent / ".." / "out" / out.name):
        run = widthfold("optimize", model, out, "--factor", 8, "--report", report)
        assert run.code == 2
        assert "choose another name" in run.line
        assert snapshot(model.parent.parent) == before


def test_the_report_replaces_nothing_but_a_report(model: Path, out: Path) -> None:
    weights = out.with_name("weights.bin")
    weights.write_bytes(OLD)
    run = widthfold("optimize", model, out, "--factor", 8, "--report", weights)
    assert run.code == 2
    assert "exists and is no report" in run.line
    assert weights.read_bytes() == OLD
    assert not out.exists()
    report = out.with_name("report.json")
    report.touch()
    for _ in range(2):  # an empty file, then an earlier report
        run = widthfold("optimize", model, out, "--factor", 8, *FAST, "--report", report)
        assert run.code == 0
        optimize_report(report)


@pytest.mark.parametrize("place", ["missing/report.json", ".", "link.json"])
def test_a_report_without_a_place_is_refused_before_the_work(
    model: Path, out: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere.json")
    run = widthfold("optimize", model, out, "--factor", 8, "--report", tmp_path / place)
    assert run.code == 2
    assert "report" in run.line.lower() or "output" in run.line
    assert not out.exists()
    assert not (tmp_path / "elsewhere.json").exists()


# ---------------------------------------------------------------- exit codes


def test_wrong_usage_is_one_line_and_exit_2(model: Path, out: Path) -> None:
    for args, words in (
        ((model, out, "--factor", 1), "factor is 1"),
        ((model, out, "--factor", 5000), "factor is 5000"),
        ((model, out, "--factor", "eight"), "'eight'"),
        ((model, out, "--factor", 8, "--axis", "depths"), "is none of auto, batch"),
        ((model, out, "--companion", "none", "--companion", "prelu"), "none means that no other"),
        ((model, out, "--factor", 8, "--axis", "1"), "folds along 0, 2, 3 or 4"),
        ((model, out, "--factor", 8, "--axis", "²"), "is none of auto, batch"),
        ((model, out, "--factor", 8, "--axis", "9" * 5000), "is none of auto, batch"),
        ((model, out, "--factor", 8, "--layout", "chwn"), "'chwn'"),
        ((model, out, "--factor", 8, "--input-shape", "x"), "NAME:1,3,224,224"),
        ((model, out, "--factor", 8, "--input-shape", "x:1,0"), "NAME:1,3,224,224"),
        ((model, out, "--factor", 8, "--input-shape", f"x:{10**30}"), "NAME:1,3,224,224"),
        ((model, out, "--factor", 8, "--input-shape", "q:1"), "q"),
        ((model, out, "--factor", 8, "--input-shape", "x:1,2"), "x"),
        ((model, out, "--factor", 8, "--seeds", 0), "seeds is 0"),
        (
            (model, out, "--factor", 8, "--provider", "cpu", "--provider-option", "a=1"),
            "takes no options: a=1",
        ),
        ((model, out, "--session-option", "session=1"), "session option 'session' is no name"),
        (
            (model, out, *("--session-option", "a.b=1") * 2, "--session-option", "a.b=2"),
            "Invalid value for '--session-option': 'a.b' has two values",
        ),
        (("", out), "Invalid value for 'MODEL': no name"),
        ((model, ""), "Invalid value for '[OUT]': no name"),
        ((model, out, "--factor", 8, "--session-option", "=1"), "'=1' is not of the form"),
        ((model, out, "--factor", 8, "--rtol", "loose"), "tolerance"),
        ((model, out, "--factor", 8, "--rtol", "y:-1"), "tolerance"),
        ((model, out, "--factor", 8, "--no-such\nfake: OK\x1b[2J"), "No such option"),
        ((model.with_name("gone.onnx"), out, "--factor", 8), "No such file"),
        ((model.with_name("gone\n\x1b[2J"), out, "--factor", 8), "No such file"),
        ((model, out, out, "--factor", 8), "unexpected extra argument"),
    ):
        run = widthfold("optimize", *args)
        assert run.code == 2, args
        assert words in run.line, args
        assert run.out == ""
    assert not out.exists()


def test_a_wrong_command_is_one_line_too() -> None:
    assert widthfold("fold").code == 2
    assert "'fold'" in widthfold("fold").line
    assert widthfold("--nope").code == 2
    assert widthfold("optimize", "--factor").line.endswith("(see widthfold --help)")


def test_a_failed_check_keeps_the_old_output_and_writes_the_report(model: Path, out: Path) -> None:
    report = out.with_name("report.json")
    out.write_bytes(OLD)
    run = widthfold(
        *("optimize", model, out, "--factor", 8, "--rtol", "0", *FAST, "--report", report)
    )
    assert run.code == 1
    assert run.line.startswith("widthfold: OUT is not written: output y: max_rel ")
    assert "; --skip NODE leaves a layer alone; folded: " in run.line
    assert "verdict: fail" in run.out
    assert "nothing written" in run.out
    assert out.read_bytes() == OLD
    assert names(out.parent) == ["out.onnx", "report.json"]
    document = optimize_report(report)
    assert document["written"] is None
    assert document["verification"]["verdict"] == "fail"
    assert document["verification"]["rewritten"] == "out.onnx"
    assert ".wf-" not in report.read_text() + run.out + run.err


def test_a_provider_that_is_not_there_is_exit_4(model: Path, out: Path) -> None:
    if "TensorrtExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this runtime has TensorRT")
    report = out.with_name("report.json")
    out.write_bytes(OLD)
    run = widthfold(
        *("optimize", model, out, "--factor", 8, "--provider", "tensorrt", "--report", report)
    )
    assert run.code == 4
    assert "provider tensorrt cannot be used" in run.line
    assert "widthfold-onnx[gpu]" in run.line
    assert out.read_bytes() == OLD
    assert optimize_report(report)["verification"]["verdict"] == "unverified"


def test_require_fold(tmp_path: Path, out: Path) -> None:
    path = save(nothing_to_fold(), tmp_path / "model.onnx")
    report = tmp_path / "report.json"
    run = widthfold("optimize", path, out, "--factor", 8, "--require-fold", "--report", report)
    assert run.code == 5
    assert run.line.startswith("widthfold: none of 1 Conv nodes was folded")
    assert optimize_report(report)["summary"]["folded"] == 0
    assert not out.exists()
    path = save(build(), path)
    assert widthfold("optimize", path, out, "--factor", 8, "--require-fold", *FAST).code == 0


def test_a_broken_model_is_exit_3(tmp_path: Path, out: Path) -> None:
    proto = build()
    proto.graph.node[2].input[0] = "nowhere"
    path = save(proto, tmp_path / "broken.onnx")
    out.write_bytes(OLD)
    run = widthfold("optimize", path, out, "--factor", 8)
    assert run.code == 3
    for part in ("broken.onnx", "second", "nowhere"):
        assert part in run.line
    assert out.read_bytes() == OLD


def test_a_fault_of_ours_is_exit_70_on_one_line(
    model: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*args: object) -> None:
        raise RuntimeError("first line\nsecond \x1b[2J line")

    monkeypatch.setattr("widthfold_onnx.pipeline.decide_fixed", fault)
    run = widthfold("optimize", model, out, "--factor", 8)
    assert run.code == 70
    assert "RuntimeError: first line\\x0asecond \\x1b[2J line" in run.line
    run = widthfold("optimize", model, out, "--factor", 8, "--debug")
    assert run.code == 70
    assert "Traceback" in run.err


# ---------------------------------------------------------------- without a runtime


def test_without_a_runtime_every_verb_that_needs_one_names_the_extra(
    model: Path, out: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked" / "onnxruntime"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('No module onnxruntime')\n")
    env = {"PYTHONPATH": str(blocked.parent)}
    out.write_bytes(OLD)
    for run in in_one_process(
        env, ("optimize", model, out, "--factor", 8), ("verify", model, model)
    ):
        assert run.code == 4, run
        assert "pip install 'widthfold-onnx[cpu]', or [gpu]" in run.line
    assert out.read_bytes() == OLD
    assert names(out.parent) == ["out.onnx"]
    for run in in_one_process(
        env,
        ("inspect", model),
        ("optimize", model, "--factor", 8),
        ("optimize", model, out, "--factor", 8, "--no-verify"),
    ):
        assert (run.code, run.err) == (0, ""), run
    assert len(onnx.load(out).graph.node) > 3


IN_ONE_PROCESS = """
import contextlib, io, json, sys
from widthfold_onnx.cli import main
runs = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words, prog_name="widthfold")
        except SystemExit as end:
            runs.append((end.code, out.getvalue(), err.getvalue()))
print(json.dumps(runs))
"""


def in_one_process(env: dict[str, str], *commands: tuple[object, ...]) -> list[Run]:
    """Run commands one after the other in a process of their own."""
    words = json.dumps([list(map(str, command)) for command in commands])
    child = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS, words],
        env={**os.environ, **env},
        capture_output=True,
        check=True,
    )
    return [Run(*run) for run in json.loads(child.stdout)]
