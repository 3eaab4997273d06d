"""A DequantizeLinear before moves; ONNX Runtime quantizes again what must come back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.running import run
from widthfold_onnx.model.document import Document, Node
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.quantization import (
    dequantizer_before_moves,
    dequantizer_problem,
    exact_dequantizer,
    is_finite,
    runtime_moves_dequantizer,
)

MAX = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).tiny)


def model(
    body: str,
    scale: float | list[float] = 0.5,
    zero: int = 3,
    dtype: str = "int8",
    extents: str = "1, 2, 3, 4",
) -> onnx.ModelProto:
    """Return a model whose integers q are dequantized to d, followed by `body`, which makes y."""
    versions = '<ir_version: 10, opset_import: ["" : 21]>'
    text = f"{versions} g ({dtype}[{extents}] q) => (float y) {{ "
    proto = onnx.parser.parse_model(text + f"d = DequantizeLinear (q, s, z) {body} }}")
    numbers = {"s": np.array(scale, np.float32), "z": np.full(np.shape(scale), zero, dtype)}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in numbers.items())
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return proto


def documented(proto: onnx.ModelProto) -> tuple[Document, Node]:
    """Return the document, and the node that makes its output."""
    document = Document(proto, None, OPERATORS)
    return document, list(document.main)[-1]


@pytest.mark.parametrize(
    ("body", "is_found", "is_moved"),
    [
        ("y = Relu (d)", True, False),
        ("m = Transpose <perm = [0, 2, 3, 1]> (d) y = Relu (m)", True, True),
        ("m = Identity (d) y = Relu (m)", True, False),
        ("i = Identity (d) m = Transpose (i) y = Relu (m)", True, True),
        ("m = MaxPool <kernel_shape = [1, 2]> (d) y = Relu (m)", True, True),
        ("m = MaxPool <kernel_shape = [1, 2], ceil_mode = 1> (d) y = Relu (m)", False, True),
        ("m, i = MaxPool <kernel_shape = [1, 2]> (d) y = Cast <to = 1> (i)", False, False),
        ("m, i = Dropout (d) t = Transpose (m) y = Relu (t)", False, True),
        ("m = Neg (d) y = Relu (m)", False, False),
    ],
)  # fmt: skip
def test_ops_between(body: str, is_found: bool, is_moved: bool) -> None:
    _, node = documented(model(body))
    maker = dequantizer_before_moves(node.inputs[0])
    assert (maker is not None and maker.op_type == "DequantizeLinear") is is_found
    assert runtime_moves_dequantizer(node.inputs[0]) is is_moved


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 3, 3e-30, 7e33, TINY, TINY / 4, MAX / 100])
@pytest.mark.parametrize("zero", [0, 100])
def test_every_number_comes_back(dtype: str, scale: float, zero: int) -> None:
    document, node = documented(model("y = Relu (d)", scale, zero, dtype))
    limits = np.iinfo(dtype)
    integers = np.arange(limits.min, limits.max + 1).astype(dtype)
    body = "e = QuantizeLinear (d, s, z) y = Cast <to = 1> (e)"
    (result,) = run(model(body, scale, zero, dtype, str(integers.size)), {"q": integers})
    comes_back = bool(np.array_equal(result, integers.astype(np.float32)))
    if scale < TINY:  # a kernel may flush subnormal numbers, whatever this one does
        comes_back = False
    problem = dequantizer_problem(document, node.inputs[0])
    assert isinstance(exact_dequantizer(document, node.inputs[0]), Node) is comes_back
    assert (problem is None) is comes_back
    if problem is not None:
        assert problem.code is Code.QUANTIZED
        assert problem.reason.endswith("the scale of the data does not give back every number")


def test_one_scale_for_each_channel_is_refused() -> None:
    document, node = documented(model("y = Relu (d)", [0.5, 0.25]))
    problem = dequantizer_problem(document, node.inputs[0])
    assert isinstance(problem, Refusal)
    assert problem.reason.endswith("with other than one constant scale and zero point")
    assert exact_dequantizer(document, node.inputs[0]) is None


def test_without_a_dequantizer_there_is_nothing_to_quantize_again() -> None:
    document, node = documented(model("m = Neg (d) y = Relu (m)"))
    assert exact_dequantizer(document, node.inputs[0]) is None
    assert dequantizer_problem(document, node.inputs[0]) is None


@pytest.mark.parametrize(
    ("scale", "dtype", "expected"),
    [
        (0.5, "int8", True),
        (MAX / 2**9, "int8", True),
        (MAX / 2**7, "int8", False),
        (MAX / 2**9, "int16", False),
        (float("inf"), "int8", False),
    ],
)
def test_dequantized_integers_are_finite(scale: float, dtype: str, expected: bool) -> None:
    document, node = documented(model("y = Relu (d)", scale, 0, dtype))
    assert is_finite(document, node, node.inputs[0]) is expected
