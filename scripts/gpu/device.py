"""Check that the device computes right, and measure its ceilings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from gpu.graphs import serialized
from gpu.results import of, read, us
from gpu.stage import Stage, noise
from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session

CHAINS = (8, 72)
"""Nodes of the two chains from whose difference the time of a node is taken."""

TOLERANCE = {"float32": 1e-5, "float16": 5e-3}
"""Largest difference / largest magnitude: float32 without TF32, and float16 against float32."""


def check(stage: Stage) -> None:
    """Compare one Conv on the device with the CPU, in both types.

    Raises:
        UnverifiedError: the provider cannot be used; the message names the missing part.
        CheckFailedError: the device computes something else.
    """
    for dtype, tolerance in TOLERANCE.items():
        x, w = noise((2, 3, 32, 64), dtype), noise((8, 3, 3, 3), dtype)
        whole = x.astype("float32"), w.astype("float32")
        path = stage.folder / "check.onnx"
        path.write_bytes(_model("Conv", [x.shape], dtype, [w], pads=[1] * 4))
        # Float16 by tensor cores, as it is timed: without TF32 CUDA would not use them.
        session = open_session(
            path, RuntimeOptions(provider=stage.provider), tf32=dtype == "float16"
        )
        computed = session.run({"x0": x})["y"]
        path.write_bytes(_model("Conv", [x.shape], "float32", [whole[1]], pads=[1] * 4))
        reference = open_session(path, RuntimeOptions(provider=Provider.CPU), Level.DISABLED)
        expected = reference.run({"x0": whole[0]})["y"]
        error = float(np.abs(computed.astype("float32") - expected).max() / np.abs(expected).max())
        if not error <= tolerance:  # nor if it is no number
            raise CheckFailedError(
                f"a {dtype} Conv on {stage.provider} differs by {error:.1e} of its largest value "
                f"from the CPU; {tolerance:.0e} is allowed, so nothing is measured"
            )
        stage.results.add("conv", dtype=dtype, error=error, tolerance=tolerance)


def ceilings(stage: Stage) -> None:
    """Measure bandwidth, peak and launch overhead."""
    steps: list[tuple[dict[str, str], Callable[[], None]]] = []
    for dtype in TOLERANCE:
        kind = {"dtype": dtype}
        steps += [
            ({"what": "copy"} | kind, partial(_bandwidth, stage, "copy", "Neg", dtype)),
            (
                {"what": "transpose"} | kind,
                partial(_bandwidth, stage, "transpose", "Transpose", dtype, perm=[0, 2, 1]),
            ),
            ({"what": "product"} | kind, partial(_peak, stage, dtype)),
        ]
    size = stage.scale.cached_bytes
    steps += [
        ({"what": "cached"}, partial(_per_node, stage, "cached", size // 4, bytes=2 * size)),
        ({"what": "launch"}, partial(_per_node, stage, "launch", 1)),
    ]
    for about, step in steps:
        if stage.seconds_left > 0 and not stage.results.row("ceilings", **about):
            with stage.guarded("ceilings", **about):
                step()


def rate(folder: Path) -> float | None:
    """Return the multiply-adds per second of the fastest product; None where none ran."""
    rows = of(read(folder), "ceilings")
    rates = [row["macs"] / row["us"] * 1e6 for row in rows if "macs" in row]
    return max(rates, default=None)


def _bandwidth(stage: Stage, what: str, op: str, dtype: str, **attributes: Any) -> None:
    """Time an operator that reads and writes every byte once."""
    size = stage.scale.copy_bytes
    shape = (2, 8, size // np.dtype(dtype).itemsize // 16)
    times = _seconds(stage, _model(op, [shape], dtype, [], **attributes), shape, dtype)
    _say(stage, what, times, dtype=dtype, bytes=2 * size)


def _peak(stage: Stage, dtype: str) -> None:
    """Time a square matrix product; float32 in TF32, the default of the CUDA provider."""
    n = stage.scale.product
    model = _model("MatMul", [(n, n)], dtype, [noise((n, n), dtype)])
    _say(stage, "product", _seconds(stage, model, (n, n), dtype), dtype=dtype, macs=n**3)


def _per_node(stage: Stage, what: str, elements: int, **fields: int) -> None:
    """Time a node by the difference of two chains; its data stays in the last cache."""
    shape = (elements,)
    models = (_model("Neg", [shape], "float32", [], repeat=nodes) for nodes in CHAINS)
    short, long = (np.median(_seconds(stage, model, shape, "float32")) for model in models)
    _say(stage, what, np.array([(long - short) / (CHAINS[1] - CHAINS[0])]), **fields)


def _seconds(
    stage: Stage, model: bytes, shape: tuple[int, ...], dtype: str
) -> npt.NDArray[np.float64]:
    opened = stage.open(model, stage.options())
    return stage.seconds(opened.on({"x0": noise(shape, dtype)}))


def _say(stage: Stage, what: str, times: npt.NDArray[np.float64], **fields: Any) -> None:
    median = round(float(np.median(times)) * 1e6, 3)
    stage.results.add("ceilings", what=what, us=median, samples_us=us(times), **fields)


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
