"""Time every layer in every form against the layer as it is, through ONNX Runtime.

The layer as it is runs at the better of cuDNN's two heuristics, a form at the first one only: a
gain is rather measured too small than too large. Runs alternate in one process, with a second copy
of the layer as control (`runtime.clock`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from gpu.graphs import Port, model, serialized, to_last
from gpu.layers import AS_IS, Array, Form, Layer, forms
from gpu.results import us
from gpu.stage import Opened, Stage, noise, ratio
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.session import Bound, Placed

SEARCHES = ("HEURISTIC", "EXHAUSTIVE")

WRONG = 1e-2
"""Largest difference / largest magnitude that rounding to float16 or TF32 explains."""

NOT_FINITE = 1e9
"""The difference where one is no number."""

HOPELESS = 3.0
"""A form is left out if its multiply-adds alone take so many times as long as the layer, at the
rate of the fastest matrix product."""


def run_grid(stage: Stage, part: str, chosen: Sequence[Layer], rate: float | None) -> None:
    """Measure the layers, or as many as there is time for; results of earlier runs stay.

    Args:
        stage: the provider, the results and the time.
        part: name of the part in the results.
        chosen: the layers, the most important first; all of one element type.
        rate: multiply-adds per second of a large matrix product, None where it is not known.
    """
    groups = [(layer, last) for layer in chosen for last in (False, True)]
    groups.sort(
        key=lambda group: stage.results.has_failed(part, **_about(group[0], group[1], AS_IS))
    )
    judge = Judge(stage, chosen[0].dtype)
    for layer, last in groups:
        if stage.seconds_left <= 0:
            break
        if missing := _missing(stage, part, layer, last):
            with stage.guarded(part, **_about(layer, last, AS_IS)):
                _group(stage, part, layer, last, missing, judge, rate)
    if stage.seconds_left <= 0:
        unmeasured = sum(len(_missing(stage, part, *group)) for group in groups)
        stage.results.add(part, unmeasured=unmeasured, reason="no time was left")


def _missing(stage: Stage, part: str, layer: Layer, last: bool) -> list[Form]:
    """Return the forms, the layer as it is among them, that have no result; failed ones last."""
    every = (AS_IS, *forms(layer))
    missing = [f for f in every if stage.results.row(part, **_about(layer, last, f)) is None]
    failed = stage.results.has_failed
    return sorted(missing, key=lambda form: failed(part, **_about(layer, last, form)))


def _group(
    stage: Stage,
    part: str,
    layer: Layer,
    last: bool,
    missing: Sequence[Form],
    judge: Judge,
    rate: float | None,
) -> None:
    """Measure forms of one layer between neighbours of one layout."""
    weight = noise(layer.weight_shape, layer.dtype)
    shape = layer.shapes[0]
    x = noise([shape[i] for i in to_last(len(shape) - 2)] if last else shape, layer.dtype)
    plain = model(layer, weight, AS_IS, last=last)
    measured = stage.results.row(part, **_about(layer, last, AS_IS))
    base, feeds, options, fields = _best(stage, plain, x, last, measured)
    original, copy = base.on(feeds), stage.open(plain, options).on(feeds)
    if measured is None:
        measured = stage.results.add(part, **_about(layer, last, AS_IS), **fields)
    for form in missing:
        if form == AS_IS or stage.seconds_left <= 0:
            continue
        about = {**_about(layer, last, form), "macs": form.macs(layer)}
        if rate is not None and form.macs(layer) / rate > HOPELESS * measured["us"] * 1e-6:
            stage.results.add(part, **about, skipped="its multiply-adds alone would take longer")
            continue
        with stage.guarded(part, **about):
            opened = stage.open(model(layer, weight, form, last=last), stage.options(last=last))
            other = opened.on(feeds)
            error = judge.apart(original, other)
            if error > WRONG:
                stage.results.add(part, **about, wrong=error)
                continue
            timed = ratio(stage.pair(original, other, copy))
            about |= {"difference": error, "transposes": opened.transposes}
            stage.results.add(part, **about, **timed)


def _best(
    stage: Stage, plain: bytes, x: Array, last: bool, measured: dict[str, Any] | None
) -> tuple[Opened, dict[str, Placed], dict[str, str], dict[str, Any]]:
    """Return the layer as it is at the better search, its input, options and fields of its row."""
    searches = SEARCHES if stage.provider is Provider.CUDA else ("",)
    if measured is not None:
        searches = (measured["search"],)
    tried = []
    feeds: dict[str, Placed] = {}
    for search in searches:
        chosen = {"cudnn_conv_algo_search": search} if search else {}
        options = stage.options(last=last, **chosen)
        opened = stage.open(plain, options)
        feeds = feeds or opened.session.placed({"x": x})
        times = stage.seconds(opened.on(feeds))
        tried.append((float(np.median(times)), search, opened, options, times))
    median, search, opened, options, times = min(tried, key=lambda item: item[0])
    fields = {
        "us": round(median * 1e6, 3),
        "search": search,
        "searches_us": {name: round(m * 1e6, 3) for m, name, *_ in tried if name},
        "transposes": opened.transposes,
        "samples_us": {"base": us(times)},
    }
    return opened, feeds, options, fields


def _about(layer: Layer, last: bool, form: Form) -> dict[str, Any]:
    return {
        "layer": str(layer),
        "dtype": layer.dtype,
        "layout": "nhwc" if last else "nchw",
        "form": form.name,
        "shape": list(layer.shapes[0]),
        "weight": list(layer.weight_shape),
        "stride": layer.stride,
        "group": layer.group,
        "bytes": layer.bytes,
        "layer_macs": layer.macs,
    }


class Judge:
    """A comparison of two outputs on the device, since they are too large to fetch.

    Args:
        stage: the provider.
        dtype: numpy's name of the element type.

    Raises:
        UnverifiedError: the provider does not run the comparison.
    """

    def __init__(self, stage: Stage, dtype: str) -> None:
        nodes = [
            helper.make_node("Cast", ["a"], ["p"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["b"], ["q"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["p", "q"], ["r"]),
            helper.make_node("Abs", ["r"], ["s"]),
            helper.make_node("Abs", ["p"], ["t"]),
            helper.make_node("ReduceMax", ["s"], ["apart"], keepdims=0),
            helper.make_node("ReduceMax", ["t"], ["largest"], keepdims=0),
        ]
        inputs = [(name, dtype, None) for name in "ab"]
        outputs: list[Port] = [(name, "float32", []) for name in ("apart", "largest")]
        # TensorRT takes no inputs of unknown shape; CUDA can read its outputs.
        provider = Provider.CPU if stage.provider is Provider.CPU else Provider.CUDA
        comparison = serialized(nodes, inputs, outputs, {})
        self._opened = stage.open(comparison, stage.options(), provider)

    def apart(self, original: Bound, other: Bound) -> float:
        """Run both; return the largest difference / largest magnitude of the first."""
        original()
        other()
        (a,), (b,) = original.results().values(), other.results().values()
        compare = self._opened.on({"a": a, "b": b})
        compare()
        apart, largest = map(_number, compare.results().values())
        return apart / largest if np.isfinite(apart) and 0 < largest < np.inf else NOT_FINITE


def _number(value: Placed) -> float:
    array: Any = value.numpy()
    return float(array)
