"""No op of the table makes of bounded data a value beyond the bound that it gives."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.fold.conv_state import ConvState
from widthfold_onnx.model.graph import Document
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.plan.decisions import read_sites
from widthfold_onnx.rules.bounds import DATA, HEADROOM, TABLE, Bound, largest_data, linear, through
from widthfold_onnx.rules.operand import Op

RNG = np.random.default_rng(17)
SHAPE = (2, 3, 7, 11)


def constants(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.standard_normal(shape).astype(np.float32) * 5 for shape in shapes]


CASES: dict[str, tuple[int, list[np.ndarray], dict]] = {
    **{
        op: (1, [], {})
        for op in ("Abs", "Erf", "HardSigmoid", "HardSwish", "Identity", "Neg", "Relu", "Sigmoid")
    },
    **{op: (1, [], {}) for op in ("Sign", "Softsign", "Tanh")},
    "Add": (1, constants((3, 1, 1)), {}),
    "Sub": (2, [], {}),
    "Max": (1, constants((1, 3, 1, 1)), {}),
    "Min": (2, [], {}),
    "Mul": (1, constants((3, 1, 1)), {}),
    "PRelu": (1, constants((3, 1, 1)), {}),
    "LeakyRelu": (1, [], {"alpha": -2.5}),
    "Clip": (1, [np.float32(-8.0).reshape(()), np.float32(-7.0).reshape(())], {}),
    "Concat": (2, [], {"axis": 1}),
    "Pad": (1, [np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.float32(-9.0).reshape(())], {}),
    "AveragePool": (1, [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "MaxPool": (1, [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    **{
        op: (1, [], {"axes": [3], "keepdims": 1}) for op in ("ReduceMax", "ReduceMean", "ReduceMin")
    },
    "BatchNormalization": (1, [*constants((3,), (3,), (3,)), np.full(3, 0.03, np.float32)], {}),
}


def model_of(name: str) -> tuple[onnx.ModelProto, int]:
    data, arrays, attributes = CASES[name]
    inputs = [f"x{i}" for i in range(data)]
    held = {f"k{i}": array for i, array in enumerate(arrays)}
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, SHAPE) for n in inputs]
    graph = helper.make_graph(
        [helper.make_node(name, [*inputs, *held], ["y"], **attributes)],
        "g",
        ports,
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, key) for key, array in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), data


def bound_of(model: onnx.ModelProto, data: int) -> Bound | None:
    document = Document(model, None)
    (node,) = document.scopes[0].graph
    op = Op(document, node, ConvState(1, ()), ())
    return through(op, [DATA if i < data else None for i in range(len(node.inputs))])


def test_every_op_has_a_case() -> None:
    assert CASES.keys() == TABLE.keys()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1.0, 80.0])
def test_bounds_hold(name: str, size: float) -> None:
    model, data = model_of(name)
    bound = bound_of(model, data)
    assert bound is not None
    run = ReferenceEvaluator(model)
    signs = RNG.choice([-1.0, 1.0], (data, *SHAPE))
    for scale in (signs, RNG.uniform(-1, 1, (data, *SHAPE)), np.ones((data, *SHAPE))):
        feeds = {f"x{i}": (scale[i] * size).astype(np.float32) for i in range(data)}
        largest = float(np.abs(run.run(None, feeds)[0]).max())
        assert largest <= (bound.scale * size + bound.shift) * (1 + 1e-5)


def test_the_bound_of_a_conv_is_reached() -> None:
    weight = RNG.standard_normal((5, 3, 3))
    bound = linear(weight, (1, 2), Bound(2.0, 1.0), 7.0)
    reached = max(float(np.abs(w).sum()) * (2.0 * 10 + 1.0) for w in weight)
    assert bound.scale * 10 + bound.shift == pytest.approx(reached + 7.0)


@pytest.mark.parametrize(
    ("call", "shape", "weight"),
    [
        ("MatMul (x, w)", (7, 3), (3, 5)),
        ("MatMul (w, x)", (3, 7), (5, 3)),
        ("MatMul (x, w)", (2, 7, 3), (2, 3, 5)),
        ("Gemm <alpha = -3.0, beta = 2.0> (x, w, c)", (7, 3), (3, 5)),
        ("Gemm <transB = 1> (x, w, c)", (7, 3), (5, 3)),
        ("Gemm <transA = 1> (x, w, c)", (3, 7), (3, 5)),
        ("Gemm <transA = 1> (w, x)", (3, 7), (3, 5)),
    ],
)
def test_the_bound_of_a_product_is_reached(call: str, shape: tuple, weight: tuple) -> None:
    dims = ", ".join(map(str, shape))
    head = f'<ir_version: 8, opset_import: ["" : 17]> m (float[{dims}] x) => (float[a, b] y)'
    if len(shape) == 3:
        head = head.replace("[a, b]", "[a, b, c]")
    model = onnx.parser.parse_model(f"{head} {{ y = {call} }}")
    arrays = {"w": RNG.standard_normal(weight), "c": np.full(5, -4.0)}
    for name, array in arrays.items():
        if name in call:
            tensor = numpy_helper.from_array(array.astype(np.float32), name)
            model.graph.initializer.append(tensor)
    document = Document(model, None)
    ((_, site),) = read_sites(document, FoldOptions())
    limit = largest_data(document, [site.node], {site.node: site})
    run = ReferenceEvaluator(model)
    worst = 0.0
    for _ in range(200):
        signs = RNG.choice([-1.0, 1.0], shape).astype(np.float32)
        worst = max(worst, float(np.abs(run.run(None, {"x": signs * 1e3})[0]).max()))
    allowed = float(np.finfo(np.float32).max) * HEADROOM
    assert limit is not None
    # A power of two below what is left, and no random signs are the worst ones quite.
    assert allowed / 8 < worst / 1e3 * limit <= allowed


def test_a_dequantized_bias_counts_as_what_it_is() -> None:
    """Here its scale makes it larger than its integers say."""
    body = """<ir_version: 8, opset_import: ["" : 17]> m (float[1,3,8] x) => (float[1,5,6] y)
        <int8 z = {0}, float s = {0.5}, float big = {7e9}, int32[5] i = {3, -9, 2, 0, 5}> {
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            b = DequantizeLinear (i, big)
            y = Conv (d, w, b)
        }"""
    plain = body.replace("b = DequantizeLinear (i, big)", "").replace(
        "int32[5] i = {3, -9, 2, 0, 5}", "float[5] b = {21e9, -63e9, 14e9, 0, 35e9}"
    )
    weight = RNG.standard_normal((5, 3, 3)).astype(np.float32)
    limits = []
    for text in (body, plain):
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(numpy_helper.from_array(weight * 1e28, "w"))
        document = Document(model, None)
        ((_, site),) = read_sites(document, FoldOptions())
        limits.append(largest_data(document, [site.node], {site.node: site}))
    assert limits[0] == limits[1] is not None


@pytest.mark.parametrize(
    "text",
    [
        "y = Exp (x)",
        "y = Mul (x, x)",
        "y = Clip (x, z)",
        "y = PRelu (x, z)",
        "y = Add (x, z)",
        "y = Reciprocal (x)",
    ],
)
def test_of_what_is_computed_or_may_overflow_nothing_is_known(text: str) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> m (float[1,3,7] x, float z) => (float y)'
    model = onnx.parser.parse_model(f"{head} {{ {text} }}")
    document = Document(model, None)
    (node,) = document.scopes[0].graph
    op = Op(document, node, ConvState(1, ()), ())
    data = [DATA if value.name == "x" else None for value in node.inputs]
    assert through(op, data) is None
