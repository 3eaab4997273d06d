"""A node that no runtime takes has a reason, and a fault of ours is no verdict."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from widthfold_onnx.evidence.proof import operators
from widthfold_onnx.evidence.proof.evaluation import Evaluation
from widthfold_onnx.evidence.proof.field import Draw, drawing
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.values import UnevaluableError


@pytest.mark.parametrize(
    ("text", "constants", "reason"),
    [
        ("y = LeakyRelu <alpha = 0.5> (x, x)", {}, ""),
        ("y = CumSum (x, k)", {"k": np.array([0, 1])}, "no sense"),
        ("y = ReduceSum (x, k)", {"k": np.array([0.5], np.float32)}, "no whole numbers"),
        ("y = Clip (x, k)", {"k": np.zeros(3, np.float32)}, "no sense|extents"),
        ("y = Add (x)", {}, "1 inputs, not 2"),
        ("y = Einsum (x, x)", {}, "equation is missing"),
        ('y = com.microsoft.FusedConv <group = "2"> (x, x)', {}, "another type"),
    ],
)
def test_a_node_that_no_runtime_takes_is_no_fault_of_ours(text, constants, reason):
    imports = 'opset_import: ["" : 17, "com.microsoft" : 1]'
    model = onnx.parser.parse_model(
        f"<ir_version: 8, {imports}> g (float[2, 3] x) => (y) {{{text}}}"
    )
    model.graph.output[0].type.tensor_type.elem_type = 1
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    program, shapes = Program.of(model, None), {"x": (2, 3)}
    evaluation = Evaluation(program, program.shapes_at(shapes), shapes, {}, {})
    with drawing(Draw.of()):
        if reason:
            with pytest.raises(UnevaluableError, match=reason):
                evaluation.run(["y"])
        else:
            evaluation.run(["y"])


@pytest.mark.parametrize("error", [TypeError, KeyError, ZeroDivisionError, AttributeError])
def test_a_fault_of_ours_is_no_verdict(error, monkeypatch):
    def broken(_):
        raise error("a fault")

    monkeypatch.setitem(operators.MEANINGS, "Relu", broken)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    )
    program, shapes = Program.of(model, None), {"x": (2,)}
    with drawing(Draw.of()), pytest.raises(error, match="a fault"):
        Evaluation(program, program.shapes_at(shapes), shapes, {}, {}).run(["y"])
