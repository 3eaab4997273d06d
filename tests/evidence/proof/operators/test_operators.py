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
        ("y = CumSum (x, k)", {"k": np.array([0, 1])}, r"one number is needed, not \[2\]"),
        ("y = CumSum (x, k)", {"k": np.array(2)}, "its axis 2 is none of 2"),
        ("y = CumSum (x, k)", {"k": np.float32("nan")}, "no whole numbers"),
        ("y = TopK (x, k)", {"k": np.array([-1])}, r"\[-1\] positions"),
        ("y = TopK (x, k)", {"k": np.array([1 << 62])}, "too many elements"),
        ("y = ReduceSum (x, k)", {"k": np.array([0.5], np.float32)}, "no whole numbers"),
        ("y = Clip (x, k)", {"k": np.zeros(3, np.float32)}, r"one number is needed, not \[3\]"),
        ("y = Pad (x, k)", {"k": np.array([1, 2, 3])}, "3 pads for 2 axes"),
        ("y = Pad (x, k)", {"k": np.array([-3, 0, 0, 0])}, r"extents \[-1, 3\]"),
        ("y = Pad (x, k)", {"k": np.array([1 << 62, 0, 0, 0])}, "too many elements"),
        ('y = Pad <mode = "mean"> (x, k)', {"k": np.array([0, 1, 0, 0])}, "its mode 'mean'"),
        ("y = Pad (x, k, z)", {"k": np.ones(4, int), "z": np.zeros(2, np.float32)}, "one number"),
        ("y = Pad (x, k, , a)", {"k": np.ones(2, int), "a": np.array([5])}, "axis 5 is none of 2"),
        ("y = Gather (x, k)", {"k": np.array([9])}, "fails on inputs"),
        ("y = Resize (x, , k)", {"k": np.float32([1, np.inf])}, r"its scales are \[1.0, inf\]"),
        ("y = Resize (x, , k)", {"k": np.float32([1, np.nan])}, "its scales are"),
        ("y = Resize (x, , , k)", {"k": np.array([1 << 40, 1 << 40])}, "too many elements"),
        ("y = Max ()", {}, "fails on inputs"),
        (
            "y = AveragePool <kernel_shape = [3], pads = [4611686018427387904, 0]> (c)",
            {"c": np.ones((1, 1, 7), np.float32)},
            "too many elements",
        ),
        (
            "y = Conv <pads = [4611686018427387904, 0]> (c, k)",
            {"c": np.ones((0, 1, 7), np.float32), "k": np.ones((1, 1, 3), np.float32)},
            "too many elements",
        ),
        ("y = Pad (c, k)", {"c": np.ones((0, 3)), "k": np.array([0, 1 << 62, 0, 0])}, "too many"),
        ("y = TopK (c, k)", {"c": np.ones((0, 3)), "k": np.array([1 << 62])}, "too many elements"),
        (
            "y = ConvTranspose <strides = [4611686018427387904]> (c, k)",
            {"c": np.ones((1, 1, 7), np.float32), "k": np.ones((1, 1, 3), np.float32)},
            "too many elements",
        ),
        (
            "y = ConvTranspose <output_shape = [9]> (c, k)",
            {"c": np.ones((1, 1, 2, 2, 2), np.float32), "k": np.ones((1, 1, 3, 3, 3), np.float32)},
            "do not fit 3 spatial axes",
        ),
        (
            "y = ConvTranspose <group = 2> (c, k)",
            {"c": np.ones((1, 2, 7), np.float32), "k": np.ones((3, 1, 3), np.float32)},
            "do not fit a weight",
        ),
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


@pytest.mark.parametrize("error", [TypeError, IndexError, OverflowError, ValueError])
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
