"""Regions of folded products of matrices: no needless conversion lies between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model
from tests.lacking import IS_OLD, needs_exact_normalization
from tests.rewrite.graphs import ops
from tests.rewrite.linear import Linear, perceptron
from tests.rewrite.proved import assert_proved
from tests.rewrite.regions.regions import conversions, folded, optimized
from tests.running import LEVELS, run
from widthfold_onnx.options import FoldOptions

BY_3 = FoldOptions(factor=3, mix_samples=True, max_flops_growth=1e9, max_bytes_growth=1e9)
SHAPES = [(21, 5), (2, 21, 5), (7, 2, 3, 5), (21, 1)]


def linear(*shape: int | str, weight_on_left: bool = False) -> Linear:
    return Linear(
        list(shape or (2, 21, 7)), np.random.default_rng(1), weight_on_left=weight_on_left
    )


@pytest.mark.parametrize("shape", [*SHAPES, ("n", 21, 5)])
def test_a_perceptron_is_folded_once(shape: tuple[int, ...]) -> None:
    result = folded(perceptron(*shape), BY_3, 4)
    assert ops(result) == ["Reshape", *["MatMul", "Add", "Relu"] * 4, "Reshape", "Softmax"]


@pytest.mark.parametrize("shape", [(5, 21), (2, 5, 21), (2, 3, 1, 21)])
def test_with_the_weights_on_the_left_as_well(shape: tuple[int, ...]) -> None:
    result = folded(perceptron(*shape, weight_on_left=True), BY_3, 4)
    assert ops(result) == ["Reshape", *["MatMul", "Add", "Relu"] * 4, "Reshape", "Softmax"]


@pytest.mark.parametrize("level", ["EXTENDED", "ALL"])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_the_runtime_fuses_as_much_as_before(
    shape: tuple[int, ...], level: str, tmp_path: Path
) -> None:
    model = perceptron(*shape)
    before = optimized(model, level, tmp_path)
    if IS_OLD and "Add" in before:
        pytest.skip("ONNX Runtime fuses no Add into a MatMul of rank 3")
    assert {"Add", "MatMul"}.isdisjoint(before)
    after = optimized(fold_model(model, BY_3)[0], level, tmp_path)
    if len(shape) == 2:
        assert before == ["FusedGemm"] * 4 + ["Softmax"]
        assert after == ["Reshape", *before[:-1], "Reshape", "Softmax"]
    else:  # the runtime makes a matrix of the rows by itself, and the fold joins one Reshape
        assert after == [*before[:-1], "Reshape", "Softmax"]


@pytest.mark.parametrize("shape", [(21, 7), (2, 21, 7), (7, 2, 3, 7)])
@pytest.mark.parametrize(
    ("op", "extents"),
    [
        *(("Add", (7,)), ("Sub", (1, 7)), ("Mul", (7,)), ("Max", (1, 7)), ("Min", ())),
        *(("Add", (1,)), ("Mul", (1, 1)), ("PRelu", (7,)), ("PRelu", (1, 7)), ("PRelu", ())),
    ],
)
def test_constants_are_tiled(op: str, extents: tuple[int, ...], shape: tuple[int, ...]) -> None:
    g = linear(*shape)
    value = g.op(op, g.product("x", 7), g.integers(*extents))
    result = folded(g.model([g.product(value, 2)]), BY_3, 2)
    assert ops(result) == ["Reshape", "MatMul", op, "MatMul", "Reshape"]


@pytest.mark.parametrize("extents", [(1, 1, 7), (1, 1, 1)])
def test_a_constant_of_as_many_axes_as_are_merged(extents: tuple[int, ...]) -> None:
    g = linear(7, 3, 7)
    options = FoldOptions(factor=7, mix_samples=True, max_flops_growth=1e9, max_bytes_growth=1e9)
    value = g.op("Add", g.product("x", 7), g.integers(*extents))
    result = folded(g.model([g.product(value, 2)]), options, 2)
    assert ops(result) == ["Reshape", "MatMul", "Add", "MatMul", "Reshape"]


@pytest.mark.parametrize("extents", [(7, 1), (1, 7, 1), (1, 1), ()])
def test_constants_are_repeated_on_the_left(extents: tuple[int, ...]) -> None:
    g = linear(2, 7, 21, weight_on_left=True)
    value = g.op("Mul", g.product("x", 7), g.integers(*extents))
    result = folded(g.model([g.product(value, 2)]), BY_3, 2)
    assert ops(result) == ["Reshape", "MatMul", "Mul", "MatMul", "Reshape"]


def test_the_bias_of_one_channel_becomes_one_of_every_tile(tmp_path: Path) -> None:
    """The runtime adds nothing in a product but one number per channel of it."""
    model = perceptron(21, 5, widths=(1,))
    result = folded(model, BY_3)
    held = {tensor.name: list(tensor.dims) for tensor in result.graph.initializer}
    (add,) = (node for node in result.graph.node if node.op_type == "Add")
    assert held[add.input[1]] == [3]
    assert "FusedGemm" in optimized(result, "EXTENDED", tmp_path)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("LeakyRelu", {"alpha": 0.5}), ("Abs", {}), ("Identity", {}), ("Cast", {"to": 1})],
)
@pytest.mark.parametrize("shape", [(21, 5), (7, 2, 3, 5)])
def test_what_acts_per_element_is_carried(op: str, attributes: dict, shape: tuple) -> None:
    g = linear(*shape)
    result = folded(g.model([g.product(g.op(op, g.product("x", 7), **attributes), 2)]), BY_3, 2)
    assert ops(result) == ["Reshape", "MatMul", op, "MatMul", "Reshape"]


def test_clip_and_quantization_per_tensor_are_carried() -> None:
    g = linear()
    value = g.op("Clip", g.product("x", 7), np.array(-9, np.float32), np.array(9, np.float32))
    scale, zero = np.array(2, np.float32), np.array(3, np.uint8)
    value = g.op("DequantizeLinear", g.op("QuantizeLinear", value, scale, zero), scale, zero)
    result = folded(g.model([g.op("Softmax", g.op("Abs", value), axis=-1)]), BY_3)
    kinds = ["MatMul", "Clip", "QuantizeLinear", "DequantizeLinear", "Abs"]
    assert ops(result) == ["Reshape", *kinds, "Reshape", "Softmax"]


@pytest.mark.parametrize(("axis", "passes"), [(-1, True), (2, True), (1, False), (0, False)])
def test_quantization_per_channel_is_carried_along_channels(axis: int, passes: bool) -> None:
    g = linear(3, 15, 5)
    value = g.product("x", 7)
    count = (3, 15, 7)[axis]
    scale = np.arange(1, count + 1, dtype=np.float32)
    zero = np.arange(count, dtype=np.int8)
    value = g.op("QuantizeLinear", value, scale, zero, axis=axis)
    value = g.op("DequantizeLinear", value, scale, zero, axis=axis)
    result = folded(g.model([g.op("Softmax", g.op("Abs", value), axis=-1)]), BY_3)
    kinds = ["QuantizeLinear", "DequantizeLinear", "Abs"]
    kinds = [*kinds, "Reshape"] if passes else ["Reshape", *kinds]
    assert ops(result) == ["Reshape", "MatMul", *kinds, "Softmax"]


def norm(g: Linear, value: str) -> str:
    shift, scale = g.integers(g.channels[value]), g.integers(g.channels[value])
    plain = np.zeros(g.channels[value], np.float32), np.full(g.channels[value], 4, np.float32)
    return g.op("BatchNormalization", value, scale, shift, *plain, epsilon=0.0)


@needs_exact_normalization
def test_batch_normalization_is_carried_where_axis_1_is_the_channels() -> None:
    for g in (linear(21, 5), linear(2, 5, 21, weight_on_left=True)):
        result = folded(g.model([g.product(norm(g, g.product("x", 7)), 2)]), BY_3, 2)
        assert ops(result) == ["Reshape", "MatMul", "BatchNormalization", "MatMul", "Reshape"]
    g = linear(2, 21, 21)
    value = g.product("x", 21)
    assert conversions(folded(g.model([g.product(norm(g, value), 2)]), BY_3, 2)) == 4


def test_residuals_stay_packed() -> None:
    g = linear()
    skip = g.linear("x", 7)
    value = g.op("Add", g.op("Add", skip, "x"), g.linear(g.linear(skip, 3), 7))
    result = folded(g.model([g.product(value, 2)]), BY_3, 4)
    assert conversions(result) == 2
    assert ops(result).count("Reshape") == 2


def test_what_is_read_natural_as_well_is_unfolded_once() -> None:
    g = linear()
    value = g.linear("x", 7)
    ends = [g.op("Softmax", value, axis=-1), g.op("Softmax", value, axis=1), g.linear(value, 3)]
    assert ops(folded(g.model(ends), BY_3, 2)).count("Reshape") == 3


@pytest.mark.parametrize("extents", [(21, 1), (21, 7), (2, 1, 1), (2, 21, 7)])
def test_constants_that_differ_along_rows_are_not_carried(extents: tuple[int, ...]) -> None:
    g = linear()
    value = g.op("Add", g.product("x", 7), g.integers(*extents))
    assert conversions(folded(g.model([g.product(value, 2)]), BY_3, 2)) == 4


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        *(("Softmax", {"axis": -1}), ("LayerNormalization", {"axis": -1})),
        *(("ReduceMax", {"axes": [-1]}), ("ReduceSum", {"axes": [1]}), ("Concat", {"axis": -1})),
    ],
)
def test_what_acts_along_rows_or_channels_is_not_carried(op: str, attributes: dict) -> None:
    g = linear()
    value = g.product("x", 7)
    axes = [np.array(attributes.pop("axes"))] if op == "ReduceSum" else []
    others = {"LayerNormalization": [g.integers(7)], "Concat": [value]}.get(op, axes)
    value = g.op(op, value, *others, **attributes)
    result, sites = fold_model(g.model([value]), BY_3)
    assert sites[0].status == "folded"
    assert ops(result) == ["Reshape", "MatMul", "Reshape", op]


@pytest.mark.parametrize(
    ("shape", "factor", "kinds"),
    [
        ((2, 21, 7), 3, ["Reshape", "MatMul", "ReduceMax", "Reshape"]),
        ((7, 3, 7), 7, ["Reshape", "MatMul", "Reshape", "ReduceMax"]),
    ],
)
def test_what_acts_along_batches_is_carried_unless_they_are_merged(
    shape: tuple[int, ...], factor: int, kinds: list[str]
) -> None:
    g = linear(*shape)
    model = g.model([g.op("ReduceMax", g.product("x", 7), axes=[0], keepdims=1)])
    options = FoldOptions(factor=factor, mix_samples=True, max_bytes_growth=1e9)
    assert ops(folded(model, options)) == kinds


def test_columns_are_joined_along_channels() -> None:
    g = linear(2, 5, 21, weight_on_left=True)
    value = g.op("Concat", g.product("x", 7), g.product("x", 3), axis=1, channels=10)
    result = folded(g.model([g.product(value, 2)]), BY_3, 3)
    assert ops(result) == ["Reshape", "MatMul", "MatMul", "Concat", "MatMul", "Reshape"]


def test_a_bias_that_is_no_constant_meets_the_natural_tensor() -> None:
    g = linear()
    model = g.model([g.op("Add", g.product("x", 7), "bias")])
    model.graph.input.append(helper.make_tensor_value_info("bias", 1, [7]))
    result, (site,) = fold_model(model, BY_3)
    assert site.status == "folded"
    assert ops(result) == ["Reshape", "MatMul", "Reshape", "Add"]
    assert_proved(model, result, 1)


def test_a_scale_that_may_overflow_in_the_weight_is_not_carried() -> None:
    """A runtime may multiply weight and scale beforehand."""
    for weight_on_left in (False, True):
        g = linear(*((7, 21) if weight_on_left else (21, 7)), weight_on_left=weight_on_left)
        value = g.op("Mul", g.product("x", 7), np.array(3e38, np.float32))
        result, _ = fold_model(g.model([value]), BY_3)
        assert ops(result) == ["Reshape", "MatMul", "Reshape", "Mul"]


def test_the_layers_of_a_gemm_are_joined_and_data_across_is_turned_first() -> None:
    g = linear(5, 21)
    value = g.op("Relu", g.op("Gemm", "x", g.integers(5, 7), g.integers(7), transA=1))
    value = g.op("Gemm", value, g.integers(2, 7), g.integers(21, 2), transB=1, alpha=2.0)
    result = folded(g.model([value]), BY_3, 2)
    assert ops(result) == ["Transpose", "Reshape", "Gemm", "Relu", "Gemm", "Reshape"]


def test_a_weight_per_batch_adds_batches_to_a_region() -> None:
    g = linear(21, 5)
    value = g.op("Relu", g.op("MatMul", "x", g.integers(2, 5, 7), channels=7))
    model = g.model([g.product(g.op("Add", value, g.integers(7)), 3)])
    model.graph.output[0].type.tensor_type.shape.dim.add()
    result = folded(model, BY_3, 2)
    assert ops(result) == ["Reshape", "MatMul", "Relu", "Add", "MatMul", "Reshape"]


def test_a_vector_ends_the_region() -> None:
    g = linear()
    value = g.op("MatMul", g.linear("x", 7), g.integers(7))
    model = g.model([g.op("Relu", value)])
    del model.graph.output[0].type.tensor_type.shape.dim[0]
    assert ops(folded(model, BY_3, 2))[-3:] == ["MatMul", "Reshape", "Relu"]


def test_a_conv_and_a_product_meet_in_the_natural_tensor() -> None:
    g = linear(2, 5, 21, weight_on_left=True)
    g.channels["x"] = 5
    value = g.product(g.op("Relu", g.conv("x", 7, [3])), 2)
    result = folded(g.model([value]), FoldOptions(factor=3), 2)
    assert conversions(result) == 3  # what unfolds one and folds the other follows each other


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_other_element_types(kind: type) -> None:
    model = perceptron(21, 5)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(kind)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    del model.graph.node[-1]
    model.graph.output[0].name = model.graph.node[-1].output[0]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = code
    result, _ = fold_model(model, BY_3)
    onnx.checker.check_model(result, full_check=True)
    assert_proved(model, result, 4)
    assert ops(result) == ["Reshape", *["MatMul", "Add", "Relu"] * 4, "Reshape"]
    x = np.random.default_rng(0).integers(-1, 2, (21, 5)).astype(kind)
    for level in LEVELS:
        (actual,), (expected,) = run(result, x, level), run(model, x, level)
        assert actual.dtype == kind
        np.testing.assert_array_equal(actual, expected)


def test_another_number_of_rows_than_assumed_runs() -> None:
    model = perceptron("rows", 5)
    options = FoldOptions(factor=3, mix_samples=True, input_shapes={"x": (21, 5)})
    result, sites = fold_model(model, options)
    assert [site.status for site in sites] == ["folded"] * 4
    assert ops(result).count("If") == 1
    x = np.random.default_rng(0).integers(-3, 4, (24, 5)).astype(np.float32)
    for rows in (1, 3, 20, 21, 22, 24):
        np.testing.assert_array_equal(
            run(result, x[:rows], "ORT_ENABLE_ALL"), run(model, x[:rows], LEVELS[0])
        )
