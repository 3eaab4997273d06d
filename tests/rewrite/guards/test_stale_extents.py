"""Declared extents that do not hold do not reach the branches of a guard."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from tests.rewrite.guards.guarded import folded
from tests.running import run
from widthfold_onnx.options import FoldOptions

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 2, t] x) => (float[a, b, c] z) <float[1, 4, 16] y> {
  c = Conv <pads = [1, 1]> (x, w)
  y = Relu (c)
  z = Neg (y)
}"""


def test_a_guarded_branch_returns_other_extents_than_a_stale_declaration():
    weight = np.random.default_rng(5).integers(-3, 4, (4, 2, 3)).astype(np.float32)
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    result = folded(model, FoldOptions(factor=2), count=1)
    assert [node.op_type for node in result.graph.node].count("If") == 1
    assert not result.graph.value_info
    for length in (22, 23):
        x = np.random.default_rng(length).integers(-5, 6, (1, 2, length)).astype(np.float32)
        np.testing.assert_array_equal(run(model, {"x": x})[0], run(result, {"x": x})[0])
