"""Functions of elements and of lines: equal operands give equal results, others differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.evidence.proof.operators.one_node import (
    alike,
    drawn,
    elements,
    evaluated,
)
from widthfold_onnx.evidence.proof.values import Elements, KnownValue, UnevaluableError


@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Exp", "Floor", "Abs", "Sqrt", "Erf"])
def test_a_function_is_of_its_operand_and_commutes_with_moves(op: str) -> None:
    x = drawn(0, 2, 3, 5)
    value = evaluated(op, x)
    assert isinstance(value, Elements)
    moved = evaluated(op, x.transpose(2, 0, 1))
    turned = Elements(tuple(draw.transpose(2, 0, 1) for draw in value.draws))
    assert alike(moved, turned).all()
    assert not alike(evaluated(op, x + 1), value).any()
    assert not alike(evaluated("Tanh", x), value).any()
    assert len(np.unique(value.draws[0])) > 25


@pytest.mark.parametrize(("op", "commutes"), [("Max", True), ("And", True), ("Pow", False)])
def test_the_order_of_operands(op: str, commutes: bool) -> None:
    x, y = drawn(0, 2, 3), drawn(1, 3)
    assert alike(evaluated(op, x, y), evaluated(op, y, x)).all() == commutes
    assert not alike(evaluated(op, x, y), evaluated(op, x, x)).any()


def test_an_attribute_belongs_to_the_function() -> None:
    x = drawn(0, 2, 3)
    slopes = [evaluated("LeakyRelu", x, alpha=alpha) for alpha in (0.01, 0.01, 0.02)]
    assert alike(slopes[0], slopes[1]).all()
    assert alike(slopes[0], evaluated("LeakyRelu", x)).all(), "the default is 0.01"
    assert not alike(slopes[0], slopes[2]).any()


@pytest.mark.parametrize(("op", "decisive"), [("And", False), ("Or", True)])
def test_a_known_operand_may_decide(op: str, decisive: bool) -> None:
    unknown = elements(drawn(0, 3))
    result = evaluated(op, unknown, KnownValue(np.array(decisive)))
    assert isinstance(result, KnownValue)
    assert result.array.tolist() == [decisive] * 3
    assert isinstance(evaluated(op, unknown, KnownValue(np.array(not decisive))), Elements)


def test_max_pool_is_of_what_a_window_holds_in_any_order() -> None:
    x = drawn(0, 2, 3, 4, 6)
    value = evaluated("MaxPool", x, kernel_shape=[2, 3], strides=[2, 3])
    windows_ = x.reshape(2, 3, 2, 2, 2, 3)
    turned = windows_[:, :, :, ::-1, :, ::-1].reshape(x.shape)
    assert alike(evaluated("MaxPool", turned, kernel_shape=[2, 3], strides=[2, 3]), value).all()
    other = x.copy()
    other[0, 0, 0, 0] += 1
    changed = ~alike(evaluated("MaxPool", other, kernel_shape=[2, 3], strides=[2, 3]), value)
    assert np.argwhere(changed).tolist() == [[0, 0, 0, 0]]
    taps = [windows_[:, :, :, i, :, j] for i in range(2) for j in range(3)]
    assert alike(evaluated("Max", *taps), value).all()
    whole = evaluated("ReduceMax", x, KnownValue(np.array([2, 3])))
    assert alike(whole, evaluated("GlobalMaxPool", x)).all()


def test_resize_is_of_the_lines_that_change() -> None:
    x = drawn(0, 1, 2, 3, 5)
    sizes = KnownValue(np.array([1, 2, 3, 9]))
    value = evaluated("Resize", x, None, None, sizes, mode="linear")
    assert isinstance(value, Elements)
    assert value.shape == (1, 2, 3, 9)
    swapped = evaluated("Resize", x[:, ::-1].copy(), None, None, sizes, mode="linear")
    turned = Elements(tuple(draw[:, ::-1] for draw in value.draws))
    assert alike(swapped, turned).all()
    other = x.copy()
    other[0, 1, 2, 4] += 1
    changed = ~alike(evaluated("Resize", other, None, None, sizes, mode="linear"), value)
    assert changed[0, 1, 2].all()
    assert changed.sum() == 9
    assert not alike(evaluated("Resize", x, None, None, sizes, mode="cubic"), value).any()


THREE, THIRD = KnownValue(np.array([3])), KnownValue(np.array(2))


@pytest.mark.parametrize(
    ("op", "attributes", "more"),
    [
        *((op, {"axis": 2}, ()) for op in ("ArgMax", "ArgMin", "Hardmax", "LpNormalization")),
        ("ArgMax", {"axis": -1, "keepdims": 0}, ()),
        ("CumSum", {}, (THIRD,)),
        ("CumSum", {}, (KnownValue(np.array([-1])),)),
        *((op, {"axis": 2}, ()) for op in ("LogSoftmax", "Softmax")),
        ("TopK", {"axis": 2}, (THREE,)),
    ],
)
def test_functions_of_the_line_along_an_axis(
    op: str, attributes: dict[str, Any], more: tuple[KnownValue, ...]
) -> None:
    x = drawn(0, 2, 3, 5)
    value = evaluated(op, x, *more, **attributes)
    assert isinstance(value, Elements)
    extent = {"ArgMax": 1, "ArgMin": 1, "TopK": 3}.get(op, 5)
    keeps = attributes.get("keepdims", 1)
    assert value.shape == ((2, 3, extent) if keeps else (2, 3))
    moved = {**attributes, **({"axis": 0} if "axis" in attributes else {})}
    places = [KnownValue(np.array(0))] if op == "CumSum" else more
    turned = evaluated(op, x.transpose(2, 0, 1).copy(), *places, **moved)
    assert isinstance(turned, Elements)
    order = (1, 2, 0) if keeps else (0, 1)
    assert alike(Elements(tuple(d.transpose(order) for d in turned.draws)), value).all()
    other = x.copy()
    other[1, 2, 4] += 1
    changed = ~alike(evaluated(op, other, *more, **attributes), value)
    assert changed[1, 2].all()
    assert changed.sum() == (extent if keeps else 1)
    reversed_ = evaluated(op, x[:, :, ::-1].copy(), *more, **attributes)
    assert not alike(reversed_, value).any()
    if "axis" in attributes and op != "TopK" and keeps and extent > 1:
        assert not alike(evaluated(op, x, **{**attributes, "axis": 1}), value).any()


def test_two_functions_of_a_line_differ() -> None:
    x = drawn(0, 2, 3, 5)
    results = [evaluated(op, x, axis=1) for op in ("ArgMax", "ArgMin")]
    assert not alike(*results).any()
    last = evaluated("ArgMax", x, axis=1, select_last_index=1)
    assert not alike(last, results[0]).any()
    largest, smallest = (evaluated("TopK", x, THREE, axis=2, largest=i) for i in (1, 0))
    assert not alike(largest, smallest).any()


def test_a_softmax_of_older_opsets_takes_all_axes_from_one_on() -> None:
    x = drawn(0, 2, 3, 5)
    whole = evaluated("Softmax", x, opset=11, axis=1)
    flat = evaluated("Softmax", x.reshape(2, 15), axis=1)
    assert isinstance(flat, Elements)
    assert alike(Elements(tuple(d.reshape(2, 3, 5) for d in flat.draws)), whole).all()
    assert not alike(evaluated("Softmax", x, opset=13, axis=1), whole).any()
    with pytest.raises(UnevaluableError, match="axis 3 is none of 3"):
        evaluated("Softmax", x, axis=3)


def test_a_window_of_pads_alone_gives_the_lowest_number() -> None:
    """ONNX Runtime returns -3.4e38 in the middle of these windows, and -inf in float16."""
    x = drawn(0, 1, 1, 2)
    where = {"kernel_shape": [2], "dilations": [3], "pads": [3, 3]}
    value = evaluated("MaxPool", x, **where)
    assert alike(value, evaluated("MaxPool", x + 1, **where)).tolist() == [
        [[False, False, True, False, False]]
    ]
    zeros = evaluated("MaxPool", 0 * x, **where)
    assert alike(zeros, elements(np.zeros((1, 1, 5)))).tolist() == [
        [[True, True, False, True, True]]
    ]
    half = evaluated("MaxPool", x, kinds=(onnx.TensorProto.FLOAT16,) * 2, **where)
    assert not alike(value, half)[0, 0, 2], "the lowest number belongs to the type"
    on_grid = replace(elements(x), grid=b"grid")
    result = evaluated("MaxPool", on_grid, **where)
    assert isinstance(result, Elements)
    assert not result.grid, "the lowest number is no multiple of a scale"
