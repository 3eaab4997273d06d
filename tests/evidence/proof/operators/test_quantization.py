"""Quantized operators on whole numbers: exact sums, and functions where they are rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests import oracle
from tests.evidence.proof.operators.one_node import (
    FLOAT,
    INT8,
    INT32,
    UINT8,
    alike,
    drawn,
    elements,
    evaluated,
    reference,
    same,
)
from widthfold_onnx.evidence.proof.values import KnownValue, UnevaluableError


def integers(seed: int, kind: type, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, kind, endpoint=True)


CONVS = [{}, {"strides": [2], "pads": [1, 3]}, {"dilations": [2], "group": 2}]


@pytest.mark.parametrize("attributes", CONVS)
@pytest.mark.parametrize("points", [(), (6,)])
def test_conv_integer(attributes: dict[str, Any], points: tuple[int, ...]) -> None:
    x = integers(0, np.uint8, 2, 4, 11)
    w = integers(1, np.int8, 6, 4 // attributes.get("group", 1), 3)
    zx, zw = integers(2, np.uint8), integers(3, np.int8, *points)
    less = w.astype(np.int64) - zw.reshape(-1, 1, 1)
    expected = oracle.conv(x.astype(np.int64) - zx, less, **attributes)
    same(evaluated("ConvInteger", x, w, zx, zw, **attributes), expected)


@pytest.mark.parametrize(("za", "zb"), [((), ()), ((5,), (7,)), ((2, 5, 1), (2, 1, 7))])
def test_matmul_integer(za: tuple[int, ...], zb: tuple[int, ...]) -> None:
    a, b = integers(0, np.uint8, 2, 5, 3), integers(1, np.int8, 2, 3, 7)
    of_a, of_b = integers(2, np.uint8, *za), integers(3, np.int8, *zb)
    rows = of_a.reshape(-1, 1) if za == (5,) else of_a
    expected = oracle.matmul(a.astype(np.int64) - rows, b.astype(np.int64) - of_b)
    same(evaluated("MatMulInteger", a, b, of_a, of_b), np.asarray(expected))


@pytest.mark.parametrize("attributes", CONVS)
def test_a_linear_conv_rounds_the_right_sums(attributes: dict[str, Any]) -> None:
    """The same sums that a kernel of one tap makes of what the oracle computes round alike."""
    x = integers(0, np.uint8, 2, 4, 11)
    w = integers(1, np.int8, 6, 4 // attributes.get("group", 1), 3)
    zx, zw = integers(2, np.uint8), integers(3, np.int8, 6)
    b = drawn(4, 6, bound=9999)
    scales = np.array(2.0), np.arange(1.0, 7)
    out = np.array(8.0), integers(5, np.uint8)
    less = w.astype(np.int64) - zw.reshape(-1, 1, 1)
    sums = oracle.conv(x.astype(np.int64) - zx, less, b, **attributes)
    kinds = [UINT8, FLOAT, UINT8, INT8, FLOAT, INT8, FLOAT, UINT8, INT32, UINT8]
    value = evaluated(
        "QLinearConv", x, scales[0], zx, w, scales[1], zw, *out, b, kinds=kinds, **attributes
    )
    unit, nothing = np.eye(6, dtype=np.int64).reshape(6, 6, 1), np.zeros((), np.int64)
    again = evaluated(
        "QLinearConv", sums, scales[0], nothing, unit, scales[1], nothing, *out, kinds=kinds[:8]
    )
    assert alike(value, again).all()
    other = evaluated(
        "QLinearConv", sums + 1, scales[0], nothing, unit, scales[1], nothing, *out, kinds=kinds[:8]
    )
    assert not alike(value, other).any()


@pytest.mark.parametrize(
    ("scales", "attributes"),
    [
        ((), {}),
        ((5,), {"axis": 1}),
        ((3,), {"axis": -3}),
        ((3, 3, 2), {"axis": 1, "block_size": 2}),
    ],
)
def test_dequantize_linear(scales: tuple[int, ...], attributes: dict[str, int]) -> None:
    x = integers(0, np.int8, 3, 5, 2)
    scale = np.random.default_rng(1).integers(1, 99, scales).astype(np.float32)
    zero = integers(2, np.int8, *scales)
    expected = reference("DequantizeLinear", x, scale, zero, **attributes)
    kinds = [INT8, FLOAT, INT8, FLOAT]
    value = evaluated(
        "DequantizeLinear",
        elements(x),
        KnownValue(scale),
        KnownValue(zero),
        kinds=kinds,
        **attributes,
    )
    same(value, expected)


@pytest.mark.parametrize(
    ("scales", "attributes", "reason"),
    [
        ((3, 3, 2), {"axis": 1, "block_size": -2}, "for blocks of -2"),
        ((3, 2), {"axis": 1, "block_size": 2}, r"\[3, 2\] for blocks of 2 in \[3, 5, 2\]"),
        ((3, 3, 2), {"axis": 7, "block_size": 2}, "its axis 7 is none of 3"),
        ((3, 2, 2), {"axis": 1, "block_size": 2}, "do not fit together"),
    ],
)
def test_scales_of_blocks_that_do_not_fit(
    scales: tuple[int, ...], attributes: dict[str, int], reason: str
) -> None:
    x, scale = integers(0, np.int8, 3, 5, 2), KnownValue(np.ones(scales, np.float32))
    with pytest.raises(UnevaluableError, match=reason):
        evaluated("DequantizeLinear", elements(x), scale, **attributes)


@pytest.mark.parametrize("change", [(0, 0), (1, 0), (0, 1)])
def test_quantizing_on_the_same_grid_returns_the_integers(change: tuple[int, int]) -> None:
    x, scale, zero = integers(0, np.int8, 3, 5), KnownValue(np.float32(0.3)), KnownValue(np.int8(7))
    floats = evaluated("DequantizeLinear", elements(x, INT8), scale, zero)
    other = KnownValue(np.float32(0.3 + change[0])), KnownValue(np.int8(7 + change[1]))
    again = evaluated("QuantizeLinear", floats, *other, kinds=[FLOAT, FLOAT, INT8, INT8])
    assert alike(again, elements(x)).all() == (change == (0, 0))


@pytest.mark.parametrize(
    ("kind", "scale", "expected"),
    [
        (np.uint16, np.float32(0.3), True),
        (np.uint16, np.float16(0.3), False),
        (np.int8, np.float16(0.3), True),
        (np.int8, np.float32(1e37), False),
    ],
)
def test_integers_that_their_floats_round_are_not_given_back(
    kind: type, scale: np.floating[Any], expected: bool
) -> None:
    """Near 20,000, float16 has multiples of 16 alone; and 100 * 1e37 is Inf in float32."""
    x, number = integers(0, kind, 3, 5), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    numbers, zero = KnownValue(np.asarray(scale)), KnownValue(np.asarray(kind(7)))
    floats = evaluated("DequantizeLinear", elements(x, number), numbers, zero)
    kinds = [numbers.element_type, numbers.element_type, number, number]
    again = evaluated("QuantizeLinear", floats, numbers, zero, kinds=kinds)
    assert alike(again, elements(x)).all() == expected
