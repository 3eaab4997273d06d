"""Quantized products through the whole rewrite equal the loop oracle, bit for bit."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.folding import fold_model
from tests.lacking import IS_OLD
from tests.operators.backend_cases import FACTORS, backend_cases
from tests.rewrite.checked_fold import ANY_GROWTH
from tests.rewrite.proved import assert_proved
from tests.rewrite.quantized.products import INTEGER, LINEAR, QuantizedProduct
from tests.running import LEVELS, run
from widthfold_onnx.options import FoldOptions

PER_ROW = {
    "zero point": {"zeros": ((5,), ())},
    "zero points of a tensor": {"zeros": ((5, 1), ())},
    "scale and zero point": {"op": LINEAR, "zeros": ((5,), ()), "scales": ((5,), ())},
    "scale and zero point of the result": {"op": LINEAR, "result": (5, 1)},
}


@pytest.mark.parametrize("case", PER_ROW)
def test_rows_of_a(case: str) -> None:
    """The runtime knows no quantization per row; onnx's reference implementation does."""
    product = QuantizedProduct(shape=[3, 12], weight=[5, 3], weight_on_left=True, **PER_ROW[case])
    x = product.data(1)
    folded, (site,) = fold_model(product.model(), FoldOptions(factor=4))
    assert site.status == "folded"
    onnx.checker.check_model(folded, full_check=True)
    columns = onnx.ModelProto.FromString(folded.SerializeToString())
    for tensor in columns.graph.initializer:  # the reference takes a vector for one of columns
        if tensor.dims == [20]:
            tensor.dims.append(1)
    (y,) = ReferenceEvaluator(columns).run(None, {"x": x})
    np.testing.assert_array_equal(y, product.expected(x))


def test_all_that_is_per_channel_of_batched_weights() -> None:
    product = QuantizedProduct(
        op=LINEAR,
        shape=[2, 6, 3],
        weight=[2, 3, 5],
        zeros=((), (2, 1, 5)),
        scales=((), (2, 1, 5)),
    )
    folded, (site,) = fold_model(product.model(), FoldOptions(factor=3))
    assert site.status == "folded"
    shapes = {tensor.name: list(tensor.dims) for tensor in folded.graph.initializer}
    assert shapes["zb/widthfold"] == shapes["sb/widthfold"] == [2, 1, 15]
    x = product.data(0)
    np.testing.assert_array_equal(run(folded, x)[0], product.expected(x), strict=True)


def test_the_gaps_hold_the_zero_point_and_one_number_is_not_copied() -> None:
    product = QuantizedProduct(shape=[8, 3], weight=[3, 5], zeros=((), (5,)))
    folded, _ = fold_model(product.model(), FoldOptions(factor=4))
    tensors = {t.name: numpy_helper.to_array(t) for t in folded.graph.initializer}
    assert tensors.keys() >= {
        "za",
        "zb/widthfold",
        "b/widthfold",
    }
    assert "zb" not in tensors
    arrays = product.arrays()
    blocks = tensors["b/widthfold"].reshape(4, 3, 4, 5)
    for i, j in np.ndindex(4, 4):
        expected = arrays["b"] if i == j else np.broadcast_to(arrays["zb"], (3, 5))
        np.testing.assert_array_equal(blocks[i, :, j], expected)
    np.testing.assert_array_equal(tensors["zb/widthfold"], list(arrays["zb"]) * 4)


def test_a_computed_zero_point_of_the_data_stays() -> None:
    """The model is as quantize_dynamic writes it."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[12, 3] x) => (int32[12, 5] y) <int8[3, 5] w = {3, -64, 63, 9, -7, 1, 2, 3, 4, 5,
        -6, 7, -8, 9, -10}, int8 zw = {-3}> {
          q, s, z = DynamicQuantizeLinear (x)
          [site] y = MatMulInteger (q, w, z, zw)
        }"""
    )
    folded, (site,) = fold_model(model, FoldOptions(factor=4))
    assert site.status == "folded"
    x = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
    for level in LEVELS:
        np.testing.assert_array_equal(
            run(folded, x, level)[0], run(model, x, level)[0], strict=True
        )


CASES = [
    case
    for case in backend_cases({INTEGER, LINEAR})
    if len(case[1].graph.node) == 1 and "float8" not in case[0]
]


def with_constants(
    model: onnx.ModelProto, arrays: list[np.ndarray], side: str
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Node cases feed everything; here all but the data lies in the model."""
    result = onnx.ModelProto.FromString(model.SerializeToString())
    (node,) = result.graph.node
    operands = (0, 1) if node.op_type == INTEGER else (0, 3)
    data = node.input[operands[side == "left"]]
    names = [value.name for value in result.graph.input]
    for name, array in zip(names, arrays, strict=True):
        if name != data:
            result.graph.initializer.append(numpy_helper.from_array(array, name))
    others = [value for value in result.graph.input if value.name == data]
    del result.graph.input[:]
    result.graph.input.extend(others)
    return result, {data: arrays[names.index(data)]}


def wraps(inputs: list[np.ndarray], stored: np.ndarray) -> bool:
    """True if a stored output of QLinearMatMul is no limit where the result is beyond one."""
    a, scale_a, zero_a, b, scale_b, zero_b, scale, zero = (x.astype(np.float64) for x in inputs)
    exact = (a - zero_a) @ (b - zero_b) * (scale_a * scale_b / scale) + zero
    limits = np.iinfo(stored.dtype)
    return bool(
        np.any(stored[exact < limits.min] != limits.min)
        or np.any(stored[exact > limits.max] != limits.max)
    )


def test_there_are_cases() -> None:
    assert len(CASES) >= 8
    assert "test_matmulinteger" in {name for name, *_ in CASES}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_backend_case_at_every_legal_factor(case, side: str) -> None:
    _, original, inputs, expected = case
    if IS_OLD and original.graph.node[0].op_type == LINEAR and wraps(inputs, *expected):
        pytest.skip("onnx stores a wrapped output where QLinearMatMul saturates")
    model, feeds = with_constants(original, inputs, side)
    folded = 0
    for factor in FACTORS:
        options = FoldOptions(factor=factor, max_channels=1 << 20, **ANY_GROWTH)
        result, (site,) = fold_model(model, options)
        if site.status != "folded":
            assert site.code == "factor-does-not-divide", site.reason
            continue
        folded += 1
        onnx.checker.check_model(result, full_check=True)
        for actual, stored in zip(computed(result, feeds), expected, strict=True):
            np.testing.assert_array_equal(actual, stored, strict=True)
    assert folded


def computed(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Output by the runtime, or by onnx's reference implementation where it has no kernel."""
    try:
        return run(model, feeds)
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return ReferenceEvaluator(model).run(None, feeds)


@pytest.mark.parametrize("weight_on_left", [False, True])
def test_between_two_products_the_tensor_stays_folded(weight_on_left: bool) -> None:
    """The second reads what the first returns: one fold before, one unfold behind."""
    first = QuantizedProduct(
        shape=[3, 8] if weight_on_left else [8, 3],
        weight=[5, 3] if weight_on_left else [3, 5],
        op=LINEAR,
        weight_on_left=weight_on_left,
    )
    second = QuantizedProduct(
        shape=[5, 8] if weight_on_left else [8, 5],
        weight=[2, 5] if weight_on_left else [5, 2],
        op=LINEAR,
        weight_on_left=weight_on_left,
        types=("uint8", "uint8") if weight_on_left else ("uint8", "int8"),
        seed=1,
    )
    first.types = second.types
    model = first.model()
    model.graph.node[0].output[0] = "between"
    added = onnx.compose.add_prefix(second.model(), "second/")
    added.graph.node[0].input[3 if weight_on_left else 0] = "between"
    model.graph.node.extend(added.graph.node)
    model.graph.initializer.extend(added.graph.initializer)
    model.graph.output[0].name = added.graph.output[0].name
    onnx.checker.check_model(model, full_check=True)
    folded, sites = fold_model(model, FoldOptions(factor=4))
    assert [site.status for site in sites] == ["folded", "folded"]
    kinds = [node.op_type for node in folded.graph.node]
    assert kinds == ["Reshape", LINEAR, LINEAR, "Reshape"]
    assert_proved(model, folded, 2)
    x = first.data(0)
    for level in LEVELS:
        expected = second.expected(first.expected(x))
        np.testing.assert_array_equal(run(folded, x, level)[0], expected, strict=True)
