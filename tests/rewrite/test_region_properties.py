"""Random graphs of Convs and carried ops: folded, they return the same integers."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.rewrite.graphs import Builder, ops, run
from widthfold_onnx import AxisName, FoldOptions, fold_model
from widthfold_onnx.evidence.exact import probe_sites
from widthfold_onnx.options import Provider

LIMIT = 1 << 22
UNARY = ["Relu", "Abs", "Neg", "Sign", "Identity", "Floor"]
KINDS = ["conv", "conv", "conv", "unary", "clip", "norm", "slope", "constant", "two", "join"]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, np.ndarray, int]:
    """A graph over one extent and its input; values stay small, so that all sums are exact."""
    seed, rank = draw(st.integers(0, 1 << 32)), draw(st.integers(1, 2))
    rng = np.random.default_rng(seed)
    lengths = [draw(st.sampled_from([5, 7])), draw(st.sampled_from([12, 24]))][-rank:]
    batch = draw(st.sampled_from([2, 4]))
    channels = draw(st.sampled_from([2, 3, 4]))
    g = Builder([batch, channels, *lengths], rng)
    pool = ["x"]
    for _ in range(draw(st.integers(2, 9))):
        value = draw(st.sampled_from(pool[-3:]))
        count, kind = g.channels[value], draw(st.sampled_from(KINDS))
        ones = (count, *[1] * rank)
        if kind == "conv":
            group = draw(st.sampled_from([n for n in (1, 2, 3) if count % n == 0]))
            out = group * draw(st.integers(1, 3))
            kernel = [draw(st.sampled_from([1, 3])) for _ in range(rank)]
            # Between two Convs lies a Sign, so that numbers do not grow without end.
            value = g.op("Sign", g.conv(value, out, kernel, group))
        elif kind == "unary":
            value = g.op(draw(st.sampled_from(UNARY)), value)
        elif kind == "clip":
            value = g.op("Clip", value, np.array(-2, np.float32), np.array(3, np.float32))
        elif kind == "norm":
            plain = np.zeros(count, np.float32), np.full(count, 4, np.float32)
            value = g.op(
                "BatchNormalization",
                value,
                g.integers(count),
                g.integers(count),
                *plain,
                epsilon=0.0,
            )
            value = g.op("Floor", value)
        elif kind == "slope":
            value = g.op("PRelu", value, g.integers(*draw(st.sampled_from([ones, (1,)]))))
        elif kind == "constant":
            shape = draw(st.sampled_from([ones, (1, *ones), (), (lengths[-1],)]))
            value = g.op(
                draw(st.sampled_from(["Add", "Sub", "Mul", "Max"])), value, g.integers(*shape)
            )
        elif kind == "two":
            other = draw(st.sampled_from([v for v in pool if g.channels[v] == count]))
            pair = draw(st.permutations([value, other]))
            value = g.op(draw(st.sampled_from(["Add", "Sub", "Min", "Max"])), *pair)
        else:
            other = draw(st.sampled_from(pool))
            total = count + g.channels[other]
            value = g.op(
                "Concat", value, other, axis=draw(st.sampled_from([1, -1 - rank])), channels=total
            )
        pool.append(value)
    outputs = list(
        dict.fromkeys([pool[-1], *draw(st.lists(st.sampled_from(pool[1:]), max_size=2))])
    )
    x = rng.integers(-2, 3, [batch, channels, *lengths]).astype(np.float32)
    return g.model(outputs), x, draw(st.sampled_from([2, 3, 4]))


@settings(max_examples=150, deadline=None)
@given(graphs(), st.sampled_from([AxisName.AUTO, AxisName.WIDTH, AxisName.BATCH]), st.booleans())
def test_a_folded_graph_returns_the_same_integers(case, axis: AxisName, reference: bool) -> None:
    model, x, factor = case
    options = FoldOptions(factor=factor, axis=axis, max_flops_growth=1e9, max_bytes_growth=1e9)
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
@given(graphs(), st.sampled_from([AxisName.AUTO, AxisName.WIDTH, AxisName.BATCH]))
def test_a_folded_graph_is_proved(case, axis: AxisName) -> None:
    model, _, factor = case
    options = FoldOptions(factor=factor, axis=axis, max_flops_growth=1e9, max_bytes_growth=1e9)
    folded, sites = fold_model(model, options)
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("a.onnx", "b.onnx")]
        for path, item in zip(paths, (model, folded), strict=True):
            onnx.save(item, path)
        proved, limits = probe_sites(*paths, Provider.CPU, lambda line: None)
    assert not limits
    assert [site.verdict for site in proved] == ["exact"] * len(proved), proved
    assert len(proved) == sum(site.status == "folded" for site in sites)
