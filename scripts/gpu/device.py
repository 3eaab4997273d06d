"""Parts 1 and 2: does the device compute right, and what are its ceilings?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from gpu.graphs import serialized
from gpu.results import read, us
from gpu.stage import Stage, noise, ratio
from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.session import Level, open_session

CHAINS = (8, 72)
"""Nodes of the two chains whose difference is the time of a node."""

TOLERANCE = {"float32": 1e-5, "float16": 5e-3}
"""Largest difference / largest magnitude: float32 without TF32, and float16 against float32."""


def check(stage: Stage) -> None:
    """Part 1: one Conv on the device against the CPU, in both types.

    Raises:
        UnverifiedError: the provider cannot be used; says what is missing.
        CheckFailedError: the device computes something else.
    """
    for dtype, tolerance in TOLERANCE.items():
        x, w = noise((2, 3, 32, 64), dtype), noise((8, 3, 3, 3), dtype)
        whole = x.astype("float32"), w.astype("float32")
        path = stage.folder / "check.onnx"
        path.write_bytes(_model("Conv", [x.shape], dtype, [w], pads=[1] * 4))
        # Float16 by tensor cores, as it is timed: without TF32 CUDA would not use them.
        session = open_session(path, stage.provider, tf32=dtype == "float16")
        found = session.run({"x0": x})["y"]
        path.write_bytes(_model("Conv", [x.shape], "float32", [whole[1]], pads=[1] * 4))
        wanted = open_session(path, Provider.CPU, Level.DISABLED).run({"x0": whole[0]})["y"]
        error = float(np.abs(found.astype("float32") - wanted).max() / np.abs(wanted).max())
        if not error <= tolerance:  # nor if it is no number
            raise CheckFailedError(
                f"a {dtype} Conv on {stage.provider} differs by {error:.1e} of its largest value "
                f"from the CPU; {tolerance:.0e} is allowed, so nothing is measured"
            )
        stage.results.add("conv", dtype=dtype, error=error, tolerance=tolerance)


def ceilings(stage: Stage) -> None:
    """Part 2: bandwidth, peak, launch overhead, and what identical models differ by."""
    for dtype in ("float16", "float32"):
        with stage.guarded("ceilings", what="copy", dtype=dtype):
            _bandwidth(stage, "copy", "Neg", dtype)
        with stage.guarded("ceilings", what="transpose", dtype=dtype):
            _bandwidth(stage, "transpose", "Transpose", dtype, perm=[0, 2, 1])
        with stage.guarded("ceilings", what="product", dtype=dtype):
            _peak(stage, dtype)
    with stage.guarded("ceilings", what="cached"):
        _cached(stage)
    for recorded in (False, True) if stage.provider is Provider.CUDA else (False,):
        with stage.guarded("ceilings", what="recorded launch" if recorded else "launch"):
            _launch(stage, recorded=recorded)
    with stage.guarded("ceilings", what="identical"):
        _identical(stage)


def rate(folder: Path) -> float | None:
    """Multiply-adds per second of the fastest product of part 2; None where none ran."""
    found = [row["macs"] / row["us"] * 1e6 for row in read(folder) if "macs" in row and "us" in row]
    return max(found, default=None)


def _bandwidth(stage: Stage, what: str, op: str, dtype: str, **attributes: Any) -> None:
    """An operator that reads and writes every byte once."""
    size = stage.scale.copy_bytes
    count = size // np.dtype(dtype).itemsize
    shape = (2, 8, count // 16)
    run = _run(stage, _model(op, [shape], dtype, [], **attributes), shape, dtype)
    times = stage.seconds(run, 20 * stage.scale.trial_seconds[0])
    _say(stage, what, times, dtype=dtype, bytes=2 * size)


def _peak(stage: Stage, dtype: str) -> None:
    """A square matrix product; float32 in TF32, the default of the CUDA provider."""
    n = stage.scale.product
    run = _run(stage, _model("MatMul", [(n, n)], dtype, [noise((n, n), dtype)]), (n, n), dtype)
    times = stage.seconds(run, 20 * stage.scale.trial_seconds[0])
    _say(stage, "product", times, dtype=dtype, macs=n**3)


def _cached(stage: Stage) -> None:
    """Bytes that lie in the last cache, by the difference of two chains."""
    shape = (stage.scale.cached_bytes // 4,)
    short, long = (_chain(stage, nodes, shape, {}) for nodes in CHAINS)
    per_node = (np.median(long) - np.median(short)) / (CHAINS[1] - CHAINS[0])
    _say(stage, "cached", np.array([per_node]), bytes=2 * stage.scale.cached_bytes)


def _launch(stage: Stage, *, recorded: bool) -> None:
    """Time of a node that does nothing, and of a run without nodes; by default and recorded."""
    options = stage.options(enable_cuda_graph="1") if recorded else {}
    short, long = (_chain(stage, nodes, (1,), options) for nodes in CHAINS)
    per_node = (np.median(long) - np.median(short)) / (CHAINS[1] - CHAINS[0])
    name = "recorded launch" if recorded else "launch"
    _say(stage, name, np.array([per_node]))
    _say(stage, f"{name}, run of {CHAINS[0]} nodes", short)


def _chain(
    stage: Stage, nodes: int, shape: tuple[int, ...], options: dict[str, str]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    model = _model("Neg", [shape], "float32", [], repeat=nodes)
    run = _run(stage, model, shape, "float32", options)
    return stage.seconds(run, 5 * stage.scale.trial_seconds[0])


def _identical(stage: Stage) -> None:
    """A model against itself: what a ratio must exceed."""
    shape = (16, 16, 64, 64)
    model = _model("Conv", [shape], "float32", [noise((16, 16, 3, 3), "float32")], pads=[1] * 4)
    runs = [_run(stage, model, shape, "float32") for _ in range(3)]
    pairing = stage.pair(runs[0], runs[1], runs[2], 10 * stage.scale.trial_seconds[0])
    stage.results.add("ceilings", what="identical", **ratio(pairing))


def _run(
    stage: Stage,
    model: bytes,
    shape: tuple[int, ...],
    dtype: str,
    options: dict[str, str] | None = None,
) -> Any:
    opened = stage.open(model, stage.options() if options is None else stage.options() | options)
    return opened.on({"x0": noise(shape, dtype)})


def _say(stage: Stage, what: str, times: Any, **fields: Any) -> None:
    median = float(np.median(times))
    stage.results.add(
        "ceilings", what=what, us=round(median * 1e6, 3), samples_us=us(times), **fields
    )


def _model(
    op: str,
    shapes: list[tuple[int, ...]],
    dtype: str,
    constants: list[Any],
    *,
    repeat: int = 1,
    **attributes: Any,
) -> bytes:
    """Inputs x0, x1, ... and constants into one operator, or a chain of it; the output is y."""
    inputs = [(f"x{i}", dtype, shape) for i, shape in enumerate(shapes)]
    named = {f"c{i}": array for i, array in enumerate(constants)}
    steps = [*(f"v{i}" for i in range(1, repeat)), "y"]
    nodes, before = [], [*(name for name, *_ in inputs), *named]
    for step in steps:
        nodes.append(helper.make_node(op, before, [step], **attributes))
        before = [step]
    return serialized(nodes, inputs, [("y", dtype, None)], named)
