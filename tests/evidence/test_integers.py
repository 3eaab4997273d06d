"""Changed nodes run on integers, and a kernel that returns other ones is found."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.folding import fold_model
from tests.oracle import conv, conv_transpose
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence import integers
from widthfold_onnx.evidence.integers import EXACT_BELOW, MAX_MAGNITUDE, TERMS, run_on_integers
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.options import AxisName, FoldOptions, Provider, VerifyOptions
from widthfold_onnx.runtime.session import Feeds

OPTIONS = VerifyOptions(provider=Provider.CPU)
SHAPES = {"x": (1, 3, 11, 8)}


def one_conv() -> onnx.ModelProto:
    weight = np.random.default_rng(5).standard_normal((5, 3, 3, 2)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 0])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 11, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 5, 11, 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def pair() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = one_conv()
    folded, (site,) = fold_model(model, FoldOptions(factor=4, axis=AxisName.WIDTH))
    assert site.code == "folded"
    return model, folded


class Changed:
    """A session whose results are changed."""

    def __init__(self, session: Any, change: Any) -> None:
        self.session, self.change = session, change

    def run(self, feeds: Feeds) -> Feeds:
        return {name: self.change(array) for name, array in self.session.run(feeds).items()}


def through(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Change every result of the runtime."""
    opened = integers.open_exact
    monkeypatch.setattr(integers, "open_exact", lambda *args: Changed(opened(*args), change))


def run(old: onnx.ModelProto, new: onnx.ModelProto) -> integers.IntegerRun:
    return run_on_integers(Program.of(old, None), Program.of(new, None), SHAPES, OPTIONS)


def test_a_right_kernel_is_exact() -> None:
    result = run(*pair())
    assert (result.verdict, result.nodes, result.reason) == ("exact", 1, "")


def test_a_node_of_both_models_is_not_run() -> None:
    model = one_conv()
    result = run(model, model)
    assert (result.verdict, result.nodes) == ("exact", 0)


def test_a_kernel_that_is_wrong_in_one_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_more(array: np.ndarray) -> np.ndarray:
        changed = array.copy()
        changed.flat[array.size // 2] += 1
        return changed

    through(monkeypatch, one_more)
    result = run(*pair())
    assert result.verdict == "different"
    assert "1 of 440 integers differ" in result.reason  # 5 channels of 11x8
    assert "conv" in result.reason


def test_a_kernel_that_returns_other_extents_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    through(monkeypatch, lambda array: array[..., :-1])
    result = run(*pair())
    assert result.verdict == "different"
    assert result.reason.endswith("extents [1, 20, 11, 1] instead of [1, 20, 11, 2]")


def test_a_node_that_the_runtime_does_not_take_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise UnverifiedError("no kernel")

    monkeypatch.setattr(integers, "open_exact", refuse)
    result = run(*pair())
    assert (result.verdict, result.nodes) == ("skipped", 0)
    assert result.reason.endswith(": no kernel")


# ---------------------------------------------------------------- no sum rounds

KINDS = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


@pytest.mark.parametrize("name", EXACT_BELOW)
@given(channels=st.integers(1, 300), taps=st.integers(1, 49), seed=st.integers(0, 1 << 32))
def test_no_sum_of_products_reaches_what_the_type_cannot_hold(
    name: str, channels: int, taps: int, seed: int
) -> None:
    """Oracle: Python's integers on the worst sum, the sum of all magnitudes."""
    rng, kind = np.random.default_rng(seed), np.dtype(KINDS[name])
    terms = channels * taps
    weight = integers._drawn(rng, (terms,), kind, np.ones(terms), terms)
    data = integers._drawn(rng, (terms,), kind, None, terms)
    products = (abs(int(a) * int(b)) for a, b in zip(weight, data, strict=True))
    assert sum(products) < EXACT_BELOW[name]
    heaviest = 16 if name == "bfloat16" else MAX_MAGNITUDE
    assert 1 <= np.abs(weight.astype(int)).min() <= np.abs(weight.astype(int)).max() <= heaviest


def test_a_stored_weight_keeps_its_zeros() -> None:
    stored = np.array([0, 3.5, -0.25, 0, 1])
    drawn = integers._drawn(np.random.default_rng(1), (5,), np.dtype("f4"), stored, 5)
    np.testing.assert_array_equal(drawn == 0, stored == 0)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32])
def test_integers_of_a_quantized_node_fit_seven_bits(kind: type) -> None:
    drawn = integers._drawn(np.random.default_rng(1), (4000,), np.dtype(kind), None, 9)
    is_unsigned = np.dtype(kind).kind == "u"
    assert drawn.dtype == kind
    assert (drawn.min(), drawn.max()) == ((0, 122) if is_unsigned else (-61, 61))


def largest_sum(op: str, shapes: list[tuple[int, ...]]) -> int:
    """The most terms of a result, counted on tensors of ones."""
    data, weight = (np.ones(shape) for shape in shapes)
    if op == "Conv":
        return int(conv(data, weight, pads=[1] * 4, group=data.shape[1] // weight.shape[1]).max())
    if op == "ConvTranspose":
        return int(conv_transpose(data, weight, strides=[1, 1], group=2).max())
    return int((data @ weight).max())


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("Conv", [(1, 6, 9, 9), (4, 3, 3, 5)]),
        ("ConvTranspose", [(1, 6, 7, 7), (6, 5, 3, 2)]),
        ("MatMul", [(5, 7), (7, 3)]),
    ],
)
def test_the_terms_of_a_result_are_bounded(op: str, shapes: list[tuple[int, ...]]) -> None:
    largest = largest_sum(op, shapes)
    assert largest <= TERMS[op](shapes) <= math.prod(shapes[1])


def test_a_product_over_no_elements() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 0] a, float[0, 3] b) => (float[2, 3] y)
    {{ {name} = MatMul (a, b) y = Relu ({name}) }}"""
    old, new = (Program.of(onnx.parser.parse_model(text.format(name=n)), None) for n in "mn")
    run = run_on_integers(old, new, {"a": (2, 0), "b": (0, 3)}, OPTIONS)
    assert (run.verdict, run.nodes) == ("exact", 1)
