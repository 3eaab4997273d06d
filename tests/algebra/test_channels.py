"""Regrouped Convs against the loop oracle, on integers, bit for bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import conv
from widthfold_onnx.algebra.axis import ConvAxis, keep_axis
from widthfold_onnx.algebra.channels import (
    Grouping,
    Regrouping,
    most_groups,
    regroup_bias,
    regroup_weight,
)
from widthfold_onnx.algebra.conv import ConvFold


@st.composite
def regroupings(draw: st.DrawFn) -> Regrouping:
    """Any number of groups to any other that divides the channels, perhaps of more channels."""
    group, inner, outer = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    before = Grouping(group * inner, group * outer, group)
    inputs = before.inputs + draw(st.sampled_from([0, 0, 1, 5]))
    outputs = before.outputs + draw(st.sampled_from([0, 0, 2, 3]))
    common = math.gcd(inputs, outputs)
    count = draw(st.sampled_from([n for n in range(1, common + 1) if common % n == 0]))
    regrouping = Regrouping(before, Grouping(inputs, outputs, count))
    assert regrouping.is_possible
    return regrouping


def in_one_group(weight: np.ndarray, group: int) -> np.ndarray:
    """The weight [O, C, *kernel] of the same Conv without groups, block by block."""
    out, inner = len(weight) // group, weight.shape[1]
    dense = np.zeros((len(weight), group * inner, *weight.shape[2:]), weight.dtype)
    for g in range(group):
        rows = slice(g * out, (g + 1) * out)
        dense[rows, g * inner : (g + 1) * inner] = weight[rows]
    return dense


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 40), st.sampled_from([4, 8, 16]))
def test_output_lanes_are_those_of_whole_vectors(
    group: int, inner: int, outer: int, vector: int
) -> None:
    """A vector holds channels of one group; depthwise channels of any."""
    is_depthwise = (inner, outer) == (1, 1)
    groups = [0 if is_depthwise else channel // outer for channel in range(group * outer)]
    vectors = {(g, i // vector) for g in groups for i in range(groups.count(g))}
    grouping = Grouping(group * inner, group * outer, group)
    assert grouping.output_lanes(vector) == len(vectors) * vector


@settings(max_examples=5 * settings().max_examples)
@given(regroupings(), st.integers(0, 2**32 - 1))
def test_a_regrouped_conv_is_the_conv(regrouping: Regrouping, seed: int) -> None:
    """The regrouped Conv is the original with a zero for each weight that is left out."""
    before, after = regrouping.original, regrouping.result
    rng = np.random.default_rng(seed)
    x = rng.integers(-99, 100, (2, before.inputs, 5))
    w = rng.integers(1, 100, (before.outputs, before.inputs // before.group, 3))
    b = rng.integers(-99, 100, before.outputs)
    is_kept = np.zeros((after.outputs, after.inputs, 3), bool)
    for g in range(after.group):
        out, inner = after.outputs // after.group, after.inputs // after.group
        is_kept[g * out : (g + 1) * out, g * inner : (g + 1) * inner] = True
    is_kept = is_kept[: before.outputs, : before.inputs]
    dense = np.where(is_kept, in_one_group(w, before.group), 0)
    assert regrouping.leaves_out == (np.count_nonzero(dense) < w.size)
    assert regrouping.kept_share == np.count_nonzero(dense) / w.size
    assert regrouping.met_ratio == np.count_nonzero(is_kept) / w.size
    assert regrouping.growth == after.outputs * after.inputs // after.group * 3 / w.size
    wider = np.pad(x, [(0, 0), (0, after.inputs - before.inputs), (0, 0)])
    weight, bias = regroup_weight(w, regrouping), regroup_bias(b, regrouping)
    result = conv(wider, weight, bias, pads=[1, 2], group=after.group)
    expected = conv(x, dense, b, pads=[1, 2])
    np.testing.assert_array_equal(result[:, : before.outputs], expected)
    assert not result[:, before.outputs :].any()  # channels of padding stay zero
    assert regrouping.channels(before.inputs, before.outputs) == (after.inputs, after.outputs)
    assert regrouping.shape(*w.shape[:2]) == weight.shape[:2]
    fold = ConvFold(axes=(keep_axis(ConvAxis(length=5, kernel=3)),), regrouping=regrouping)
    zeros = weight.size - np.count_nonzero(weight)
    assert fold.structural_zeros() == pytest.approx(zeros / weight.size)
    assert fold.spread() == pytest.approx(np.count_nonzero(is_kept) / w.size)


@given(regroupings(), st.integers(0, 2**32 - 1))
def test_the_groups_of_a_weight_are_found_again(regrouping: Regrouping, seed: int) -> None:
    """A dense weight made of G groups falls into G groups, and into no more."""
    before = regrouping.original
    w = np.random.default_rng(seed).integers(
        1, 9, (before.outputs, before.inputs // before.group, 2)
    )
    dense = Grouping(before.inputs, before.outputs)
    assert most_groups(in_one_group(w, before.group), dense) == before.group
    assert most_groups(w, before) == before.group
    assert most_groups(np.zeros_like(w), before) == math.gcd(before.inputs, before.outputs)


def test_one_number_between_groups_joins_them() -> None:
    weight = in_one_group(np.ones((6, 2, 3)), 3)
    assert most_groups(weight, Grouping(6, 6)) == 3
    for number in (1e-300, np.nan, np.inf):
        weight[5, 0, 1] = number
        assert most_groups(weight, Grouping(6, 6)) == 1
    weight[5, 0, 1] = -0.0
    assert most_groups(weight, Grouping(6, 6)) == 3


def test_numbers_are_copied_bit_for_bit() -> None:
    weight = np.array([np.nan, -np.inf, -0.0, 1e-45], np.float32).reshape(4, 1, 1)
    weight.view(np.uint32)[0, 0, 0] = 0x7FC12345
    after = Regrouping(Grouping(4, 4, 4), Grouping(5, 7))
    result = regroup_weight(weight, after)
    assert result.shape == (7, 5, 1)
    assert result[np.arange(4), np.arange(4)].tobytes() == weight.tobytes()


@pytest.mark.parametrize(
    "after", [Grouping(5, 4), Grouping(6, 3), Grouping(8, 4, 3), Grouping(9, 4, 2)]
)
def test_what_is_no_regrouping(after: Grouping) -> None:
    assert not Regrouping(Grouping(6, 4, 2), after).is_possible
