"""Run the command: in this process, as a process of its own, or on a terminal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from tests.shared import ROOT, limit_processor
from widthfold_onnx.cli import main

SCHEMAS = ROOT / "widthfold_onnx" / "schemas"
COMMAND = [sys.executable, "-c", "from widthfold_onnx.cli import main; main(prog_name='widthfold')"]

FAST = ("--seeds", "1")
QUICK = (*FAST, "--no-timing")
LAUNCHER = """
import json, os, sys
child = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[2:]], os.environ)
_, status, usage = os.wait4(child, 0)
with open(sys.argv[1], "w") as report:
    json.dump([os.waitstatus_to_exitcode(status), usage.ru_maxrss], report)
"""
OLD = b"what the user had"

# click 8.1 mixes both outputs unless it is told not to, and later ones cannot be told.
_APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
RUNNER = CliRunner(**_APART)


@dataclass(frozen=True)
class Run:
    """Code, outputs and peak memory of a run; `megabytes` only by `measured`."""

    code: int
    out: str
    err: str
    megabytes: float = 0.0

    @property
    def line(self) -> str:
        """The only line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert self.err.endswith("\n")
        assert lines[0].startswith("widthfold: "), self.err
        assert lines[0].isprintable(), self.err
        return lines[0]


def widthfold(*args: object, typed: bytes = b"", env: dict[str, str] | None = None) -> Run:
    """Run in this process, between pipes."""
    words = [str(arg) for arg in args]
    result = RUNNER.invoke(main, words, input=typed, env=env, prog_name="widthfold")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Run(result.exit_code, result.stdout, result.stderr)


def process(*args: object, timeout: float = 600, **options) -> Run:
    """Run in a process of its own."""
    child = start_process(*args, **options)
    try:
        out, err = child.communicate(timeout=timeout)
    except BaseException:
        child.kill()
        child.communicate()
        raise
    return Run(child.returncode, out.decode(), err.decode())


def start_process(*args: object, env: dict[str, str] | None = None, **options) -> subprocess.Popen:
    """Start a process of its own, with both outputs in pipes."""
    return subprocess.Popen(
        [*COMMAND, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        **options,
    )


def measured(*args: object, folder: Path, timeout: int = 600) -> Run:
    """Run in a process of its own; its own peak memory is known too, by wait4.

    What a child uses counts from its fork on, and this process may be large by then: so a small
    one is in between, which starts the command and reports on it. The time of the processor is
    bounded (`limit_processor`); what waits for something else ends after `timeout` s.
    """
    report = folder / "measured.json"
    command = [sys.executable, "-c", LAUNCHER, str(report), *COMMAND[1:], *map(str, args)]
    launcher = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=limit_processor,
    )
    try:
        out, err = launcher.communicate(timeout=timeout)
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.communicate()
    assert b"SIGXCPU" not in err, "a child process took too much time of the processor"
    code, kilobytes = json.loads(report.read_text())
    return Run(code, out.decode(), err.decode(), kilobytes / 1024)


def on_terminal(
    *args: object, columns: int = 120, env: dict[str, str] | None = None, typed: bytes = b""
) -> Run:
    """Run in this process, on a terminal where `typed` was typed; `out` is all that it got."""
    pty, fcntl, termios = map(pytest.importorskip, ("pty", "fcntl", "termios"))
    master, slave = pty.openpty()
    os.write(master, typed)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.extend(pieces(master)))
    reader.start()
    variables = {"TERM": "xterm", "COLUMNS": str(columns), **(env or {})}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        with standard_streams(slave):
            try:
                main(list(map(str, args)), prog_name="widthfold")
            except SystemExit as end:
                code = end.code
    reader.join()
    os.close(master)
    return Run(int(code or 0), b"".join(seen).decode(), "")


def pieces(master: int) -> Iterator[bytes]:
    """Yield all bytes that a terminal gets, until nobody has it open."""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(master, 65536):
            yield piece


@contextlib.contextmanager
def standard_streams(descriptor: int) -> Iterator[None]:
    """Put a descriptor, which is closed, in the place of the three of this process."""
    before = [(number, os.dup(number)) for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(descriptor, number)
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115 - main reads and writes it
            patch.setattr(sys, name, stream)
        os.close(descriptor)
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number, copy in before:
                os.dup2(copy, number)
                os.close(copy)


def schema_of(name: str) -> dict:
    """The schema of a report by its command, or of the plan."""
    return json.loads((SCHEMAS / f"{name}.json").read_text())


def valid_report(verb: str, path: Path) -> dict:
    """A report in JSON that keeps to the schema of its verb."""
    report = json.loads(path.read_bytes())
    jsonschema.validate(report, schema_of(verb))
    return report


optimize_report = partial(valid_report, "optimize")
verify_report = partial(valid_report, "verify")


def names(folder: Path) -> list[str]:
    """Names of the files in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file below a folder: hash of its content and time of its last change."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
