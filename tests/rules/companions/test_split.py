"""A Conv of each part replaces a Conv and a Split: the same numbers, or it is left alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests.folding import exchange_all
from tests.rewrite.proved import assert_proved
from tests.running import run
from widthfold_onnx.options import Companion

SPLIT = [Companion.SPLIT]
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def gated(
    body: str, weight: str = "float[5,3,3] w", kind: str = "float", opset: int = 17
) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    net ({kind}[2,3,9] x) => ({kind}[i,j,k] y, {kind}[l,m,n] z)
    <{weight}, float[5] b, int64[2] n = {{2, 3}}, float f = {{0.5}}, int8 o = {{0}}> {{ {body} }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(3)
    for info in model.graph.value_info:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        array = rng.integers(-4, 5, shape).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, info.name))
    del model.graph.value_info[:]
    return model


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("c = Conv<pads=[1,1]> (x, w, b)  y, z = Split<axis=1> (c, n)", 13),
        ("c = Conv<dilations=[2], strides=[2]> (x, w)  y, z = Split<axis=-2> (c, n)", 17),
        ("c = Conv (x, w)  y, z = Split<axis=1, split=[2,3]> (c)", 11),
        ("c = Conv (x, w, b)  y, z = Split<axis=1, num_outputs=2> (c)", 18),
        ("c = Conv (x, w, b)  p, z = Split<axis=1> (c, n)  y = Relu (p)", 13),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_conv_computes_each_part_of_a_split(body: str, opset: int, level: str) -> None:
    before = gated(body, opset=opset)
    after, (match,) = exchange_all(before, SPLIT)
    assert match.replacements == ("Conv", "Conv")
    assert [n.op_type for n in after.graph.node if n.op_type != "Relu"] == ["Conv", "Conv"]
    assert "w" not in {tensor.name for tensor in after.graph.initializer}
    onnx.checker.check_model(after, full_check=True)
    assert_proved(before, after, 0)
    x = np.random.default_rng(4).integers(-4, 5, (2, 3, 9)).astype(np.float32)
    for expected, result in zip(run(before, x), run(after, x, level), strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)


def test_each_part_has_the_pad_before_the_conv() -> None:
    """ONNX Runtime merges a Pad with a Conv that alone reads it."""
    body = "p = Pad (x, e)  c = Conv (p, w, b)  y, z = Split<axis=1> (c, n)"
    before = gated(body)
    ends = numpy_helper.from_array(np.array([0, 0, 2, 0, 0, 0]), "e")
    before.graph.initializer.append(ends)
    after, _ = exchange_all(before, SPLIT)
    assert sorted(node.op_type for node in after.graph.node) == ["Conv", "Conv", "Pad", "Pad"]
    assert_proved(before, after, 0)
    before.graph.node.append(helper.make_node("Relu", ["p"], ["r"]))
    after, _ = exchange_all(before, SPLIT)
    assert sorted(n.op_type for n in after.graph.node) == ["Conv", "Conv", "Pad", "Relu"]
    del before.graph.node[-1]
    before.graph.output.append(helper.make_tensor_value_info("p", 1, [2, 3, 11]))
    after, _ = exchange_all(before, SPLIT)
    assert sorted(node.op_type for node in after.graph.node) == ["Conv", "Conv", "Pad"]


def test_weights_of_the_same_bytes_keep_their_shapes() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,2,5,5] x) => (float[i,j,k,l] p, float[i,j,k,l] q, float[i,j,m,n] r)
    { c = Conv (x, v)  p, q = Split<axis=1> (c)  d = Conv (x, w)  r, s = Split<axis=1> (d) }"""
    before = parser.parse_model(text)
    for name, shape in (("v", (4, 2, 3, 1)), ("w", (4, 2, 1, 3))):
        before.graph.initializer.append(numpy_helper.from_array(np.ones(shape, "f"), name))
    after, _ = exchange_all(before, SPLIT)
    assert_proved(before, after, 0)
    assert [list(tensor.dims) for tensor in after.graph.initializer] == [[2, 2, 3, 1], [2, 2, 1, 3]]


@pytest.mark.parametrize(
    ("body", "weight"),
    [
        ("c = Conv (x, w)  y, e = Split<axis=1> (c, n)  z = Relu (c)", "float[5,3,3] w"),
        ("z = Conv (x, w)  y, e = Split<axis=1> (z, n)", "float[5,3,3] w"),
        ("c = Conv (x, w)  y, z = Split<axis=2> (c, n)", "float[5,3,5] w"),
        ("r = Relu (w)  c = Conv (x, r)  y, z = Split<axis=1> (c, n)", "float[5,3,3] w"),
        ("c = Conv<group=3> (x, w)  y, z = Split<axis=1> (c)", "float[6,1,3] w"),
        (
            "d = DequantizeLinear (w, f, o) c = Conv (x, d) y, z = Split<axis=1> (c, n)",
            "int8[5,3,3] w",
        ),
        ("c = Relu (x)  y, z = Split<axis=1, num_outputs=2> (c)", "float[5,3,3] w"),
    ],
)
def test_other_splits_are_left_alone(body: str, weight: str) -> None:
    before = gated(body, weight, opset=18)
    if "Relu (w)" in body:  # a caller may give other weights
        before.graph.input.append(helper.make_tensor_value_info("w", 1, [5, 3, 3]))
    assert exchange_all(before, SPLIT) == (before, [])


@pytest.mark.parametrize(
    ("body", "weight"),
    [
        ("c = Conv (x, f)  y, z = Split<axis=1> (c, n)", "float[5,3,3] w"),
        ("c = Conv (x, b)  y, z = Split<axis=0> (c, n)", "float[5,3,3] w"),
        ("c = Conv (x, w, f)  y, z = Split<axis=1> (c, n)", "float[5,3,3] w"),
        ("c = Conv (x, w, b)  y, z = Split<axis=1> (c)", "float[4,3,3] w"),
    ],
)
def test_a_conv_whose_shapes_do_not_fit_is_left_alone(body: str, weight: str) -> None:
    before = gated(body, weight)
    for port, extents in zip(before.graph.output, ([2], [3]), strict=True):
        if "axis=0" in body:
            port.CopyFrom(helper.make_tensor_value_info(port.name, 1, extents))
    assert exchange_all(before, SPLIT) == (before, [])


def test_a_conv_that_the_model_describes_elsewhere_is_left_alone() -> None:
    body = "c = Conv (x, w, b)  y, z = Split<axis=1> (c, n)"
    annotated, sharded = gated(body), gated(body)
    annotated.graph.quantization_annotation.add().tensor_name = "w"
    sharded.graph.node[0].device_configurations.add().configuration_id = "two"
    for before in (annotated, sharded):
        assert exchange_all(before, SPLIT) == (before, [])


def test_parts_whose_sizes_are_inputs_are_left_alone() -> None:
    """Not even sizes that the model declares are known: a caller may ask for others."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,3,7] x, int64[2] n) => (float[1,2,5] y, float[1,3,5] z) <float[5,3,3] w = {%s}>
    { c = Conv (x, w)  y, z = Split<axis=1> (c, n) }"""
    before = parser.parse_model(text % ",".join(["0.5"] * 45))
    assert exchange_all(before, SPLIT) == (before, [])
