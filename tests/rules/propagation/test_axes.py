"""Split on channels, and Resize to named extents, between folded Convs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.folding import fold_model
from tests.rewrite.graphs import Builder, ops
from tests.rewrite.regions.regions import builder, conversions, folded
from widthfold_onnx.options import AxisName, FoldOptions, Layout


def split(
    sizes: list[int] | None,
    *,
    parts: int = 2,
    opset: int = 17,
    g: Builder | None = None,
    **attributes: object,
) -> onnx.ModelProto:
    """A Conv, a Split of its channels, and a Conv of every part."""
    g = g or builder()
    value = g.conv("x", 6, [3, 3])
    names = [f"part{i}" for i in range(parts)]
    inputs = [value]
    if sizes is not None:
        g.constants["sizes"] = np.array(sizes, np.int64)
        inputs.append("sizes")
    g.nodes.append(helper.make_node("Split", inputs, names, "split", **attributes))
    for name, size in zip(names, sizes or [6 // parts] * parts, strict=True):
        g.channels[name] = size
    return g.model([g.conv(name, 2, [3, 3 + 2 * (i % 2)]) for i, name in enumerate(names)], opset)


@pytest.mark.parametrize(
    ("sizes", "parts", "opset", "attributes"),
    [
        ([2, 4], 2, 17, {"axis": 1}),
        ([1, 2, 3], 3, 13, {"axis": -3}),
        (None, 3, 17, {"axis": 1}),
        (None, 2, 11, {"axis": 1}),
        (None, 3, 18, {"axis": 1, "num_outputs": 3}),
    ],
)
def test_channels_are_split_with_all_their_tiles(sizes, parts, opset, attributes) -> None:
    model = split(sizes, parts=parts, opset=opset, **attributes)
    options = FoldOptions(factor=4, axis=AxisName.HEIGHT)
    g = builder(2, 3, 8, 5)
    tall = split(sizes, parts=parts, opset=opset, g=g, **attributes)
    for case, how in ((model, None), (tall, options)):
        result = folded(case, *([how] if how else []), count=1 + parts)
        assert conversions(result) == 1 + parts  # one fold, and an unfold of every output
        kinds = [kind for kind in ops(result) if kind not in ("Reshape", "Transpose")]
        assert kinds == ["Conv", "Split", *["Conv"] * parts]


def test_a_split_of_what_lies_between_digits_is_not_carried() -> None:
    model = split([2, 4], g=builder(4, 3, 7, 12), axis=1)
    samples = FoldOptions(factor=2, axis=AxisName.BATCH)
    last = FoldOptions(factor=4, axis=AxisName.WIDTH, layout=Layout.NHWC)
    for options in (samples, last):
        result = folded(model, options, count=3)
        assert model.graph.node[1] in list(result.graph.node)


@pytest.mark.parametrize(
    ("sizes", "parts", "opset", "attributes"),
    [
        (None, 2, 11, {"axis": 1, "split": [2, 4]}),  # an attribute would have to change
        (None, 4, 18, {"axis": 1, "num_outputs": 4}),  # 2, 2, 2 and none
    ],
)
def test_sizes_that_no_input_names_are_left_alone(sizes, parts, opset, attributes) -> None:
    g = builder()
    names = [f"part{i}" for i in range(parts)]
    value = g.conv("x", 6 if parts == 2 else 7, [3, 3])
    g.nodes.append(helper.make_node("Split", [value], names, "split", **attributes))
    model = g.model(names, opset)
    result, _ = fold_model(model, FoldOptions(factor=4, axis=AxisName.WIDTH))
    assert model.graph.node[1] in list(result.graph.node)


def test_a_split_along_a_folded_axis_is_not_carried() -> None:
    g = builder()
    value = g.conv("x", 6, [3, 3])
    g.constants["sizes"] = np.array([4, 8], np.int64)
    g.nodes.append(helper.make_node("Split", [value, "sizes"], ["a", "b"], "split", axis=3))
    model = g.model(["a", "b"])
    assert model.graph.node[1] in list(folded(model).graph.node)


@pytest.mark.parametrize("height", [14, 9, 3])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_to_named_extents_is_told_those_of_the_packed_tensor(height: int, mode) -> None:
    g = builder()
    extents = np.array([2, 5, height, 12])
    value = g.op("Resize", g.conv("x", 5, [1, 3]), "", "", extents, mode=mode)
    model = g.model([g.conv(value, 2, [3, 3])])
    result, _ = fold_model(model, FoldOptions(factor=4, axis=AxisName.WIDTH))
    (node,) = (n for n in result.graph.node if n.op_type == "Resize")
    told = next(t for t in result.graph.initializer if t.name == node.input[3])
    assert onnx.numpy_helper.to_array(told).tolist() == [2, 20, height, 3]
    if mode == "nearest":
        assert conversions(folded(model, count=2)) == 2


@pytest.mark.parametrize("left", [True, False])
def test_rows_of_a_product_are_split_where_digits_stay_with_their_channel(left: bool) -> None:
    """With the weight on the right the tiles of a channel lie apart: the Split stays logical."""
    rng = np.random.default_rng(7)
    shapes = {"w": (6, 3), "u": (2, 2), "v": (5, 4)}
    if not left:
        shapes = {name: shape[::-1] for name, shape in shapes.items()}
    constants = {n: rng.integers(-2, 3, shape).astype(np.float32) for n, shape in shapes.items()}
    constants["s"] = np.array([2, 4])

    def product(weight: str, data: str, result: str) -> onnx.NodeProto:
        return helper.make_node("MatMul", [weight, data] if left else [data, weight], [result])

    nodes = [
        product("w", "x", "a"),
        helper.make_node("Split", ["a", "s"], ["p", "q"], axis=0 if left else 1),
        product("u", "p", "y"),
        product("v", "q", "z"),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [3, 12] if left else [12, 3])],
        [helper.make_tensor_value_info(name, kind, [None, None]) for name in "yz"],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    result = folded(model, FoldOptions(factor=4, mix_samples=True), count=3)
    assert (nodes[1] in list(result.graph.node)) != left
    assert ops(result).count("Reshape") == (3 if left else 6)
