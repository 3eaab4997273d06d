"""QDQ products through the whole rewrite: the same numbers, and still integers in the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests look at what the runtime makes of a model
import pytest
from onnx import numpy_helper

from tests.folding import fold_model
from tests.rewrite.quantized.dequantized_products import DequantizedProduct
from widthfold_onnx.options import FoldOptions

BYTES = ("uint8", "int8")


FUSED = {
    ("MatMul", True): "QLinearMatMul",
    ("MatMul", False): "MatMulIntegerToFloat",
    ("Gemm", True): "QGemm",
    ("Gemm", False): "QGemm",
}


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize(("op", "quantized"), FUSED)
def test_the_runtime_still_computes_in_integers(
    op: str, quantized: bool, kind: str, opset: int, tmp_path: Path
) -> None:
    product = DequantizedProduct(
        shape=[24, 3],
        weight=[3, 5],
        op=op,
        types=(kind, "int8"),
        axis=1,
        added=[5] if op == "Gemm" else None,
        quantized=quantized,
        opset=opset,
    )
    folded, _ = fold_model(product.model(), FoldOptions(factor=4))
    original = optimized(product.model(), tmp_path)
    assert FUSED[op, quantized] in original
    kinds = optimized(folded, tmp_path)
    assert kinds.count("Reshape") == 2
    assert sorted([*original, "Reshape", "Reshape"]) == sorted(kinds)


def test_several_readers_of_one_dequantized_tensor(tmp_path: Path) -> None:
    """Three products read one tensor, as queries, keys and values do."""
    model = DequantizedProduct(shape=[12, 3], weight=[3, 5], quantized=False).model()
    other = onnx.NodeProto.FromString(model.graph.node[-1].SerializeToString())
    other.name, other.output[0] = "other", "z"
    model.graph.node.append(other)
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [None, None]))
    folded, sites = fold_model(model, FoldOptions(factor=4))
    assert [site.status for site in sites] == ["folded", "folded"]
    assert optimized(folded, tmp_path).count("MatMulIntegerToFloat") == 2
    weights = [t for t in folded.graph.initializer if t.name.startswith("w")]
    assert len(weights) == 1, "both read one folded weight"


def optimized(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Operators of the graph that the runtime makes of a model."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options)
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def test_integers_stay_integers() -> None:
    """The weight keeps its bytes, its zero points fill the gaps, all scales are repeated."""
    product = DequantizedProduct(
        shape=[8, 3], weight=[5, 3], op="Gemm", turned=True, axis=0, added=[5]
    )
    folded, _ = fold_model(product.model(), FoldOptions(factor=4))
    tensors = {t.name: numpy_helper.to_array(t) for t in folded.graph.initializer}
    stored = product.arrays()
    assert tensors.keys().isdisjoint({"w", "sw", "zw", "c", "sc", "zc"})
    blocks = tensors["w/widthfold"].reshape(4, 5, 4, 3)
    assert blocks.dtype == np.int8
    for i, j in np.ndindex(4, 4):
        expected = stored["w"] if i == j else np.broadcast_to(stored["zw"][:, None], (5, 3))
        np.testing.assert_array_equal(blocks[i, :, j], expected)
    for name in ("sw", "zw", "c", "sc", "zc"):
        np.testing.assert_array_equal(tensors[f"{name}/widthfold"], list(stored[name]) * 4)


BASE: dict[str, Any] = {"shape": [8, 3], "weight": [3, 5]}


def replaced(product: DequantizedProduct, **arrays: np.ndarray) -> onnx.ModelProto:
    """The model with other constants."""
    model = product.model()
    others = [t for t in model.graph.initializer if t.name not in arrays]
    del model.graph.initializer[:]
    model.graph.initializer.extend(others)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


def without_zero_point() -> onnx.ModelProto:
    model = DequantizedProduct(**BASE).model()
    for node in model.graph.node[:2]:
        del node.input[2:]
    return model


def with_output_type() -> onnx.ModelProto:
    """A DequantizeLinear that declares the type of its output, as it may from opset 23 on."""
    model = DequantizedProduct(**BASE, quantized=False, opset=23).model()
    kind = onnx.helper.make_attribute("output_dtype", onnx.TensorProto.FLOAT)
    model.graph.node[1].attribute.append(kind)
    return model


def wide_addend() -> onnx.ModelProto:
    product = DequantizedProduct(**BASE, op="Gemm", added=[8, 5])
    return product.model()


INTEGERS = "a runtime computes it in integers, and "
REFUSALS = {
    "no zero point of the data": (
        without_zero_point,
        f"{INTEGERS}the data is dequantized with other than one constant scale and zero point",
    ),
    "another attribute": (
        with_output_type,
        f"{INTEGERS}the data is dequantized with output_dtype",
    ),
    "a scale that rounds to nothing": (
        lambda: replaced(DequantizedProduct(**BASE), sx=np.array(1e-45, np.float32)),
        f"{INTEGERS}the scale of the data does not give back every number",
    ),
    "a scale that leads out of float32": (
        lambda: replaced(DequantizedProduct(**BASE), sx=np.array(1e38, np.float32)),
        f"{INTEGERS}the scale of the data does not give back every number",
    ),
    "a negative scale of the weight": (
        lambda: replaced(DequantizedProduct(**BASE), sw=np.array(-1, np.float32)),
        "a scale is not a positive number",
    ),
    "a scale of NaN": (
        lambda: replaced(DequantizedProduct(**BASE), sx=np.array(np.nan, np.float32)),
        f"{INTEGERS}the scale of the data does not give back every number",
    ),
    "C of two axes": (wide_addend, f"{INTEGERS}C of extents [8, 5] is dequantized"),
    "scales of input channels": (
        lambda: DequantizedProduct(**BASE, axis=0).model(),
        "scale or zero point of the weight differ along axis 0, which counts no output channels",
    ),
    "scales of batches": (
        lambda: DequantizedProduct(shape=[2, 8, 3], weight=[2, 3, 5], axis=0).model(),
        "scale or zero point of the weight differ along axis 0, which counts no output channels",
    ),
    "scales along a vector": (
        lambda: DequantizedProduct(shape=[8, 3], weight=[3], axis=0).model(),
        "scale or zero point of the weight differ along axis 0, which counts no output channels",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    make, reason = REFUSALS[case]
    model = make()
    result, (site,) = fold_model(model, FoldOptions(factor=4))
    assert site.code == "quantized"
    assert site.reason == reason
    assert result.SerializeToString() == model.SerializeToString()
