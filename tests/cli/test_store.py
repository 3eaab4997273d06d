from __future__ import annotations

import os
import pty
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.tool import COMMAND, OLD, Run, names, on_terminal, process, snapshot, widthfold
from tests.tuning.measurements import LOST, key, measured
from widthfold_onnx.results import Key, Measurement
from widthfold_onnx.tuning.store.identity import canonical
from widthfold_onnx.tuning.store.store import Store, export_lines

CONV = canonical({"op": "Conv", "input": ["N", 8, 64, 64], "weight": [8, 8, 3, 3]})
FOLD = canonical({"axis": "width", "factor": 8})
HERE = canonical({"cpu": "Some Processor", "onnxruntime": "1.31.1"})
NASTY = '\x1b[2J\u202e\n::error::"'


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own store, not there yet."""
    path = tmp_path / "cache" / "own.sqlite"
    monkeypatch.setenv("WIDTHFOLD_STORE", str(path))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of four measurements on two machines."""
    recent = datetime.now(UTC) - timedelta(hours=5, minutes=3)
    return fill(
        tmp_path / "store.sqlite",
        {
            Key(CONV, "as-is", "one", HERE): measured(ratio=1, low=1, high=1),
            Key(CONV, FOLD, "one", HERE): measured(taken=recent.isoformat()),
            Key(CONV, FOLD, "four", HERE): LOST,
            Key("model:" + "ab" * 32, FOLD, "one", "elsewhere"): measured(ratio=0.5, low=0.456),
        },
    )


def fill(path: Path, entries: dict[Key, Measurement]) -> Path:
    with Store(path) as made:
        for item, measurement in entries.items():
            made.put(item, measurement)
    return path


def content(path: Path) -> dict[Key, Measurement]:
    with Store(path) as opened:
        return dict(opened.items())


# --- list


def test_a_pipe_gets_a_line_for_each_measurement(store: Path) -> None:
    run = widthfold("store", "list", "--store", store, env={"FORCE_COLOR": "1"})
    assert (run.code, run.err) == (0, "")
    assert "\x1b" not in run.out
    lines = run.out.splitlines()
    shape = "input [N, 8, 64, 64], op Conv, weight [8, 8, 3, 3]"
    found = [re.split(r"  +", line) for line in lines if line.startswith((shape, "model:"))]
    assert found[0][:3] == ["model:" + "ab" * 32, "axis width, factor 8", "0.50 [0.46, 1.70]"]
    assert found[1][:4] == [shape, "axis width, factor 8", "out of memory", "lost"]
    assert found[2][1:4] == ["as-is", "1.00 [1.00, 1.00]", "ok"]
    assert found[3][1:] == ["axis width, factor 8", "1.50 [1.40, 1.70]", "ok", "5 h"]
    headings = [line for line in lines if line.startswith(("machine", "setting"))]
    assert headings == [
        *("machine: elsewhere", "setting: one"),
        *(f"machine: {HERE}", "setting: four"),
        *(f"machine: {HERE}", "setting: one"),
    ]
    assert lines[-1] == "4 measurement(s)"


def test_a_terminal_of_80_columns_is_wide_enough(store: Path) -> None:
    run = on_terminal("store", "list", "--store", store, columns=80)
    assert run.code == 0
    bare = re.sub(r"\x1b\[[0-9;]*m", "", run.out).splitlines()
    assert all(len(line) <= 80 for line in bare if not line.startswith(("machine", "setting")))
    assert "───" in run.out
    assert sum("1.50 [1.40, 1.70]" in line and "ok" in line for line in bare) == 1
    assert sum("model:" in line and "0.50 [0.46, 1.70]" in line for line in bare) == 1


def test_hostile_strings_are_escaped(tmp_path: Path) -> None:
    strange = Key(NASTY, "{" + NASTY, NASTY, NASTY)
    path = fill(tmp_path / "s", {strange: measured(), key(NASTY): _because(NASTY)})
    for run in (
        widthfold("store", "list", "--store", path),
        on_terminal("store", "list", "--store", path),
    ):
        assert run.code == 0
        assert "\x1b[2J" not in run.out
        assert "\u202e" not in run.out
        assert not re.search(r"^\s*::", run.out, re.MULTILINE)
    run = widthfold("store", "export", "-", "--store", path)
    assert run.out.isascii()
    assert "\x1b" not in run.out


def _because(reason: str) -> Measurement:
    return measured(status="lost", ratio=0.0, low=0.0, high=0.0, reason=reason)


def test_the_own_store_may_be_still_to_come(own: Path) -> None:
    assert widthfold("store", "list").out == "0 measurement(s)\n"
    assert widthfold("store", "export", "-").out == ""
    assert widthfold("store", "clear", "--yes").out.startswith("removed 0 measurement(s)")
    assert not own.parent.exists()
    fill(own, {key(): measured()})
    assert widthfold("store", "list").out.endswith("\n1 measurement(s)\n")


# --- export, import


def test_an_export_comes_back(store: Path, own: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    run = widthfold("store", "export", file, "--store", store)
    assert (run.code, run.err) == (0, "")
    assert run.out == f"wrote 4 measurement(s) to {file}\n"
    piped = widthfold("store", "export", "-", "--store", store)
    assert piped.out == file.read_text()
    run = widthfold("store", "import", file)
    assert run.out == f"took 4 measurement(s) into {own}, left out 0 that are not newer\n"
    assert content(own) == content(store)
    run = widthfold("store", "import", "-", "--store", own, typed=piped.out.encode())
    assert run.out == f"took 0 measurement(s) into {own}, left out 4 that are not newer\n"
    run = widthfold("store", "import", "-")  # whose standard input is empty
    assert (run.code, run.err) == (0, "")


def test_an_export_replaces_an_export_and_nothing_else(store: Path, tmp_path: Path) -> None:
    file, mine = tmp_path / "export.jsonl", tmp_path / "mine"
    mine.write_bytes(OLD)
    assert widthfold("store", "export", file, "--store", store).code == 0
    assert widthfold("store", "clear", "--yes", "--store", store, "--machine", HERE).code == 0
    assert widthfold("store", "export", file, "--store", store).code == 0
    assert len(file.read_text().splitlines()) == 1
    before = snapshot(tmp_path)
    for target in (mine, store, tmp_path, tmp_path / "no" / "file", "/dev/full"):
        run = widthfold("store", "export", target, "--store", store)
        assert (run.code, run.out) == (2, ""), run
        assert run.line
    assert snapshot(tmp_path) == before


def test_a_full_disk_is_one_line(store: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        for args in (("list",), ("export", "-")):
            done = subprocess.run(
                [*COMMAND, "store", *args, "--store", store],
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
            )
            assert Run(done.returncode, "", done.stderr.decode()).line
            assert done.returncode == 2


@pytest.mark.parametrize("bad", [b"{}", b"\xff\x00", b"\x1b[2J", b"x" * 3_000_000, b"[" * 900_000])
def test_a_bad_line_is_named_and_nothing_is_taken_in(
    store: Path, tmp_path: Path, bad: bytes
) -> None:
    with Store(None) as other:
        other.put(key("new"), measured())
        good = "".join(export_lines(other)).encode()
    file = tmp_path / "bad.jsonl"
    file.write_bytes(good + bad + b"\n" + good)
    before = content(store)
    for run in (
        widthfold("store", "import", file, "--store", store),
        widthfold("store", "import", "-", "--store", store, typed=file.read_bytes()),
    ):
        assert (run.code, run.out) == (2, "")
        assert "line 2 " in run.line
    assert content(store) == before


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless file")
def test_a_file_without_end_is_one_error(store: Path) -> None:
    run = widthfold("store", "import", "/dev/zero", "--store", store)
    assert run.code == 2
    assert "line 1 is longer than" in run.line


# --- clear


def test_clear_asks_on_a_terminal(store: Path) -> None:
    before = content(store)
    for typed in (b"n\n", b"\n"):
        run = on_terminal("store", "clear", "--store", store, typed=typed)
        assert run.code == 0
        assert "Remove every measurement from" in run.out
        assert "removed nothing" in run.out
    assert content(store) == before
    run = on_terminal("store", "clear", "--store", store, typed=b"y\n")
    assert (run.code, content(store)) == (0, {})
    assert "removed 4 measurement(s) from" in run.out


def test_an_end_of_input_is_an_interrupt(store: Path) -> None:
    """In a process of its own: GNU readline, which pytest imports, takes the key for a letter."""
    before = content(store)
    master, terminal = pty.openpty()
    os.write(master, b"\x04")
    command = [*COMMAND, "store", "clear", "--store", store]
    done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, timeout=60)
    os.close(terminal)
    os.close(master)
    assert done.returncode == 130
    assert done.stderr.endswith("widthfold: interrupted\n")
    assert content(store) == before


def test_clear_needs_yes_where_nobody_can_be_asked(store: Path) -> None:
    before = content(store)
    for run in (
        widthfold("store", "clear", "--store", store),
        widthfold("store", "clear", "--store", store, typed=b"y\n"),
        process("store", "clear", "--store", store, preexec_fn=lambda: os.close(0)),
    ):
        assert (run.code, run.out) == (2, "")
        assert "--yes" in run.line
    assert content(store) == before
    run = widthfold("store", "clear", "--store", store, "--yes", "--machine", HERE)
    assert run.out == f"removed 3 measurement(s) from {store}\n"
    assert [item.machine for item in content(store)] == ["elsewhere"]
    assert "removed 1 " in widthfold("store", "clear", "--store", store, "--yes").out


# --- what is no store


@pytest.mark.parametrize(
    "args", [("list",), ("export", "-"), ("clear", "--yes"), ("import", os.devnull)]
)
def test_what_is_no_store_stays_as_it_is(tmp_path: Path, args: tuple[str, ...]) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(OLD * 1000)
    before = snapshot(tmp_path)
    for place in (
        model,
        tmp_path,
        model / "x",
        *([] if args[0] == "import" else [tmp_path / "no"]),
    ):
        run = widthfold("store", *args, "--store", place)
        assert (run.code, run.out) == (2, ""), run
        assert place.name in run.line
    assert snapshot(tmp_path) == before
    assert names(tmp_path) == ["model.onnx"]


def test_errors_are_one_line(tmp_path: Path) -> None:
    for args in (
        ("list", "--format", "xml"),
        ("export",),
        ("import",),
        ("import", tmp_path / "gone"),
        ("import", tmp_path),
        ("nothing",),
        ("list", "--store", "x" * 5000),
    ):
        run = widthfold("store", *args)
        assert run.code == 2, (args, run)
        assert run.line
    run = process("store", "import", "-", preexec_fn=lambda: os.close(0))
    assert run.code == 2
    assert run.line
