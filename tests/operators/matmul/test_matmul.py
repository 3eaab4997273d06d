"""Products of matrices through the whole rewrite: open extents, batches, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.folding import fold_model, optimize, verify
from tests.operators.products import Product
from tests.rewrite.proved import assert_proved, proof
from tests.running import LEVELS, run
from widthfold_onnx.options import DeliveryOptions, FoldOptions

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
        (result,) = run(folded, x, LEVELS[1])
        np.testing.assert_array_equal(result, product.expected(x))


def proved(model: onnx.ModelProto, options: FoldOptions, folder: Path) -> str:
    """The verdict of the proof; the outputs must agree as well."""
    (folder / "in.onnx").write_bytes(model.SerializeToString())
    prove = DeliveryOptions(seeds=2)
    report = optimize(folder / "in.onnx", folder / "out.onnx", options, prove)
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    return report.verification.proof.verdict


OPEN_BATCHED = {
    "right": Product(shape=[7, 6, 3], weight=[7, 3, 5], dims=["n", 6, 3], scale=1.0),
    "left": Product(
        shape=[7, 3, 6], weight=[7, 5, 3], weight_on_left=True, dims=["n", 3, 6], scale=1.0
    ),
    "more weights": Product(shape=[7, 6, 3], weight=[2, 7, 3, 5], dims=["n", 6, 3], scale=1.0),
    "more data": Product(shape=[2, 7, 6, 3], weight=[7, 3, 5], dims=["m", "n", 6, 3], scale=1.0),
}


@pytest.mark.parametrize("case", OPEN_BATCHED)
def test_an_open_batch_that_meets_one_of_the_weight(case: str, tmp_path: Path) -> None:
    """It is 1 or 7, and the proof holds at both."""
    product = OPEN_BATCHED[case]
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    source.write_bytes(product.model().SerializeToString())
    prove = DeliveryOptions(seeds=2, input_shapes={"x": tuple(product.shape)})
    report = optimize(source, out, FoldOptions(factor=3, mix_samples=True), prove)
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    assert report.verification.proof.verdict == "equal"
    for batch in (1, 7):
        product = replace(product, shape=[*product.shape[:-3], batch, *product.shape[-2:]])
        assert_proved(onnx.load(source), onnx.load(out), 1, {"x": product.shape})
        x = np.random.default_rng(0).standard_normal(product.shape).astype(np.float32)
        (result,) = run(out, x, LEVELS[1])
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
    batch_of_1 = (*product.shape[:-3], 1, *product.shape[-2:])
    verification = verify(source, out, replace(prove, input_shapes={"x": batch_of_1}))
    assert verification.verdict == "fail"
    assert verification.proof.verdict == "different"


@pytest.mark.parametrize("weight_on_left", [False, True])
def test_a_constant_that_is_weight_and_addend_is_proved_as_both(
    weight_on_left: bool, tmp_path: Path
) -> None:
    product = Product(
        op="Gemm", shape=[12, 12], weight=[12, 12], weight_on_left=weight_on_left, scale=1.0
    )
    model = product.model()
    next(node for node in model.graph.node if node.name == "site").input.append("w")
    assert proved(model, FoldOptions(factor=4, mix_samples=True), tmp_path) == "equal"


def test_factors_that_are_no_numbers_are_kept(tmp_path: Path) -> None:
    attributes = {"alpha": 2.0, "beta": float("nan")}
    product = Product(op="Gemm", shape=[12, 3], weight=[3, 5], attributes=attributes, scale=1.0)
    options = FoldOptions(factor=4, mix_samples=True)
    assert proved(product.model(), options, tmp_path) == "equal"


def test_merged_rows_may_have_one_open_extent() -> None:
    """4 x 6 rows of each of any number of samples; with the samples, any multiple of 24."""
    options = FoldOptions(factor=8)
    product = Product(shape=(3, 4, 6, 3), weight=[3, 5], dims=["n", 4, 6, 3])
    folded, (site,) = fold_model(product.model(), options)
    assert (site.status, site.axis) == ("folded", "rows")
    for samples in (1, 3, 0):
        product.shape = (samples, 4, 6, 3)
        x = np.random.default_rng(0).integers(-9, 10, product.shape).astype(np.float32)
        np.testing.assert_array_equal(run(folded, x, LEVELS[1])[0], product.expected(x))


@pytest.mark.parametrize("rows", [8, 9, 15, 17, 20, 24])
def test_another_size_than_the_assumed_one_runs(rows: int) -> None:
    product = Product(shape=(16, 3), weight=[3, 5], dims=["n", 3])
    options = FoldOptions(factor=8, mix_samples=True, input_shapes={"x": (16, 3)})
    folded, (site,) = fold_model(product.model(), options)
    assert site.status == "folded"
    x = np.random.default_rng(0).integers(-9, 10, (rows, 3)).astype(np.float32)
    product.shape = (rows, 3)
    np.testing.assert_array_equal(run(folded, x, LEVELS[1])[0], product.expected(x))


def test_half_precision_and_a_shared_weight() -> None:
    product = Product(shape=(8, 3), weight=[3, 5], dtype=np.float16)
    folded, (site,) = fold_model(product.model(), FoldOptions(factor=4, mix_samples=True))
    assert site.status == "folded"
    (weight,) = [t for t in folded.graph.initializer if t.name.startswith("w")]
    assert (weight.data_type, list(weight.dims)) == (onnx.TensorProto.FLOAT16, [12, 20])
    x = np.random.default_rng(0).integers(-9, 10, (8, 3)).astype(np.float16)
    np.testing.assert_array_equal(run(folded, x, LEVELS[1])[0], product.expected(x))
