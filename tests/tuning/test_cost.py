"""Predictions for layers that are known to win or to lose, and laws of any cost."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.folding import read
from tests.small_models import STRIDED, build, conv, same
from tests.tuning.workloads.tool import workload_of
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.tuning.cost import Work, kernel_seconds, layer_seconds
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.targets import Target, load_target, names
from widthfold_onnx.tuning.workloads import ALIKE, Workload

CPU = load_target("cpu-avx512")
MARGIN = 1.25
EVERY = FoldOptions(max_channels=1 << 20)


def conv_workload(
    shape: list[int], weight: list[int], attributes: str, aim: Target = CPU
) -> Workload:
    """The only layer of a model with one Conv and a Relu behind it."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float{shape} x) => (float{["d"] * len(shape)} y) <float{weight} w, float[{weight[0]}] b>
    {{
        [conv] c = Conv <{attributes}> (x, w, b)
        y = Relu (c)
    }}""".replace("'", "")
    layers = Layers.of(read(build(text), EVERY), EVERY, {"x": tuple(shape)}, aim)
    (workload,) = layers.workloads.values()
    return workload


def gains(layer: Workload) -> dict[str, float]:
    """Predicted speed-up by axis, factor and lift, the best of each."""
    ratios: dict[str, float] = {}
    for form in layer.forms:
        key = msgspec.to_builtins(form.spec)
        name = f"{key['axis']} {key['factor']}{' lifted' if key['lift'] else ''}"
        ratios[name] = max(ratios.get(name, 0.0), layer.predicted_seconds / form.predicted_seconds)
    return ratios


# Measured gains, ONNX Runtime 1.31.1, one layer alone, one thread.
WINS = {
    "8 -> 8, 3x39: 2.1x": ([1, 8, 172, 264], [8, 8, 3, 39], same(3, 39), "width 4"),
    "32 -> 1, 7x3: 1.7x": ([1, 32, 172, 88], [1, 32, 7, 3], same(7, 3), "height 4"),
    "1 -> 1, 1x31: 4.7x": ([1, 1, 512, 512], [1, 1, 1, 31], same(1, 31), "width 16"),
    "1 -> 4, 3x3: 2.4x": ([1, 1, 640, 640], [4, 1, 3, 3], same(3, 3), "rank 1 lifted"),
    "1 -> 1, 5x1: 4.8x": ([1, 1, 512, 512], [1, 1, 5, 1], same(5, 1), "rank 1 lifted"),
    "1-D, 2 -> 2, 5 taps: 1.9x": ([1, 2, 16000], [2, 2, 5], same(5), "width 8 lifted"),
    "1-D, 32 -> 1, 7 taps: 1.5x": ([1, 32, 65536], [1, 32, 7], same(7), "width 16 lifted"),
    "1 -> 1, 3x3, batch 16: 4.7x": ([16, 1, 64, 64], [1, 1, 3, 3], same(3, 3), "batch 16"),
}

TRAPS = {
    "3 -> 64, 7x7 at stride 2": ([1, 3, 224, 224], [64, 3, 7, 7], STRIDED.format(3)),
    "4 -> 8, 3x3 at stride 2": ([1, 4, 640, 640], [8, 4, 3, 3], STRIDED.format(1)),
    "1-D, 3 taps": ([1, 1, 480000], [1, 1, 3], same(3)),
    "1-D, 5 taps": ([1, 1, 480000], [1, 1, 5], same(5)),
    "64 -> 64, 3x3": ([1, 64, 56, 56], [64, 64, 3, 3], same(3, 3)),
}


@pytest.mark.parametrize("case", WINS)
def test_what_is_known_to_win_is_predicted_to(case: str) -> None:
    shape, weight, attributes, form = WINS[case]
    assert gains(conv_workload(shape, weight, attributes))[form] > MARGIN


@pytest.mark.parametrize(("channels", "taps"), [(256, 31), (512, 31), (256, 4)])
def test_a_depthwise_layer_of_one_axis_is_predicted_to_gain_by_a_lift(channels, taps) -> None:
    """Measured 4.3x, 3.9x and 3.8x."""
    attributes = f"group = {channels}, {same(taps | 1)}"
    ratios = gains(conv_workload([1, channels, 1000], [channels, 1, taps], attributes))
    assert max(ratios, key=lambda name: ratios[name]) == "rank 1 lifted"
    assert ratios["rank 1 lifted"] > MARGIN


@pytest.mark.parametrize("case", TRAPS)
def test_no_form_of_a_trap_is_predicted_to_win(case: str) -> None:
    ratios = gains(conv_workload(*TRAPS[case]))
    assert max(ratios.values(), default=0.0) < MARGIN, ratios


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("case", ["3 -> 64, 7x7 at stride 2", "64 -> 64, 3x3"])
def test_no_target_falls_for_a_stem_or_a_wide_layer(case: str, name: str) -> None:
    ratios = gains(conv_workload(*TRAPS[case], aim=load_target(name)))
    assert max(ratios.values(), default=0.0) < MARGIN, ratios


def test_a_product_reads_a_weight_once_that_a_conv_reads_again() -> None:
    """Measured: an inverse STFT is 1.39 times as fast as a product, 1.17 times as a Conv."""
    work = Work(
        dtype="FLOAT",
        itemsize=4,
        channels=(2049, 4096),
        group=1,
        taps=1,
        rank=0,
        inputs=340 * 2049,
        outputs=340 * 4096,
    )
    assert kernel_seconds(replace(work, rank=1), CPU) > ALIKE * kernel_seconds(work, CPU)


def test_a_fold_that_moves_single_elements_is_predicted_to_lose() -> None:
    """Measured 1.36x for four columns and 0.35x for two rows by two columns."""
    ratios = gains(conv_workload([16, 1, 64, 64], [4, 1, 3, 3], same(3, 3)))
    assert ratios["width 4"] > 1 > ratios["height+width 4"]


def test_short_rows_are_moved_one_by_one_though_no_reshape_told_their_length() -> None:
    """The whole height becomes channels by a Transpose of the data as it is, rows of 8 or of 16."""
    seconds = {}
    for batch, width in ((8, 8), (4, 16)):
        layer = conv_workload([batch, 3, 6, 4, width], [5, 3, 1, 1, 1], same(1, 1, 1))
        seconds[width] = min(
            form.predicted_seconds
            for form in layer.forms
            if (key := msgspec.to_builtins(form.spec))["kind"] == "whole"
            and key["axis"] == "height"
        )
    scattered = 4 * 16 * 6 * 4 * (3 + 5) * CPU.scatter
    assert seconds[8] - seconds[16] == pytest.approx(scattered, rel=1e-6)


def test_the_most_promising_forms_come_first() -> None:
    layer = conv_workload([1, 1, 512, 512], [1, 1, 1, 31], same(1, 31))
    seconds = [form.predicted_seconds for form in layer.forms]
    assert all(first <= ALIKE * second for first, second in pairwise(seconds))
    assert seconds[0] < layer.predicted_seconds


@pytest.mark.parametrize(
    ("channels", "extent", "kernel", "pad"),
    [
        *(((8, 8), 64, 4, 1), ((8, 1), 128, 4, 1), ((16, 3), 64, 4, 1), ((1, 1), 256, 4, 1)),
        *(((8, 8), 64, 2, 0), ((16, 1), 64, 2, 0)),
    ],
)
def test_the_sub_pixel_form_is_no_gain_unmeasured(channels, extent, kernel, pad) -> None:
    """Upsampling by 2 in that form ran at 0.21x to 0.81x (ONNX Runtime 1.31.1, one thread)."""
    inputs, outputs = channels
    model = conv(
        [1, inputs, extent, extent],
        (inputs, outputs, kernel, kernel),
        strides=[2, 2],
        pads=[pad] * 4,
        op="ConvTranspose",
    )
    layer = workload_of(model)
    keys = {form: msgspec.to_builtins(form.spec) for form in layer.forms}
    expected = ("sub-pixel+sub-pixel", 1)
    plain = [form for form, key in keys.items() if (key["kind"], key["factor"]) == expected]
    assert plain
    assert all(layer.predicted_seconds / form.predicted_seconds < MARGIN for form in plain)


# ---------------------------------------------------------------- properties

WORKS = st.builds(
    lambda channels, group, taps, rank, positions, stride, transposed: Work(
        dtype="FLOAT",
        itemsize=4,
        channels=(channels[0] * group, channels[1] * group),
        group=group,
        taps=taps,
        rank=rank,
        inputs=channels[0] * group * positions * (1 if transposed else stride),
        outputs=channels[1] * group * positions * (stride if transposed else 1),
        transposed=transposed,
    ),
    st.tuples(st.integers(1, 80), st.integers(1, 80)),
    st.integers(1, 4),
    st.integers(1, 200),
    st.integers(1, 3),
    st.integers(1, 1 << 20),
    st.integers(1, 4),
    st.booleans(),
)
TARGETS = st.sampled_from([load_target(name) for name in names()])


@given(WORKS, TARGETS)
def test_a_prediction_is_finite_and_above_the_bounds(work: Work, aim) -> None:
    seconds = kernel_seconds(work, aim)
    elements = work.inputs if work.transposed else work.outputs
    macs = elements // work.channels[not work.transposed] * math.prod(work.channels)
    macs = macs // work.group * work.taps
    moved = (work.inputs + work.outputs) * work.itemsize
    assert math.isfinite(seconds)
    assert seconds >= aim.launch + moved / max(aim.cache_bandwidth, aim.memory_bandwidth)
    assert seconds >= macs / aim.rate["FLOAT"]
    assert layer_seconds(work, aim) > seconds


@given(WORKS, TARGETS, st.integers(1, 1 << 20))
def test_more_positions_are_never_faster(work: Work, aim, more: int) -> None:
    inputs, outputs = work.channels
    larger = replace(
        work, inputs=work.inputs + more * inputs, outputs=work.outputs + more * outputs
    )
    assert kernel_seconds(larger, aim) >= kernel_seconds(work, aim)


@given(WORKS, TARGETS, st.integers(1, 100))
def test_more_taps_are_never_faster(work: Work, aim, more: int) -> None:
    assert kernel_seconds(replace(work, taps=work.taps + more), aim) >= kernel_seconds(work, aim)


@given(WORKS, TARGETS, st.integers(2, 8))
def test_wider_elements_are_never_faster(work: Work, aim, times: int) -> None:
    wider = replace(work, itemsize=work.itemsize * times)
    assert kernel_seconds(wider, aim) >= kernel_seconds(work, aim)


@given(
    WORKS,
    TARGETS,
    st.sampled_from(["memory_bandwidth", "cache_bandwidth", "rate"]),
    st.floats(1, 100),
)
def test_a_better_device_is_never_slower(work: Work, aim, what: str, times: float) -> None:
    value = getattr(aim, what)
    faster = {k: v * times for k, v in value.items()} if what == "rate" else value * times
    better = msgspec.structs.replace(aim, **{what: faster})
    assert kernel_seconds(work, better) <= kernel_seconds(work, aim)
