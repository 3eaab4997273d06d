"""A ConvTranspose whose pads are computed, and what follows it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model
from tests.oracle import conv_transpose, matmul, resolve_transposed_pads
from tests.rewrite.proved import assert_proved
from tests.running import LEVELS, run
from widthfold_onnx.options import FoldOptions


@pytest.mark.parametrize("kernel", [2, 3])
def test_what_follows_same_padding_with_output_padding_is_folded_too(kernel: int) -> None:
    nodes = [
        helper.make_node(
            "ConvTranspose",
            ["x", "w"],
            ["u"],
            auto_pad="SAME_LOWER",
            strides=[3],
            output_padding=[2],
        ),
        helper.make_node("MatMul", ["v", "u"], ["y"]),
    ]
    rng = np.random.default_rng(kernel)
    arrays = {"w": rng.integers(1, 10, (2, 3, kernel)), "v": rng.integers(1, 10, (5, 3))}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 3)],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folded, sites = fold_model(model, FoldOptions(factor=4))
    assert [site.status for site in sites] == ["folded"] * 2
    x = rng.integers(-9, 10, (1, 2, 8)).astype(np.float32)
    pads = resolve_transposed_pads("SAME_LOWER", [8], [kernel], [3], [1], [2])
    u = conv_transpose(x, arrays["w"], strides=[3], output_padding=[2], pads=pads)
    for level in LEVELS:
        np.testing.assert_array_equal(run(folded, x, level)[0], matmul(arrays["v"], u))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "growth", "extent"),
    [(1, 3, 1, 0, 22), (2, 3, 1, 0, 23), (2, 5, 2, 0, 38), (1, 3, 1, 1, 23), (3, 2, 1, 0, 16)],
)
def test_same_padding_adds_no_positions_that_the_kernel_does_not_reach(
    auto_pad: str, kernel: int, stride: int, dilation: int, growth: int, extent: int
) -> None:
    """The operator text wants stride times the extent; the runtime and onnx's inference do not."""
    node = helper.make_node(
        "ConvTranspose",
        ["x", "w"],
        ["y"],
        auto_pad=auto_pad,
        strides=[stride],
        dilations=[dilation],
        output_padding=[growth],
    )
    rng = np.random.default_rng(kernel)
    weight = rng.integers(1, 10, (2, 3, kernel)).astype(np.float32)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 3)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folded, sites = fold_model(model, FoldOptions(factor=2, ragged=True))
    assert [site.status for site in sites] == ["folded"]
    assert_proved(model, folded, 1)
    x = rng.integers(-9, 10, (1, 2, 8)).astype(np.float32)
    (expected,) = run(model, x)
    assert expected.shape == (1, 3, extent)
    pads = resolve_transposed_pads(auto_pad, [8], [kernel], [stride], [dilation], [growth])
    geometry = {"strides": [stride], "dilations": [dilation], "output_padding": [growth]}
    np.testing.assert_array_equal(expected, conv_transpose(x, weight, pads=pads, **geometry))
    for level in LEVELS:
        np.testing.assert_array_equal(run(folded, x, level)[0], expected)
