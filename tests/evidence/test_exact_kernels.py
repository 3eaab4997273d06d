"""Products of 8 bits as their values are judged: what the loop oracle says, on every CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.rewrite.quantized.convs import Case, run
from tests.rewrite.quantized.dequantized_products import DequantizedProduct
from tests.rewrite.quantized.models import optimized, quantized_first, steps
from tests.rewrite.quantized.products import INTEGER, LINEAR, QuantizedProduct
from widthfold_onnx.evidence import exact_kernels
from widthfold_onnx.evidence.exact_kernels import (
    holds_bytes,
    open_exact,
    saturates,
    with_exact_products,
)
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.providers import SIGNED
from widthfold_onnx.runtime.session import Session

U8, S8 = np.uint8, np.int8
LINE = {"shape": (2, 8, 20), "weight": (5, 8, 4), "attributes": {"pads": [2, 1]}, "pads": (2, 1)}
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
CPU = VerifyOptions(provider=Provider.CPU)

CASES = {
    "integer": Case(op="ConvInteger", kinds=(S8, U8), per_channel=False, **LINE),
    "integer, signed weight": Case(op="ConvInteger", kinds=(U8, S8), per_channel=False, **LINE),
    "qlinear": Case(op="QLinearConv", **LINE),
    "qlinear, one scale": Case(op="QLinearConv", per_channel=False, **LINE),
    "qlinear, alike": Case(op="QLinearConv", kinds=(S8, S8), **LINE),
    "qdq": Case(op="QDQ Conv", **LINE),
    "qdq, one scale": Case(op="QDQ Conv", per_channel=False, bias=False, **LINE),
    "qdq, alike": Case(op="QDQ Conv", kinds=(S8, S8), **LINE),
}


def extremes(kind: type, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Data with which pairs of products leave 16 bits, and random data."""
    limits = np.iinfo(kind)
    yield np.full(shape, limits.max, kind)
    yield np.full(shape, limits.min, kind)
    rng = np.random.default_rng(7)
    yield rng.integers(limits.min, limits.max, shape, kind, endpoint=True)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_returns_the_integers_of_the_oracle(name: str) -> None:
    case = replace(CASES[name], saturates=True)
    model = with_exact_products(case.model())
    onnx.checker.check_model(model, full_check=True)
    for x, level in product(extremes(case.kinds[0], case.shape), LEVELS):
        np.testing.assert_array_equal(run(model, x, level), case.expected(x))


@pytest.mark.parametrize("op", [INTEGER, LINEAR])
@pytest.mark.parametrize("weight_on_left", [False, True])
@pytest.mark.parametrize("zeros", [((), ()), ((), (5,)), ((), None)])
def test_a_product_returns_the_integers_of_the_oracle(
    op: str, weight_on_left: bool, zeros: tuple[tuple[int, ...], tuple[int, ...] | None]
) -> None:
    if (op, zeros[1]) == (LINEAR, None):
        zeros = ((), ())  # all of its inputs are required
    shapes = (
        {"shape": (16, 5), "weight": (3, 16)}
        if weight_on_left
        else {"shape": (3, 16), "weight": (16, 5)}
    )
    case = QuantizedProduct(
        op=op, weight_on_left=weight_on_left, zeros=zeros, saturates=True, **shapes
    )
    model = with_exact_products(case.model())
    for x, level in product(extremes(np.dtype(case.kind).type, shapes["shape"]), LEVELS):
        np.testing.assert_array_equal(run(model, x, level), case.expected(x))


@pytest.mark.parametrize("types", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("quantized", [False, True])
def test_a_dequantized_product_returns_the_numbers_of_the_oracle(
    op: str, types: tuple[str, str], quantized: bool
) -> None:
    case = DequantizedProduct(
        shape=(3, 16), weight=(16, 5), op=op, types=types, quantized=quantized, saturates=True
    )
    model = with_exact_products(case.model())
    for scale, level in product((1, 4, 16), LEVELS):
        x = case.data(0) * np.float32(scale)
        np.testing.assert_array_equal(run(model, x, level), case.expected(x))


ONES = np.ones((3, 16), np.float32)
WEIGHT = np.random.default_rng(3).integers(90, 127, (16, 5)).astype(S8)
LARGE = WEIGHT.sum(0, dtype=np.int64) * 255
CONTRIBUTED = {
    # Names of inputs, the data, and a row of the output: everything but the data is 1 or 0.
    "QGemm": ("x one z w one wz none ys z", (ONES * 255).astype(U8), np.rint(LARGE / 4096)),
    "MatMulIntegerToFloat": ("x w one one z wz", (ONES * 255).astype(U8), LARGE),
    "DynamicQuantizeMatMul": ("x w one wz", ONES, LARGE / 255),
    "DynamicQuantizeMatMul, no zero": ("x w one", ONES, LARGE / 255),
}


@pytest.mark.parametrize(
    ("name", "behind"), [*((name, False) for name in CONTRIBUTED), ("QGemm", True)]
)
def test_an_operator_of_the_runtime_returns_the_integers_of_the_definition(
    name: str, behind: bool
) -> None:
    inputs, x, row = CONTRIBUTED[name]
    op = name.partition(",")[0]
    names = ["" if item == "none" else item for item in inputs.split()]
    own = {"domain": "com.microsoft"}
    nodes = []
    if behind:  # x times 1: onnx infers no types for operators of other domains
        operands, names[0] = ["x", "one", "z", "one", "z"], "same"
        nodes.append(helper.make_node("QLinearLeakyRelu", operands, ["same"], alpha=1.0, **own))
    nodes.append(helper.make_node(op, names, ["y"], **own))
    constants = {"w": WEIGHT, "wz": S8(0), "z": U8(0), "one": np.float32(1), "ys": np.float32(4096)}
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    out = TensorProto.UINT8 if op == "QGemm" else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", out, None)],
        [onnx.numpy_helper.from_array(np.asarray(array), key) for key, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    plain = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert holds_bytes(plain)
    model = with_exact_products(copied(plain))
    assert model != plain
    for level in LEVELS:
        np.testing.assert_allclose(run(model, x, level), np.tile(row, (3, 1)), rtol=1e-6)


@pytest.mark.parametrize("kind", [U8, S8])
@pytest.mark.parametrize("behind", [None, "MaxPool", "Transpose"])
def test_data_that_the_runtime_makes_unsigned(
    kind: type, behind: str | None, tmp_path: Path
) -> None:
    moved = {
        None: None,
        "MaxPool": helper.make_node("MaxPool", ["xf"], ["m"], kernel_shape=[1]),
        "Transpose": helper.make_node("Transpose", ["xf"], ["m"], perm=[0, 1, 2]),
    }[behind]
    case = Case(op="QDQ Conv", kinds=(kind, S8), behind=moved, saturates=True, **LINE)
    model = with_exact_products(quantized_first(case))
    for level in LEVELS:
        np.testing.assert_array_equal(run(model, steps(case), level), case.expected(case.data()))
    assert optimized(model, tmp_path) == optimized(quantized_first(case), tmp_path)


def test_data_that_the_runtime_leaves_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_kernels, "u8s8_error", lambda: 99)
    opened: list[onnx.ModelProto] = []
    usual = exact_kernels.open_session

    def open_session(model: onnx.ModelProto, *arguments: Any, **named: Any) -> Session:
        opened.append(model)
        return usual(model, *arguments, **named)

    monkeypatch.setattr(exact_kernels, "open_session", open_session)
    path = tmp_path / "model.onnx"
    for kind, value in ((S8, "0"), (S8, "1"), (U8, "1")):
        case = Case(op="QDQ Conv", kinds=(kind, S8), saturates=True, **LINE)
        onnx.save(quantized_first(case), path)
        session = open_exact(load(path), replace(CPU, session_options={SIGNED: value}), Level.ALL)
        np.testing.assert_array_equal(
            session.run({"x": steps(case)})["y"], case.expected(case.data())
        )
    moved = [any(node.op_type == "Add" for node in model.graph.node) for model in opened]
    assert moved == [True, False, True]


@pytest.mark.parametrize("provider", [Provider.CUDA, Provider.TENSORRT])
def test_other_providers_have_kernels_of_their_own(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_kernels, "u8s8_error", lambda: 99)
    monkeypatch.setattr(exact_kernels, "open_session", lambda model, *arguments, **named: model)
    path = tmp_path / "model.onnx"
    onnx.save(CASES["qlinear"].model(), path)
    assert saturates(CPU.provider)
    assert open_exact(load(path), CPU, Level.ALL) != path
    options = replace(CPU, provider=provider)
    assert not saturates(options.provider)
    assert open_exact(load(path), options, Level.ALL) is path


def test_the_convolution_of_the_runtime_itself() -> None:
    case = replace(CASES["qlinear"], saturates=True)
    model = case.model()
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto = with_exact_products(copied(model))
    assert proto != model
    for x, level in product(extremes(U8, case.shape), LEVELS):
        np.testing.assert_array_equal(run(proto, x, level), case.expected(x))


def test_a_dequantized_weight_without_zero_points() -> None:
    case = replace(CASES["qdq"], saturates=True)
    whole = case.model()
    maker = next(node for node in whole.graph.node if node.output[0] == "wf")
    zeros = next(t for t in whole.graph.initializer if t.name == "wz")
    zeros.CopyFrom(onnx.numpy_helper.from_array(np.zeros(5, S8), "wz"))
    bare = copied(whole)
    del next(node for node in bare.graph.node if node.output[0] == maker.output[0]).input[2]
    model, same = with_exact_products(bare), with_exact_products(whole)
    for x, level in product(extremes(U8, case.shape), LEVELS):
        np.testing.assert_array_equal(run(model, x, level), run(same, x, level))
        np.testing.assert_array_equal(run(model, x, level), run(model, x, LEVELS[0]))


def test_a_product_in_a_body_and_one_in_a_function() -> None:
    case = replace(CASES["qlinear"], saturates=True)
    for wrap in (in_a_body, in_a_function):
        model = with_exact_products(wrap(case.model()))
        for x in extremes(U8, case.shape):
            np.testing.assert_array_equal(run(model, x), case.expected(x))


def in_a_body(model: onnx.ModelProto) -> onnx.ModelProto:
    """The node of a model in both branches of an If, which capture all that it reads."""
    graph = model.graph
    inner = helper.make_graph(list(graph.node), "body", [], [*graph.output])
    inner.node[0].output[0] = inner.output[0].name = "inner"
    node = helper.make_node("If", ["always"], ["y"], then_branch=inner, else_branch=inner)
    graph.initializer.append(helper.make_tensor("always", TensorProto.BOOL, [], [True]))
    del graph.node[:]
    graph.node.append(node)
    return model


def in_a_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """The node of a model as a local function of all that it reads."""
    (node,) = model.graph.node
    names = [f"in{i}" for i in range(len(node.input))]
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    inner.input[:], inner.output[:] = names, ["out"]
    opset = helper.make_opsetid("", 17)
    function = helper.make_function("own", "F", names, ["out"], [inner], [opset])
    call = helper.make_node("F", list(node.input), list(node.output), domain="own")
    del model.graph.node[:]
    model.graph.node.append(call)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


@pytest.mark.parametrize("name", ["qlinear, alike", "qdq, alike", "integer, signed weight"])
def test_a_model_whose_kernels_are_exact_stays_as_it_is(name: str) -> None:
    model = CASES[name].model()
    assert with_exact_products(copied(model)) == model


def test_names_that_a_model_has_are_not_taken_again() -> None:
    case = replace(CASES["qlinear"], saturates=True)
    model = case.model()
    model.graph.input[0].name = "widthfold/exact/0"
    model.graph.node[0].input[0] = "widthfold/exact/0"
    proto = with_exact_products(model)
    onnx.checker.check_model(proto, full_check=True)


def test_weights_that_lie_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_kernels, "u8s8_error", lambda: 99)
    case = replace(CASES["qlinear"], saturates=True)
    path = tmp_path / "model.onnx"
    onnx.save(case.model(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    session = open_exact(load(path), CPU, Level.DISABLED)
    for x in extremes(U8, case.shape):
        np.testing.assert_array_equal(session.run({"x": x})["y"], case.expected(x))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model.onnx", "w.bin"]


def test_what_holds_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for name in ("qlinear", "qdq", "integer"):
        onnx.save(CASES[name].model(), path)
        assert holds_bytes(load(path).proto)
    onnx.save(in_a_function(CASES["qlinear"].model()), path)
    assert holds_bytes(load(path).proto)
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    )
    onnx.save(onnx.parser.parse_model(text), path)
    assert not holds_bytes(load(path).proto)
