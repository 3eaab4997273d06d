"""The output and the report of `optimize`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself
import pytest

from tests.cli.tool import (
    FAST,
    OLD,
    names,
    on_terminal,
    optimize_report,
    process,
    snapshot,
    widthfold,
)
from tests.small_models import build, nothing_to_fold, save

# ---------------------------------------------------------------- printed text


def test_a_pipe_gets_plain_text_one_line_per_site(model: Path, out: Path) -> None:
    run = widthfold("optimize", model, out, "--factor", 8, *FAST, env={"FORCE_COLOR": "1"})
    assert (run.code, run.err) == (0, "")
    assert "\x1b" not in run.out
    head, first, second, total, spread, verdict, timing = run.out.splitlines()
    assert timing.startswith("not timed; to see if it pays: widthfold verify ")
    assert spread.startswith("Inf and NaN may spread within a sample: 2 folds, up to 8 times")
    assert head.split() == ["node", "fold"]
    assert first.split() == ["first", "width", "by", "8"]
    assert second.split() == ["second", "width", "by", "8"]
    assert total.startswith("2 of 2 Conv nodes folded; wrote out.onnx (")
    growth = out.stat().st_size / model.stat().st_size
    assert growth > 4
    assert total.endswith(f", {growth:.1f} times as many bytes)")
    assert verdict.startswith("verdict: pass; 1 input set")
    assert verdict.endswith("; proof: equal; 2 new nodes exact on integers")


@pytest.mark.processes
def test_a_terminal_gets_a_framed_table_and_progress(model: Path, out: Path) -> None:
    run = on_terminal("optimize", model, out, "--factor", 8, "--details", *FAST)
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
    run = process("optimize", path, "--factor", 8, env=ascii_only)
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
    command = start_process_to(full, "optimize", model, "--factor", "8")
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


# ---------------------------------------------------------------- written files


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
    message = "out.onnx carries folds of an earlier run and is not folded again; fold the original"
    assert run.out.count(message) == 1
    assert again.read_bytes() == out.read_bytes()
    assert [(s["status"], s["code"]) for s in optimize_report(report)["sites"]] == [
        ("kept", "already-folded"),
        ("kept", "already-folded"),
    ]
    assert widthfold("optimize", out, "--factor", 4, "--check").code == 0
    assert widthfold("optimize", out, again, "--factor", 4, "--require-fold").code == 5


def test_a_fold_anywhere_leaves_the_whole_model_alone(model: Path, out: Path) -> None:
    """One layer was skipped by the earlier run; it is left alone as well, at `auto` too."""
    again = out.with_name("again.onnx")
    assert widthfold("optimize", model, out, "--factor", 8, "--skip", "second", *FAST).code == 0
    for factor in (8, "auto"):
        run = widthfold("optimize", out, again, "--factor", factor, *FAST)
        assert (run.code, run.out.count("already-folded")) == (0, 2)
        assert again.read_bytes() == out.read_bytes()


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


@pytest.mark.parametrize(("named", "check"), [(False, False), (False, True), (True, True)])
def test_planning_writes_nothing(model: Path, out: Path, named: bool, check: bool) -> None:
    out.write_bytes(OLD)
    before = snapshot(model.parent.parent)
    words = [model, *([out] if named else []), "--factor", 8, *(["--check"] if check else [])]
    run = widthfold("optimize", *words)
    assert snapshot(model.parent.parent) == before
    assert "2 of 2 Conv nodes would be folded; nothing written" in run.out
    if check:
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
    assert optimize_report(report)["verification"] is None
    assert widthfold("verify", model, out, "--no-timing", *FAST).code == 0


def test_the_mode_of_the_output_follows_the_umask(model: Path, out: Path) -> None:
    previous = os.umask(0o027)
    try:
        assert widthfold("optimize", model, out, "--factor", 8, "--no-verify").code == 0
    finally:
        os.umask(previous)
    assert out.stat().st_mode & 0o777 == 0o640
