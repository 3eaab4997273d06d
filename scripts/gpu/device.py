"""Check that the device computes right, and measure its ceilings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
"""Nodes of the two chains from whose difference the time of a node is taken."""

TOLERANCE = {"float32": 1e-5, "float16": 5e-3}
"""Largest difference / largest magnitude: float32 without TF32, and float16 against float32."""


def check(stage: Stage) -> None:
    """Compare one Conv on the device with the CPU, in both types.

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
    """Measure bandwidth, peak, launch overhead, and the difference of identical models."""
    steps: dict[tuple[str, str | None], Callable[[], None]] = {}
    for dtype in TOLERANCE:
        steps["copy", dtype] = partial(_bandwidth, stage, "copy", "Neg", dtype)
        steps["transpose", dtype] = partial(
            _bandwidth, stage, "transpose", "Transpose", dtype, perm=[0, 2, 1]
        )
        steps["product", dtype] = partial(_peak, stage, dtype)
    steps["cached", None] = partial(_cached, stage)
    steps["launch", None] = partial(_launch, stage, "launch", {})
    if stage.provider is Provider.CUDA:
        recorded = stage.options(enable_cuda_graph="1")
        steps["recorded launch", None] = partial(_launch, stage, "recorded launch", recorded)
    steps["identical", None] = partial(_identical, stage)
    for (what, kind), step in steps.items():
        about = {"what": what} | ({} if kind is None else {"dtype": kind})
        if stage.left > 0 and not stage.results.known("ceilings", **about):
            with stage.guarded("ceilings", **about):
                step()


def rate(folder: Path) -> float | None:
    """Return the multiply-adds per second of the fastest product; None where none ran."""
    found = [row["macs"] / row["us"] * 1e6 for row in read(folder) if "macs" in row and "us" in row]
    return max(found, default=None)


def _bandwidth(stage: Stage, what: str, op: str, dtype: str, **attributes: Any) -> None:
    """Time an operator that reads and writes every byte once."""
    size = stage.scale.copy_bytes
    count = size // np.dtype(dtype).itemsize
    shape = (2, 8, count // 16)
    run = _run(stage, _model(op, [shape], dtype, [], **attributes), shape, dtype)
    times = stage.seconds(run)
    _say(stage, what, times, dtype=dtype, bytes=2 * size)


def _peak(stage: Stage, dtype: str) -> None:
    """Time a square matrix product; float32 in TF32, the default of the CUDA provider."""
    n = stage.scale.product
    run = _run(stage, _model("MatMul", [(n, n)], dtype, [noise((n, n), dtype)]), (n, n), dtype)
    times = stage.seconds(run)
    _say(stage, "product", times, dtype=dtype, macs=n**3)


def _cached(stage: Stage) -> None:
    """Time bytes that lie in the last cache, by the difference of two chains."""
    shape = (stage.scale.cached_bytes // 4,)
    short, long = (_chain(stage, nodes, shape, {}) for nodes in CHAINS)
    per_node = (np.median(long) - np.median(short)) / (CHAINS[1] - CHAINS[0])
    _say(stage, "cached", np.array([per_node]), bytes=2 * stage.scale.cached_bytes)


def _launch(stage: Stage, name: str, options: dict[str, str]) -> None:
    """Time a node that does nothing, and a run of a few of them."""
    short, long = (_chain(stage, nodes, (1,), options) for nodes in CHAINS)
    per_node = (np.median(long) - np.median(short)) / (CHAINS[1] - CHAINS[0])
    _say(stage, f"{name}, run of {CHAINS[0]} nodes", short)
    _say(stage, name, np.array([per_node]))


def _chain(
    stage: Stage, nodes: int, shape: tuple[int, ...], options: dict[str, str]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    model = _model("Neg", [shape], "float32", [], repeat=nodes)
    run = _run(stage, model, shape, "float32", options)
    return stage.seconds(run)


def _identical(stage: Stage) -> None:
    """Time a model against itself: a ratio must exceed that."""
    shape = (16, 16, 64, 64)
    model = _model("Conv", [shape], "float32", [noise((16, 16, 3, 3), "float32")], pads=[1] * 4)
    runs = [_run(stage, model, shape, "float32") for _ in range(3)]
    pairing = stage.pair(runs[0], runs[1], runs[2])
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
    """Return one operator, or a chain of it, of inputs x0, x1, ... and constants; it makes y."""
    inputs = [(f"x{i}", dtype, shape) for i, shape in enumerate(shapes)]
    named = {f"c{i}": array for i, array in enumerate(constants)}
    steps = [*(f"v{i}" for i in range(1, repeat)), "y"]
    nodes, before = [], [*(name for name, *_ in inputs), *named]
    for step in steps:
        nodes.append(helper.make_node(op, before, [step], **attributes))
        before = [step]
    return serialized(nodes, inputs, [("y", dtype, None)], named)
