"""Random models through the whole rewrite: a folded model computes the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.external_data_helper import convert_model_to_external_data
from onnx.reference import ReferenceEvaluator

from tests.rewrite.checked_fold import Drawn, checked_fold
from tests.rewrite.drawn.convs import KINDS, conv_transposes, convs, quantized_convs
from tests.rewrite.drawn.graphs import of_convs, of_products
from tests.rewrite.drawn.products import dequantized_products, gemms, matmuls, quantized_products
from tests.rewrite.graphs import folded_ops, ops
from tests.running import run
from tests.small_models import build, save
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rewrite.rewriting import Rewriting, rewrite


@given(convs())
def test_convs(drawn: Drawn) -> None:
    checked_fold(drawn)


@given(conv_transposes())
def test_conv_transposes(drawn: Drawn) -> None:
    _, (site,) = checked_fold(drawn)
    assert site.op == "ConvTranspose"
    if site.status == "folded":
        assert site.factor == drawn.options.factor
        (y,), (expected,) = run(drawn.model, drawn.x), drawn.expected()
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("op", KINDS)
@given(data=st.data())
def test_quantized_convs(op: str, data: st.DataObject) -> None:
    checked_fold(data.draw(quantized_convs(op)))


@given(matmuls())
def test_matmuls(drawn: Drawn) -> None:
    folded, _ = checked_fold(drawn)
    assert "MatMul" in folded_ops(folded)


@given(gemms())
def test_every_gemm_whose_positions_divide_is_folded(drawn: Drawn) -> None:
    folded, (site,) = checked_fold(drawn)
    assert site.status == "folded"
    assert "Gemm" in folded_ops(folded)


@given(quantized_products())
def test_quantized_products(drawn: Drawn) -> None:
    folded, (site,) = checked_fold(drawn)
    if site.status == "folded":
        assert site.spread == 1.0
        assert not folded.metadata_props, "integers spread nothing"
    else:
        assert site.code in ("factor-does-not-divide", "one-position", "unknown-extent")


@given(dequantized_products())
def test_every_dequantized_product_is_folded(drawn: Drawn) -> None:
    _, (site,) = checked_fold(drawn)
    assert (site.status, site.spread) == ("folded", 1.0), site.reason


@given(of_convs(), st.booleans())
def test_graphs_of_convs(drawn: Drawn, reference: bool) -> None:
    folded, _ = checked_fold(drawn)
    assert folded_ops(folded).count("Conv") == ops(drawn.model).count("Conv")
    if reference:
        result = ReferenceEvaluator(folded).run(None, {"x": drawn.x})
        for actual, expected in zip(result, drawn.expected(), strict=True):
            np.testing.assert_array_equal(actual, expected)


@given(of_products())
def test_graphs_of_products(drawn: Drawn) -> None:
    folded, _ = checked_fold(drawn)
    assert folded_ops(folded).count("MatMul") == ops(drawn.model).count("MatMul")
    assert "Transpose" not in folded_ops(folded)


def test_a_rewritten_model_keeps_its_data_outside_and_spares_protected_files(
    tmp_path: Path,
) -> None:
    path, out = save(build(), tmp_path / "in.onnx"), tmp_path / "out.onnx"
    model = onnx.load(path)
    convert_model_to_external_data(model, location="in.data", size_threshold=0)
    onnx.save(model, path)
    loaded = load(path)

    def rewriting() -> Rewriting:
        reading, draft, _ = decide_fixed(loaded, FoldOptions(factor=2))
        assert draft.forms
        return rewrite(reading, draft.forms)

    with (
        pytest.raises(UsageError, match="is an input or another output"),
        rewriting().written(out, protected=[out]),
    ):
        pass
    assert not out.exists()
    with rewriting().written(out):
        pass
    assert not out.exists()
    with rewriting().written(out) as file:
        file.publish()
    weights = [w for w in onnx.load(out, load_external_data=False).graph.initializer if w.dims[1:]]
    assert {weight.data_location for weight in weights} == {onnx.TensorProto.EXTERNAL}
