"""What runs on a worker of a cluster: who it is, and the measurement of one unit."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from widthfold_onnx.evidence.timing.environment import version
from widthfold_onnx.options import Provider
from widthfold_onnx.plan.identity import Place, find_place
from widthfold_onnx.plan.measure import measure
from widthfold_onnx.plan.race import Setup
from widthfold_onnx.plan.store import Measurement
from widthfold_onnx.plan.units import Unit
from widthfold_onnx.progress import silent
from widthfold_onnx.runtime.session import runtime_version
from widthfold_onnx.runtime.worker import isolated

Outcome = tuple[str, str, Measurement]
"""Subject, candidate and what was measured."""

_turn = threading.Lock()
"""One measurement at a time, whoever asks."""


def versions() -> dict[str, str]:
    """What must be the same on both sides, since measurements and pickles depend on it.

    Raises:
        UnverifiedError: ONNX Runtime is not installed.
    """
    return {"widthfold-onnx": version("widthfold-onnx"), "onnxruntime": runtime_version()}


def place_of(
    provider: Provider, options: Mapping[str, str], session_options: Mapping[str, str]
) -> Place:
    """Where this worker measures.

    Raises:
        UnverifiedError: the provider cannot be used.
        UsageError: it or the runtime does not take the options.
    """
    return isolated(find_place, provider, dict(options), dict(session_options))


def measured(unit: Unit, setup: Setup, seconds: float, share: float) -> list[Outcome]:
    """Measure one unit; a form that crashes ends a child of the worker, not the worker.

    Args:
        unit: the layer, with the forms that are not known.
        setup: where.
        seconds: after which it ends, whatever is left.
        share: of these seconds that the unit should take.

    Raises:
        UnverifiedError: the runtime cannot be used.
    """
    found: list[Outcome] = []
    with _turn:
        measure(
            [unit],
            setup,
            time.monotonic() + seconds,
            lambda *outcome: found.append(outcome),
            silent,
            share=share,
        )
    return found
