"""Part 3: every layer in every form against the layer as it is, through ONNX Runtime.

The layer as it is runs at the better of cuDNN's two heuristics, a form at the first one only: what
is measured is rather too little than too much. Runs alternate in one process, with a second copy of
the layer as control (`runtime.clock`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu.compare import WRONG, Judge
from gpu.layers import AS_IS, TO_LAST, Form, Layer, forms, model
from gpu.results import us
from gpu.stage import Opened, Stage, noise, ratio
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.binding import Placed

CHANNELS = ((1, 1), (1, 4), (1, 16), (3, 16), (3, 64), (8, 8), (32, 1))
KERNELS = (((5, 1), 1), ((1, 5), 1), ((3, 3), 1), ((7, 7), 2), ((1, 31), 1))
DTYPES = ("float16", "float32")
SAMPLES = 64
"""The batch: all factors divide it."""

SEARCHES = ("HEURISTIC", "EXHAUSTIVE")
CHOICE_SECONDS = 0.03
MEASURED_SHARE = 0.6
"""Of the time that is left per form; the rest is for loading it."""

HOPELESS = 3.0
"""A form is left out if its multiply-adds alone take so many times as long as the layer, at the
rate of the matrix product of part 2."""


def layer_of(
    channels: tuple[int, int], kernel: tuple[int, int], stride: int, dtype: str, size: int
) -> Layer:
    """A layer whose input and output take about so many bytes together, twice as wide as high."""
    per_position = (channels[0] + channels[1] / stride**2) * np.dtype(dtype).itemsize
    height = math.sqrt(size / per_position / SAMPLES / 2)
    rows = max(64, round(height / 64) * 64)
    return Layer(channels, kernel, stride, dtype, (SAMPLES, rows, 2 * rows))


def layers(size: int) -> list[Layer]:
    """The grid, smallest channels in float16 first: time may be short."""
    return [
        layer_of(channels, kernel, stride, dtype, size)
        for dtype, channels, (kernel, stride) in itertools.product(DTYPES, CHANNELS, KERNELS)
    ]


def run_grid(stage: Stage, chosen: Sequence[Layer], rate: float | None) -> None:
    """Measure all layers, or as many as there is time for.

    Args:
        stage: where.
        chosen: the layers, most important first.
        rate: multiply-adds per second of a large matrix product, where that is known.
    """
    groups = [(layer, last) for layer in chosen for last in (False, True)]
    todo = sum(1 + len(list(forms(layer))) for layer, _ in groups)
    judges = {dtype: Judge(stage, dtype) for dtype in DTYPES}
    for layer, last in groups:
        if stage.left <= 0:
            stage.results.add("grid", unmeasured=todo, reason="no time was left")
            return
        found = list(forms(layer))
        fields = _fields(layer, last)
        with stage.guarded("grid", **fields, form=AS_IS.name):
            _group(stage, layer, last, found, todo, judges[layer.dtype], rate)
        todo -= 1 + len(found)


def _group(
    stage: Stage,
    layer: Layer,
    last: bool,
    found: Sequence[Form],
    todo: int,
    judge: Judge,
    rate: float | None,
) -> None:
    """One layer between neighbours of one layout."""
    weight = noise(layer.weight_shape, layer.dtype)
    shape = layer.shapes[0]
    x = noise([shape[i] for i in TO_LAST] if last else shape, layer.dtype)
    plain = model(layer, weight, AS_IS, last=last)
    base, feeds, options, fields = _best(stage, plain, x, last)
    one, copy = base.on(feeds), stage.open(plain, options).on(feeds)
    row = stage.results.add("grid", **_fields(layer, last), form=AS_IS.name, **fields)
    for form in found:
        about = {**_fields(layer, last), "form": form.name, "macs": form.macs(layer)}
        if rate is not None and form.macs(layer) / rate > HOPELESS * row["us"] * 1e-6:
            stage.results.add("grid", **about, reason="its multiply-adds alone would take longer")
        elif stage.left <= 0:
            stage.results.add("grid", **about, reason="no time was left")
        else:
            with stage.guarded("grid", **about):
                opened = stage.open(model(layer, weight, form, last=last), stage.options(last=last))
                other = opened.on(feeds)
                error = judge.apart(one, other)
                if error > WRONG:
                    stage.results.add("grid", **about, wrong=error)
                    continue
                pairing = stage.pair(one, other, copy, _seconds(stage, todo))
                stage.results.add(
                    "grid",
                    **about,
                    difference=error,
                    transposes=opened.transposes,
                    **ratio(pairing),
                )
        todo -= 1


def _best(
    stage: Stage, plain: bytes, x: np.ndarray[Any, Any], last: bool
) -> tuple[Opened, dict[str, Placed], dict[str, str], dict[str, Any]]:
    """The layer as it is at the better search, its input, its options and what its row says."""
    searches = SEARCHES if stage.provider is Provider.CUDA else ("",)
    tried = []
    feeds: dict[str, Placed] = {}
    for search in searches:
        chosen = {"cudnn_conv_algo_search": search} if search else {}
        options = stage.options(last=last, **chosen)
        opened = stage.open(plain, options)
        feeds = feeds or opened.session.placed({"x": x})
        times = stage.seconds(opened.on(feeds), CHOICE_SECONDS)
        tried.append((float(np.median(times)), search, opened, options, times))
    median, search, opened, options, times = min(tried, key=lambda item: item[0])
    return (
        opened,
        feeds,
        options,
        {
            "us": round(median * 1e6, 3),
            "search": search,
            "searches_us": {name: round(m * 1e6, 3) for m, name, *_ in tried if name},
            "transposes": opened.transposes,
            "samples_us": {"base": us(times)},
        },
    )


def _fields(layer: Layer, last: bool) -> dict[str, Any]:
    return {
        "layer": str(layer),
        "dtype": layer.dtype,
        "layout": "nhwc" if last else "nchw",
        "shape": list(layer.shapes[0]),
        "weight": list(layer.weight_shape),
        "stride": layer.stride,
        "bytes": layer.bytes,
        "layer_macs": layer.macs,
    }


def _seconds(stage: Stage, todo: int) -> float:
    fewest, most = stage.scale.trial_seconds
    return min(max(stage.left / max(todo, 1) * MEASURED_SHARE, fewest), most)
