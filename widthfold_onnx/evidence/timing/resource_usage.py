"""Measure the memory and the energy that a model takes, in a process that only runs it.

What this module imports is in that memory, so it imports little.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import NamedTuple

from widthfold_onnx.model.loader import load
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.environment import Device
from widthfold_onnx.runtime.session import Feeds
from widthfold_onnx.runtime.settings import Setting, open_at, run_of
from widthfold_onnx.system import peak_bytes

ENERGY_SECONDS = 2.0
"""Time of the runs whose energy is taken; the counter moves in steps."""


class Usage(NamedTuple):
    """MiB of resident memory at most, MiB on the GPU, and mJ of the GPU in a run.

    None where the device does not tell.
    """

    peak_mib: float
    gpu_mib: float | None
    gpu_mj: float | None


def usage(model: Path, setting: Setting, feeds: Feeds) -> Usage:
    """Return the memory and energy of a process that only loads and runs a model.

    Raises:
        UnverifiedError: the model does not run.
    """
    return isolated(_usage, model, setting, feeds)


def _usage(model: Path, setting: Setting, feeds: Feeds) -> Usage:
    device = Device(setting.options)
    base_memory = device.used_mib()
    run = run_of(open_at(model, setting), [feeds])
    run(0)
    peak = round(peak_bytes() / (1 << 20), 1)
    if not device.answers:
        return Usage(peak, None, None)
    first_energy, start = device.energy_mj(), time.perf_counter()
    for count in itertools.count(1):
        run(count)
        if time.perf_counter() - start >= ENERGY_SECONDS:
            break
    last_energy, memory = device.energy_mj(), device.used_mib()
    # The runtime never gives memory back, so its peak is the memory in use now.
    mib = None if base_memory is None or memory is None else round(memory - base_memory, 1)
    if first_energy is None or last_energy is None:
        return Usage(peak, mib, None)
    return Usage(peak, mib, round((last_energy - first_energy) / count, 4))


def file_bytes(model: Path) -> int:
    """Return the size of a model with the files of its external data."""
    return sum(path.stat().st_size for path in load(model).files)
