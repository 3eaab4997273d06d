"""Random products of matrices through the whole rewrite; the result equals the loop oracle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tests.rewrite.products import EXTENT, Product, operands
from tests.rewrite.proved import assert_proved, proof
from tests.rewrite.test_properties import run
from widthfold_onnx import FoldOptions, VerifyOptions, fold_model, optimize, verify

LIMITS = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}


@st.composite
def matmuls(draw: st.DrawFn):
    """A MatMul, its weight plain, a vector or batched, with open dimensions; a factor."""
    factor = draw(st.integers(2, 6))
    it = draw(operands(factor))
    opened = draw(st.sets(st.integers(0, len(it.shape) - 1), max_size=2))
    dims = [f"d{i}" if i in opened else extent for i, extent in enumerate(it.shape)]
    assumed = {"x": tuple(it.shape)} if draw(st.booleans()) else {}
    options = FoldOptions(
        factor=factor, mix_samples=draw(st.booleans()), input_shapes=assumed, **LIMITS
    )
    opset = draw(st.sampled_from([7, 9, 13, 17, 21]))
    product = Product(shape=it.shape, weight=it.weight, left=it.left, dims=dims, opset=opset)
    return product, options


@st.composite
def gemms(draw: st.DrawFn):
    """A Gemm: both transA and transB, alpha and beta, every way in which C broadcasts."""
    left, factor = draw(st.booleans()), draw(st.integers(2, 6))
    length = factor * draw(st.integers(1, 3))
    channels, outputs = draw(EXTENT), draw(EXTENT)
    m, n = (outputs, length) if left else (length, outputs)
    turn = [draw(st.booleans()), draw(st.booleans())]
    operands = [[m, channels], [channels, n]]
    a, b = (shape[::-1] if flag else shape for shape, flag in zip(operands, turn, strict=True))
    addend = draw(st.sampled_from([None, [], [1], [n], [1, n], [m, 1], [m, n], [1, 1]]))
    attributes = {name: int(flag) for name, flag in zip(("transA", "transB"), turn, strict=True)}
    if draw(st.booleans()):
        attributes |= {"alpha": 2.0, "beta": 3.0}
    product = Product(
        op="Gemm",
        shape=b if left else a,
        weight=a if left else b,
        left=left,
        addend=[1] if addend is None and draw(st.booleans()) else addend,
        attributes=attributes,
        opset=draw(st.sampled_from([11, 13, 17])),
    )
    return product, FoldOptions(factor=factor, **LIMITS)


def check(product: Product, options: FoldOptions, seed: int) -> str:
    """What became of it; where it is folded, the result must be that of the oracle."""
    model = product.model()
    x = np.random.default_rng(seed).integers(-9, 10, product.shape).astype(np.float32)
    folded, (site,) = fold_model(model, options)
    if site.status != "folded":
        assert folded.SerializeToString() == model.SerializeToString()
        return site.code
    onnx.checker.check_model(folded, full_check=True)
    assert [node.op_type for node in folded.graph.node if node.op_type == product.op]
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, x, level), product.expected(x))
    again, (second,) = fold_model(folded, options)
    assert second.code == "already-folded"
    assert again.SerializeToString() == folded.SerializeToString()
    return site.code


@settings(max_examples=250, deadline=None)
@given(matmuls(), st.integers(0, 1 << 32))
def test_matmul(case, seed: int) -> None:
    check(*case, seed)


@settings(max_examples=200, deadline=None)
@given(gemms(), st.integers(0, 1 << 32))
def test_every_gemm_whose_positions_divide_is_folded(case, seed: int) -> None:
    assert check(*case, seed) == "folded"


OTHER_SIZES = {
    "open batch": (["n", 24, 3], {}, [(1, 24, 3), (5, 24, 3), (0, 24, 3)]),
    "two open batches": (["n", "m", 8, 3], {}, [(1, 4, 8, 3), (3, 1, 8, 3)]),
}


@pytest.mark.parametrize("case", OTHER_SIZES)
def test_what_is_open_stays_open(case: str) -> None:
    dims, assumed, sizes = OTHER_SIZES[case]
    product = Product(shape=sizes[0], weight=[3, 5], dims=dims)
    folded, (site,) = fold_model(product.model(), FoldOptions(factor=8, input_shapes=assumed))
    assert site.status == "folded"
    for size in sizes:
        x = np.random.default_rng(0).integers(-9, 10, size).astype(np.float32)
        product.shape = size
        result = run(folded, x, "ORT_ENABLE_ALL")
        np.testing.assert_array_equal(result, product.expected(x))


def proved(model: onnx.ModelProto, options: FoldOptions, folder: Path) -> str:
    """The verdict of the proof; the outputs must agree as well."""
    (folder / "in.onnx").write_bytes(model.SerializeToString())
    prove = VerifyOptions(thorough=False, timing=False, seeds=2)
    report = optimize(folder / "in.onnx", folder / "out.onnx", options, prove)
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    return report.verification.proof.verdict


OPEN_BATCHED = {
    "right": Product(shape=[7, 6, 3], weight=[7, 3, 5], dims=["n", 6, 3], scale=1.0),
    "left": Product(shape=[7, 3, 6], weight=[7, 5, 3], left=True, dims=["n", 3, 6], scale=1.0),
    "more weights": Product(shape=[7, 6, 3], weight=[2, 7, 3, 5], dims=["n", 6, 3], scale=1.0),
    "more data": Product(shape=[2, 7, 6, 3], weight=[7, 3, 5], dims=["m", "n", 6, 3], scale=1.0),
}


@pytest.mark.parametrize("case", OPEN_BATCHED)
def test_an_open_batch_that_meets_one_of_the_weight(case: str, tmp_path: Path) -> None:
    """It is 1 or 7, and the proof holds at both."""
    product = OPEN_BATCHED[case]
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    source.write_bytes(product.model().SerializeToString())
    prove = VerifyOptions(
        thorough=False, timing=False, seeds=2, input_shapes={"x": tuple(product.shape)}
    )
    report = optimize(source, out, FoldOptions(factor=3, mix_samples=True), prove)
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    assert report.verification.proof.verdict == "equal"
    for batch in (1, 7):
        product = replace(product, shape=[*product.shape[:-3], batch, *product.shape[-2:]])
        assert_proved(onnx.load(source), onnx.load(out), 1, {"x": product.shape})
        x = np.random.default_rng(0).standard_normal(product.shape).astype(np.float32)
        result = run(onnx.load(out), x, "ORT_ENABLE_ALL")
        np.testing.assert_allclose(result, product.expected(x), rtol=1e-5, atol=1e-5)
    pinned = onnx.load(out)
    for tensor in pinned.graph.initializer:
        if "/fold_reshape/shape" in tensor.name:
            extents = numpy_helper.to_array(tensor).copy()
            assert extents[-3] == 0
            extents[-3] = 7
            tensor.CopyFrom(numpy_helper.from_array(extents, tensor.name))
    out.write_bytes(pinned.SerializeToString())
    assert proof(onnx.load(source), pinned, {"x": product.shape}).verdict == "equal"
    one = (*product.shape[:-3], 1, *product.shape[-2:])
    found = verify(source, out, replace(prove, input_shapes={"x": one}))
    assert found.verdict == "fail"
    assert found.proof.verdict == "different"


@pytest.mark.parametrize("left", [False, True])
def test_a_constant_that_is_weight_and_addend_is_proved_as_both(left: bool, tmp_path: Path) -> None:
    product = Product(op="Gemm", shape=[12, 12], weight=[12, 12], left=left, scale=1.0)
    model = product.model()
    next(node for node in model.graph.node if node.name == "site").input.append("w")
    assert proved(model, FoldOptions(factor=4), tmp_path) == "equal"


def test_factors_that_are_no_numbers_are_kept(tmp_path: Path) -> None:
    attributes = {"alpha": 2.0, "beta": float("nan")}
    product = Product(op="Gemm", shape=[12, 3], weight=[3, 5], attributes=attributes, scale=1.0)
    assert proved(product.model(), FoldOptions(factor=4), tmp_path) == "equal"


def test_merged_rows_may_have_one_open_extent() -> None:
    """4 x 6 rows of each of any number of samples; with the samples, any multiple of 24."""
    options = FoldOptions(factor=8)
    product = Product(shape=(3, 4, 6, 3), weight=[3, 5], dims=["n", 4, 6, 3])
    folded, (site,) = fold_model(product.model(), options)
    assert (site.status, site.axis) == ("folded", "rows")
    for samples in (1, 3, 0):
        product.shape = (samples, 4, 6, 3)
        x = np.random.default_rng(0).integers(-9, 10, product.shape).astype(np.float32)
        np.testing.assert_array_equal(run(folded, x, "ORT_ENABLE_ALL"), product.expected(x))


@pytest.mark.parametrize("rows", [8, 9, 15, 17, 20, 24])
def test_another_size_than_the_assumed_one_fails(rows: int) -> None:
    product = Product(shape=(16, 3), weight=[3, 5], dims=["n", 3])
    options = FoldOptions(factor=8, mix_samples=True, input_shapes={"x": (16, 3)})
    folded, (site,) = fold_model(product.model(), options)
    assert site.status == "folded"
    x = np.random.default_rng(0).integers(-9, 10, (rows, 3)).astype(np.float32)
    with pytest.raises(Exception, match=r"[Rr]eshape"):
        run(folded, x, "ORT_ENABLE_ALL")


def test_half_precision_and_a_shared_weight() -> None:
    product = Product(shape=(8, 3), weight=[3, 5], dtype=np.float16)
    folded, (site,) = fold_model(product.model(), FoldOptions(factor=4))
    assert site.status == "folded"
    (weight,) = [t for t in folded.graph.initializer if t.name.startswith("w")]
    assert (weight.data_type, list(weight.dims)) == (onnx.TensorProto.FLOAT16, [12, 20])
    x = np.random.default_rng(0).integers(-9, 10, (8, 3)).astype(np.float16)
    np.testing.assert_array_equal(run(folded, x, "ORT_ENABLE_ALL"), product.expected(x))
