"""Folded products against the loop oracle, on integers, bit for bit."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algebra.folds import run
from tests.oracle import gemm, matmul
from widthfold_onnx.algebra.axis import ConvAxis, fold_axis
from widthfold_onnx.algebra.conv import ConvFold, fold_weight
from widthfold_onnx.algebra.layouts import RowLayout
from widthfold_onnx.algebra.packing import Reshape
from widthfold_onnx.model.library import ir
from widthfold_onnx.operators.matmul import GEMM
from widthfold_onnx.rewrite.folded_node import folded_bias, folded_vector, folded_weight
from widthfold_onnx.rules.layers import ProductLayer
from widthfold_onnx.rules.quantization import Parameter
from widthfold_onnx.rules.row_fold import fold_of, packing_moves, unpacking_moves

EXTENT = st.integers(1, 4)


def product_layer(
    stored: np.ndarray, *, weight_on_left: bool, turned: bool = False, filler: object = 0
) -> ProductLayer:
    """A Gemm with a stored weight; fields that its fold does not need are None."""
    flag = ir.AttrInt64("transA" if weight_on_left else "transB", int(turned))
    node = ir.Node("", "Gemm", [], [flag])
    operator = GEMM[weight_on_left]
    canonical = operator.canonical_weight(stored, node)
    rest: Any = dict.fromkeys(field.name for field in fields(ProductLayer))
    return ProductLayer(
        **rest
        | {
            "node": node,
            "operator": operator,
            "parameters": {operator.inputs.weight: Parameter(SimpleNamespace(shape=stored.shape))},
            "weight_shape": canonical.shape,
            "group": operator.group(node),
            "filler": np.asarray(filler),
        }
    )


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(1, 100, shape)


@st.composite
def products(draw: st.DrawFn):
    """A MatMul with the weight on either side, plain, flat or batched, and a fold of it."""
    factor, weight_on_left = draw(st.integers(2, 5)), draw(st.booleans())
    kind = draw(st.sampled_from(["plain", "plain", "flat", "batched"]))
    leading = draw(st.lists(EXTENT, max_size=2))
    merged = 1
    if not weight_on_left and kind != "batched":
        merged = draw(st.integers(1, len(leading) + 1))
    rest = draw(st.integers(1, 3))
    length = factor * rest
    if merged > 1 and draw(st.booleans()):  # only the product of the merged axes is divisible
        leading[-1], length = factor, rest
    batches: list[int] = []
    if kind == "batched":  # any of the axes may be 1 on one side, or missing
        batches = [draw(st.sampled_from([1, extent])) for extent in leading]
        batches = [draw(EXTENT), *batches] if draw(st.booleans()) else batches
    return (
        RowLayout(factor, weight_on_left, merged),
        leading,
        length,
        draw(EXTENT),
        draw(EXTENT),
        batches,
        kind == "flat",
    )


@settings(max_examples=5 * settings().max_examples)
@given(products(), st.integers(0, 1 << 32))
def test_fold_matmul_unfold_is_the_matmul(case, seed: int) -> None:
    layout, leading, length, channels, outputs, batches, flat = case
    rng = np.random.default_rng(seed)
    shape = (*leading, channels, length) if layout.weight_on_left else (*leading, length, channels)
    x = integers(rng, *shape)
    outputs = 1 if flat else outputs
    w = integers(
        rng, *batches, *((outputs, channels) if layout.weight_on_left else (channels, outputs))
    )
    stored = w.ravel() if flat else w
    expected = matmul(stored, x) if layout.weight_on_left else matmul(x, stored)

    layer = product_layer(stored, weight_on_left=layout.weight_on_left)
    fold = fold_of(layer, layout.factor)
    folded = folded_weight(layer, stored, fold)
    assert folded.shape == (*batches, *(n * layout.factor for n in w.shape[-2:]))
    assert folded.size == np.prod(fold.weight_shape(layer.weight_shape))
    assert fold.channels(*layer.channels) == tuple(n * layout.factor for n in (channels, outputs))
    assert np.count_nonzero(folded) == round(folded.size * (1 - fold.structural_zeros()))
    assert fold.flops_growth() == fold.spread() == layout.factor
    packed = run(packing_moves(layout, shape), x)
    assert packed.shape == layout.packed_shape(shape)
    y = matmul(folded, packed) if layout.weight_on_left else matmul(packed, folded)
    out = np.broadcast_shapes(tuple(leading), tuple(batches))
    logical = (*out, outputs, length) if layout.weight_on_left else (*out, length, outputs)
    assert y.shape == layout.packed_shape(logical)
    np.testing.assert_array_equal(run(unpacking_moves(layout, logical, flat=flat), y), expected)


@given(products(), st.integers(0, 1 << 32))
def test_the_gaps_hold_what_stands_for_zero(case, seed: int) -> None:
    """A folded weight less the zero points of its channels has gaps of 0."""
    layout, _, _, channels, outputs, batches, _ = case
    rng = np.random.default_rng(seed)
    w = integers(
        rng, *batches, *((outputs, channels) if layout.weight_on_left else (channels, outputs))
    )
    zero = integers(rng, *batches, *((outputs, 1) if layout.weight_on_left else (1, outputs)))
    layer = product_layer(w, weight_on_left=layout.weight_on_left, filler=zero.reshape(-1, 1, 1))
    fold = fold_of(layer, layout.factor)
    repeated = folded_vector(layer, zero, fold)
    without = folded_weight(product_layer(w, weight_on_left=layout.weight_on_left), w - zero, fold)
    np.testing.assert_array_equal(folded_weight(layer, w, fold) - repeated, without)


@given(products(), st.sets(st.integers(0, 2)))
def test_open_extents_are_copied_or_one_merged_one_inferred(case, opened: set[int]) -> None:
    layout, leading, length, channels, _, _, _ = case
    actual = (*leading, channels, length) if layout.weight_on_left else (*leading, length, channels)
    first = len(leading) + 1 - layout.merged
    opened = {i for i in opened if i < len(leading) and i <= first}
    written = tuple(None if i in opened else extent for i, extent in enumerate(actual))
    x = np.arange(np.prod(actual)).reshape(actual)
    there = run(packing_moves(layout, written), x)
    np.testing.assert_array_equal(there, run(packing_moves(layout, actual), x))
    np.testing.assert_array_equal(run(unpacking_moves(layout, written), there), x)


ADDENDS = {
    "scalar": lambda m, n: (),
    "one": lambda m, n: (1,),
    "row": lambda m, n: (n,),
    "row of rank 2": lambda m, n: (1, n),
    "column": lambda m, n: (m, 1),
    "all": lambda m, n: (m, n),
}


@settings(max_examples=5 * settings().max_examples)
@given(
    st.sampled_from(sorted(ADDENDS)),
    st.integers(2, 5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.tuples(EXTENT, EXTENT, EXTENT),
    st.integers(0, 1 << 32),
)
def test_gemm(kind, factor, weight_on_left, trans_data, trans_weight, extents, seed) -> None:
    """All transA, transB, C; the weight keeps its orientation, the data is turned if need be."""
    rest, channels, outputs = extents
    length = factor * rest
    rng = np.random.default_rng(seed)
    layout = RowLayout(factor, weight_on_left)
    oriented = (channels, length) if weight_on_left else (length, channels)
    x = integers(rng, *oriented[:: -1 if trans_data else 1])
    weight = (outputs, channels) if weight_on_left else (channels, outputs)
    w = integers(rng, *weight[:: -1 if trans_weight else 1])
    shape = (outputs, length) if weight_on_left else (length, outputs)
    c = integers(rng, *ADDENDS[kind](*shape))

    def product(data, weights, addend, *, turned: bool) -> np.ndarray:
        if weight_on_left:
            pair = {"a": weights, "b": data, "trans_a": trans_weight, "trans_b": turned}
        else:
            pair = {"a": data, "b": weights, "trans_a": turned, "trans_b": trans_weight}
        return gemm(c=addend, alpha=3, beta=5, **pair)

    layer = product_layer(w, weight_on_left=weight_on_left, turned=trans_weight)
    fold = fold_of(layer, factor)
    packed = run(packing_moves(layout, oriented, data_transposed=trans_data), x)
    y = product(packed, folded_weight(layer, w, fold), folded_bias(layer, c, fold), turned=False)
    unpacked = run(unpacking_moves(layout, shape), y)
    np.testing.assert_array_equal(unpacked, product(x, w, c, turned=trans_data))


def test_it_is_the_conv_of_kernel_1() -> None:
    """A weight on the right has the dense batch fold, a weight on the left the blocked fold."""
    weight = np.arange(1, 16).reshape(5, 3)
    layer = product_layer(weight.T, weight_on_left=False)
    right_weight = folded_weight(layer, weight.T, fold_of(layer, 4))
    dense = fold_weight(weight, ConvFold(axes=(), batch=4, dense=True))
    np.testing.assert_array_equal(right_weight, dense.T)
    layer = product_layer(weight, weight_on_left=True)
    left_weight = folded_weight(layer, weight, fold_of(layer, 4))
    axis = fold_axis(ConvAxis(length=8, kernel=1), 4, 4, blocked=True)
    blocked = fold_weight(weight[..., None], ConvFold(axes=(axis,)))
    np.testing.assert_array_equal(left_weight, blocked[..., 0])


@pytest.mark.parametrize("weight_on_left", [False, True])
def test_numbers_are_copied_bit_for_bit(weight_on_left: bool) -> None:
    weight = np.array([[np.nan, -np.inf], [-0.0, 1e-45]], np.float32)
    weight.view(np.uint32)[0, 0] = 0x7FC12345
    layer = product_layer(weight, weight_on_left=weight_on_left)
    folded = folded_weight(layer, weight, fold_of(layer, 3))
    blocks = folded.reshape(2, 3, 2, 3) if weight_on_left else folded.reshape(3, 2, 3, 2)
    for f in range(3):
        block = blocks[:, f, :, f] if weight_on_left else blocks[f, :, f]
        assert block.tobytes() == weight.tobytes()


def test_only_data_that_lies_across_is_moved() -> None:
    """A transposed operand with an axis of extent 1 is the same in memory."""
    for shape, moves in (((6, 3), True), ((6, 1), False)):
        packed = packing_moves(RowLayout(2), shape, data_transposed=True)
        assert [isinstance(move, Reshape) for move in packed] == [False] * moves + [True]
