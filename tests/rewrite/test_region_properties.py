"""Random graphs of Convs and carried ops: folded, they return the same integers."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.rewrite.graphs import Builder, ops, run
from tests.rewrite.proved import assert_proved
from widthfold_onnx import AxisName, FoldOptions, Layout, fold_model

LIMIT = 1 << 22
UNARY = ["Relu", "Abs", "Neg", "Sign", "Identity", "Floor"]
KINDS = ["conv", "conv", "unary", "clip", "norm", "slope", "constant", "two", "two", "join"]


def graph(seed: int) -> tuple[onnx.ModelProto, np.ndarray, int]:
    """A graph over one extent, its input and a factor; values stay small, so all sums are exact."""
    rng = np.random.default_rng(seed)

    def one_of(*choices):
        return choices[rng.integers(len(choices))]

    rank = one_of(1, 2)
    shape = [one_of(2, 4), one_of(2, 3, 4), *[one_of(5, 7), one_of(12, 24)][-rank:]]
    g = Builder(shape, rng)

    def conv(value: str) -> str:
        """With a Sign behind it, so that numbers do not grow without end."""
        group = one_of(*(n for n in (1, 2, 3) if g.channels[value] % n == 0))
        kernel = [one_of(1, 3, 3) for _ in range(rank)]
        return g.op("Sign", g.conv(value, group * one_of(1, 2, 3), kernel, group))

    pool = ["x", conv("x")]
    for _ in range(rng.integers(2, 9)):
        value, kind = one_of(*pool[-2:]), one_of(*KINDS)
        count = g.channels[value]
        ones = (count, *[1] * rank)
        if kind == "conv":
            value = conv(value)
        elif kind == "unary":
            value = g.op(one_of(*UNARY), value)
        elif kind == "clip":
            value = g.op("Clip", value, np.array(-2, np.float32), np.array(3, np.float32))
        elif kind == "norm":
            plain = (np.zeros(count, np.float32), np.full(count, 4, np.float32))
            scales = (g.integers(count), g.integers(count))
            value = g.op("BatchNormalization", value, *scales, *plain, epsilon=0.0)
            value = g.op("Floor", value)
        elif kind == "slope":
            value = g.op("PRelu", value, g.integers(*one_of(ones, (1,))))
        elif kind == "constant":
            numbers = g.integers(*one_of(ones, (1, *ones), (), shape[-1:]))
            value = g.op(one_of("Add", "Sub", "Mul", "Max"), value, numbers)
        elif kind == "two":
            other = one_of(*(v for v in pool if g.channels[v] == count))
            value = g.op(
                one_of("Add", "Sub", "Min", "Max"), *one_of((value, other), (other, value))
            )
        else:
            other = one_of(*pool)
            total = count + g.channels[other]
            value = g.op("Concat", value, other, axis=one_of(1, -1 - rank), channels=total)
        pool.append(value)
    outputs = [pool[-1], *(value for value in pool[1:-1] if rng.random() < 0.15)]
    x = rng.integers(-2, 3, shape).astype(np.float32)
    return g.model(outputs), x, one_of(2, 3, 4)


LAYOUTS = st.sampled_from(Layout)
AXES = st.sampled_from([AxisName.AUTO, AxisName.WIDTH, AxisName.BATCH])


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1 << 32),
    AXES,
    LAYOUTS,
    st.booleans(),
)
def test_a_folded_graph_returns_the_same_integers(
    seed: int, axis: AxisName, layout: Layout, reference: bool
) -> None:
    model, x, factor = graph(seed)
    limits = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}
    options = FoldOptions(factor=factor, axis=axis, layout=layout, **limits)
    folded, _ = fold_model(model, options)
    onnx.checker.check_model(folded, full_check=True)
    expected = run(model, x, "ORT_DISABLE_ALL")
    assert all(np.abs(array).max() < LIMIT for array in expected)
    results = [run(folded, x, level) for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")]
    if reference:
        results.append(ReferenceEvaluator(folded).run(None, {"x": x}))
    for result in results:
        for actual, wanted in zip(result, expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
    assert fold_model(model, options)[0].SerializeToString() == folded.SerializeToString()
    again, _ = fold_model(folded, options)
    assert again.SerializeToString() == folded.SerializeToString()
    assert ops(folded).count("Conv") == ops(model).count("Conv")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), AXES, LAYOUTS)
def test_a_folded_graph_is_proved(seed: int, axis: AxisName, layout: Layout) -> None:
    model, _, factor = graph(seed)
    limits = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}
    options = FoldOptions(factor=factor, axis=axis, layout=layout, **limits)
    folded, sites = fold_model(model, options)
    assert_proved(model, folded, sum(site.status == "folded" for site in sites))
