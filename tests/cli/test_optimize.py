from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself
import pytest
from onnx import numpy_helper

import widthfold_onnx
from tests.cli.tool import (
    MODELS,
    OLD,
    build,
    names,
    nothing_to_fold,
    on_terminal,
    process,
    save,
    snapshot,
    start_process,
    widthfold,
)

SCHEMA = json.loads(
    (Path(widthfold_onnx.__file__).parent / "schemas" / "optimize.json").read_text()
)
FAST = ("--seeds", "1")


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


def report_of(path: Path) -> dict:
    report = json.loads(path.read_bytes())
    jsonschema.validate(report, SCHEMA)
    return report


# ---------------------------------------------------------------- what it prints


def test_a_pipe_gets_plain_text_one_line_per_site(model: Path, out: Path) -> None:
    run = process("optimize", model, out, "--factor", 8, *FAST, env={"FORCE_COLOR": "1"})
    assert (run.code, run.err) == (0, "")
    assert "\x1b" not in run.out
    head, first, second, total, region, spread, verdict, *_ = run.out.splitlines()
    assert region == (
        "region of first, second: carries Relu relu; stops at Conv second (the graph returns what "
        "it makes)"
    )
    assert spread.startswith("Inf and NaN may spread within a sample: at 2 folds, to up to 8 times")
    assert head.split()[:4] == ["node", "status", "axis", "factor"]
    assert first.split()[:2] == ["first", "folded"]
    assert second.split()[:2] == ["second", "folded"]
    assert total.startswith("2 of 2 Conv nodes folded; wrote out.onnx (")
    assert verdict.startswith("verdict: pass; 1 input set")
    assert verdict.endswith("2 of 2 rewritten nodes exact on integers")


def test_a_terminal_gets_a_framed_table_and_progress(model: Path, out: Path) -> None:
    run = on_terminal("optimize", model, out, "--factor", 8, *FAST)
    assert run.code == 0
    assert "\x1b[32mfolded" in run.out
    assert "───" in run.out
    assert "\x1b[0m writing" in run.out, "no progress"
    assert run.out.count("\x1b[?25l") == run.out.count("\x1b[?25h"), "the cursor stays hidden"


def test_a_narrow_terminal_loses_nothing(model: Path, out: Path) -> None:
    run = on_terminal("optimize", model, out, "--factor", 8, *FAST, columns=60)
    assert run.code == 0
    assert "…" not in run.out


def test_no_color_is_respected(model: Path, out: Path) -> None:
    run = on_terminal("optimize", model, out, "--factor", 8, *FAST, env={"NO_COLOR": "1"})
    assert run.code == 0
    assert "\x1b[32m" not in run.out


def test_names_beyond_ascii_print_in_any_encoding(tmp_path: Path) -> None:
    proto = build()
    proto.graph.node[0].name = "première \N{GRINNING FACE}"
    path = save(proto, tmp_path / "model.onnx")
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    run = process("optimize", path, "--factor", 8, "--dry-run", env=ascii_only)
    assert (run.code, run.err) == (0, "")
    assert "premi\\xe8re \\U0001f600" in run.out


def test_a_reader_that_leaves_changes_nothing(model: Path, out: Path) -> None:
    ends = os.pipe()
    os.close(ends[0])
    command = start_process_to(ends[1], "optimize", model, out, "--factor", "8", *FAST)
    _, error = command.communicate(timeout=60)
    assert (command.returncode, error) == (0, b"")
    assert out.exists()


def test_a_full_disk_under_the_table_is_no_internal_error(model: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    command = start_process_to(full, "optimize", model, "--factor", "8", "--dry-run")
    _, error = command.communicate(timeout=60)
    assert command.returncode == 2
    assert error == b"widthfold: cannot write the table: No space left on device\n"


def start_process_to(stdout: int, *args: object) -> subprocess.Popen:
    """The command with its output on a descriptor, which is closed here."""
    from tests.cli.tool import COMMAND

    child = subprocess.Popen(
        [*COMMAND, *map(str, args)], stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    os.close(stdout)
    return child


def test_help_answers_without_the_heavy_libraries() -> None:
    code = (
        "import sys\n"
        "from widthfold_onnx.cli import main\n"
        "for verb in ([], ['optimize'], ['verify'], ['inspect']):\n"
        "    try:\n"
        "        main([*verb, '--help'], prog_name='widthfold')\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'rich', 'google.protobuf'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"130 interrupted" in done.stdout


# ---------------------------------------------------------------- what it writes


def test_the_input_stays_as_it_was_and_the_output_computes_the_same(model: Path, out: Path) -> None:
    before = snapshot(model.parent)
    assert widthfold("optimize", model, out, "--factor", 8).code == 0
    assert snapshot(model.parent) == before
    assert names(out.parent) == ["out.onnx"]
    x = np.random.default_rng(1).standard_normal((1, 2, 6, 16)).astype(np.float32)
    first, second = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )[0]
        for path in (model, out)
    )
    assert np.abs(first - second).max() <= 1e-5 * np.abs(first).max()
    assert onnx.load(out).graph.input == onnx.load(model).graph.input


def test_a_second_run_folds_nothing_and_gives_the_same_bytes(model: Path, out: Path) -> None:
    again, report = out.with_name("again.onnx"), out.with_name("report.json")
    assert widthfold("optimize", model, out, "--factor", 8, *FAST).code == 0
    run = widthfold("optimize", out, again, "--factor", 8, "--report", report)
    assert run.code == 0
    assert again.read_bytes() == out.read_bytes()
    assert [(s["status"], s["code"]) for s in report_of(report)["sites"]] == [
        ("kept", "already-folded"),
        ("kept", "already-folded"),
    ]
    assert widthfold("optimize", out, "--factor", 4, "--check").code == 0


def test_where_nothing_folds_the_output_is_the_input_byte_for_byte(tmp_path: Path) -> None:
    # Fields in an unusual order and an unknown one: a copy is not a new serialization.
    data = nothing_to_fold().SerializeToString()
    odd = data + b"\xf2\xff\x01\x03abc"
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    path.write_bytes(odd)
    run = widthfold("optimize", path, out, "--factor", 8)
    assert (run.code, run.err) == (0, "")
    assert out.read_bytes() == odd
    assert "out.onnx is a copy of model.onnx" in run.out


@pytest.mark.parametrize("switch", ["--dry-run", "--check"])
@pytest.mark.parametrize("named", [True, False])
def test_planning_writes_nothing(model: Path, out: Path, switch: str, named: bool) -> None:
    out.write_bytes(OLD)
    before = snapshot(model.parent.parent)
    run = widthfold("optimize", model, *([out] if named else []), "--factor", 8, switch)
    assert snapshot(model.parent.parent) == before
    assert "2 of 2 Conv nodes folded; nothing written" in run.out
    if switch == "--check":
        assert run.code == 1
        assert run.line == "widthfold: 2 nodes would be folded"
    else:
        assert (run.code, run.err) == (0, "")


def test_check_passes_where_nothing_would_be_folded(tmp_path: Path) -> None:
    path = save(nothing_to_fold(), tmp_path / "model.onnx")
    assert widthfold("optimize", path, "--factor", 8, "--check").code == 0


def test_no_verify_writes_without_running(model: Path, out: Path) -> None:
    report = out.with_name("report.json")
    run = widthfold("optimize", model, out, "--factor", 8, "--no-verify", "--report", report)
    assert run.code == 0
    assert "verdict" not in run.out
    assert report_of(report)["verification"] is None
    assert widthfold("verify", model, out, "--no-timing", *FAST).code == 0


def test_the_mode_of_the_output_follows_the_umask(model: Path, out: Path) -> None:
    previous = os.umask(0o027)
    try:
        assert widthfold("optimize", model, out, "--factor", 8, "--no-verify").code == 0
    finally:
        os.umask(previous)
    assert out.stat().st_mode & 0o777 == 0o640


# ---------------------------------------------------------------- refused outputs


def test_the_input_is_no_output(model: Path, tmp_path: Path) -> None:
    hard = tmp_path / "hard.onnx"
    os.link(model, hard)
    before = snapshot(tmp_path)
    for path in (model, hard, model.parent / ".." / "in" / "model.onnx"):
        run = widthfold("optimize", model, path, "--factor", 8)
        assert run.code == 2
        assert "is an input; choose another name" in run.line
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
        report_of(report)


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
        ((model, "--factor", 8), "name the OUT file"),
        ((model, out, "--factor", 1), "factor is 1"),
        ((model, out, "--factor", 5000), "factor is 5000"),
        ((model, out, "--factor", "eight"), "'eight'"),
        ((model, out, "--factor", 8, "--axis", "depths"), "is none of auto, batch"),
        ((model, out, "--factor", 8, "--axis", "1"), "folds along 0, 2, 3 or 4"),
        ((model, out, "--factor", 8, "--axis", "²"), "is none of auto, batch"),
        ((model, out, "--factor", 8, "--axis", "9" * 5000), "is none of auto, batch"),
        ((model, out, "--factor", 8, "--layout", "chwn"), "'chwn'"),
        ((model, out, "--factor", 8, "--input-shape", "x"), "NAME:1,3,224,224"),
        ((model, out, "--factor", 8, "--input-shape", "x:1,0"), "NAME:1,3,224,224"),
        ((model, out, "--factor", 8, "--input-shape", f"x:{10**30}"), "NAME:1,3,224,224"),
        ((model, out, "--factor", 8, "--input-shape", "q:1"), "q"),
        ((model, out, "--factor", 8, "--input-shape", "x:1,2"), "x"),
        ((model, out, "--factor", 8, "--seeds", 0), "--seeds"),
        (
            (model, out, "--factor", 8, "--provider", "cpu", "--provider-option", "a=1"),
            "takes no options: a=1",
        ),
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


def test_a_failed_check_keeps_the_old_output_and_writes_the_report(model: Path, out: Path) -> None:
    report = out.with_name("report.json")
    out.write_bytes(OLD)
    run = widthfold(
        *("optimize", model, out, "--factor", 8, "--rtol", "0", *FAST, "--report", report)
    )
    assert run.code == 1
    assert run.line.startswith("widthfold: OUT is not written: output y: max_rel ")
    assert "verdict: fail" in run.out
    assert "nothing written" in run.out
    assert out.read_bytes() == OLD
    assert names(out.parent) == ["out.onnx", "report.json"]
    document = report_of(report)
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
    assert report_of(report)["verification"]["verdict"] == "unverified"


def test_require_fold(tmp_path: Path, out: Path) -> None:
    path = save(nothing_to_fold(), tmp_path / "model.onnx")
    report = tmp_path / "report.json"
    run = widthfold("optimize", path, out, "--factor", 8, "--require-fold", "--report", report)
    assert run.code == 5
    assert run.line.startswith("widthfold: none of 1 Conv nodes was folded")
    assert report_of(report)["summary"]["folded"] == 0
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

    monkeypatch.setattr("widthfold_onnx.pipeline.plan", fault)
    run = widthfold("optimize", model, out, "--factor", 8)
    assert run.code == 70
    assert "RuntimeError: first line\\x0asecond \\x1b[2J line" in run.line
    run = widthfold("optimize", model, out, "--factor", 8, "--debug")
    assert run.code == 70
    assert "Traceback" in run.err


# ---------------------------------------------------------------- which sites, how


def statuses(path: Path, *options: object) -> dict[str, str]:
    report = path.with_name("plan.json")
    run = widthfold("optimize", path, "--dry-run", *options, "--report", report)
    assert (run.code, run.err) == (0, "")
    return {site["node"]: site["code"] for site in report_of(report)["sites"]}


def test_globs_choose_sites(model: Path) -> None:
    folded, left = "folded", "not-selected"
    assert statuses(model, "--factor", 8) == {"first": folded, "second": folded}
    assert statuses(model, "--factor", 8, "--nodes", "f*") == {"first": folded, "second": left}
    assert statuses(model, "--factor", 8, "--skip", "?irst") == {"first": left, "second": folded}
    both = ("--nodes", "*", "--skip", "second")
    assert statuses(model, "--factor", 8, *both) == {"first": folded, "second": left}


@pytest.mark.parametrize("option", ["--nodes", "--skip"])
@pytest.mark.parametrize("pattern", ["third", "FIRST", "fir", "", "relu"])
def test_a_glob_that_matches_no_node_is_exit_2(
    model: Path, out: Path, option: str, pattern: str
) -> None:
    run = widthfold("optimize", model, out, "--factor", 8, option, "first", option, pattern)
    assert run.code == 2
    assert f"no linear node is named '{pattern}'" in run.line
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "index", "folded"),
    [("batch", 0, "batch"), ("height", 2, "height"), ("width", 3, "width")],
)
def test_axes_by_name_and_by_index(tmp_path: Path, name: str, index: int, folded: str) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[4,1,8,16] x) => (float[4,1,8,16] y) <float[1,1,3,3] w>
    { [conv] y = Conv <pads = [1,1,1,1]> (x, w) }"""
    path = save(build(text), tmp_path / "model.onnx")
    outputs = []
    for axis in (name, index):
        out, report = tmp_path / f"{axis}.onnx", tmp_path / f"{axis}.json"
        run = widthfold(
            *("optimize", path, out, "--factor", 4, "--axis", axis, "--report", report, *FAST)
        )
        assert run.code == 0
        (site,) = report_of(report)["sites"]
        assert (site["status"], site["axis"], site["factor"]) == ("folded", folded, 4)
        outputs.append(out.read_bytes())
    assert outputs[0] == outputs[1]


def test_an_axis_that_a_conv_does_not_have_is_a_refusal(model: Path) -> None:
    assert set(statuses(model, "--factor", 8, "--axis", "depth").values()) == {"no-such-axis"}
    assert set(statuses(model, "--factor", 8, "--axis", "4").values()) == {"no-such-axis"}


def test_input_shape_opens_a_fold_and_leaves_the_interface(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n,1,h,w] x) => (float[n,1,h,w] y) <float[1,1,3,3] k>
    { [conv] y = Conv <pads = [1,1,1,1]> (x, k) }"""
    path = save(build(text), tmp_path / "model.onnx")
    out = tmp_path / "out.onnx"
    assert statuses(path, "--factor", 8) == {"conv": "unknown-extent"}
    shape = ("--input-shape", "x:1,1,8,64")
    assert statuses(path, "--factor", 8, *shape) == {"conv": "folded"}
    assert widthfold("optimize", path, out, "--factor", 8, *shape, *FAST).code == 0
    before, after = onnx.load(path).graph, onnx.load(out).graph
    assert list(before.input) == list(after.input)
    assert list(before.output) == list(after.output)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    original = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n, h, w in [(1, 8, 64), (3, 8, 64), (1, 5, 64), (1, 8, 63)]:
        x = np.random.default_rng(n).standard_normal((n, 1, h, w)).astype(np.float32)
        try:
            (result,) = session.run(None, {"x": x})
        except Exception:
            continue  # at other sizes than assumed it must stop or be right, never be wrong
        (wanted,) = original.run(None, {"x": x})
        assert result.shape == wanted.shape
        assert np.abs(result - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_absurd_input_shapes_are_no_fault_of_ours(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n,1,h,w] x) => (float[n,1,h,w] y) <float[1,1,3,3] k>
    { [conv] y = Conv <pads = [1,1,1,1]> (x, k) }"""
    path = save(build(text), tmp_path / "model.onnx")
    for extent in (1 << 36, 1 << 40):
        shape = f"x:8,1,8,{extent}"
        run = process("optimize", path, tmp_path / "o.onnx", "--factor", 8, "--input-shape", shape)
        assert run.code in (2, 4), run
        assert run.line
        assert not (tmp_path / "o.onnx").exists()


def test_the_report_says_what_the_issue_promises(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    out = tmp_path / "out.onnx"
    run = widthfold(
        *("optimize", MODELS / "refusals.onnx", out, "--factor", 8, *FAST, "--report", report)
    )
    assert run.code == 0
    document = report_of(report)
    assert document["schema"] == "widthfold.optimize/6"
    assert document["model"] == "refusals.onnx"
    for site in document["sites"]:
        assert site.keys() >= {
            *("node", "op", "status", "axis", "factor", "form", "code", "reason", "flops_ratio")
        }
        folded = site["status"] == "folded"
        assert folded == all(site[k] is not None for k in ("axis", "factor", "form", "flops_ratio"))
        assert site["code"]
        assert site["reason"]
    counts = document["summary"]
    assert sum(counts[k] for k in ("folded", "kept", "refused")) == len(document["sites"])
    assert counts["bytes_before"] == (MODELS / "refusals.onnx").stat().st_size
    assert counts["bytes_after"] == out.stat().st_size
    assert str(tmp_path) not in report.read_text()


def test_external_data_stays_external_and_confined(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    target.mkdir()
    proto = build()
    path = source / "model.onnx"
    onnx.save_model(
        *(proto, str(path)), save_as_external_data=True, location="w.bin", size_threshold=0
    )
    before = snapshot(source)
    assert widthfold("optimize", path, target / "out.onnx", "--factor", 8, *FAST).code == 0
    assert snapshot(source) == before
    assert len(names(target)) == 2
    assert widthfold("verify", path, target / "out.onnx", "--no-timing", *FAST).code == 0
    for tensor in onnx.load(target / "out.onnx", load_external_data=False).graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            assert tensor.data_location == onnx.TensorProto.EXTERNAL
    # A report, an output or a rerun takes none of it away.
    for name in ("w.bin", "out.onnx"):
        report = ("--report", source / name, "--format", "json")
        run = widthfold("optimize", path, source / "o.onnx", "--factor", 8, *report)
        assert run.code == (2 if name == "w.bin" else 0)
    assert widthfold("optimize", path, source / "w.bin", "--factor", 8).code == 2
    assert {k: v for k, v in snapshot(source).items() if k in before} == before


# ---------------------------------------------------------------- without a runtime


def test_without_a_runtime_every_verb_that_needs_one_names_the_extra(
    model: Path, out: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked" / "onnxruntime"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('No module onnxruntime')\n")
    env = {"PYTHONPATH": str(blocked.parent)}
    out.write_bytes(OLD)
    for args in (("optimize", model, out, "--factor", 8), ("verify", model, model)):
        run = process(*args, env=env)
        assert run.code == 4, run
        assert "pip install 'widthfold-onnx[cpu]', or [gpu]" in run.line
        assert out.read_bytes() == OLD
        assert names(out.parent) == ["out.onnx"]
    for args in (
        ("inspect", model),
        ("optimize", model, "--factor", 8, "--dry-run"),
        ("optimize", model, out, "--factor", 8, "--no-verify"),
    ):
        run = process(*args, env=env)
        assert (run.code, run.err) == (0, ""), run
    assert len(onnx.load(out).graph.node) > 3


# ---------------------------------------------------------------- faults


def busy(folder: Path) -> tuple[Path, tuple[object, ...]]:
    """A model whose verification takes half a minute, and the arguments."""
    out = folder / "out.onnx"
    out.write_bytes(OLD)
    seeds = ("--seeds", 400)  # all inputs are in memory at once: 1 MiB each
    return out, ("optimize", MODELS / "wide_signal.onnx", out, "--factor", 8, *seeds)


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def wait_for_worker(child: subprocess.Popen) -> int:
    """The child process of a command, once the runtime is loaded there."""
    wait_for(lambda: children(child.pid) or child.poll() is not None)
    (worker,) = children(child.pid)
    maps = Path(f"/proc/{worker}/maps")
    wait_for(lambda: "onnxruntime" in maps.read_text() or child.poll() is not None)
    assert child.poll() is None
    return worker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("everyone", [True, False])
def test_an_interrupt_during_verification(tmp_path: Path, number: int, everyone: bool) -> None:
    out, args = busy(tmp_path)
    # A test run under nohup inherits an ignored SIGHUP, which the tool would respect.
    heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    child = start_process(*args, start_new_session=True, preexec_fn=heard)
    try:
        worker = wait_for_worker(child)
        time.sleep(0.3)
        assert [name for name in names(tmp_path) if name.startswith(".wf-")]
        if everyone:  # what Ctrl-C does: the whole foreground group
            os.killpg(child.pid, number)
        else:
            os.kill(child.pid, number)
        _, error = child.communicate(timeout=5)
    finally:
        child.kill()
        child.communicate()
    assert (child.returncode, error) == (130, b"widthfold: interrupted\n")
    assert out.read_bytes() == OLD
    assert names(tmp_path) == ["out.onnx"]
    assert not Path(f"/proc/{worker}").exists()


def test_nohup_is_respected(tmp_path: Path) -> None:
    path = save(build(), tmp_path / "model.onnx")
    out = tmp_path / "out.onnx"
    child = start_process(
        *("optimize", path, out, "--factor", 8, "--seeds", 200),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    try:
        wait_for_worker(child)
        os.kill(child.pid, signal.SIGHUP)
        _, error = child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    assert (child.returncode, error) == (0, b"")
    assert out.exists()


@pytest.mark.parametrize("delay", [0.3, 0.6, 0.9])
def test_an_interrupt_at_any_time_leaves_a_whole_output(tmp_path: Path, delay: float) -> None:
    out, args = busy(tmp_path)
    child = start_process(*args)
    try:
        time.sleep(delay)
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=10)
    finally:
        child.kill()
        child.communicate()
    # The second where not even the imports are done, on a busy machine.
    assert child.returncode in (130, -signal.SIGINT)
    assert error == b"widthfold: interrupted\n" or child.returncode != 130
    assert out.read_bytes() == OLD
    assert names(tmp_path) == ["out.onnx"]


def test_an_interrupt_that_python_drops_is_sent_again() -> None:
    script = """
import time, click
from widthfold_onnx.cli.common import guarded

class Callback:
    def __del__(self):
        raise KeyboardInterrupt

@click.command
@guarded
def command():
    Callback()
    time.sleep(60)

command()
"""
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=30, check=False
    )
    assert (child.returncode, child.stderr) == (130, b"widthfold: interrupted\n")


def test_the_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    _, args = busy(tmp_path)
    child = start_process(*args)
    try:
        worker = wait_for_worker(child)
    finally:
        child.kill()
        child.communicate()
    status = Path(f"/proc/{worker}/stat")
    wait_for(lambda: not status.exists() or status.read_text().split()[2] == "Z", 10)


@pytest.mark.parametrize("limit", [0, 1, 1000, 3000])
@pytest.mark.parametrize("copies", [True, False])
def test_a_full_disk_keeps_the_old_output(
    tmp_path: Path, model: Path, out: Path, limit: int, copies: bool
) -> None:
    if copies:
        proto = nothing_to_fold()
        proto.doc_string = "long " * 1000
        save(proto, model)
    out.write_bytes(OLD)

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    run = process("optimize", model, out, "--factor", 8, preexec_fn=small_disk)
    assert run.code == 2, run
    assert run.line.startswith("widthfold: cannot write ")
    assert "out.onnx" in run.line
    assert ".wf-" not in run.line
    assert out.read_bytes() == OLD
    assert names(out.parent) == ["out.onnx"]


def test_a_full_disk_under_the_report(model: Path, out: Path) -> None:
    report = out.with_name("report.json")
    report.write_text('{"schema": "widthfold.optimize/6"}')

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    run = process(
        *("optimize", model, "--factor", 8, "--dry-run", "--report", report), preexec_fn=small_disk
    )
    assert run.code == 2
    assert "report.json" in run.line
    assert report.read_text() == '{"schema": "widthfold.optimize/6"}'
    assert names(out.parent) == ["report.json"]


def test_no_place_for_temporary_files_is_could_not_verify(model: Path, out: Path) -> None:
    run = process("optimize", model, out, "--factor", 8, env={"TMPDIR": "/proc/self/fd/nowhere"})
    assert run.code in (0, 4), run  # Python falls back to other folders where it can


# ---------------------------------------------------------------- hostile strings

NASTY = "\x1b[2J\x1b]0;title\x07\x1b[31m<script>\nfake: OK ../../x\u202e\u2028[bold]"


def hostile(folder: Path) -> Path:
    """Two layers where every name, text and key of the model is hostile."""
    proto = build()
    for old in ("x", "w1", "b1", "w2", "a", "r", "y"):
        new = f"{old}{NASTY}"
        for items in (proto.graph.input, proto.graph.output, proto.graph.initializer):
            for item in items:
                item.name = new if item.name == old else item.name
        for node in proto.graph.node:
            node.input[:] = [new if n == old else n for n in node.input]
            node.output[:] = [new if n == old else n for n in node.output]
    for node in proto.graph.node:
        node.name = node.op_type + NASTY + node.name
        node.doc_string = NASTY
    proto.graph.name = proto.graph.doc_string = proto.producer_name = NASTY
    entry = proto.metadata_props.add()
    entry.key = entry.value = NASTY
    return save(proto, folder / "hostile.onnx")


@pytest.mark.parametrize("verb", ["optimize", "verify", "inspect"])
def test_no_string_of_a_model_reaches_a_terminal_raw(tmp_path: Path, verb: str) -> None:
    path, out, report = hostile(tmp_path), tmp_path / "out.onnx", tmp_path / "report.json"
    args = {
        "optimize": (path, out, "--factor", 8, *FAST),
        "verify": (path, path, "--rtol", "0", *FAST, "--time-budget", "0.3"),
        "inspect": (path, "--factor", 8),
    }[verb]
    for run in (
        on_terminal(verb, *args, "--report", report),
        process(verb, *args, "--report", report),
    ):
        assert run.code == 0
        for raw in (
            "\x1b[2J",
            "\x1b]0;",
            "\x07",
            "\x1b[31m",
            "\u202e",
            "\u2028",
            "\nfake",
            "\rfake",
        ):
            assert raw not in run.out
            assert raw not in run.err
    data = report.read_bytes()
    assert max(data) < 0x7F
    assert not set(data) & (set(range(32)) - {10})


def test_errors_about_hostile_names_are_one_clean_line(tmp_path: Path) -> None:
    proto = onnx.load(hostile(tmp_path))
    proto.graph.node[2].input[0] = "nowhere" + NASTY
    path = save(proto, tmp_path / f"m{NASTY.replace('/', '')}.onnx")
    run = widthfold("optimize", path, tmp_path / "out.onnx", "--factor", 8)
    assert run.code == 3
    assert "\\x1b[2J" in run.line


def test_weights_of_other_bits_survive(tmp_path: Path) -> None:
    proto = build()
    weight = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    weight.ravel()[:4] = np.array([-0.0, 1e-42, np.inf, np.nan], np.float32)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w1"))
    path, out = save(proto, tmp_path / "model.onnx"), tmp_path / "out.onnx"
    run = widthfold("optimize", path, out, "--factor", 8, "--no-verify")
    assert run.code == 0
    folded = [
        numpy_helper.to_array(t)
        for t in onnx.load(out).graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT
    ]
    kinds = set(np.concatenate([f.ravel() for f in folded]).view(np.uint32).tolist())
    assert set(weight.view(np.uint32).ravel().tolist()) <= kinds
