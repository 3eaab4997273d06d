"""What a figure depends on: versions, machine, and how busy it was."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib import metadata
from pathlib import Path

from widthfold_onnx.results import Environment

_CPU_INFO = Path("/proc/cpuinfo")


def load_average() -> float:
    """Runnable processes over the last minute, 0.0 where the system does not count them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def environment(provider: str, load_before: float) -> Environment:
    """Describe the machine now.

    Args:
        provider: where the models ran.
        load_before: `load_average` from before the work.
    """
    return Environment(
        widthfold=_version("widthfold-onnx"),
        onnxruntime=_version("onnxruntime", "onnxruntime-gpu"),
        provider=provider,
        machine=_machine(),
        cores=cores(),
        load_before=round(load_before, 2),
        load_after=round(load_average(), 2),
    )


def _version(*names: str) -> str:
    """Version of the first of these distributions that is installed, "" where none is."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _machine() -> str:
    name = platform.processor()
    if _CPU_INFO.is_file():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
                break
    return " ".join(part for part in (platform.system(), platform.machine(), name) if part)
