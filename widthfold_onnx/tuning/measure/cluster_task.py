"""Run on a worker of a cluster: identify the worker, and measure one workload."""

from __future__ import annotations

import threading

from widthfold_onnx.progress import silent
from widthfold_onnx.runtime.environment import version
from widthfold_onnx.runtime.sessions.session import runtime_version
from widthfold_onnx.tuning.measure.budget import Budget
from widthfold_onnx.tuning.measure.children import measure
from widthfold_onnx.tuning.measure.measurements import Outcome
from widthfold_onnx.tuning.measure.successive_halving import Setup
from widthfold_onnx.tuning.workload.workloads import Workload

_turn = threading.Lock()
"""Held during a measurement, so that a worker takes one at a time."""


def versions() -> dict[str, str]:
    """Return the versions that must agree on both sides, as measurements and pickles need them.

    Raises:
        UnverifiedError: ONNX Runtime is not installed.
    """
    return {"widthfold-onnx": version("widthfold-onnx"), "onnxruntime": runtime_version()}


def measured(workload: Workload, setup: Setup, seconds: float, share: float) -> list[Outcome]:
    """Measure one workload; a form that crashes ends a child process, not the worker.

    Args:
        workload: the layer, with the forms that are not known.
        setup: the settings.
        seconds: time after which measuring ends, finished or not.
        share: fraction of these seconds that the workload should take.

    Raises:
        UnverifiedError: the runtime cannot be used.
    """
    found: list[Outcome] = []
    with _turn:
        measure(
            [workload],
            setup,
            Budget(seconds),
            found.append,
            silent,
            share=share,
        )
    return found
