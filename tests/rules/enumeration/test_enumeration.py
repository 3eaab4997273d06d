"""Every way to share a factor out, every grouping and every form is listed, each once."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.rules.one_conv import conv_model
from tests.small_models import build
from widthfold_onnx.algebra.conv import fold_weight
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import AxisName, FoldOptions, Layout
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rules.enumeration import (
    conv_forms,
    every_form,
    factorizations,
    form_of,
    forms_at_factor,
    groupings,
    summed_taps,
)
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import ConvLayer, ProductLayer, axis_names


def foldable_axes(rank: int) -> tuple[str, ...]:
    batch, _, *spatial = axis_names(rank)
    return (batch, *spatial)


def conv_layer(model: onnx.ModelProto) -> ConvLayer:
    ((_, layer),) = read_sites(Reading.of(Model(model, None), Draft()))
    assert isinstance(layer, ConvLayer)
    return layer


# ---------------------------------------------------------------- factors per axis


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("factor", [1, 2, 3, 4, 6, 8, 12, 30])
def test_a_factor_is_shared_out_in_every_way_once(factor: int, rank: int) -> None:
    """Oracle: all tuples of numbers up to the factor."""
    listed = list(factorizations(AxisName.AUTO, factor, foldable_axes(rank)))
    numbers = product(range(1, factor + 1), repeat=rank + 1)
    assert sorted(listed) == sorted(factors for factors in numbers if math.prod(factors) == factor)
    of_one_axis = [factors for factors in listed if factor in factors]
    assert listed[: len(of_one_axis)] == of_one_axis


@pytest.mark.parametrize(
    ("axis", "rank", "expected"),
    [
        (AxisName.BATCH, 2, [(6, 1, 1)]),
        (AxisName.HEIGHT, 2, [(1, 6, 1)]),
        (AxisName.WIDTH, 2, [(1, 1, 6)]),
        (AxisName.WIDTH, 1, [(1, 6)]),
        (AxisName.HEIGHT, 1, []),
        (0, 2, [(6, 1, 1)]),
        (1, 2, []),  # the channels
        (2, 2, [(1, 6, 1)]),
        (4, 3, [(1, 1, 1, 6)]),
        (4, 2, []),
    ],
)
def test_an_axis_takes_the_whole_factor(
    axis: AxisName | int, rank: int, expected: list[tuple[int, ...]]
) -> None:
    assert list(factorizations(axis, 6, foldable_axes(rank))) == expected


# ---------------------------------------------------------------- groupings


def has_blocks(weight: np.ndarray, group: int, count: int) -> bool:
    """True if the dense weight is zero outside of `count` blocks on the diagonal."""
    outputs, inputs = weight.shape[0], weight.shape[1] * group
    dense = np.zeros((outputs, inputs), bool)
    for out in range(outputs):
        first = out // (outputs // group) * weight.shape[1]
        dense[out, first : first + weight.shape[1]] = weight[out].any(axis=(1, 2))
    blocks = np.kron(np.eye(count, dtype=bool), np.ones((outputs // count, inputs // count), bool))
    return not (dense & ~blocks).any()


@pytest.mark.parametrize(("group", "blocks"), [(1, 1), (1, 2), (1, 6), (2, 2), (2, 6), (6, 6)])
def test_every_grouping_that_computes_the_same_is_listed_once(group: int, blocks: int) -> None:
    """The weight of a Conv 12 -> 6 has `blocks` blocks on its diagonal, and no finer ones."""
    model = conv_model([1, 12, 5, 7], (6, 12 // group, 3, 2), group=group)
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    for out in range(6):
        for channel in range(12 // group):
            channel_of_all = out // (6 // group) * (12 // group) + channel
            if channel_of_all // (12 // blocks) != out // (6 // blocks):
                weight[out, channel] = 0
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    listed = list(groupings(conv_layer(model)))
    assert len(listed) == len(set(listed))
    counts = {it.group for it in listed if (it.inputs, it.outputs) == (12, 6)}
    divisors = [count for count in (1, 2, 3, 6) if has_blocks(weight, group, count)]
    assert counts == {n for n in divisors if n != group and (n % group == 0 or group % n == 0)}


def test_channels_are_padded_to_the_multiples_of_the_kernels() -> None:
    listed = list(groupings(conv_layer(conv_model([1, 3, 5, 7], (5, 3, 3, 2)))))
    pairs = sorted((it.inputs, it.outputs) for it in listed)
    assert pairs == [(3, 8), (3, 16), (4, 5), (4, 8), (8, 5), (8, 8), (16, 5), (16, 16)]


# ---------------------------------------------------------------- forms


LISTED = {
    ((1, 1), 2): {"batch: batch", "width: interleaved"},
    ((1, 1), 6): {
        *("batch: batch", "batch+height: batch+interleaved", "batch+width: batch+interleaved"),
        "height+width: interleaved+interleaved",
    },
    ((2, 3), 2): {"batch: batch", "width: blocked", "width: interleaved"},
    ((2, 3), 6): {
        *("batch: batch", "batch+width: batch+blocked", "batch+width: batch+interleaved"),
        *("width: blocked", "width: interleaved"),
    },
}
"""The legal forms by strides and factor. Of a kernel of 4x3 the results have 21x34 positions, at
strides 2 and 3 they have 11x12; there are 6 samples. A blocked form needs windows that do not
overlap (`algebra.axis`)."""


@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC])
@pytest.mark.parametrize(("strides", "factor"), LISTED)
def test_every_form_is_listed_once_and_made_again_from_its_spec(
    strides: tuple[int, int], factor: int, layout: Layout
) -> None:
    model = conv_model([6, 3, 24, 36], (5, 3, 4, 3), strides=list(strides), bias=True)
    layer, weight = conv_layer(model), numpy_helper.to_array(model.graph.initializer[0])
    options = FoldOptions(factor=factor, layout=layout, mix_samples=True)
    listed = [form for _, form in forms_at_factor(layer, options)]
    forms = [form for form in listed if isinstance(form, Form)]
    specs = [form.spec for form in forms]
    assert len(specs) == len(set(specs))
    assert {f"{spec.axis}: {spec.kind}" for spec in specs} == LISTED[strides, factor]
    for form in forms:
        again = form_of(layer, form.spec, options)
        assert isinstance(again, Form)
        parts = [
            (f.spec, f.packing_moves, f.unpacking_moves, f.extended_in_shape, f.extended_out_shape)
            for f in (form, again)
        ]
        assert parts[0] == parts[1]
        weights = [fold_weight(weight, f.fold) for f in (form, again)]
        np.testing.assert_array_equal(*weights)


def test_taps_are_summed_where_every_position_meets_one() -> None:
    def form_count(model: onnx.ModelProto) -> int:
        return len(list(summed_taps(conv_layer(model), FoldOptions(factor=2))))

    assert form_count(conv_model([1, 3, 9, 5, 7], (4, 3, 3, 3, 3), pads=[1] * 6)) == 1
    assert form_count(conv_model([1, 3, 9, 5], (4, 3, 3, 3))) == 0  # two axes
    assert form_count(conv_model([1, 4, 9, 5, 7], (4, 2, 3, 3, 3), group=2)) == 0
    assert form_count(conv_model([1, 3, "d", 5, 7], (4, 3, 3, 3, 3))) == 0
    far = conv_model([1, 3, 2, 5, 7], (4, 3, 5, 3, 3), pads=[0, 0, 0, 3, 0, 0])
    assert form_count(far) == 0  # a tap meets padding only


def test_one_side_alone_is_folded_where_that_is_asked_for() -> None:
    layer = conv_layer(conv_model([1, 3, 24, 36], (5, 3, 4, 3), strides=[1, 3]))
    options = FoldOptions(factor=2, ragged=True)

    def kinds(factors: tuple[int, ...], *, one_sided: bool) -> set[tuple[str, int, int]]:
        listed = conv_forms(layer, options, factors, one_sided=one_sided)
        forms = [form for _, form in listed if isinstance(form, Form)]
        return {
            (
                form.spec.kind,
                math.prod(t.out_tile for t in tiles),
                math.prod(t.in_tile for t in tiles),
            )
            for form in forms
            for tiles in [form.spec.axes]
        }

    assert kinds((1, 2, 1), one_sided=False) == {("interleaved", 2, 2)}
    assert kinds((1, 2, 1), one_sided=True) == {
        ("interleaved", 2, 2),
        ("interleaved+space-to-depth", 2, 2 * 3),
        ("sub-pixel", 2, 1),
        ("sub-pixel+space-to-depth", 2, 3),
    }


# ---------------------------------------------------------------- products


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"factor": 2}, 1),
        ({"factor": 2, "axis": "width"}, 0),
        ({"factor": 2, "axis": 0}, 0),
        ({"form": "strides"}, 0),
    ],
)
def test_rows_of_a_product_are_no_axis_and_have_no_strides(options: dict, count: int) -> None:
    model = build(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,8,3] x) => (float[2,8,5] y) <float[3,5] w> { y = MatMul (x, w) }"""
    )
    ((_, layer),) = read_sites(Reading.of(Model(model, None), Draft()))
    assert isinstance(layer, ProductLayer)
    assert len(list(forms_at_factor(layer, FoldOptions(**options)))) == count
    if "factor" in options:
        axis = options.get("axis", AxisName.AUTO)
        assert bool(list(every_form(layer, FoldOptions(axis=axis)))) == bool(count)
