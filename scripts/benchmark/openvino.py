"""OpenVINO on the original, as a rival."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmark.one_process import Pair, paired
from benchmark.report import Cell
from widthfold_onnx.options import Provider, RuntimeOptions, Shapes, VerifyOptions
from widthfold_onnx.runtime.clock import Clock, Run
from widthfold_onnx.runtime.inputs.input_sets import timed_inputs
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Feeds, Session, open_session
from widthfold_onnx.runtime.settings import run_of

SESSIONS = 4
"""Sessions that have copies of the inputs: two at each level."""


@cache
def installed() -> bool:
    """True if OpenVINO can be compared with; print a warning if not."""
    is_installed = find_spec("openvino") is not None
    if not is_installed:
        print("OpenVINO is NOT compared: pip install 'widthfold-onnx[bench]'", file=sys.stderr)
    return is_installed


def against_openvino(model: Path, shapes: Shapes, budget: float, threads: int = 1) -> Cell:
    """The original in ONNX Runtime, at its better level, against the original in OpenVINO.

    As many threads, the same inputs in turn, alternating in one process. With one thread each,
    processor time is compared, as in the other columns: on a busy machine a run waits for a core.

    Raises:
        UnverifiedError: the original does not run in ONNX Runtime.
    """
    if not installed():
        return Cell(note="not installed")
    options = RuntimeOptions(provider=Provider.CPU, threads=threads)
    sessions = at_levels(model, options)
    first = sessions[Level.ALL][0]
    inputs = in_turn(first, find_shapes(first, shapes))
    runs = {
        level: [run_of(session, inputs) for session in pair] for level, pair in sessions.items()
    }
    return openvino_cell(model, inputs, fastest(runs, options), budget, options)


def in_turn(session: Session, shapes: Shapes) -> Sequence[Feeds]:
    """Return random inputs that take turns.

    A processor learns the branches that the same input takes in every round: ONNX Runtime's PRelu
    of one image of 24x24 is twice as fast then.
    """
    return timed_inputs(session, shapes, VerifyOptions()).shared(SESSIONS)


def at_levels(model: Path, options: RuntimeOptions) -> dict[Level, list[Session]]:
    """Open two sessions of a model at each level of the runtime that may suit it best.

    Raises:
        UnverifiedError: it does not load.
    """
    levels = (Level.ALL, Level.EXTENDED)
    return {level: [open_session(model, options, level) for _ in range(2)] for level in levels}


def fastest(runs: Mapping[Level, Sequence[Run]], options: RuntimeOptions) -> Sequence[Run]:
    """Return the two runs of the level that suits a model best."""
    first, second = (runs[level] for level in (Level.ALL, Level.EXTENDED))
    both = paired(first[0], second[0], first[1], budget=1, clock=clock_of(options))
    return first if both.ratio < 1 else second


def clock_of(options: RuntimeOptions) -> Clock:
    """Return the clock that is fair to both runtimes: OpenVINO need not work in our thread."""
    return time.process_time_ns if options.threads == 1 else time.perf_counter_ns


def openvino_cell(
    model: Path,
    inputs: Sequence[Feeds],
    runs: Sequence[Run],
    budget: float,
    options: RuntimeOptions,
) -> Cell:
    """Time a model in OpenVINO against two runs of it in ONNX Runtime."""
    if not installed():
        return Cell(note="not installed")
    original, copy = runs
    try:
        rival = _openvino(model, inputs, options.threads)
    except Exception as error:  # whatever it raises on a model that it does not take
        return Cell(note=f"does not run: {' '.join(str(error).split())}")
    return cell(paired(original, rival, copy, budget=budget, clock=clock_of(options)))


def cell(pairing: Pair) -> Cell:
    """Return what a timing in one process says."""
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


def _openvino(model: Path, inputs: Sequence[Feeds], threads: int) -> Run:
    import openvino

    core = openvino.Core()
    graph = core.read_model(model)
    graph.reshape({name: list(array.shape) for name, array in inputs[0].items()})
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled, requests = core.compile_model(graph, "CPU", options), []
    for feeds in inputs:
        request = compiled.create_infer_request()
        for name, array in feeds.items():
            request.set_tensor(name, openvino.Tensor(np.require(array, requirements="C")))
        request.infer()
        requests.append(request)
    return lambda count: requests[count % len(requests)].infer()
