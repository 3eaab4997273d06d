"""Judge a pair of models: what the runtime returns for both, and what the proof says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the oracle shares nothing with widthfold
from numpy.typing import NDArray

from sweep.cases import Case, Feed
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.runtime.child import Child, isolated

Outputs = Sequence[Any]

NOISE = 1e-4
"""Of the largest value: smaller differences of floats may be rounding, and say nothing here."""


def unequal(case: Case, changed: Sequence[onnx.ModelProto], child: Child) -> list[bool]:
    """Check of each changed model whether it runs and returns other numbers than the case.

    The runtime is in a child process: some changed nodes crash it. Of these nothing is known.
    """
    answers: list[bool] = []
    while len(answers) < len(changed):
        rest = [model.SerializeToString() for model in changed[len(answers) :]]
        try:
            isolated(
                compare,
                case.model.SerializeToString(),
                rest,
                list(feeds(case)),
                child=child,
                on_message=answers.append,
            )
        except UnverifiedError:
            answers.append(False)
    return answers


def compare(
    old: bytes, changed: Sequence[bytes], feeds: Sequence[Feed], *, send: Callable[[bool], None]
) -> None:
    """Send of each changed model whether it runs and returns other numbers on some inputs."""
    session = _session(old)
    results = [(feed, _outputs(session, feed)) for feed in feeds if session]
    runs = [(feed, outputs) for feed, outputs in results if outputs is not None]
    for model in changed:
        new_session = _session(model) if runs else None
        pairs = ((outputs, _outputs(new_session, feed)) for feed, outputs in runs if new_session)
        send(any(new is not None and _are_other(outputs, new) for outputs, new in pairs))


def _session(model: bytes) -> ort.InferenceSession | None:
    """Return a session without optimizations, None if the runtime does not load the model."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # the runtime has a dozen classes of errors, without a common base
        return None


def _outputs(session: ort.InferenceSession, feed: Feed) -> Outputs | None:
    """Return what a model computes, None if it fails."""
    try:
        return list(session.run(None, dict(feed)))
    except Exception:  # as above
        return None


def feeds(case: Case) -> Iterator[Feed]:
    """Yield the stored inputs, random ones, the ends of their types, and zeros."""
    yield case.feed
    draw = np.random.default_rng(3)
    for kind in ("random", "large", "ends", "zeros"):
        yield {name: _drawn(array, kind, draw) for name, array in case.feed.items()}


def _drawn(array: NDArray[Any], kind: str, draw: np.random.Generator) -> NDArray[Any]:
    shape, dtype = array.shape, array.dtype
    if kind == "zeros" and dtype.kind in "biuf":
        return np.zeros(shape, dtype)
    if dtype.kind == "f":
        scale = {"random": 1.0, "large": 1000.0, "ends": 30.0}[kind]
        return np.asarray(scale * draw.normal(size=shape), dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if kind == "ends":
            return draw.choice(np.array([limits.min, limits.max], dtype), shape)
        end = 10 if kind == "random" else min(2**31, limits.max)
        start = max(limits.min, -end) if kind == "large" else 0
        return draw.integers(start, end, shape).astype(dtype)
    if dtype.kind == "b":
        return draw.integers(0, 2, shape).astype(bool)
    return array


def _are_other(old: Outputs, new: Outputs) -> bool:
    """Check whether outputs differ; floats of Inf and NaN say nothing."""
    return len(old) != len(new) or any(map(_is_other, old, new))


def _is_other(old: Any, new: Any) -> bool:
    if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):
        return type(old) is not type(new)
    if old.shape != new.shape or old.dtype != new.dtype:
        return True
    if old.dtype.kind != "f":
        return not np.array_equal(old, new)
    if not (np.isfinite(old).all() and np.isfinite(new).all()):
        return False
    with np.errstate(over="ignore"):
        gap = np.abs(old.astype(np.float64) - new).max(initial=0)
    return bool(gap > NOISE * max(np.abs(old.astype(np.float64)).max(initial=0), 1e-6))


def verdict(old: onnx.ModelProto, new: onnx.ModelProto, feed: Feed) -> str:
    """Return what the proof says of two models; the original ran at the extents of the inputs."""
    shapes = {name: array.shape for name, array in feed.items()}
    return proof_report(Program.of(old, None), Program.of(new, None), [{}], shapes).verdict
