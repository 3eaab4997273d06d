"""Sums and products on whole numbers, against the loop oracle or onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import oracle
from tests.evidence.proof.operators.one_node import (
    FLOAT,
    alike,
    drawn,
    elements,
    evaluated,
    reference,
    same,
)
from widthfold_onnx.evidence.proof.values import KnownValue, UnevaluableError


@st.composite
def windows(draw: st.DrawFn, *, transposed: bool) -> dict[str, Any]:
    """Extents and attributes of a Conv or ConvTranspose that fit together."""
    rank = draw(st.integers(1, 2))
    each = st.lists
    group = draw(st.sampled_from([1, 2, 3]))
    kernel = draw(each(st.integers(1, 4), min_size=rank, max_size=rank))
    dilations = draw(each(st.integers(1, 3), min_size=rank, max_size=rank))
    strides = draw(each(st.integers(1, 3), min_size=rank, max_size=rank))
    pads = draw(each(st.integers(-1, 3), min_size=2 * rank, max_size=2 * rank))
    spare = draw(each(st.integers(0, 6), min_size=rank, max_size=rank))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extents = [r + s + 2 for r, s in zip(reach, spare, strict=True)]
    if transposed:
        extents = [s + 3 for s in spare]
    return {
        "group": group,
        "kernel": kernel,
        "extents": extents,
        "channels": draw(st.integers(1, 2)),
        "outputs": draw(st.integers(1, 3)),
        "attributes": {"strides": strides, "dilations": dilations, "pads": pads},
        "auto_pad": draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])),
        "bias": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


@given(windows(transposed=False))
def test_conv(case: dict[str, Any]) -> None:
    group, seed = case["group"], case["seed"]
    x = drawn(seed, 2, group * case["channels"], *case["extents"], bound=1 << 20)
    w = drawn(seed + 1, group * case["outputs"], case["channels"], *case["kernel"], bound=1 << 20)
    b = [drawn(seed + 2, len(w), bound=1 << 20)] if case["bias"] else []
    attributes, auto_pad = dict(case["attributes"]), case["auto_pad"]
    resolved = dict(attributes)
    if auto_pad != "NOTSET":
        del attributes["pads"]
        attributes["auto_pad"] = auto_pad
        resolved["pads"] = oracle.resolve_auto_pad(
            auto_pad,
            case["extents"],
            case["kernel"],
            *map(attributes.get, ("strides", "dilations")),
        )
    expected = oracle.conv(x, w, *b, group=group, **resolved)
    same(evaluated("Conv", x, w, *b, group=group, **attributes), expected)


@given(windows(transposed=True), st.booleans(), st.integers(0, 2))
def test_conv_transpose(case: dict[str, Any], sized: bool, more: int) -> None:
    group, seed, rank = case["group"], case["seed"], len(case["kernel"])
    x = drawn(seed, 2, group * case["channels"], *case["extents"], bound=1 << 20)
    w = drawn(seed + 1, group * case["channels"], case["outputs"], *case["kernel"], bound=1 << 20)
    b = [drawn(seed + 2, group * case["outputs"], bound=1 << 20)] if case["bias"] else []
    attributes = {**case["attributes"], "output_padding": [0] * rank}
    strides, dilations = attributes["strides"], attributes["dilations"]
    attributes["output_padding"] = [min(more, s - 1) for s in strides]
    resolved, given_ = dict(attributes), dict(attributes)
    if sized:
        del given_["pads"]
        given_["output_shape"] = [n * s for n, s in zip(case["extents"], strides, strict=True)]
        given_["auto_pad"] = case["auto_pad"]
        resolved["pads"] = oracle.resolve_transposed_pads(
            case["auto_pad"], case["extents"], case["kernel"], strides, dilations,
            attributes["output_padding"], given_["output_shape"],
        )  # fmt: skip
    expected = oracle.conv_transpose(x, w, *b, group=group, **resolved)
    if 0 in expected.shape:
        with pytest.raises(UnevaluableError, match=r"would have (0|-\d+) positions"):
            evaluated("ConvTranspose", x, w, *b, group=group, **given_)
    else:
        same(evaluated("ConvTranspose", x, w, *b, group=group, **given_), expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [((5, 3), (3, 7)), ((3,), (3, 7)), ((5, 3), (3,)), ((3,), (3,)), ((2, 1, 5, 3), (7, 3, 2)),
     ((5, 600), (600, 7))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, w = drawn(0, *a, bound=1 << 20), drawn(1, *b, bound=1 << 20)
    same(evaluated("MatMul", x, w), np.asarray(oracle.matmul(x, w)))


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("c", [None, (7,), (5, 1), (5, 7), ()])
def test_gemm(turned: tuple[int, int], c: tuple[int, ...] | None) -> None:
    shapes = [(3, 5) if turned[0] else (5, 3), (7, 3) if turned[1] else (3, 7)]
    a, b = (drawn(i, *shape, bound=1 << 20) for i, shape in enumerate(shapes))
    added = [] if c is None else [drawn(2, *c, bound=1 << 20)]
    expected = oracle.gemm(
        a, b, *added, alpha=3, beta=-2, trans_a=bool(turned[0]), trans_b=bool(turned[1])
    )
    flags = dict(zip(("transA", "transB"), turned, strict=True))
    same(evaluated("Gemm", a, b, *added, alpha=3.0, beta=-2.0, **flags), expected)


@pytest.mark.parametrize("shape", [(5,), (7, 5), (1, 1, 7)])
def test_a_c_that_does_not_broadcast_to_the_result_does_not_run(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnevaluableError):
        evaluated("Gemm", drawn(0, 5, 3), drawn(1, 3, 7), drawn(2, *shape))


DIVISIBLE = 720720
"""A multiple of all numbers up to 16, so that means of multiples are whole."""

POOLS = [
    {"kernel_shape": [3, 2]},
    {"kernel_shape": [3, 4], "pads": [1, 2, 0, 1], "strides": [2, 3]},
    {"kernel_shape": [3, 4], "pads": [1, 2, 0, 1], "count_include_pad": 1},
    {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [1, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1},
    {"kernel_shape": [3, 4], "auto_pad": "SAME_UPPER", "strides": [2, 3]},
    {"kernel_shape": [3, 4], "auto_pad": "SAME_LOWER", "strides": [2, 3]},
]


@pytest.mark.parametrize("attributes", POOLS)
def test_average_pool(attributes: dict[str, Any]) -> None:
    x = drawn(0, 2, 3, 11, 13, bound=9999) * DIVISIBLE
    same(evaluated("AveragePool", x, **attributes), reference("AveragePool", x * 1.0, **attributes))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("axes", [[1], [-1, 0], None])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_sums_and_means(op: str, axes: list[int] | None, keepdims: int) -> None:
    x = drawn(0, 2, 3, 5, bound=9999) * DIVISIBLE
    given_ = [] if axes is None else [np.array(axes)]
    expected = reference(op, x, *given_, keepdims=keepdims)
    same(evaluated(op, x, *(KnownValue(a) for a in given_), keepdims=keepdims), expected)


def test_global_average_pool() -> None:
    x = drawn(0, 2, 3, 5, 2, bound=9999) * DIVISIBLE
    same(evaluated("GlobalAveragePool", x), x.sum((2, 3), keepdims=True) // 10)


@pytest.mark.parametrize(
    ("op", "expected"),
    [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Sum", np.add)],
)
def test_arithmetic_broadcasts(op: str, expected: np.ufunc) -> None:
    x, y = drawn(0, 2, 3, 5, bound=1 << 30), drawn(1, 3, 1, bound=1 << 30)
    same(evaluated(op, x, y), expected(x, y))


def test_a_quotient_times_its_divisor_is_the_dividend() -> None:
    x, y = elements(drawn(0, 2, 3), FLOAT), elements(drawn(1, 2, 3), FLOAT)
    quotient = evaluated("Div", x, y)
    reciprocal = evaluated("Div", elements(np.ones((2, 3)), FLOAT), y)
    assert alike(evaluated("Mul", x, reciprocal), quotient).all()
    assert alike(evaluated("Reciprocal", y), reciprocal).all()


def test_batch_normalization_is_linear_in_what_it_normalizes() -> None:
    x, vectors = drawn(0, 2, 3, 5, bound=999), [drawn(i, 3, bound=999) for i in range(1, 5)]
    scale, bias, mean, variance = vectors
    value = evaluated("BatchNormalization", x, *vectors)
    column = [1, 3, 1]
    unit = evaluated(
        "BatchNormalization", x * 0 + 1, np.ones(3), np.zeros(3), np.zeros(3), variance
    )
    scaled = evaluated("Mul", unit, (x - mean.reshape(column)) * scale.reshape(column))
    assert alike(evaluated("Add", scaled, bias.reshape(column)), value).all()
    other = evaluated("BatchNormalization", x, scale, bias, mean, variance + 1)
    assert not alike(other, value).any()


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Conv", ((2, 3, 7), (5, 2, 3))),
        ("Conv", ((2, 3, 2), (5, 3, 3))),
        ("Conv", ((2, 3, 7), (5, 3, 3), (4,))),
        ("Conv", ((2, 3, 7), (5, 3, 3, 3))),
        ("ConvTranspose", ((2, 3, 7), (4, 5, 3))),
        ("MatMul", ((2, 3), (2, 3))),
        ("Add", ((2, 3), (2,))),
        ("BatchNormalization", ((2, 3, 5), (4,), (4,), (4,), (4,))),
        ("PRelu", ((2, 3), (2,))),
    ],
)
def test_what_does_not_fit_together_does_not_run(op: str, inputs: tuple[tuple[int, ...]]) -> None:
    with pytest.raises(UnevaluableError):
        evaluated(op, *(drawn(i, *shape) for i, shape in enumerate(inputs)))
