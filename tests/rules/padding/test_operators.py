"""Models with padded channels return what the originals return, or say what ends the channels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.lacking import NORMALIZES_EXACTLY
from tests.rewrite.proved import proof
from tests.rules.padding.nets import (
    CASES,
    X,
    applied,
    drawn,
    ends,
    net,
    planned,
)
from tests.running import run


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
