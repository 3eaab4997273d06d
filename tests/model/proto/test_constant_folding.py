"""Single nodes by the reference implementation; tests/model/test_constants.py has models."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from widthfold_onnx.model.proto.constant_folding import run_reference

X = np.array([[1.5, -2.0, 3.0], [0.0, -0.5, 7.0]], np.float32)


def test_a_node_runs_without_the_inputs_that_it_leaves_out() -> None:
    clip = helper.make_node("Clip", ["x", "", "most"], ["y"], "named", domain="ai.onnx")
    results = run_reference(clip, [X, None, np.array(1.0, np.float32)], 17)
    assert results is not None
    (result,) = results
    np.testing.assert_array_equal(result, np.minimum(X, 1))
    assert (clip.name, list(clip.input), clip.domain) == ("named", ["x", "", "most"], "ai.onnx")


def test_a_node_returns_all_its_outputs() -> None:
    results = run_reference(
        helper.make_node("Split", ["x", "s"], ["a", "b"], axis=1), [X, np.array([1, 2])], 17
    )
    assert results is not None
    for result, expected in zip(results, (X[:, :1], X[:, 1:]), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_nodes_that_differ_in_their_types_alone_are_not_confused() -> None:
    node = helper.make_node("Mul", ["a", "b"], ["y"])
    for kind in (np.float32, np.int64, np.float64, np.float32):
        results = run_reference(node, [np.array([3], kind), np.array([5], kind)], 17)
        assert results is not None
        assert (results[0].dtype, results[0].tolist()) == (kind, [15])


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_numbers_are_quantized_in_every_operator_set(opset: int) -> None:
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    results = run_reference(node, [X, np.float32(0.5), np.uint8(3)], opset)
    assert results is not None
    np.testing.assert_array_equal(results[0], np.clip(np.round(X / 0.5) + 3, 0, 255))


@pytest.mark.parametrize(("domain", "operator"), [("", "NoSuchOperator"), ("elsewhere", "Relu")])
def test_an_unknown_operator_has_no_result(domain: str, operator: str) -> None:
    assert run_reference(helper.make_node(operator, ["x"], ["y"], domain=domain), [X], 17) is None


def test_inputs_that_do_not_fit_are_named_by_their_extents() -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    with pytest.raises(ValueError, match=r"fails on inputs of \[2, 3\], \[2, 3\]"):
        run_reference(node, [X, X], 17)
