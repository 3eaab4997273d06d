"""Public calls before and after a fork, and in threads: none holds a thread, none hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

import widthfold_onnx as wf

CHILD_SECONDS = 100
"""A forked process that takes so long hangs."""

NET = """<ir_version: 8, opset_import: ["" : 17]> net
(float[1, 2, 64, 128] x) => (float[1, 2, 64, 128] y)
<float[2, 2, 1, 1] w = {1.5, 2.5, -0.5, 3.0}> {
    z = Conv(x, w)
    y = Relu(z)
}"""
"""Its tensors have so many elements that a proof computes on several threads."""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A model and its fold."""
    model = parser.parse_model(NET)
    paths = str(tmp_path / "old.onnx"), str(tmp_path / "new.onnx")
    onnx.save(model, paths[0])
    onnx.save(wf.fold(model, factor=2), paths[1])
    return paths


def _optimize(old: str, new: str) -> Any:
    return wf.optimize(old, f"{old}.{os.getpid()}.onnx", factor=2)


CALLS: dict[str, Callable[[str, str], Any]] = {
    "fold": lambda old, new: wf.fold(onnx.load(old), factor=2),
    "plan": lambda old, new: wf.plan(old, factor=2),
    "apply": lambda old, new: wf.apply(onnx.load(old), wf.plan(old, factor=2)),
    "inspect": lambda old, new: wf.inspect(old),
    "optimize": _optimize,
    "verify": wf.verify,
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_repeated_after_a_fork(name: str, files: tuple[str, str]) -> None:
    before = {*threading.enumerate()}
    CALLS[name](*files)
    assert {*threading.enumerate()} <= before
    process = os.fork()
    if process == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILD_SECONDS)
            CALLS[name](*files)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(process, 0)[1] == 0
    CALLS[name](*files)


def test_two_threads_prove_at_once(files: tuple[str, str], tmp_path: Path) -> None:
    old, new = files
    broken = onnx.load(new)
    for initializer in broken.graph.initializer:
        if initializer.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(initializer).copy()
            values.flat[0] += 1
            initializer.CopyFrom(onnx.numpy_helper.from_array(values, initializer.name))
    onnx.save(broken, tmp_path / "broken.onnx")
    with ThreadPoolExecutor(2) as pool:
        pairs = [(old, new), (old, str(tmp_path / "broken.onnx"))] * 3
        reports = list(pool.map(lambda pair: wf.verify(*pair), pairs))
    assert [report.proof and report.proof.verdict for report in reports] == [
        "equal",
        "different",
    ] * 3


LISTENER = """
import sys
asked = []
def hear(event, arguments):
    starts = ("subprocess", "os.fork", "_thread.start", "sqlite3.connect", "socket")
    asks = event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/"))
    if asks or event.startswith(starts):
        asked.append((event, arguments[0]))
sys.addaudithook(hear)
import importlib, pkgutil
import widthfold_onnx
for module in pkgutil.walk_packages(widthfold_onnx.__path__, "widthfold_onnx."):
    if module.name not in ("widthfold_onnx.__main__", "widthfold_onnx.olive"):
        importlib.import_module(module.name)
print(asked, "psutil" in sys.modules)
"""


def test_imports_start_nothing_and_ask_the_machine_nothing() -> None:
    command = [sys.executable, "-c", LISTENER]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "[] False\n"
