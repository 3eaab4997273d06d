"""Weights of integers that are dequantized and then moved, as converters of channels-last nets do.

The integers are folded: a runtime rounds a folded weight of floats to 8 bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model, optimize
from tests.rewrite.proved import assert_proved, proof
from tests.rewrite.quantized.convs import Case
from tests.rewrite.quantized.convs import run as run_case
from tests.rewrite.quantized.dequantized_products import DequantizedProduct
from tests.rewrite.quantized.models import FOLD, LINE, optimized, with_moves
from tests.running import LEVELS, run
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code

CHAINS = {
    "Transpose": ["Transpose"],
    "Reshape": ["Reshape"],
    "Identity": ["Identity"],
    "several": ["Identity", "Transpose", "Squeeze", "Reshape"],
}


def assert_folds_integers(model: onnx.ModelProto, folded: onnx.ModelProto) -> None:
    """Assert that one weight is folded, and stays one of integers."""
    makers = {node.output[0]: node for node in folded.graph.node}
    arrays = {t.name: numpy_helper.to_array(t) for t in folded.graph.initializer}
    (old,) = (t for t in model.graph.initializer if t.name == "w")
    (name,) = (name for name in arrays if name.startswith("w/widthfold"))
    assert arrays[name].dtype == numpy_helper.to_array(old).dtype
    (reader,) = (node for node in folded.graph.node if name in node.input)
    assert reader.op_type == "DequantizeLinear"
    (layer,) = (node for node in folded.graph.node if reader.output[0] in node.input)
    assert layer.op_type not in ("Transpose", "Reshape")
    assert all(makers[n].op_type == "DequantizeLinear" for n in layer.input if n in makers)
    assert_proved(model, folded, 1)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize(
    ("op", "weight"), [("QDQ Conv", (5, 3, 4)), ("QDQ ConvTranspose", (3, 5, 4))]
)
def test_integers_of_a_convolution_are_folded_through_moves(
    op: str, weight: tuple[int, ...], kind: type, per_channel: bool, chain: str, tmp_path: Path
) -> None:
    layer = LINE | {"weight": weight}
    case = Case(op=op, kinds=(np.uint8, kind), per_channel=per_channel, bias=False, **layer)
    model = with_moves(case.model(), CHAINS[chain])
    x, expected = case.data(), case.expected(case.data())
    np.testing.assert_array_equal(run_case(model, x), expected)
    folded, (site,) = fold_model(model, FOLD)
    assert site.status == "folded"
    assert_folds_integers(model, folded)
    for level in LEVELS:
        np.testing.assert_array_equal(run_case(folded, x, level), expected)
    kernels = optimized(folded, tmp_path)
    assert kernels.count("QLinearConv") >= optimized(model, tmp_path).count("QLinearConv")


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_integers_of_a_product_are_folded_through_moves(
    op: str, axis: int | None, chain: str
) -> None:
    product = DequantizedProduct(shape=[24, 3], weight=[3, 5], op=op, axis=axis)
    model = with_moves(product.model(), CHAINS[chain])
    x = product.data(3)
    folded, (site,) = fold_model(model, FoldOptions(factor=4))
    assert site.status == "folded"
    assert_folds_integers(model, folded)
    for level in LEVELS:
        np.testing.assert_array_equal(run(folded, x, level)[0], product.expected(x))


def test_a_changed_integer_is_different() -> None:
    model = with_moves(Case(op="QDQ Conv", bias=False, **LINE).model(), CHAINS["several"])
    folded, _ = fold_model(model, FOLD)
    (tensor,) = (t for t in folded.graph.initializer if t.name.startswith("w/widthfold"))
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] ^= 1
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert proof(model, folded).verdict == "different"


def test_optimize_writes_a_layer_whose_integers_are_moved(tmp_path: Path) -> None:
    """Beside a bias of floats, with scales that are no powers of two."""
    case = Case(op="QDQ Conv", per_channel=False, **LINE)
    model = with_moves(case.model(), CHAINS["Transpose"])
    graph = model.graph
    graph.node.remove(next(node for node in graph.node if node.input[0] == "b"))
    numbers = {"ws": 0.0237, "bf": np.linspace(-3, 5, 5), "ys": 11.3}
    for name, array in numbers.items():
        for tensor in [t for t in graph.initializer if t.name == name]:
            graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    for name in ("b", "bs"):
        graph.initializer.remove(next(t for t in graph.initializer if t.name == name))
    file = tmp_path / "model.onnx"
    onnx.save(model, file)
    report = optimize(file, tmp_path / "out.onnx", FOLD)
    assert report.written
    assert report.verification is not None
    assert report.verification.proof.verdict == "equal"
    x = case.data()
    for level in LEVELS:
        pair = [run_case(onnx.load(f), x, level) for f in (file, tmp_path / "out.onnx")]
        np.testing.assert_array_equal(*pair)


def refused(model: onnx.ModelProto) -> tuple[str, str]:
    """Why its one layer is left alone."""
    folded, (site,) = fold_model(model, FOLD)
    assert folded == model
    assert site.status == "refused"
    return site.code, site.reason


def test_scales_that_a_reshape_spreads_over_two_axes_are_refused() -> None:
    """The scales of [2, 3] channels in one vector of 6."""
    case = Case(op="QDQ Conv", bias=False, **(LINE | {"weight": (6, 3, 4)}))
    model = case.model()
    maker = next(node for node in model.graph.node if node.input[0] == "w")
    maker.output[0] = "flat"
    (tensor,) = (t for t in model.graph.initializer if t.name == "w")
    tensor.dims[:] = [2, 3, 12]
    kept = {"ws": 2, "wz": 2}
    for name, count in kept.items():
        (vector,) = (t for t in model.graph.initializer if t.name == name)
        vector.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(vector)[:count], name))
    model.graph.initializer.append(numpy_helper.from_array(np.int64([6, 3, 4]), "shape"))
    reshape = helper.make_node("Reshape", ["flat", "shape"], ["wf"])
    model.graph.node.insert(list(model.graph.node).index(maker) + 1, reshape)
    assert refused(model) == (
        Code.QUANTIZED,
        "the weight wf has scales or zero points that differ along none of its axes alone",
    )


def test_a_dequantized_weight_that_is_cast_is_refused() -> None:
    """The runtime leaves the Cast where it is, and rounds a folded weight of floats to 8 bits."""
    case = Case(op="QDQ Conv", bias=False, per_channel=False, opset=19, **LINE)
    model = case.model()
    maker = next(node for node in model.graph.node if node.input[0] == "w")
    (scale,) = (t for t in model.graph.initializer if t.name == "ws")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale).astype(np.float16), "ws"))
    maker.output[0] = "half"
    cast = helper.make_node("Cast", ["half"], ["wf"], to=onnx.TensorProto.FLOAT)
    model.graph.node.insert(list(model.graph.node).index(maker) + 1, cast)
    model.ir_version = 9
    assert refused(model) == (
        Code.QUANTIZED,
        "the weight is dequantized and then changed: folded, a runtime would round it to 8 bits "
        "again",
    )
