"""The loop oracle against the runtime, onnx's reference, and numbers computed by hand."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.oracle import conv, conv_transpose, resolve_auto_pad, resolve_transposed_pads
from tests.running import LEVELS, run

# x shape, w shape, attributes. Extents are distinct, so that no two axes can be confused.
CASES = {
    "1d": ((2, 3, 11), (5, 3, 4), {}),
    "1d_stride_dilation": ((1, 2, 23), (3, 2, 3), {"strides": [3], "dilations": [2]}),
    "1d_only_the_end_padded": ((1, 1, 7), (1, 1, 3), {"pads": [0, 4]}),
    "1d_kernel_longer_than_input": ((1, 1, 3), (1, 1, 5), {"pads": [1, 2]}),
    "2d": ((2, 3, 7, 5), (4, 3, 3, 2), {"pads": [1, 0, 2, 1]}),
    "2d_pointwise": ((3, 5, 4, 7), (2, 5, 1, 1), {"strides": [1, 2]}),
    "2d_mixed": (
        (1, 2, 13, 17),
        (3, 2, 2, 4),
        {"strides": [2, 3], "dilations": [3, 1], "pads": [0, 2, 3, 1]},
    ),
    "2d_groups": ((1, 6, 5, 7), (9, 2, 3, 2), {"group": 3, "pads": [1, 1, 0, 2]}),
    "2d_depthwise": ((2, 5, 6, 7), (5, 1, 3, 3), {"group": 5, "strides": [2, 1]}),
    "2d_depthwise_widening": ((1, 3, 5, 4), (6, 1, 2, 3), {"group": 3}),
    "3d": ((1, 2, 5, 4, 7), (3, 2, 2, 3, 1), {"pads": [0, 1, 2, 1, 0, 1]}),
    "3d_groups": (
        (1, 4, 5, 6, 7),
        (2, 2, 2, 1, 3),
        {"group": 2, "strides": [1, 2, 3], "dilations": [2, 1, 2]},
    ),
}


def integers(seed, *shapes):
    generator = np.random.default_rng(seed)
    return [generator.integers(-9, 10, shape) for shape in shapes]


def conv_model(x_shape, w_shape, attributes):
    names = ("x", "w", "b")
    shapes = (x_shape, w_shape, w_shape[:1])
    graph = helper.make_graph(
        [helper.make_node("Conv", names, ["y"], name="conv", **attributes)],
        "conv",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(names, shapes, strict=True)
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(x_shape))],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def by_onnxruntime(model: onnx.ModelProto, feeds):
    return run(model, feeds, LEVELS[1])[0]


def by_reference(model: onnx.ModelProto, feeds):
    return ReferenceEvaluator(model).run(None, feeds)[0]


@pytest.mark.parametrize("other", [by_onnxruntime, by_reference])
@pytest.mark.parametrize("case", CASES)
def test_agrees_exactly_on_integers(case, other):
    x_shape, w_shape, attributes = CASES[case]
    x, w, b = integers(list(case.encode()), x_shape, w_shape, w_shape[:1])
    feeds = {name: value.astype(np.float32) for name, value in zip("xwb", (x, w, b), strict=True)}
    expected = other(conv_model(x_shape, w_shape, attributes), feeds)
    np.testing.assert_array_equal(conv(x, w, b, **attributes), expected)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(
    ("extents", "kernel", "strides", "dilations"),
    [
        ((11,), (4,), (1,), (1,)),
        ((11,), (3,), (2,), (1,)),
        ((7, 10), (2, 5), (1, 3), (1, 1)),
        ((9, 12), (3, 2), (2, 5), (1, 1)),
        ((8, 9), (1, 2), (3, 4), (1, 1)),  # a stride beyond the kernel: nothing to pad
        ((5, 6, 7), (2, 3, 4), (1, 2, 3), (1, 1, 1)),
    ],
)
def test_auto_pad_agrees_with_onnxruntime(auto_pad, extents, kernel, strides, dilations):
    # ONNX Runtime refuses dilation together with SAME: see the values computed by hand below.
    x_shape, w_shape = (1, 2, *extents), (3, 2, *kernel)
    x, w, b = integers(5, x_shape, w_shape, w_shape[:1])
    attributes = {"strides": strides, "dilations": dilations, "kernel_shape": kernel}
    model = conv_model(x_shape, w_shape, attributes | {"auto_pad": auto_pad})
    feeds = {name: value.astype(np.float32) for name, value in zip("xwb", (x, w, b), strict=True)}
    pads = resolve_auto_pad(auto_pad, extents, kernel, strides, dilations)
    y = conv(x, w, b, strides=strides, dilations=dilations, pads=pads)
    np.testing.assert_array_equal(y, by_onnxruntime(model, feeds))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, [1 + 20 + 300, 2 + 30 + 400, 3 + 40 + 500]),
        ({"pads": [1, 0]}, [10 + 200, 1 + 20 + 300, 2 + 30 + 400, 3 + 40 + 500]),
        ({"strides": [2]}, [1 + 20 + 300, 3 + 40 + 500]),
        ({"dilations": [2]}, [1 + 30 + 500]),
        ({"pads": [-1, 0]}, [2 + 30 + 400, 3 + 40 + 500]),
        ({"pads": [1, -2]}, [10 + 200, 1 + 20 + 300]),
        ({"pads": [-2, 2]}, [3 + 40 + 500, 4 + 50, 5]),
    ],
)
def test_values_computed_by_hand(attributes, expected):
    x, w = [[[1, 2, 3, 4, 5]]], [[[1, 10, 100]]]
    assert conv(x, w, **attributes).tolist() == [[expected]]


def test_groups_and_bias_computed_by_hand():
    x = [[[1, 2], [3, 4], [5, 6], [7, 8]]]
    w = [[[1], [10]], [[2], [20]]]  # the first output sees channels 0 and 1, the second 2 and 3
    assert conv(x, w, [0.5, 100], group=2).tolist() == [[[31.5, 42.5], [250, 272]]]


def test_integers_stay_integers_and_floats_become_double():
    assert conv([[[2**40]]], [[[2**20]]]).item() == 2**60
    x, w = np.float32([[[1, 1e-9]]]), np.float32([[[1, 1]]])
    assert conv(x, w).dtype == np.float64
    assert conv(x, w).item() == 1 + np.float64(np.float32(1e-9))


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((1, 2, 5), (1, 3, 2), {}),
        ((1, 4, 5), (3, 2, 2), {"group": 2}),
        ((1, 1, 5), (1, 1, 2, 2), {}),
        ((1, 1, 5), (1, 1, 2), {"pads": [1]}),
        ((1, 1, 2), (1, 1, 9), {}),
    ],
)
def test_refuses_what_is_no_convolution(x_shape, w_shape, attributes):
    with pytest.raises(ValueError):
        conv(np.zeros(x_shape), np.zeros(w_shape), **attributes)


def test_auto_pad_computed_by_hand():
    # 10 positions read 10 + 3 - 1 = 12 of 10 values along the first axis; 4 positions at stride 3
    # read 3 * 3 + 4 = 13 of 10 along the second, and the odd one goes to the side of the name.
    arguments = ((10, 10), (3, 4), (1, 3), (1, 1))
    assert resolve_auto_pad("SAME_UPPER", *arguments) == [1, 1, 1, 2]
    assert resolve_auto_pad("SAME_LOWER", *arguments) == [1, 2, 1, 1]
    assert resolve_auto_pad("VALID", *arguments) == [0, 0, 0, 0]
    # 5 positions at stride 2, taps 3 apart: the last reads up to 4 * 2 + 2 * 3 = 14, of 0 to 8.
    assert resolve_auto_pad("SAME_LOWER", [9], [3], [2], [3]) == [3, 3]
    assert resolve_auto_pad("SAME_LOWER", [10], [3], [2], [3]) == [3, 2]
    with pytest.raises(ValueError, match="NOTSET"):
        resolve_auto_pad("NOTSET", *arguments)


TRANSPOSED = {
    "1d": ((2, 3, 5), (3, 2, 4), {}),
    "1d_stride": ((1, 2, 7), (2, 3, 3), {"strides": [3], "output_padding": [2]}),
    "1d_sparse": ((1, 1, 4), (1, 1, 2), {"strides": [3], "pads": [1, 0]}),
    "1d_dilated": ((1, 2, 5), (2, 1, 3), {"strides": [2], "dilations": [3], "pads": [2, 4]}),
    "2d": ((2, 3, 4, 5), (3, 4, 3, 2), {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
    "2d_mixed": (
        (1, 2, 3, 5),
        (2, 3, 2, 4),
        {"strides": [2, 3], "dilations": [3, 1], "pads": [0, 2, 3, 1], "output_padding": [1, 2]},
    ),
    "2d_groups": ((1, 6, 4, 3), (6, 2, 3, 2), {"group": 3, "strides": [2, 2]}),
    "2d_depthwise": ((2, 5, 3, 4), (5, 1, 3, 3), {"group": 5, "strides": [2, 1]}),
    "3d_groups": ((1, 4, 2, 3, 4), (4, 1, 2, 1, 3), {"group": 2, "strides": [1, 2, 3]}),
}


def transposed_model(x_shape, w_shape, attributes) -> onnx.ModelProto:
    outputs = w_shape[1] * attributes.get("group", 1)
    shapes = {"x": x_shape, "w": w_shape, "b": (outputs,)}
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(x_shape))],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.parametrize("case", TRANSPOSED)
def test_a_transposed_conv_agrees_exactly_on_integers(case: str) -> None:
    x_shape, w_shape, attributes = TRANSPOSED[case]
    model = transposed_model(x_shape, w_shape, attributes)
    outputs = w_shape[1] * attributes.get("group", 1)
    x, w, b = integers(list(case.encode()), x_shape, w_shape, (outputs,))
    feeds = {name: value.astype(np.float32) for name, value in zip("xwb", (x, w, b), strict=True)}
    result = conv_transpose(x, w, b, **attributes)
    np.testing.assert_array_equal(result, by_onnxruntime(model, feeds))
    if "group" not in attributes:  # with groups the reference implementation fails (onnx 1.23.2)
        np.testing.assert_array_equal(result, ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize("case", TRANSPOSED)
def test_a_transposed_conv_is_the_adjoint_of_conv(case: str) -> None:
    """<conv(u), x> = <u, conv_transpose(x)>: what the operator is named after."""
    x_shape, w_shape, attributes = TRANSPOSED[case]
    attributes = {k: v for k, v in attributes.items() if k != "output_padding"}
    x, w = integers(list(case.encode()), x_shape, w_shape)
    y = conv_transpose(x, w, **attributes)
    (u,) = integers(1, y.shape)
    assert np.sum(conv(u, w, **attributes) * x) == np.sum(u * y)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, [1, 12, 123, 230, 300]),
        ({"strides": [2]}, [1, 10, 102, 20, 203, 30, 300]),
        ({"strides": [2], "output_padding": [1]}, [1, 10, 102, 20, 203, 30, 300, 0]),
        ({"strides": [2], "pads": [1, 2]}, [10, 102, 20, 203]),
        ({"strides": [2], "dilations": [2]}, [1, 0, 12, 0, 123, 0, 230, 0, 300]),
    ],
)
def test_transposed_values_computed_by_hand(attributes, expected) -> None:
    assert conv_transpose([[[1, 2, 3]]], [[[1, 10, 100]]], **attributes).tolist() == [[expected]]


@pytest.mark.parametrize(
    ("auto_pad", "output_shape"),
    [
        ("SAME_UPPER", None),
        ("SAME_LOWER", None),
        *itertools.product(
            ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"],
            [[11, 9], [12, 8], [10, 7], [13, 9], [12, 10]],
        ),
    ],
)
def test_implicit_pads_of_a_transposed_conv_agree_with_onnxruntime(auto_pad, output_shape) -> None:
    x_shape, w_shape = (1, 2, 5, 4), (2, 3, 4, 3)
    attributes = {"strides": [2, 2], "auto_pad": auto_pad}
    if output_shape:
        attributes["output_shape"] = output_shape
    x, w, b = integers(5, x_shape, w_shape, (3,))
    feeds = {name: value.astype(np.float32) for name, value in zip("xwb", (x, w, b), strict=True)}
    geometry = ([5, 4], [4, 3], [2, 2], [1, 1], [0, 0])
    pads = resolve_transposed_pads(auto_pad, *geometry, output_shape)
    y = conv_transpose(x, w, b, strides=[2, 2], pads=pads)
    np.testing.assert_array_equal(
        y, by_onnxruntime(transposed_model(x_shape, w_shape, attributes), feeds)
    )


def test_refuses_what_is_no_transposed_convolution() -> None:
    with pytest.raises(ValueError, match="2 groups"):
        conv_transpose(np.zeros((1, 3, 5)), np.zeros((3, 2, 2)), group=2)
    with pytest.raises(ValueError, match="do not fit"):
        conv_transpose(np.zeros((1, 3, 5)), np.zeros((2, 2, 2)))
