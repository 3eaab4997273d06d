"""Models with padded channels return what the originals return, or say what ends the channels."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import widthfold_onnx as wf
from tests.folding import fold_model
from tests.lacking import NORMALIZES_EXACTLY
from tests.rewrite.proved import assert_proved, proof
from tests.running import run
from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import Companion, FoldOptions
from widthfold_onnx.rewrite.fit import FittedPlan
from widthfold_onnx.rewrite.padding import joined_plan, paddable_chains
from widthfold_onnx.rewrite.plan import EMPTY_PLAN, CompanionPlan, Plan
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
    return Reading.of(Model(model, None), EMPTY_PLAN)


def planned(model: onnx.ModelProto, multiple: int) -> Plan:
    return Plan(padding=joined_plan(paddable_chains(read(model).document, multiple)[0]))


def ends(model: onnx.ModelProto, multiple: int = 4) -> list[tuple[str, str]]:
    """Operator and reason of what ends the channels that are not padded."""
    _, stops = paddable_chains(read(model).document, multiple)
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
    "any number transposes": (
        net(
            "g = GlobalMaxPool (a) f = Flatten (g) z = Gemm <transB = 2> (f, m, n) b = Relu (a)",
            *("float[13,5] m", "float[13] n"),
            outputs="float[n,c,h,w] y, float[n,k] z",
        ),
        {"first": 8},
    ),
}


def applied(model: onnx.ModelProto, plan: Plan) -> onnx.ModelProto:
    return wf.apply(model, plan, no_verify=True)


@pytest.mark.parametrize("name", CASES)
def test_padded_channels_change_no_number(name: str) -> None:
    model, widths = CASES[name]
    plan = planned(model, 4)
    assert plan.padding is not None
    assert {layer.node: layer.padded for layer in plan.padding.layers} == widths
    padded = applied(model, plan)
    onnx.checker.check_model(padded, full_check=True)
    feeds = drawn(model)
    for expected, result in zip(*(run(m, feeds) for m in (model, padded)), strict=True):
        compare(name, result, expected)
    assert proof(model, padded).verdict == "equal"


def compare(name: str, result: np.ndarray, expected: np.ndarray) -> None:
    is_rounded = name == "normalization" and not NORMALIZES_EXACTLY
    is_rounded |= name in ("split", "sigmoid", "max pool", "mirrored positions")
    if is_rounded:  # its last bits vary
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(result, expected)


VECTORS = {
    "reshape": ("f = Reshape (g, s)", "int64[2] s = {2, 5}", "float[5,13] m"),
    "reshape to whatever is left": ("f = Reshape (g, s)", "int64[2] s = {0, -1}", "float[5,13] m"),
    "squeeze": ("f = Squeeze (g, s)", "int64[2] s = {2, 3}", "float[5,13] m"),
    "gather": (
        "h = Gather <axis = 3> (a, s) f = Gather <axis = -1> (h, s)",
        "int64 s = {4}",
        "float[5,13] m",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_a_product_reads_a_padded_vector_of_channels(name: str) -> None:
    body, *declared = VECTORS[name]
    text = f"g = GlobalMaxPool (a) {body} r = Relu (f) z = MatMul (r, m) b = Relu (a)"
    model = net(text, *declared, outputs="float[n,c,h,w] y, float[n,k] z")
    padded = applied(model, planned(model, 8))
    assert [8, 13] in [list(weight.dims) for weight in padded.graph.initializer]
    for expected, result in zip(*(run(m, drawn(model)) for m in (model, padded)), strict=True):
        np.testing.assert_array_equal(result, expected)
    assert proof(model, padded).verdict == "equal"


def test_a_chain_ends_with_a_dense_conv_and_needs_no_slice() -> None:
    model, _ = CASES["relu"]
    padded = applied(model, planned(model, 16))
    assert [node.op_type for node in padded.graph.node] == ["Conv", "Relu", "Conv"]
    shapes = {i.name.partition("/")[0]: list(i.dims) for i in padded.graph.initializer}
    assert shapes == {"w0": [16, 3, 2, 1], "b0": [16], "w1": [2, 16, 1, 2], "b1": [2]}


ENDS: dict[str, tuple[onnx.ModelProto, str, str]] = {
    "softmax": (net("b = Softmax <axis = 1> (a)"), "Softmax", "no rule pads Softmax"),
    "normalized over channels": (
        net(
            "b = LayerNormalization <axis = 1> (a, s)",
            f"float[5,6,11] s = {{{', '.join(['1.0'] * 330)}}}",
        ),
        "LayerNormalization",
        "no rule pads LayerNormalization",
    ),
    "mean of channels": (
        net("m = ReduceMean (a, i) b = Sub (a, m)", "int64[1] i = {1}"),
        "ReduceMean",
        "it acts along the channels",
    ),
    "mean that drops axes": (
        net(
            "z = ReduceMean <keepdims = 0> (a, i) b = Relu (a)",
            "int64[2] i = {2, 3}",
            outputs="float[n,c,h,w] y, float[n,k] z",
        ),
        "ReduceMean",
        "it drops axes",
    ),
    "logarithm": (net("r = Relu (a) b = Log (r)"), "Log", "Log makes -inf of padding"),
    "reciprocal": (net("b = Reciprocal (a)"), "Reciprocal", "Reciprocal makes inf of padding"),
    "quotient of tensors": (net("b = Div (a, a)"), "Div", "Div makes nan of padding"),
    "average of what is not zero": (
        net("s = Sigmoid (a) b = AveragePool <kernel_shape = [2,2]> (s)"),
        "AveragePool",
        "its padding is 0.5, not 0",
    ),
    "concat of two paddings": (
        net("s = Sigmoid (a) b = Concat <axis = 1> (s, a)", channels=10),
        "Concat",
        "the padding of its inputs differs",
    ),
    "pad of another number": (
        net("b = Pad (a, p, v)", "int64[8] p = {0,0,1,2,0,0,0,3}", "float v = {2.0}"),
        "Pad",
        "it appends 2, and the padding is 0.0",
    ),
    "channels of ones": (
        net("b = Pad (a, p, v)", "int64[8] p = {0,0,0,0,0,2,0,0}", "float v = {1.0}", channels=7),
        "Pad",
        "it does more to channels than to append zeros",
    ),
    "shuffled channels": (
        net(
            "r = Reshape (a, s) b = Transpose <perm = [0,2,1,3]> (r)",
            "int64[4] s = {2, 6, 5, 11}",
        ),
        "Reshape",
        "it joins channels with positions",
    ),
    "constant per position": (
        net("b = Add (a, c)", f"float[1,11] c = {{{', '.join(['1.0'] * 11)}}}"),
        "Add",
        "a constant has the extents [1, 11]",
    ),
    "a tensor of the caller": (
        net("b = Add (a, u)", inputs=f"{X}, float[2,5,6,11] u"),
        "Add",
        "it reads a tensor that is not padded, too",
    ),
    "one number of the caller": (
        net("b = Mul (a, u)", inputs=f"{X}, float u"),
        "Mul",
        "u is an input",
    ),
    "weight of the caller": (
        net("b = Conv (a, u)", inputs=f"{X}, float[5,5,1,1] u"),
        "Conv",
        "u is an input",
    ),
    "several outputs of one channel": (
        net("b = Conv <group = 5> (a, v)", "float[10,1,2,2] v", channels=10),
        "Conv",
        "5 -> 10 channels in 5 groups of a single one",
    ),
    "groups cut elsewhere": (
        net(
            "[six] c = Conv (a, u) g, h = Split <axis = 1> (c, n) k = Conv <group = 2> (c, v) "
            "i = Concat <axis = 1> (g, h) b = Add (i, k)",
            *("float[6,5,1,1] u", "float[6,3,1,1] v", "int64[2] n = {2, 4}"),
            channels=6,
        ),
        "Conv",
        "its 2 groups would have unequal padding",
    ),
    "output": (
        net("b = Relu (a)", outputs="float[n,c,h,w] y, float[n,c,h,w] a"),
        "Conv",
        "the graph returns its output",
    ),
    "shape": (
        net("z = Shape (a) b = Relu (a)", outputs="float[n,c,h,w] y, int64[k] z"),
        "Shape",
        "no rule pads Shape",
    ),
    "body": (
        net(
            "b = If (u) <then_branch = t () => (float[2,5,6,11] s) { s = Relu (a) }, "
            "else_branch = e () => (float[2,5,6,11] o) { o = Neg (a) }>",
            inputs=f"{X}, bool u",
        ),
        "Relu",
        "it lies in the body of another node",
    ),
    "training": (
        net(
            "b, m, v = BatchNormalization <training_mode = 1> (a, s, s, s, s)",
            "float[5] s = {1.0, 2.0, 3.0, 4.0, 5.0}",
        ),
        "BatchNormalization",
        "statistics are computed, or differ per position",
    ),
    "quantized": (
        net(
            "q = QuantizeLinear (a, s, o) b = DequantizeLinear (q, s, o)",
            *("float s = {0.5}", "uint8 o = {0}"),
        ),
        "QuantizeLinear",
        "no rule pads QuantizeLinear",
    ),
    "indices": (
        net(
            "b, z = MaxPool <kernel_shape = [2,2]> (a)",
            outputs="float[n,c,h,w] y, int64[n,c,h,w] z",
        ),
        "MaxPool",
        "MaxPool has 2 outputs",
    ),
    "resize of channels": (
        net(
            "b = Resize (a, , s)",
            "float[4] s = {1.0, 2.0, 1.0, 1.0}",
            channels=10,
        ),
        "Resize",
        "it acts along the channels",
    ),
    "slice of channels": (
        net(
            "b = Slice (a, s, e, i)",
            *("int64[1] s = {1}", "int64[1] e = {4}", "int64[1] i = {1}"),
            channels=3,
        ),
        "Slice",
        "it acts along the channels",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_channels_is_named_with_its_reason(name: str) -> None:
    model, op, reason = ENDS[name]
    stops = ends(model)
    assert any(end == op and reason in why for end, why in stops), stops
    before, after = model, applied(model, planned(model, 4))
    feeds = drawn(before)
    feeds |= {"u": np.array(True)} if name == "body" else {}
    if name != "training":
        for expected, result in zip(*(run(m, feeds) for m in (before, after)), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5)


UNSURE = {
    "max": "o = Max (a, c)",
    "min": "o = Min (k, a)",
    "pow": "o = Pow (a, c)",
    "where": "n = Less (a, k) o = Where (n, a, k)",
    "cast": "l = Cast <to = 10> (a) o = Cast <to = 1> (l)",
    "hard sigmoid": "o = HardSigmoid <beta = 0.0> (a)",
    "threshold": "o = ThresholdedRelu (a)",
    "global max": "g = GlobalMaxPool (a) o = Add (a, g)",
    "largest of positions": "g = ReduceMax (a, i) o = Add (a, g)",
    "resize": "o = Resize (a, , t)",
    "sum of functions": "e = Exp (a) o = Sub (e, k)",
}


@pytest.mark.parametrize("name", UNSURE)
def test_zeros_that_no_proof_sees_are_no_channels(name: str) -> None:
    model = net(
        f"{UNSURE[name]} p = Pad (o, z) [wide] d = Conv (o, v) b = Add (d, p)",
        *("float[5,1,1] c = {0.5, 2.0, 1.0, 4.0, 0.25}", "float[1,1,1] k = {1.0}"),
        *("int64[1] i = {-1}", "float[4] t = {1.0, 1.0, 2.0, 2.0}"),
        *("int64[8] z = {0,0,0,0, 0,2,0,0}", "float[7,5,1,1] v"),
        channels=7,
    )
    assert ("Pad", "that its padding is 0 does not follow from sums and products alone") in ends(
        model
    )
    plan = planned(model, 4)
    assert plan.padding is None or [layer.node for layer in plan.padding.layers] == ["wide"]
    assert proof(model, applied(model, plan)).verdict == "equal"


def test_a_bias_of_another_size_than_the_weight_is_refused() -> None:
    model = net("b = Conv (a, v, c)", "float[5,5,1,1] v", "float[4] c")
    assert ("Conv", "a bias of [4]") in ends(model)
    assert planned(model, 4).padding is None


def test_no_channels_are_padded_where_operands_are_broadcast_otherwise() -> None:
    assert planned(net("b = Relu (a)", opset=6), 4).padding is None


def test_padding_holds_no_data_so_that_an_inf_stays_in_its_sample() -> None:
    model, _ = CASES["squeeze and excite"]
    padded = applied(model, planned(model, 4))
    data = drawn(model)["x"]
    data[0, 1, 2, 3] = np.inf
    (expected,), (result,) = (run(m, data) for m in (model, padded))
    np.testing.assert_array_equal(result[1], expected[1])
    assert np.isfinite(expected[1]).all()


def test_nothing_is_padded_if_inf_must_stay_where_it_is() -> None:
    model, _ = CASES["relu"]
    for nonfinite, count in (("spread", 1), ("refuse", 0)):
        options = FoldOptions(form="strides", pad_channels=8, nonfinite=nonfinite)
        after, _ = fold_model(model, options)
        assert sum(list(i.dims) == [8, 3, 2, 1] for i in after.graph.initializer) == count


def test_layers_are_folded_after_they_were_padded() -> None:
    model, _ = CASES["relu"]
    after, sites = fold_model(model, FoldOptions(factor=2, ragged=True, pad_channels=4))
    assert {site.status for site in sites} == {"folded"}
    (expected,), (result,) = (run(m, drawn(model)) for m in (model, after))
    np.testing.assert_array_equal(result, expected)
    assert_proved(model, after, 2)


def test_a_plan_pads_weights_that_were_trained_again() -> None:
    model, _ = CASES["residual sum"]
    plan = planned(model, 4)
    trained = onnx.ModelProto.FromString(model.SerializeToString())
    for weight in trained.graph.initializer:
        numbers = numpy_helper.to_array(weight) * 2 - 1
        weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
    again = msgspec.json.decode(plan.text(), type=Plan)
    assert again == plan
    (expected,), (result,) = (run(m, drawn(model)) for m in (trained, applied(trained, again)))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("softmax", "first: its channels cannot be padded: Softmax Softmax -> b (no rule pads"),
        ("wider", "first: 6 channels would be padded to 8, planned 5 to 8"),
        ("renamed", "first: the model has no such layer"),
        ("whole", "first: its channels are not padded, planned 5 to 8"),
    ],
)
def test_a_plan_that_does_not_fit_names_the_layer(other: str, why: str) -> None:
    plan = planned(CASES["relu"][0], 4)
    count = {"wider": 6, "whole": 8}.get(other, 5)
    body = "Softmax <axis = 1>" if other == "softmax" else "Relu"
    name = "start" if other == "renamed" else "first"
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    net ({X}) => (float[n,c,h,w] y) <float[{count},3,2,1] w0, float[2,{count},1,2] w1> {{
        [{name}] a = Conv (x, w0)
        b = {body} (a)
        [last] y = Conv (b, w1)
    }}"""
    model = filled(parser.parse_model(text))
    with pytest.raises(CheckFailedError) as caught:
        applied(model, plan)
    assert why in str(caught.value)
    result = FittedPlan.of(Model(model, None), plan).rewriting.carry_out()
    assert [list(i.dims) for i in result.graph.initializer] == [[count, 3, 2, 1], [2, count, 1, 2]]


def test_channels_of_several_layers_are_padded_only_if_the_plan_names_all() -> None:
    model, _ = CASES["residual sum"]
    plan = planned(model, 4)
    part = msgspec.structs.replace(plan.padding, layers=plan.padding.layers[:1])
    with pytest.raises(CheckFailedError, match="first: its channels are not padded"):
        applied(model, Plan(padding=part))


def test_functions_and_shared_weights() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
    net ({X}) => (float[n,c,h,w] y) <float[5,3,1,1] w0, float[5,5,1,1] w1, float[2,5,1,1] w2> {{
        a = own.block (x, w0)
        b = own.block (a, w1)
        c = own.block (b, w1)
        y = Conv (c, w2)
    }}
    <domain: "own", opset_import: ["" : 18]>
    block (d, w) => (r) {{ e = Conv (d, w) r = Relu (e) }}"""
    model = filled(parser.parse_model(text))
    padded = applied(model, planned(model, 4))
    shapes = [list(i.dims) for i in padded.graph.initializer]
    assert sorted(shapes) == [[2, 8, 1, 1], [8, 3, 1, 1], [8, 8, 1, 1]]
    (expected,), (result,) = (run(m, drawn(model)) for m in (model, padded))
    np.testing.assert_array_equal(result, expected)
    assert proof(model, padded).verdict == "equal"


def test_a_stray_number_in_the_padding_is_found() -> None:
    model, _ = CASES["relu"]
    for name, place in (("w1", (0, 7, 0, 0)), ("w1", (0, 1, 0, 0))):
        padded = applied(model, planned(model, 4))
        (weight,) = [i for i in padded.graph.initializer if i.name.startswith(name)]
        numbers = numpy_helper.to_array(weight).copy()
        numbers[place] += 1e-8 if place[1] == 7 else 1
        weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
        verdict = proof(model, padded).verdict
        # Behind Relu(0) = 0 a number in the padding meets zeros only.
        assert verdict == ("equal" if place[1] == 7 else "different")


def test_a_padded_prelu_is_proved_as_the_ops_of_its_companion() -> None:
    model, _ = CASES["prelu"]
    model = onnx.ModelProto.FromString(model.SerializeToString())
    (slope,) = [weight for weight in model.graph.initializer if weight.name == "c"]
    numbers = np.array([0.5, 0.25, 1.0, 0.75, 0.125], np.float32).reshape(5, 1, 1)
    slope.CopyFrom(numpy_helper.from_array(numbers, "c"))
    node = "PRelu -> b"
    plan = Plan(companions=(CompanionPlan(node=node, companion=Companion.PRELU),))
    chains, _ = paddable_chains(Reading.of(Model(model, None), plan).document, 4)
    padded = applied(model, msgspec.structs.replace(plan, padding=joined_plan(chains)))
    assert [n.op_type for n in padded.graph.node] == ["Conv", "Mul", "Max", "Conv"]
    assert proof(model, padded).verdict == "equal"
