"""A ConvTranspose whose pads are computed, and what follows it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model
from tests.oracle import conv_transpose, matmul, resolve_transposed_pads
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
