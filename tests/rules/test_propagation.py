"""Ops that run on packed tensors between folded Convs, and ops that do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model
from tests.lacking import needs_exact_normalization
from tests.rewrite.graphs import Builder, ops
from tests.rewrite.regions.regions import (
    MOVES,
    WIDTH,
    builder,
    conversions,
    folded,
)
from tests.running import run
from tests.small_models import conv
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.model.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import AxisName, FoldOptions, Layout
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.record import STATE_KEY
from widthfold_onnx.rewrite.rewriting import Rewriting
from widthfold_onnx.rules.enumeration import conv_forms
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        *(("Relu", {}), ("Abs", {}), ("Neg", {}), ("LeakyRelu", {"alpha": 0.5}), ("Floor", {})),
        *(("Identity", {}), ("Sign", {}), ("Round", {}), ("Cast", {"to": 1}), ("Ceil", {})),
        ("ThresholdedRelu", {"alpha": 2.0}),
    ],
)
def test_unary_ops_are_carried(op: str, attributes: dict) -> None:
    g = builder()
    value = g.conv(g.op(op, g.conv("x", 5, [1, 3]), **attributes), 2, [3, 3])
    result = folded(g.model([value]), count=2)
    assert conversions(result) == 2


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        *(
            ("Add", (5, 1, 1)),
            ("Sub", (1, 5, 1, 1)),
            ("Mul", ()),
            ("Max", (1,)),
            ("Min", (5, 1, 1)),
            ("Sum", (5, 1, 1)),
        ),
        *(("PRelu", (5, 1, 1)), ("PRelu", (1,)), ("Mul", (1, 1, 1, 1))),
    ],
)
def test_constants_are_repeated_and_tiled(op: str, shape: tuple[int, ...], batch: bool) -> None:
    g = builder()
    value = g.op(op, g.conv("x", 5, [1, 3]), g.integers(*shape))
    value = g.conv(value, 2, [3, 3])
    options = FoldOptions(factor=2, axis=AxisName.BATCH) if batch else WIDTH
    assert conversions(folded(g.model([value]), options, 2)) == 2


def test_a_constant_on_the_left_stays_on_the_left() -> None:
    g = builder()
    value = g.conv("x", 5, [1, 3])
    result = folded(g.model([g.op("Sub", g.integers(5, 1, 1), value, channels=5)]))
    assert [kind for kind in ops(result) if kind not in MOVES] == ["Conv", "Sub"]
    assert conversions(result) == 2


@pytest.mark.parametrize("shape", [(12,), (7, 1), (5, 7, 1), (2, 5, 1, 1), (1, 5, 7, 12)])
def test_constants_that_differ_along_other_axes_are_not(shape: tuple[int, ...]) -> None:
    g = builder()
    value = g.op("Add", g.conv("x", 5, [1, 3]), g.integers(*shape))
    result = folded(g.model([value]))
    assert ops(result)[-2:] == ["Reshape", "Add"]
    assert result.graph.node[-1] == g.nodes[-1]


@needs_exact_normalization
@pytest.mark.parametrize("opset", [7, 10, 13, 17, 22])
def test_the_common_ops_in_every_operator_set(opset: int) -> None:
    g = builder()
    value = g.conv("x", 4, [1, 3], group=1)
    flat = np.ones(4, np.float32)
    norm = [g.integers(4), g.integers(4), g.integers(4), flat * 4]
    value = g.op("BatchNormalization", value, *norm, epsilon=0.0)
    if opset < 11:
        value = g.op("Clip", value, min=-3.0, max=6.0)
    else:
        value = g.op("Clip", value, np.array(-3, np.float32), np.array(6, np.float32))
    value = g.op("PRelu", value, g.integers(4, 1, 1))
    skip = value
    value = g.conv(g.op("Relu", value), 4, [3, 3], group=2)
    value = g.op("Add", value, skip)
    result = folded(g.model([value], opset), count=2)
    assert conversions(result) == 2
    claiming = [any(p.key == STATE_KEY for p in node.metadata_props) for node in result.graph.node]
    assert sum(claiming) == 8


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("opset", "per_channel"), [(10, False), (13, False), (13, True), (21, True)]
)
def test_quantized_tensors(opset: int, per_channel: bool, batch: bool) -> None:
    g = builder()
    scale, zero = np.array(2, np.float32), np.array(3, np.int8)
    if per_channel:
        scale, zero = np.arange(1, 6, dtype=np.float32), np.arange(5, dtype=np.int8)
    value = g.op("QuantizeLinear", g.conv("x", 5, [1, 3]), scale, zero)
    value = g.conv(g.op("DequantizeLinear", value, scale, zero), 2, [3, 3])
    options = FoldOptions(factor=2, axis=AxisName.BATCH) if batch else WIDTH
    result = folded(g.model([value], opset), options, 2)
    assert conversions(result) == 2


def test_a_dequantizer_that_nobody_reads_keeps_its_integers() -> None:
    g = builder()
    step = (np.array(2, np.float32), np.array(3, np.int8))
    value = g.op("QuantizeLinear", g.conv("x", 5, [1, 3]), *step)
    g.op("DequantizeLinear", value, *step)
    value = g.conv(g.op("DequantizeLinear", value, *step), 2, [3, 3])
    result = folded(g.model([value]), count=2)
    assert g.nodes[2] in list(result.graph.node), "it reads the logical integers"


def test_a_scale_along_another_axis_is_not_carried() -> None:
    g = builder()
    scale, zero = np.arange(1, 8, dtype=np.float32), np.arange(7, dtype=np.int8)
    value = g.op("QuantizeLinear", g.conv("x", 5, [1, 3]), scale, zero, axis=2)
    value = g.op("DequantizeLinear", value, scale, zero, axis=2)
    assert g.nodes[1] in list(folded(g.model([value])).graph.node)


@pytest.mark.parametrize("factor", [1.0, 1e38])
def test_a_factor_that_would_overflow_the_weight_is_not_carried(factor: float) -> None:
    """The runtime multiplies it into the weight where both stand side by side."""
    g = builder()
    scale = np.array([2, 1, 2, 1, 3], np.float32) * np.float32(factor)
    value = g.op("Mul", g.conv("x", 5, [1, 3]), scale.reshape(5, 1, 1))
    result, _ = fold_model(g.model([value]), WIDTH)
    assert (g.nodes[1] in list(result.graph.node)) == (factor > 1)


ALONG = [
    ("MaxPool", (), {"kernel_shape": [2, 1], "strides": [2, 1]}),
    ("MaxPool", (), {"kernel_shape": [3, 1], "pads": [1, 0, 1, 0]}),
    ("AveragePool", (), {"kernel_shape": [2, 1], "strides": [3, 1]}),
    ("Pad", (np.array([0, 0, 1, 0, 0, 0, 2, 0]),), {}),
    ("Pad", (np.array([0, 0, -1, 0, 0, 0, 1, 0]), np.array(2, np.float32)), {}),
    ("Pad", (np.array([0, 0, 2, 0, 0, 0, 1, 0]),), {"mode": "reflect"}),
    ("Pad", (np.array([1, 0, 0, 0, 0, 0, 0, 0]),), {}),
    ("ReduceMax", (), {"axes": [2]}),
    ("ReduceMin", (), {"axes": [-2]}),
    ("ReduceSum", (np.array([2]),), {}),
    ("Resize", ("", np.array([1, 1, 2, 1], np.float32)), {"mode": "nearest"}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), ALONG)
def test_what_acts_along_other_axes_is_carried(op: str, inputs: tuple, attributes: dict) -> None:
    g = builder()
    value = g.op(op, g.conv("x", 5, [1, 3]), *inputs, **attributes)
    model = g.model([g.conv(value, 2, [3, 3])])
    assert conversions(folded(model, count=2)) == 2


def test_a_batch_in_channels_passes_all_of_them() -> None:
    for op, inputs, attributes in ALONG:
        if op != "Pad":
            g = builder()
            value = g.op(op, g.conv("x", 5, [1, 3]), *inputs, **attributes)
            options = FoldOptions(factor=2, axis=AxisName.BATCH)
            assert conversions(folded(g.model([value]), options)) == 2


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("MaxPool", (), {"kernel_shape": [1, 3], "pads": [0, 1, 0, 1]}),
        ("MaxPool", (), {"kernel_shape": [1, 1], "strides": [1, 2]}),
        ("MaxPool", (), {"kernel_shape": [2, 1], "ceil_mode": 1, "strides": [2, 1]}),
        ("AveragePool", (), {"kernel_shape": [2, 1], "auto_pad": "SAME_UPPER"}),
        ("Pad", (np.array([0, 0, 0, 1, 0, 0, 0, 0]),), {}),
        ("Pad", (np.array([0, 1, 0, 0, 0, 0, 0, 0]),), {}),
        ("ReduceMax", (), {"axes": [1]}),
        ("ReduceMax", (), {"axes": [3]}),
        ("ReduceMax", (), {"axes": [2, 3]}),
        ("ReduceMax", (), {}),
        ("ReduceSum", (), {}),
        ("Resize", ("", np.array([1, 1, 1, 2], np.float32)), {"mode": "nearest"}),
        ("Resize", ("", "", np.array([2, 5, 7, 24])), {"mode": "nearest"}),
        ("Resize", ("", "", np.array([2, 10, 7, 12])), {"mode": "nearest"}),
        ("Softmax", (), {"axis": 2}),
        ("GlobalMaxPool", (), {}),
        ("Transpose", (), {"perm": [0, 1, 3, 2]}),
    ],
)
def test_what_acts_along_folded_axes_is_not(op: str, inputs: tuple, attributes: dict) -> None:
    g = builder()
    g.op(op, g.conv("x", 5, [1, 3]), *inputs, **attributes)
    result = folded(g.model(["v1"]))
    assert result.graph.node[-1] == g.nodes[-1]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "extents"),
    [
        ("MaxPool", (), {"kernel_shape": [8, 1]}, (2, 5, 0, 12)),
        ("AveragePool", (), {"kernel_shape": [9, 1], "pads": [1, 0, 0, 0]}, (2, 5, 0, 12)),
        ("Pad", (np.array([0, 0, -3, 0, 0, 0, -4, 0]),), {}, (2, 5, 0, 12)),
        ("Resize", ("", np.array([1, 1, 0.1, 1], np.float32)), {}, (2, 5, 0, 12)),
    ],
)
def test_what_returns_no_element_is_not_carried(
    op: str, inputs: tuple, attributes: dict, extents: tuple[int, ...]
) -> None:
    """A Reshape could not say its extents: 0 means the extent of the input there."""
    g = builder()
    value = g.op(op, g.conv("x", 5, [1, 3]), *inputs, **attributes)
    result = folded(g.model([value]))
    assert [kind for kind in ops(result) if kind not in MOVES] == ["Conv", op]
    (empty,) = run(result, np.zeros((2, 3, 7, 12), np.float32), "ORT_ENABLE_ALL")
    assert empty.shape == extents


def lifted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every Conv lifted, which only `auto` does."""
    document = Document(model, None, OPERATORS)
    chosen = []
    for _, layer in read_sites(Reading(document)):
        assert isinstance(layer, Layer)
        ((_, form),) = conv_forms(layer, FoldOptions(), (1, 1), lift=1)
        assert isinstance(form, Form)
        chosen.append((layer, form))
    return Rewriting.of(document, chosen).carry_out()


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
        ("MaxPool", {"kernel_shape": [2], "dilations": [3]}),
        ("AveragePool", {"kernel_shape": [4], "pads": [1, 2], "count_include_pad": 1}),
    ],
)
def test_a_pool_is_lifted_with_its_neighbours(op: str, attributes: dict) -> None:
    model = conv([1, 3, 31], (5, 3, 3), pads=[1, 1], output="c")
    model.graph.node.append(helper.make_node(op, ["c"], ["p"], "pool", **attributes))
    model.graph.node.append(helper.make_node("Conv", ["p", "w2"], ["y"], "second"))
    weight = np.random.default_rng(5).integers(-2, 3, (2, 5, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w2"))
    model.graph.output[0].name = "y"
    x = np.random.default_rng(6).integers(-8, 9, (1, 3, 31)).astype(np.float32) * 4
    (expected,) = run(model, x)
    result = lifted(model)
    assert ops(result) == ["Reshape", "Conv", op, "Conv", "Reshape"]
    np.testing.assert_array_equal(run(result, x)[0], expected, strict=True)


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_a_pad_is_lifted_with_its_neighbours(opset: int, mode: str) -> None:
    model = conv([1, 3, 31], (5, 3, 3), pads=[1, 1], output="c")
    model.opset_import[0].version = opset
    ends = np.array([0, 0, 4, 0, 0, 1])
    if opset < 11:
        pad = helper.make_node("Pad", ["c"], ["p"], "pad", mode=mode, pads=ends)
    else:
        model.graph.initializer.append(numpy_helper.from_array(ends, "ends"))
        pad = helper.make_node("Pad", ["c", "ends"], ["p"], "pad", mode=mode)
    model.graph.node.append(pad)
    model.graph.node.append(helper.make_node("Conv", ["p", "w2"], ["y"], "second"))
    weight = np.random.default_rng(5).integers(-2, 3, (2, 5, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w2"))
    model.graph.output[0].name = "y"
    x = np.random.default_rng(6).integers(-8, 9, (1, 3, 31)).astype(np.float32)
    (expected,) = run(model, x)
    result = lifted(model)
    assert ops(result) == ["Reshape", "Conv", "Pad", "Conv", "Reshape"]
    np.testing.assert_array_equal(run(result, x)[0], expected, strict=True)


def test_what_names_axes_is_not_lifted() -> None:
    model = conv([1, 3, 31], (5, 3, 3), output="c")
    model.graph.node.append(helper.make_node("ReduceMax", ["c"], ["y"], "max", axes=[2]))
    model.graph.output[0].name = "y"
    assert ops(lifted(model)) == ["Reshape", "Conv", "Reshape", "ReduceMax"]


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


def test_a_split_of_what_lies_between_tiles_is_not_carried() -> None:
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
def test_a_resize_to_named_extents_gets_extents_of_the_packed_tensor(height: int, mode) -> None:
    g = builder()
    extents = np.array([2, 5, height, 12])
    value = g.op("Resize", g.conv("x", 5, [1, 3]), "", "", extents, mode=mode)
    model = g.model([g.conv(value, 2, [3, 3])])
    result, _ = fold_model(model, FoldOptions(factor=4, axis=AxisName.WIDTH))
    (node,) = (n for n in result.graph.node if n.op_type == "Resize")
    sizes = next(t for t in result.graph.initializer if t.name == node.input[3])
    assert onnx.numpy_helper.to_array(sizes).tolist() == [2, 20, height, 3]
    if mode == "nearest":
        assert conversions(folded(model, count=2)) == 2


@pytest.mark.parametrize("weight_on_left", [True, False])
def test_rows_of_a_product_are_split_where_tiles_stay_with_their_channel(
    weight_on_left: bool,
) -> None:
    """With the weight on the right the tiles of a channel lie apart: the Split stays logical."""
    rng = np.random.default_rng(7)
    shapes = {"w": (6, 3), "u": (2, 2), "v": (5, 4)}
    if not weight_on_left:
        shapes = {name: shape[::-1] for name, shape in shapes.items()}
    constants = {n: rng.integers(-2, 3, shape).astype(np.float32) for n, shape in shapes.items()}
    constants["s"] = np.array([2, 4])

    def product(weight: str, data: str, result: str) -> onnx.NodeProto:
        return helper.make_node(
            "MatMul", [weight, data] if weight_on_left else [data, weight], [result]
        )

    nodes = [
        product("w", "x", "a"),
        helper.make_node("Split", ["a", "s"], ["p", "q"], axis=0 if weight_on_left else 1),
        product("u", "p", "y"),
        product("v", "q", "z"),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [3, 12] if weight_on_left else [12, 3])],
        [helper.make_tensor_value_info(name, kind, [None, None]) for name in "yz"],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    result = folded(model, FoldOptions(factor=4, mix_samples=True), count=3)
    assert (nodes[1] in list(result.graph.node)) != weight_on_left
    assert ops(result).count("Reshape") == (3 if weight_on_left else 6)
