"""A model written channel by channel computes the same, and holds nothing else than it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests import oracle
from tests.plan.tool import conv
from tests.rewrite.channels import builder, by_channel, integers, results, same
from tests.rewrite.graphs import ops
from widthfold_onnx.rewrite.record import CHANNEL_KEY

SHAPE = (2, 3, 7, 11)


@pytest.mark.parametrize("opset", [7, 13, 18])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"pads": [2, 0, 1, 3]},
        {"strides": [2, 3], "pads": [1, 1, 1, 1], "kernel_shape": [3, 5]},
        {"dilations": [2, 1], "strides": [1, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
        {"auto_pad": "VALID"},
    ],
)
def test_one_conv_is_what_loops_compute(given, bias: bool, opset: int) -> None:
    model = conv(SHAPE, (5, 3, 3, 5), bias=bias, **given)
    model.opset_import[0].version = opset
    result = by_channel(model)
    assert ops(result) == ["Split", *["Conv", *["Conv", "Add"] * 2] * 5, "Concat"]
    weight, *more = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    geometry = {k: v for k, v in given.items() if k not in ("auto_pad", "kernel_shape")}
    if "auto_pad" in given:
        strides = given.get("strides", [1, 1])
        geometry["pads"] = oracle.resolve_auto_pad(
            given["auto_pad"], SHAPE[2:], [3, 5], strides, [1, 1]
        )
    x = integers(SHAPE)
    expected = oracle.conv(x, weight, *more, **geometry)
    np.testing.assert_array_equal(results(result, x)[0], expected)


def judged(model: onnx.ModelProto, result: onnx.ModelProto, shape=SHAPE) -> None:
    """onnx's own implementation of the original says what the runtime must make of the result."""
    x = integers(shape)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    for one, again in zip(expected, results(result, x), strict=True):
        np.testing.assert_array_equal(one, again, strict=True)


def region() -> onnx.ModelProto:
    """Two Convs whose sum goes on, with what goes along between them."""
    g = builder()
    low, high = np.array(-40, np.float32), np.array(55, np.float32)
    first = g.op("Clip", g.conv("x", 2, [3, 3]), low, high)
    slope = np.full((1, 1, 1), 2, np.float32)
    value = g.op("PRelu", g.conv(first, 2, [1, 5]), slope)
    value = g.op("Mul", g.op("Add", first, value), np.array([[3]], np.float32))
    return g.model([g.conv(value, 3, [3, 1])])


def test_channels_stay_apart_between_convs() -> None:
    model = region()
    result = by_channel(model)
    kinds = ops(result)
    assert (kinds.count("Split"), kinds.count("Concat")) == (1, 1)
    assert (kinds[0], kinds[-1]) == ("Split", "Concat")
    counts = {op: kinds.count(op) for op in ("Conv", "Clip", "PRelu", "Mul")}
    assert counts == {"Conv": 6 + 4 + 6, "Clip": 2, "PRelu": 2, "Mul": 2}
    assert kinds.count("Add") == 2 * 2 + 2 * 1 + 3 * 1 + 2  # sums of products, and the residual
    judged(model, result)


def test_every_new_node_says_what_it_is_part_of_and_no_other() -> None:
    g = builder()
    value = g.conv(g.op("Relu", "x"), 2, [3, 3])
    result = by_channel(g.model([g.op("Softmax", value)]))
    marked = [node.op_type for node in result.graph.node if node.metadata_props]
    assert marked == ["Split", *["Conv", *["Conv", "Add"] * 2] * 2, "Concat"]
    keys = {item.key for node in result.graph.node for item in node.metadata_props}
    assert keys == {CHANNEL_KEY}
    assert ops(result)[0] == "Relu"
    assert ops(result)[-1] == "Softmax"


def test_a_channel_that_is_alone_is_neither_split_nor_joined() -> None:
    g = builder(2, 1, 7, 11)
    model = g.model([g.conv(g.op("Relu", g.conv("x", 3, [3, 3])), 1, [1, 5])])
    result = by_channel(model)
    assert set(ops(result)) == {"Conv", "Relu", "Add"}
    judged(model, result, (2, 1, 7, 11))


def test_two_readers_share_a_split() -> None:
    g = builder()
    model = g.model([g.conv("x", 2, [3, 3]), g.conv("x", 5, [1, 3])])
    result = by_channel(model)
    assert (ops(result).count("Split"), ops(result).count("Concat")) == (1, 2)
    same(model, result, SHAPE)


def test_only_the_chosen_convs_are_written_so() -> None:
    g = builder()
    middle = g.conv(g.conv("x", 2, [3, 3]), 5, [1, 3])
    model = g.model([g.conv(middle, 3, [3, 1])])
    result = by_channel(model, [middle])
    kinds = ops(result)
    assert (kinds[:2], kinds[-2:]) == (["Conv", "Split"], ["Concat", "Conv"])
    kept = [node for node in result.graph.node if node in list(model.graph.node)]
    assert [node.name for node in kept] == ["conv0", "conv2"]
    same(model, result, SHAPE)


def test_what_a_graph_returns_in_the_middle_is_joined_beside() -> None:
    g = builder()
    first = g.conv("x", 2, [3, 3])
    active = g.op("Relu", first)
    model = g.model([active, g.conv(active, 3, [1, 3]), first])
    result = by_channel(model)
    assert ops(result).count("Concat") == 3
    assert ops(result).count("Split") == 1
    assert [v.name for v in result.graph.output] == [v.name for v in model.graph.output]
    judged(model, result)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        (
            "BatchNormalization",
            [np.float32(row) for row in ([2, 3], [1, -5], [4, 0], [1, 1])],
            {"epsilon": 0.0},
        ),
        ("Mul", [np.array([3, -2], np.float32).reshape(2, 1, 1)], {}),
        ("MaxPool", [], {"kernel_shape": [3, 1]}),
    ],
)
def test_before_what_sees_all_channels_they_are_joined_and_split_behind(
    op, operands, attributes
) -> None:
    g = builder()
    value = g.op(op, g.conv("x", 2, [3, 3]), *operands, **attributes)
    model = g.model([g.conv(value, 3, [1, 3])])
    result = by_channel(model)
    kinds = [kind for kind in ops(result) if kind not in ("Conv", "Add")]
    assert kinds == ["Split", "Concat", op, "Split", "Concat"]
    same(model, result, SHAPE)


@pytest.mark.parametrize(("out", "group"), [(4, 2), (17, 1)])
def test_a_conv_of_groups_or_of_too_many_parts_stays(out: int, group: int) -> None:
    g = builder()
    value = g.conv("x", 4, [3, 3])
    value = g.conv(value, out, [1, 3], group=group)
    model = g.model([g.conv(value, 2, [3, 1])])
    result = by_channel(model)
    (kept,) = (node for node in result.graph.node if node in list(model.graph.node))
    assert kept.name == "conv1"
    position = list(result.graph.node).index(kept)
    assert (ops(result)[position - 1], ops(result)[position + 1]) == ("Concat", "Split")
    same(model, result, SHAPE)


def test_what_a_body_reads_is_joined() -> None:
    g = builder()
    value = g.conv("x", 2, [3, 3])
    last = g.conv(g.op("Relu", value), 3, [1, 3])
    model = g.model([last])
    bodies = [
        helper.make_graph(
            [helper.make_node(op, [value], [f"{op}_in_a_body"], f"{op}_in_a_body")],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_in_a_body", TensorProto.FLOAT, None)],
        )
        for op in ("Abs", "Neg")
    ]
    g.nodes.append(helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0))
    g.nodes.append(helper.make_node("Cast", ["most"], ["c"], to=TensorProto.BOOL))
    g.nodes.append(
        helper.make_node("If", ["c"], ["z"], "if", then_branch=bodies[0], else_branch=bodies[1])
    )
    model = g.model([last, "z"])
    result = by_channel(model)
    joined = [node for node in result.graph.node if value in node.output]
    assert [node.op_type for node in joined] == ["Concat"]
    same(model, result, SHAPE)


def test_below_ir_version_4_new_constants_are_inputs_with_a_value() -> None:
    model = conv(SHAPE, (2, 3, 3, 3))
    model.ir_version = 3
    model.opset_import[0].version = 8
    for name, dims in (("w", [2, 3, 3, 3]), ("b", [2])):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    result = by_channel(model)
    inputs = {value.name for value in result.graph.input}
    assert {tensor.name for tensor in result.graph.initializer} <= inputs
    same(model, result, SHAPE)


def test_weights_in_files_are_read_and_others_stay_there(tmp_path: Path) -> None:
    g = builder()
    middle = g.conv("x", 2, [3, 3])
    model = g.model([g.conv(middle, 3, [3, 1])])
    path = tmp_path / "model.onnx"
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(copy, path, save_as_external_data=True, location="model.data", size_threshold=0)
    stored = onnx.load(path, load_external_data=False)
    result = by_channel(stored, [middle], tmp_path)
    outside = {t.name for t in result.graph.initializer if t.external_data}
    assert outside == {"k1_1", "k1_2"}
    onnx.save(result, tmp_path / "result.onnx")
    same(model, onnx.load(tmp_path / "result.onnx"), SHAPE)


@pytest.mark.parametrize("name", ["", "conv", "conv/channel_0_of_1", "y/channels"])
def test_names_that_are_taken_are_not_taken_again(name: str) -> None:
    model = conv(SHAPE, (2, 3, 3, 3), behind=[("Relu", [], {}), ("Neg", [], {})])
    model.graph.node[0].name = name
    model.graph.node[1].output[0] = model.graph.node[2].input[0] = "conv/channel_0_of_1"
    model.graph.node[1].name = "conv/channel_1_of_0/w"
    same(model, by_channel(model), SHAPE)


def test_a_conv_whose_bias_is_left_out_by_an_empty_name() -> None:
    model = conv(SHAPE, (2, 3, 3, 3), bias=False)
    model.graph.node[0].input.append("")
    result = by_channel(model)
    assert {len(node.input) for node in result.graph.node if node.op_type == "Conv"} == {2}
    same(model, result, SHAPE)


def test_what_nobody_reads_is_no_reason_to_fail() -> None:
    g = builder()
    g.op("Relu", g.conv("x", 2, [3, 3]))
    model = g.model([g.conv("x", 3, [1, 3])])
    same(model, by_channel(model), SHAPE)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    g = builder(2, 2, 5, 7, seed=seed)
    values = ["x"]
    for _ in range(9):
        value = values[rng.integers(max(0, len(values) - 4), len(values))]
        alike = [v for v in values if g.channels[v] == g.channels[value]]
        kind = rng.integers(6)
        if kind < 3:
            values.append(g.conv(value, int(rng.integers(1, 4)), [3, int(rng.integers(1, 4))]))
        elif kind == 3:
            values.append(g.op("Sub", value, alike[rng.integers(len(alike))]))
        elif kind == 4:
            values.append(g.op("Clip", value, np.float32([-1])[0:1].reshape(()), ""))
        else:
            values.append(g.op("MaxPool", value, kernel_shape=[1, 1]))
    if not any(node.op_type == "Conv" for node in g.nodes):
        values.append(g.conv("x", 2, [1, 3]))
    outputs = sorted({values[-1], *rng.choice(values[1:], 2)} - {"x"})
    model = g.model(outputs)
    convs = [n.output[0] for n in g.nodes if n.op_type == "Conv"]
    chosen = [name for name in convs if rng.random() < 0.75] or convs
    judged(model, by_channel(model, chosen), (2, 2, 5, 7))
