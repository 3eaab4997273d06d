"""The clock of the device is watched while parts run."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest


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
        end = time.monotonic() + 60
        while not (samples := seen.take()) and time.monotonic() < end:
            time.sleep(0.01)
        assert samples["sm_mhz"] == [1980, 1965]
        assert samples["celsius"] == [41]
        assert samples["throttled"] == ["0x0", "0x4"]
        assert (samples["device"], samples["driver"]) == ("NVIDIA X", "580.1")
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
    end = time.monotonic() + 60
    while not ended.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert ended.exists()
