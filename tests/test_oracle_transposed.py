import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.oracle import conv, conv_transpose, resolve_transposed_pads
from tests.test_oracle import by_onnxruntime, integers

# x shape, w shape, attributes. Extents are distinct, so that no two axes can be confused.
CASES = {
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


def model_of(x_shape, w_shape, attributes) -> onnx.ModelProto:
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


@pytest.mark.parametrize("case", CASES)
def test_agrees_exactly_on_integers(case: str) -> None:
    x_shape, w_shape, attributes = CASES[case]
    model = model_of(x_shape, w_shape, attributes)
    outputs = w_shape[1] * attributes.get("group", 1)
    x, w, b = integers(list(case.encode()), x_shape, w_shape, (outputs,))
    feeds = {name: value.astype(np.float32) for name, value in zip("xwb", (x, w, b), strict=True)}
    result = conv_transpose(x, w, b, **attributes)
    np.testing.assert_array_equal(result, by_onnxruntime(model, feeds))
    if "group" not in attributes:  # with groups the reference implementation fails (onnx 1.23.2)
        np.testing.assert_array_equal(result, ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_adjoint_of_conv(case: str) -> None:
    """<conv(u), x> = <u, conv_transpose(x)>: what the operator is named after."""
    x_shape, w_shape, attributes = CASES[case]
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
def test_values_computed_by_hand(attributes, expected) -> None:
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
def test_implicit_pads_agree_with_onnxruntime(auto_pad, output_shape) -> None:
    x_shape, w_shape = (1, 2, 5, 4), (2, 3, 4, 3)
    attributes = {"strides": [2, 2], "auto_pad": auto_pad}
    if output_shape:
        attributes["output_shape"] = output_shape
    x, w, b = integers(5, x_shape, w_shape, (3,))
    feeds = {name: value.astype(np.float32) for name, value in zip("xwb", (x, w, b), strict=True)}
    geometry = ([5, 4], [4, 3], [2, 2], [1, 1], [0, 0])
    pads = resolve_transposed_pads(auto_pad, *geometry, output_shape)
    y = conv_transpose(x, w, b, strides=[2, 2], pads=pads)
    np.testing.assert_array_equal(y, by_onnxruntime(model_of(x_shape, w_shape, attributes), feeds))


def test_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="2 groups"):
        conv_transpose(np.zeros((1, 3, 5)), np.zeros((3, 2, 2)), group=2)
    with pytest.raises(ValueError, match="do not fit"):
        conv_transpose(np.zeros((1, 3, 5)), np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match="1 positions"):
        resolve_transposed_pads("SAME_UPPER", [3], [1], [2], [1], [0])
