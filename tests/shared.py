"""Folders of the real models and generators, if they are there at all; bounds on what runs."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
MODELS = sorted((SHARED / "models").glob("*.onnx"))

needs_models = pytest.mark.skipif(not MODELS, reason=f"no real models in {SHARED / 'models'}")


REUSED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Lets glibc keep freed blocks: the generator of nested graphs copies gigabytes, and new pages took
most of its time while other tests ran."""


def generate(script: str, factory: pytest.TempPathFactory) -> Path:
    """Models of a generator, hostile or tricky, which no test changes; skip without it.

    It runs once for all modules and all processes of a test run.
    """
    fcntl = pytest.importorskip("fcntl")
    path = SHARED / script
    if not path.is_file():
        pytest.skip(f"no generator {path}")
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, mark = root / path.stem, root / f"{path.stem}.made"
    with (root / f"{path.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            command, variables = [sys.executable, path, folder], os.environ | REUSED_MEMORY
            subprocess.run(command, check=True, capture_output=True, env=variables)
            mark.touch()
    return folder


CPU_SECONDS = 100
"""Time of the processor that is many times what any single step of a test takes.

What reaches it hangs or has blown up, however busy the machine is. No test looks at a clock.
"""


def limit_processor() -> None:
    """End this process, and each that it starts, by SIGXCPU after `CPU_SECONDS` of its own."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))


@contextmanager
def bounded() -> Iterator[None]:
    """Fail where the block takes `CPU_SECONDS` of this process; Windows has no such timer."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"it took {CPU_SECONDS} s of the processor")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def make_reported(name: str, path: Path, *arguments: object, **options: object) -> None:
    """Write a small model that was built after public bug reports; skip without its maker."""
    found = sorted((SHARED / "reported").glob(f"{name}_*.py"))
    if not found:
        pytest.skip(f"no maker {name} in {SHARED / 'reported'}")
    spec = importlib.util.spec_from_file_location(found[0].stem, found[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(str(path), *arguments, **options)
