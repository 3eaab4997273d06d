"""OpenVINO on the original, as the rival of bench.py."""

from __future__ import annotations

import sys
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from bench_report import Cell
from one_process import paired

from widthfold_onnx.options import Provider, RuntimeOptions, Shapes
from widthfold_onnx.runtime.clock import Run
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.sessions.session import Level, open_session


@cache
def installed() -> bool:
    """Whether it can be compared with; says so loudly, once, if not."""
    found = find_spec("openvino") is not None
    if not found:
        print("OpenVINO is NOT compared: pip install 'widthfold-onnx[bench]'", file=sys.stderr)
    return found


def against_openvino(model: Path, shapes: Shapes, budget: float, threads: int = 1) -> Cell:
    """The original in ONNX Runtime, at its better level, against the original in OpenVINO.

    As many threads, the same inputs, alternating in one process. With one thread each, processor
    time is compared, as in the other columns: on a busy machine a run waits for a core.

    Raises:
        UnverifiedError: the original does not run in ONNX Runtime.
    """
    if not installed():
        return Cell(note="not installed")
    # of the whole process: OpenVINO need not work in the thread that calls
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    runs: dict[Level, list[Run]] = {}
    for level in (Level.ALL, Level.EXTENDED):
        how = RuntimeOptions(provider=Provider.CPU, threads=threads)
        sessions = [open_session(model, how, level) for _ in range(2)]
        given = find_shapes(sessions[0], shapes)
        feeds = random_feeds(sessions[0].inputs, 0, given)
        runs[level] = [_ignoring_rounds(session.bound(feeds)) for session in sessions]
    both = paired(
        *(runs[level][0] for level in (Level.ALL, Level.EXTENDED, Level.ALL)), budget=1, clock=clock
    )
    original, copy = runs[Level.ALL if both.ratio < 1 else Level.EXTENDED]
    try:
        rival = _openvino(model, feeds, threads)
    except Exception as error:  # whatever it raises on a model that it does not take
        return Cell(note=f"does not run: {' '.join(str(error).split())}")
    pairing = paired(original, rival, copy, budget=budget, clock=clock)
    medians = np.median(pairing.samples, axis=1) * 1e3
    return Cell(
        original_ms=float(medians[0]),
        ms=float(medians[1]),
        ratio=pairing.ratio,
        low=pairing.low,
        high=pairing.high,
        control=pairing.control,
        note=pairing.verdict,
    )


def _ignoring_rounds(once: object) -> Run:
    assert callable(once)
    return lambda count: once()


def _openvino(model: Path, feeds: dict[str, np.ndarray], threads: int) -> Run:
    import openvino

    core = openvino.Core()
    graph = core.read_model(model)
    graph.reshape({name: list(array.shape) for name, array in feeds.items()})
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(graph, "CPU", options).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(np.ascontiguousarray(array)))
    request.infer()
    return lambda count: request.infer()
