"""Describes the conditions of a figure: versions, machine, and how busy it was."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.results import Environment

_CPU_INFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def load_average() -> float:
    """Return the runnable processes over the last minute, 0.0 if the system does not count them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def clock_mhz() -> float | None:
    """Return the mean clock of the cores in MHz, None if the system does not say."""
    clocks = [float(value) for value in cpu_info("cpu MHz")]
    return round(sum(clocks) / len(clocks), 1) if clocks else None


def last_cache_bytes() -> int:
    """Return the size of the last cache of the first core; 32 MiB if the system does not say."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    known = [int(size[:-1]) << 10 for size in sizes if size.endswith("K") and size[:-1].isdigit()]
    return max(known, default=32 << 20)


@dataclass(frozen=True)
class Before:
    """Readings from before the work, so that a change during it shows."""

    load: float = field(default_factory=load_average)
    mhz: float | None = field(default_factory=clock_mhz)


def environment(
    options: RuntimeOptions, before: Before, u8s8_error: int | None = None
) -> Environment:
    """Describe the machine now.

    Args:
        options: where the models ran.
        before: readings from before the work.
        u8s8_error: `runtime.saturation.u8s8_error`, None where it was not asked.
    """
    return Environment(
        widthfold=version("widthfold-onnx"),
        onnxruntime=version("onnxruntime", "onnxruntime-gpu"),
        provider=options.provider.value,
        provider_options=dict(options.provider_options),
        session_options=dict(options.session_options),
        u8s8_error=u8s8_error,
        machine=machine(),
        cores=cores(),
        python=platform.python_version(),
        load_before=round(before.load, 2),
        load_after=round(load_average(), 2),
        mhz_before=before.mhz,
        mhz_after=clock_mhz(),
        command="",
    )


def version(*names: str) -> str:
    """Return the version of the first of these distributions that is installed, "" if none is."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def machine() -> str:
    """Return system, architecture and name of the processor, as far as the system says."""
    name = next(cpu_info("model name"), platform.processor())
    return " ".join(part for part in (platform.system(), platform.machine(), name) if part)


def cpu_info(wanted: str) -> Iterator[str]:
    """Yield the values of a field of /proc/cpuinfo, one per core."""
    if _CPU_INFO.is_file():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == wanted:
                yield value.strip()
