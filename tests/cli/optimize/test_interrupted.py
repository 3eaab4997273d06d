"""Signals, kills and full disks while `optimize` works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.tool import OLD, names, process, start_process, widthfold
from tests.small_models import MODELS, build, nothing_to_fold, save
from widthfold_onnx.cli import main

resource = pytest.importorskip("resource")

PROMPT = 15
"""Seconds, half of what the verification of `busy` takes: who waits for its end is found out."""


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


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "everyone"),
    [
        (signal.SIGINT, True),
        (signal.SIGINT, False),
        (signal.SIGTERM, False),
        (signal.SIGHUP, True),
    ],
)
def test_an_interrupt_during_verification(tmp_path: Path, number: int, everyone: bool) -> None:
    out, args = busy(tmp_path)
    child = start_process(*args, start_new_session=True)
    try:
        worker = wait_for_worker(child)
        time.sleep(0.3)
        assert [name for name in names(tmp_path) if name.startswith(".wf-")]
        if everyone:  # what Ctrl-C does: the whole foreground group
            os.killpg(child.pid, number)
        else:
            os.kill(child.pid, number)
        _, error = child.communicate(timeout=PROMPT)
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


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("delay", [0.3, 0.6, 0.9])
def test_an_interrupt_at_any_time_leaves_a_whole_output(tmp_path: Path, delay: float) -> None:
    out, args = busy(tmp_path)
    child = start_process(*args)
    try:
        time.sleep(delay)
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=PROMPT)
    finally:
        child.kill()
        child.communicate()
    # The second where not even the imports are done, on a busy machine.
    assert child.returncode in (130, -signal.SIGINT)
    assert error == b"widthfold: interrupted\n" or child.returncode != 130
    assert out.read_bytes() == OLD
    assert names(tmp_path) == ["out.onnx"]


@pytest.mark.parametrize("ignored", [False, True])
def test_an_interrupt_that_python_drops_is_sent_again(ignored: bool) -> None:
    """The other signals end a command that ignores SIGINT, as a background job does."""
    script = """
import signal, time, click
signal.signal(signal.SIGINT, IGNORED)
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
    script = script.replace(
        "IGNORED", "signal.SIG_IGN" if ignored else "signal.default_int_handler"
    )
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=50, check=False
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
    wait_for(lambda: not status.exists() or status.read_text().split()[2] == "Z", PROMPT)


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
    report.write_text('{"schema": "widthfold.optimize/7"}')

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    run = process(*("optimize", model, "--factor", 8, "--report", report), preexec_fn=small_disk)
    assert run.code == 2
    assert "report.json" in run.line
    assert report.read_text() == '{"schema": "widthfold.optimize/7"}'
    assert names(out.parent) == ["report.json"]


def test_no_place_for_temporary_files_is_could_not_verify(model: Path, out: Path) -> None:
    run = process("optimize", model, out, "--factor", 8, env={"TMPDIR": "/proc/self/fd/nowhere"})
    assert run.code in (0, 4), run  # Python falls back to other folders where it can


def test_an_interrupt_before_the_work_begins_gets_one_line(monkeypatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.commands["inspect"], "make_context", interrupted)
    run = widthfold("inspect", "model.onnx")
    assert (run.code, run.err) == (130, "widthfold: interrupted\n")
