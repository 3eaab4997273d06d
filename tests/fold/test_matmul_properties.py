"""Folded products against the loop oracle, on integers, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fold.test_conv_properties import run
from tests.oracle import gemm, matmul
from widthfold_onnx.fold.axis import fold_axis
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.conv import fold_weight as fold_conv_weight
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.fold.layout import Reshape
from widthfold_onnx.fold.matmul import MatMulFold, fold_addend, fold_per_channel, fold_weight

EXTENT = st.integers(1, 4)


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(1, 100, shape)


@st.composite
def products(draw: st.DrawFn):
    """A MatMul with the weight on either side, plain, flat or batched, and a fold of it."""
    factor, left = draw(st.integers(2, 5)), draw(st.booleans())
    kind = draw(st.sampled_from(["plain", "plain", "flat", "batched"]))
    leading = draw(st.lists(EXTENT, max_size=2))
    merged = 1
    if not left and kind != "batched":
        merged = draw(st.integers(1, len(leading) + 1))
    rest = draw(st.integers(1, 3))
    length = factor * rest
    if merged > 1 and draw(st.booleans()):  # only the product of the merged axes is divisible
        leading[-1], length = factor, rest
    batches: list[int] = []
    if kind == "batched":  # any of the axes may be 1 on one side, or missing
        batches = [draw(st.sampled_from([1, extent])) for extent in leading]
        batches = [draw(EXTENT), *batches] if draw(st.booleans()) else batches
    fold = MatMulFold(factor=factor, left=left, merged=merged)
    return fold, leading, length, draw(EXTENT), draw(EXTENT), batches, kind == "flat"


@settings(max_examples=400, deadline=None)
@given(products(), st.integers(0, 1 << 32))
def test_fold_matmul_unfold_is_the_matmul(case, seed: int) -> None:
    fold, leading, length, channels, outputs, batches, flat = case
    rng = np.random.default_rng(seed)
    shape = (*leading, channels, length) if fold.left else (*leading, length, channels)
    x = integers(rng, *shape)
    outputs = 1 if flat else outputs
    w = integers(rng, *batches, *((outputs, channels) if fold.left else (channels, outputs)))
    stored = w.ravel() if flat else w
    expected = matmul(stored, x) if fold.left else matmul(x, stored)

    folded = fold_weight(w, fold)
    assert folded.shape == fold.weight_shape(w.shape)
    assert np.count_nonzero(folded) == round(folded.size * (1 - fold.structural_zeros()))
    packed = run(fold.folding(shape), x)
    assert packed.shape == fold.state.extents(shape)
    y = matmul(folded, packed) if fold.left else matmul(packed, folded)
    out = np.broadcast_shapes(tuple(leading), tuple(batches))
    natural = (*out, outputs, length) if fold.left else (*out, length, outputs)
    assert y.shape == fold.state.extents(natural)
    np.testing.assert_array_equal(run(fold.unfolding(natural, flat=flat), y), expected)


@settings(max_examples=100, deadline=None)
@given(products(), st.integers(0, 1 << 32))
def test_the_gaps_hold_what_stands_for_zero(case, seed: int) -> None:
    """Less its zero points, which are those of its channels, a folded weight has gaps of 0."""
    fold, _, _, channels, outputs, batches, _ = case
    rng = np.random.default_rng(seed)
    w = integers(rng, *batches, *((outputs, channels) if fold.left else (channels, outputs)))
    zero = integers(rng, *batches, *((outputs, 1) if fold.left else (1, outputs)))
    folded = fold_weight(w, fold, zero)
    repeated = fold_per_channel(zero, fold, -2 if fold.left else -1)
    np.testing.assert_array_equal(folded - repeated, fold_weight(w - zero, fold))


@settings(max_examples=200, deadline=None)
@given(products(), st.sets(st.integers(0, 2)))
def test_open_extents_are_copied_or_one_merged_one_inferred(case, opened: set[int]) -> None:
    fold, leading, length, channels, _, _, _ = case
    actual = (*leading, channels, length) if fold.left else (*leading, length, channels)
    first = len(leading) + 1 - fold.merged
    opened = {i for i in opened if i < len(leading) and i <= first}
    written = tuple(None if i in opened else extent for i, extent in enumerate(actual))
    x = np.arange(np.prod(actual)).reshape(actual)
    there = run(fold.folding(written), x)
    np.testing.assert_array_equal(there, run(fold.folding(actual), x))
    np.testing.assert_array_equal(run(fold.unfolding(written), there), x)


ADDENDS = {
    "scalar": lambda m, n: (),
    "one": lambda m, n: (1,),
    "row": lambda m, n: (n,),
    "row of rank 2": lambda m, n: (1, n),
    "column": lambda m, n: (m, 1),
    "all": lambda m, n: (m, n),
}


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(ADDENDS)),
    st.integers(2, 5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.tuples(EXTENT, EXTENT, EXTENT),
    st.integers(0, 1 << 32),
)
def test_gemm(kind, factor, left, trans_data, trans_weight, extents, seed) -> None:
    """All transA, transB, C; the weight keeps its orientation, the data is turned if need be."""
    rest, channels, outputs = extents
    length = factor * rest
    rng = np.random.default_rng(seed)
    fold = MatMulFold(factor=factor, left=left)
    oriented = (channels, length) if left else (length, channels)
    x = integers(rng, *oriented[:: -1 if trans_data else 1])
    weight = (outputs, channels) if left else (channels, outputs)
    w = integers(rng, *weight[:: -1 if trans_weight else 1])
    shape = (outputs, length) if left else (length, outputs)
    c = integers(rng, *ADDENDS[kind](*shape))

    def product(data, weights, addend, *, turned: bool) -> np.ndarray:
        if left:
            pair = {"a": weights, "b": data, "trans_a": trans_weight, "trans_b": turned}
        else:
            pair = {"a": data, "b": weights, "trans_a": turned, "trans_b": trans_weight}
        return gemm(c=addend, alpha=3, beta=5, **pair)

    packed = run(fold.folding(oriented, transposed=trans_data), x)
    y = product(packed, fold_weight(w, fold), fold_addend(c, fold, shape), turned=False)
    unfolded = run(fold.unfolding(shape), y)
    np.testing.assert_array_equal(unfolded, product(x, w, c, turned=trans_data))


def test_it_is_the_conv_of_kernel_1() -> None:
    """On the right its dense batch fold, on the left its blocked fold."""
    weight = np.arange(1, 16).reshape(5, 3)
    right = fold_weight(weight.T, MatMulFold(factor=4))
    dense = fold_conv_weight(weight, ConvFold(axes=(), batch=4, dense=True))
    np.testing.assert_array_equal(right, dense.T)
    left = fold_weight(weight, MatMulFold(factor=4, left=True))
    axis = fold_axis(ConvAxis(length=8, kernel=1), 4, 4, blocked=True)
    blocked = fold_conv_weight(weight[..., None], ConvFold(axes=(axis,)))
    np.testing.assert_array_equal(left, blocked[..., 0])


@pytest.mark.parametrize("left", [False, True])
def test_numbers_are_copied_bit_for_bit(left: bool) -> None:
    weight = np.array([[np.nan, -np.inf], [-0.0, 1e-45]], np.float32)
    weight.view(np.uint32)[0, 0] = 0x7FC12345
    folded = fold_weight(weight, MatMulFold(factor=3, left=left))
    blocks = folded.reshape(2, 3, 2, 3) if left else folded.reshape(3, 2, 3, 2)
    for f in range(3):
        block = blocks[:, f, :, f] if left else blocks[f, :, f]
        assert block.tobytes() == weight.tobytes()


def test_only_data_that_lies_across_is_moved() -> None:
    """A transposed operand with an axis of extent 1 is the same in memory."""
    fold = MatMulFold(factor=2)
    for shape, moves in (((6, 3), True), ((6, 1), False)):
        steps = fold.folding(shape, transposed=True)
        assert [isinstance(step, Reshape) for step in steps] == [False] * moves + [True]
