"""Measures the memory and the energy that a model takes on a GPU, in a process of its own."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from widthfold_onnx.arrays import Array
from widthfold_onnx.options import Runtime
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.nvml import Device
from widthfold_onnx.runtime.paired_benchmark import Setting, open_at, rounds_of
from widthfold_onnx.runtime.sessions.session import Feeds

SECONDS = 2.0
"""Time of the runs whose energy is taken; the counter moves in steps."""


def gpu_cost(
    model: Path, options: Runtime, setting: Setting, feeds: Feeds
) -> tuple[float | None, float | None]:
    """Return MiB of memory and mJ of a run, None where the device does not tell.

    Args:
        model: the file.
        options: provider, its options and threads are used.
        setting: of the session.
        feeds: one input set.

    Raises:
        UnverifiedError: the model does not run.
    """
    return isolated(_cost, model, options, setting, dict(feeds))


def _cost(
    model: Path, options: Runtime, setting: Setting, feeds: dict[str, Array]
) -> tuple[float | None, float | None]:
    device = Device(options)
    free = device.used_mib()
    run = rounds_of(open_at(model, options, setting), [feeds])
    run(0)
    before, start = device.energy_mj(), time.perf_counter()
    for count in itertools.count(1):
        run(count)
        if time.perf_counter() - start >= SECONDS:
            break
    after, used = device.energy_mj(), device.used_mib()
    # The runtime keeps what it once took, so its peak is what is in use now.
    memory = None if free is None or used is None else round(used - free, 1)
    energy = None if before is None or after is None else round((after - before) / count, 4)
    return memory, energy
