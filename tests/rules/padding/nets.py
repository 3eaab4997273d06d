"""Nets whose channels are padded, with weights that are whole numbers."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

import widthfold_onnx as wf
from widthfold_onnx.model.loader import Model
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.padding import paddable_chains
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.rewrite.reading import Reading

X = "float[2,3,7,11] x"


def net(
    body: str,
    *declared: str,
    opset: int = 18,
    channels: int = 5,
    inputs: str = X,
    outputs: str = "float[n,c,h,w] y",
) -> onnx.ModelProto:
    """A Conv of 3 -> 5 channels that makes a, some nodes, and a Conv that reads b.

    Weights are whole numbers, so that sums are exact.
    """
    weights = [
        "float[5,3,2,1] w0",
        "float[5] b0",
        f"float[2,{channels},1,2] w1",
        "float[2] b1",
        *declared,
    ]
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    net ({inputs}) => ({outputs}) <{", ".join(weights)}> {{
        [first] a = Conv (x, w0, b0)
        {body}
        [last] y = Conv (b, w1, b1)
    }}""")
    return filled(model)


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give the weights that are declared only whole numbers from -3 to 3, but not 0."""
    rng = np.random.default_rng(5)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        numbers = rng.integers(1, 4, shape) * rng.choice([-1, 1], shape)
        model.graph.initializer.append(
            numpy_helper.from_array(numbers.astype(np.float32), value.name)
        )
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model


def read(model: onnx.ModelProto) -> Reading:
    return Reading.of(Model(model, None), Draft())


def planned(model: onnx.ModelProto, multiple: int) -> Plan:
    return Plan(padding=paddable_chains(read(model).document, multiple).plan)


def ends(model: onnx.ModelProto, multiple: int = 4) -> list[tuple[str, str]]:
    """Operator and reason of what ends the channels that are not padded."""
    stops = paddable_chains(read(model).document, multiple).stops
    return [(stop.op, stop.reason) for stop in stops]


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input
    }
    return {n: rng.integers(-4, 5, s).astype(np.float32) for n, s in shapes.items()}


OF_5 = "float[5,1,1] c = {0.5, 2.0, 1.0, 4.0, 0.25}"
CASES: dict[str, tuple[onnx.ModelProto, dict[str, int]]] = {
    "relu": (net("b = Relu (a)"), {"first": 8}),
    "sigmoid": (net("b = Sigmoid (a)"), {"first": 8}),
    "clip": (net("b = Clip (a, l, h)", "float l = {-2.0}", "float h = {3.0}"), {"first": 8}),
    "prelu": (net("b = PRelu (a, c)", OF_5), {"first": 8}),
    "add constant": (net("b = Add (a, c)", OF_5), {"first": 8}),
    "multiply by a number": (net("b = Mul (c, a)", "float c = {3.0}"), {"first": 8}),
    "divide": (net("b = Div (a, c)", OF_5), {"first": 8}),
    "power": (net("r = Relu (a) b = Pow (r, c)", OF_5), {"first": 8}),
    "larger": (net("b = Max (a, c)", OF_5), {"first": 8}),
    "residual sum": (
        net("r = Relu (a) [second] c = Conv (r, v) b = Sub (c, r)", "float[5,5,1,1] v"),
        {"first": 8, "second": 8},
    ),
    "where": (
        net(
            "n = Less (a, zero) f = Where (n, c, one) b = Mul (a, f)",
            *(OF_5, "float[1,1,1] zero = {0.0}", "float[1,1,1] one = {1.0}"),
        ),
        {"first": 8},
    ),
    "squeeze and excite": (
        net(
            "g = GlobalAveragePool (a) [in] i = Conv (g, s) [out] o = Conv (i, e) "
            "h = HardSigmoid (o) b = Mul (a, h)",
            *("float[3,5,1,1] s", "float[5,3,1,1] e"),
        ),
        {"first": 8, "in": 4, "out": 8},
    ),
    "normalization": (
        net(
            "b = BatchNormalization <epsilon = 0.0> (a, s, t, m, v)",
            "float[5] s = {0.5, 2.0, 1.0, 4.0, 0.25}",
            *("float[5] t", "float[5] m", "float[5] v = {1.0, 4.0, 16.0, 0.25, 1.0}"),
        ),
        {"first": 8},
    ),
    "average pool": (
        net("b = AveragePool <kernel_shape = [2,2], pads = [1,1,0,0]> (a)"),
        {"first": 8},
    ),
    "max pool": (net("s = Sigmoid (a) b = MaxPool <kernel_shape = [2,3]> (s)"), {"first": 8}),
    "global max pool": (
        net("g = GlobalMaxPool (a) b = Sub (a, g)"),
        {"first": 8},
    ),
    "mean of positions": (
        net("b = ReduceMean (a, axes)", "int64[1] axes = {-2}"),
        {"first": 8},
    ),
    "largest of positions": (
        net("b = ReduceMax (a, axes)", "int64[1] axes = {2}"),
        {"first": 8},
    ),
    "resize by scales": (
        net('b = Resize <mode = "nearest"> (a, , s)', "float[4] s = {1.0, 1.0, 2.0, 2.0}"),
        {"first": 8},
    ),
    "resize to sizes": (
        net('b = Resize <mode = "linear"> (a, , , s)', "int64[4] s = {2, 5, 12, 22}"),
        {"first": 8},
    ),
    "slice of positions": (
        net(
            "b = Slice (a, s, e, i, p)",
            *("int64[2] s = {1, 0}", "int64[2] e = {9, -1}", "int64[2] i = {2, -1}"),
            "int64[2] p = {2, 1}",
        ),
        {"first": 8},
    ),
    "pad of positions": (
        net("b = Pad (a, p)", "int64[8] p = {0, 0, 1, 2, 0, 0, 0, 3}"),
        {"first": 8},
    ),
    "mirrored positions": (
        net('s = Sigmoid (a) b = Pad <mode = "reflect"> (s, p)', "int64[8] p = {0,0,1,2,0,0,0,3}"),
        {"first": 8},
    ),
    "channels of zeros that vanish": (
        net(
            "r = Relu (a) [p] p = Pad (r, n) [second] c = Conv (r, v) b = Add (c, p)",
            *("int64[8] n = {0,0,0,0, 0,2,0,0}", "float[7,5,1,1] v"),
            channels=7,
        ),
        {"first": 8, "p": 8, "second": 8},
    ),
    "more channels of zeros": (
        net(
            "r = Relu (a) [p] p = Pad (r, n) [second] c = Conv (r, v) b = Add (c, p)",
            *("int64[8] n = {0,0,0,0, 0,8,0,0}", "float[13,5,1,1] v"),
            channels=13,
        ),
        {"first": 8, "p": 16, "second": 16},
    ),
    "concat": (
        net(
            "[second] c = Conv (a, v) r = Relu (c) b = Concat <axis = -3> (r, a, r)",
            "float[7,5,1,1] v",
            channels=19,
        ),
        {"first": 8, "second": 8},
    ),
    "concat of positions": (
        net("r = Relu (a) b = Concat <axis = 3> (r, a)"),
        {"first": 8},
    ),
    "split": (
        net(
            "[gated] c = Conv (a, v) g, h = Split <axis = 1, num_outputs = 2> (c) "
            "t = Tanh (g) s = Sigmoid (h) b = Mul (t, s)",
            "float[10,5,1,1] v",
        ),
        {"first": 8, "gated": 16},
    ),
    "split by sizes": (
        net(
            "[parts] c = Conv (a, v) g, h, i = Split <axis = 1> (c, n) "
            "b = Concat <axis = 1> (i, g)",
            *("float[11,5,1,1] v", "int64[3] n = {2, 3, 6}"),
            channels=8,
        ),
        {"first": 8, "parts": 16},
    ),
    "depthwise": (
        net("b = Conv <group = 5> (a, v, t)", "float[5,1,2,2] v", "float[5] t"),
        {"first": 8},
    ),
    "grouped": (
        net(
            "[six] c = Conv (a, u) [groups] b = Conv <group = 2> (c, v, t)",
            *("float[6,5,1,1] u", "float[10,3,1,1] v", "float[10] t"),
            channels=10,
        ),
        {"first": 8, "six": 8, "groups": 16},
    ),
    "transposed": (
        net(
            "[up] b = ConvTranspose <strides = [2,2]> (a, v, t)",
            *("float[5,7,2,2] v", "float[7] t"),
            channels=7,
        ),
        {"first": 8, "up": 8},
    ),
    "transposed in groups": (
        net(
            "[six] c = Conv (a, u) [up] b = ConvTranspose <group = 2> (c, v, t)",
            *("float[6,5,1,1] u", "float[6,5,2,2] v", "float[10] t"),
            channels=10,
        ),
        {"first": 8, "six": 8, "up": 16},
    ),
    "transposed depthwise": (
        net("b = ConvTranspose <group = 5> (a, v)", "float[5,1,2,2] v"),
        {"first": 8},
    ),
    "vector of channels": (
        net(
            "g = GlobalMaxPool (a) f = Flatten (g) z = Gemm <transB = 1> (f, m, n) b = Relu (a)",
            *("float[13,5] m", "float[13] n"),
            outputs="float[n,c,h,w] y, float[n,k] z",
        ),
        {"first": 8},
    ),
}


def applied(model: onnx.ModelProto, plan: Plan) -> onnx.ModelProto:
    return wf.apply(model, plan, no_verify=True)
