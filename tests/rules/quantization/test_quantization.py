"""Refusals of a quantized product, in words that name the obstacle."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.folding import fold_model
from tests.rewrite.quantized.dequantized_products import DequantizedProduct
from tests.rewrite.quantized.products import LINEAR, QuantizedProduct
from widthfold_onnx.options import FoldOptions, NonFinite
from widthfold_onnx.results import SiteReport

RIGHT: dict[str, Any] = {"shape": [8, 3], "weight": [3, 5]}
LEFT: dict[str, Any] = {"shape": [3, 8], "weight": [5, 3], "weight_on_left": True}

REFUSALS: dict[str, tuple[QuantizedProduct, str, str]] = {
    "zero point per row of the data": (
        QuantizedProduct(**RIGHT, zeros=((8,), ())),
        "quantized-per-position",
        "the zero point of the data has the extents [8], so it differs between positions that "
        "become one",
    ),
    "zero point per column of the data": (
        QuantizedProduct(**LEFT, zeros=((), (8,))),
        "quantized-per-position",
        "the zero point of the data has the extents [8], so it differs between positions that "
        "become one",
    ),
    "scale per row of the data": (
        QuantizedProduct(**RIGHT, op=LINEAR, zeros=((), ()), scales=((8, 1), ())),
        "quantized-per-position",
        "the scale of the data has the extents [8, 1], so it differs between positions that "
        "become one",
    ),
    "result per row": (
        QuantizedProduct(**RIGHT, op=LINEAR, result=(8, 1)),
        "quantized-per-position",
        "the scale of the result has the extents [8, 1], so it differs between positions that "
        "become one",
    ),
    "too many zero points": (
        QuantizedProduct(**RIGHT, zeros=((), (4,))),
        "inconsistent-shapes",
        "the zero point of the weight has the extents [4], not one number for each output channel",
    ),
    "a zero point per input channel": (
        QuantizedProduct(**RIGHT, zeros=((), (3, 1))),
        "inconsistent-shapes",
        "the zero point of the weight has the extents [3, 1], not one number for each output "
        "channel",
    ),
    "rows": (
        QuantizedProduct(shape=[9, 3], weight=[3, 5]),
        "factor-does-not-divide",
        "rows: 9 rows are not a multiple of 4",
    ),
}


def folded(model: onnx.ModelProto, **options: Any) -> SiteReport:
    result, (site,) = fold_model(model, FoldOptions(factor=4, **options))
    if site.status != "folded":
        assert result.SerializeToString() == model.SerializeToString()
    return site


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    product, code, reason = REFUSALS[case]
    site = folded(product.model())
    assert (site.status, site.code, site.reason) == ("refused", code, reason)


def fed(product: QuantizedProduct, name: str) -> onnx.ModelProto:
    """The model with one of its constants as an input."""
    model = product.model()
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    model.graph.initializer.remove(tensor)
    model.graph.input.append(
        helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
    )
    return model


def test_a_computed_zero_point_of_the_weight() -> None:
    site = folded(fed(QuantizedProduct(**RIGHT), "zb"))
    assert site.code == "weight-zero-point-computed"
    assert site.reason == (
        "the zero point of the weight zb is an input: what fills the gaps of the weight is not "
        "known"
    )


@pytest.mark.parametrize("name", ["sa", "za", "sb", "sy", "zy"])
def test_any_other_single_number_may_be_computed(name: str) -> None:
    assert folded(fed(QuantizedProduct(**RIGHT, op=LINEAR), name)).status == "folded"


def test_a_computed_scale_per_channel() -> None:
    product = QuantizedProduct(**RIGHT, op=LINEAR, zeros=((), (5,)), scales=((), (5,)))
    site = folded(fed(product, "sb"))
    assert (site.code, site.reason) == (
        "quantized-not-constant",
        "the scale of the weight sb is an input",
    )


def test_a_zero_point_of_unknown_shape() -> None:
    model = fed(QuantizedProduct(**RIGHT), "za")
    model.graph.input[-1].type.tensor_type.ClearField("shape")
    site = folded(model)
    assert (site.code, site.reason) == (
        "unknown-shape",
        "how many numbers the zero point of the data has is not known",
    )


def large(channels: int) -> onnx.ModelProto:
    """Weights of 127 with a zero point of -128: each adds 255 * 255 at most."""
    node = helper.make_node("MatMulInteger", ["x", "w", "", "z"], ["y"])
    arrays = {"w": np.full((channels, 1), 127, np.int8), "z": np.array(-128, np.int8)}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [8, channels])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [8, 1])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_sums_that_may_leave_32_bits() -> None:
    """2**31 - 1 = 33025 * 255**2 + 33022."""
    limits = {"max_bytes_growth": 1e9, "max_channels": 1 << 20}
    assert folded(large(33025), **limits).status == "folded"
    site = folded(large(33026), **limits)
    assert site.code == "accumulator-overflow"
    assert site.reason == "a sum may reach 2147515650, more than the 2147483647 that int32 holds"


def large_dequantized(channels: int, added: int, *, weight_on_left: bool) -> onnx.ModelProto:
    """The same between dequantized operands, and C is added to the sum."""
    shape, weight = (
        ([channels, 8], [1, channels]) if weight_on_left else ([8, channels], [channels, 1])
    )
    model = DequantizedProduct(
        shape=shape, weight=weight, op="Gemm", weight_on_left=weight_on_left, added=[1]
    ).model()
    numbers = {"zx": 0, "w": 127, "zw": -128, "c": added}
    for tensor in model.graph.initializer:
        if tensor.name in numbers:
            array = np.full_like(numpy_helper.to_array(tensor), numbers[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


@pytest.mark.parametrize("weight_on_left", [False, True])
def test_sums_of_dequantized_operands_that_may_leave_32_bits(weight_on_left: bool) -> None:
    """A runtime multiplies their integers."""
    limits = {"max_bytes_growth": 1e9, "max_channels": 1 << 20}
    model = large_dequantized(33025, 33022, weight_on_left=weight_on_left)
    assert folded(model, **limits).status == "folded"
    for channels, added in ((33025, 33023), (33025, -33023), (33026, 0)):
        site = folded(large_dequantized(channels, added, weight_on_left=weight_on_left), **limits)
        assert site.code == "accumulator-overflow"
        assert site.reason == (
            f"a sum may reach {channels * 255**2 + abs(added)}, more than the 2147483647 that "
            "int32 holds"
        )


def test_integers_spread_nothing() -> None:
    """No structural zero meets Inf or NaN, and samples may mix."""
    product = QuantizedProduct(shape=[4, 3], weight=[3, 5], dims=["n", 3])
    site = folded(product.model(), nonfinite=NonFinite.REFUSE, input_shapes={"x": (4, 3)})
    assert (site.status, site.spread) == ("folded", 1.0)


def test_other_elements() -> None:
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [8, 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [8, 5])],
        [numpy_helper.from_array(np.ones((3, 5), np.int16), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    site = folded(model)
    assert (site.code, site.reason) == (
        "dtype-unsupported",
        "elements are INT16; INT8, UINT8 fold",
    )
