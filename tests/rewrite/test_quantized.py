"""Quantized convolutions in models: what is emitted, and what the runtime makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.rewrite.proved import assert_proved
from tests.rewrite.quantized import Case, run
from widthfold_onnx import AxisName, FoldOptions, Layout, NonFinite, SiteReport, fold_model

LINE = {
    "shape": (2, 3, 20),
    "weight": (5, 3, 4),
    "attributes": {"pads": [2, 1], "kernel_shape": [4]},
    "pads": (2, 1),
}
FOLD = FoldOptions(factor=4, axis=AxisName.WIDTH)


def optimized(model: onnx.ModelProto, folder: Path) -> list[str]:
    """The operators that the runtime runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options)
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def qdq_chain(
    *, shared: bool = False, relu: bool = False, kind: type[np.integer] = np.uint8
) -> onnx.ModelProto:
    """Two QDQ Convs, one behind the other or both on one DequantizeLinear."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xf"]),
    ]
    constants = {"s": np.float32(0.5), "z": kind(31), "big": np.float32(4)}
    # A Relu does nothing above a zero point that is the least integer.
    constants["end"] = kind(np.iinfo(kind).min if relu else 97)
    data, real = "xf", "r" if relu else "c"
    for i, (inputs, outputs) in enumerate([(3, 5), (3 if shared else 5, 2)]):
        constants |= {
            f"w{i}": rng.integers(-127, 128, (outputs, inputs, 3, 3)).astype(np.int8),
            f"ws{i}": (2.0 ** -rng.integers(4, 8, outputs)).astype(np.float32),
            f"wz{i}": np.zeros(outputs, np.int8),
            f"b{i}": rng.integers(-999, 999, outputs).astype(np.int32),
        }
        # The runtime takes no other scale of a bias.
        constants[f"bs{i}"] = constants[f"ws{i}"] * constants["big" if data == "d0" else "s"]
        names = [f"w{i}", f"ws{i}", f"wz{i}"]
        nodes += [
            helper.make_node("DequantizeLinear", names, [f"wf{i}"], axis=0),
            helper.make_node("DequantizeLinear", [f"b{i}", f"bs{i}"], [f"bf{i}"], axis=0),
            helper.make_node(
                "Conv", [data, f"wf{i}", f"bf{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4
            ),
        ]
        if relu:
            nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        nodes += [
            helper.make_node("QuantizeLinear", [f"{real}{i}", "big", "end"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "big", "end"], [f"d{i}"]),
        ]
        data = "xf" if shared else f"d{i}"
    ends = ["d0", "d1"] if shared else ["d1"]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 12))],
        [helper.make_tensor_value_info(end, TensorProto.FLOAT, [None] * 4) for end in ends],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def everything(model: onnx.ModelProto, x: np.ndarray, level: str) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_folded_convs_between_quantizers_become_the_kernel_of_integers(
    shared: bool, relu: bool, kind: type[np.integer], tmp_path: Path
) -> None:
    model = qdq_chain(shared=shared, relu=relu, kind=kind)
    folded, sites = fold_model(model, FOLD)
    assert [site.status for site in sites] == ["folded", "folded"]
    found, kernels = optimized(folded, tmp_path), optimized(model, tmp_path)
    # Signed bytes that two nodes read stay signed, which this machine's runtime does not multiply.
    assert kernels.count("QLinearConv") == (0 if shared and kind is np.int8 else 2)
    for name in ("QLinearConv", "Conv", "FusedConv"):
        assert found.count(name) == kernels.count(name)
    assert found.count("DequantizeLinear") <= kernels.count("DequantizeLinear") + 1
    x = np.random.default_rng(5).normal(0, 30, (1, 3, 8, 12)).astype(np.float32)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        pairs = zip(everything(model, x, level), everything(folded, x, level), strict=True)
        for expected, actual in pairs:
            np.testing.assert_array_equal(actual, expected)


def test_a_chain_is_folded_once_and_moves_integers_only() -> None:
    folded, _ = fold_model(qdq_chain(), FOLD)
    nodes = list(folded.graph.node)
    assert [n.op_type for n in nodes].count("Transpose") == 2
    makers = {name: node for node in nodes for name in node.output}
    for node in nodes:
        if node.op_type == "Conv":
            assert {makers[name].op_type for name in node.input} == {"DequantizeLinear"}
        if node.op_type in ("Reshape", "Transpose") and node.input[0] in makers:
            assert makers[node.input[0]].op_type in ("QuantizeLinear", "Reshape", "Transpose")


def test_a_dequantizer_that_something_else_reads_stays() -> None:
    model = qdq_chain()
    model.graph.output.append(helper.make_tensor_value_info("xf", TensorProto.FLOAT, [None] * 4))
    folded, _ = fold_model(model, FOLD)
    assert any(list(node.output) == ["xf"] for node in folded.graph.node)
    x = np.random.default_rng(5).normal(0, 30, (1, 3, 8, 12)).astype(np.float32)
    pairs = [everything(m, x, "ORT_DISABLE_ALL") for m in (model, folded)]
    for expected, actual in zip(*pairs, strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("read", [False, True], ids=["folded nodes", "something else"])
def test_a_dequantizer_that_stands_in_several_states_gives_its_name_to_one_node(read: bool) -> None:
    model = qdq_chain()
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    if read:
        end = helper.make_tensor_value_info("xf", TensorProto.FLOAT, [None] * 4)
        model.graph.output.append(end)
    folded, _ = fold_model(model, FOLD)
    names = [node.name for node in folded.graph.node]
    assert len(set(names)) == len(names)
    made = {node.name: list(node.output) for node in folded.graph.node}
    # The node that stays keeps its name; if none stays, the one on packed integers has it.
    assert (made["DequantizeLinear_1"] == ["xf"]) is read


def test_integers_are_extended_by_their_zero_point() -> None:
    case = Case(op="QLinearConv", **LINE)
    folded, (site,) = fold_model(
        case.model(), FoldOptions(factor=3, axis=AxisName.WIDTH, ragged=True)
    )
    assert site.status == "folded"
    pad = next(node for node in folded.graph.node if node.op_type == "Pad")
    assert pad.input[2] == "xz"
    x = case.data()
    np.testing.assert_array_equal(run(folded, x), case.expected(x))


def test_what_is_there_once_stays_the_same_tensor() -> None:
    case = Case(op="QLinearConv", per_channel=False, **LINE)
    folded, _ = fold_model(case.model(), FOLD)
    node = next(node for node in folded.graph.node if node.op_type == "QLinearConv")
    assert [node.input[i] for i in (1, 2, 4, 5, 6, 7)] == ["xs", "xz", "ws", "wz", "ys", "yz"]


def refused(model: onnx.ModelProto, options: FoldOptions = FOLD) -> SiteReport:
    _, (site,) = fold_model(model, options)
    assert site.status == "refused"
    return site


@pytest.mark.parametrize("axis", [AxisName.WIDTH, AxisName.HEIGHT])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_what_is_extended_and_cut_becomes_the_kernel_of_integers(
    kind: type[np.integer], axis: AxisName, tmp_path: Path
) -> None:
    model = qdq_chain(kind=kind)
    folded, sites = fold_model(model, FoldOptions(factor=7, axis=axis, ragged=True))
    assert [site.status for site in sites] == ["folded", "folded"]
    assert {"Pad", "Slice"} <= {node.op_type for node in folded.graph.node}
    assert optimized(folded, tmp_path).count("QLinearConv") == 2
    assert optimized(model, tmp_path).count("QLinearConv") == 2
    assert_proved(model, folded, sites)
    x = np.random.default_rng(5).normal(0, 30, (1, 3, 8, 12)).astype(np.float32)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        pairs = zip(everything(model, x, level), everything(folded, x, level), strict=True)
        for expected, actual in pairs:
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("relu", [False, True])
def test_what_is_not_quantized_right_behind_is_not_cut(relu: bool) -> None:
    """The runtime would compute such a Conv in floats: a Relu behind a Slice keeps them apart."""
    model = qdq_chain(relu=relu)
    if not relu:
        for name in ("c0", "c1"):
            model.graph.output.add().CopyFrom(
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4)
            )
    _, sites = fold_model(model, FoldOptions(factor=7, axis=AxisName.WIDTH, ragged=True))
    for site in sites:
        assert (site.code, "right behind" in site.reason) == ("quantized", True)
    # Along the height 8 rows are extended on neither side.
    _, sites = fold_model(model, FoldOptions(factor=8, axis=AxisName.HEIGHT, ragged=True))
    assert [site.status for site in sites] == ["folded", "folded"]


def test_there_is_no_pad_of_integers_before_opset_11() -> None:
    case = Case(op="ConvInteger", per_channel=False, opset=10, **LINE)
    site = refused(case.model(), FoldOptions(factor=3, axis=AxisName.WIDTH, ragged=True))
    assert (site.code, site.reason) == (
        "extension-unsupported",
        "width: the operator set has no Pad of integers",
    )


def test_scales_of_input_channels_are_not_those_of_outputs() -> None:
    proto = Case(op="QDQ Conv", **(LINE | {"weight": (3, 3, 4)})).model()
    maker = next(n for n in proto.graph.node if n.output[0] == "wf")
    maker.attribute[0].i = 1
    site = refused(proto)
    assert site.code == "quantized"
    assert "differ along axis 1, which counts no output channels" in site.reason


@pytest.mark.parametrize("scale", [0.0, -0.5, np.nan, np.inf])
def test_a_scale_is_a_positive_number(scale: float) -> None:
    proto = Case(op="QLinearConv", **LINE).model()
    held = next(t for t in proto.graph.initializer if t.name == "ws")
    numbers = numpy_helper.to_array(held).copy()
    numbers[2] = scale
    held.CopyFrom(numpy_helper.from_array(numbers, "ws"))
    assert refused(proto).reason == "a scale is not a positive number"


def test_sums_that_may_leave_int32_are_refused() -> None:
    case = Case(
        op="ConvInteger",
        per_channel=False,
        shape=(1, 9000, 1, 8),
        weight=(1, 9000, 1, 5),
        kinds=(np.uint8, np.uint8),
    )
    proto = case.model()
    for tensor in proto.graph.initializer:
        number = {"w": 255, "wz": 0}.get(tensor.name, 7)
        array = np.full(list(tensor.dims), number, np.uint8)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    site = refused(proto, FoldOptions(factor=2, axis=AxisName.WIDTH, max_channels=1 << 20))
    assert site.reason.startswith(f"a sum may reach {45000 * 255 * 248}, ")
    assert site.code == "accumulator-overflow"
    assert "more than the 2147483647 that int32 holds" in site.reason


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (TensorProto.INT4, "DequantizeLinear of INT4 with a scale of FLOAT is not evaluated"),
        (TensorProto.FLOAT8E4M3FN, "DequantizeLinear of FLOAT8E4M3FN"),
    ],
)
def test_narrower_types_are_named(kind: int, why: str) -> None:
    proto = Case(op="QDQ Conv", per_channel=False, opset=21, **LINE).model()
    maker = next(n for n in proto.graph.node if n.output[0] == "wf")
    del maker.input[2:]
    held = next(t for t in proto.graph.initializer if t.name == "w")
    held.CopyFrom(helper.make_tensor("w", kind, held.dims, np.ones(60)))
    assert why in refused(proto).reason


def test_weights_in_blocks_are_named() -> None:
    proto = Case(op="QDQ Conv", opset=21, bias=False, **LINE).model()
    maker = next(n for n in proto.graph.node if n.output[0] == "wf")
    del maker.input[2:]
    maker.attribute[0].i = 1
    maker.attribute.append(helper.make_attribute("block_size", 3))
    held = next(t for t in proto.graph.initializer if t.name == "ws")
    held.CopyFrom(numpy_helper.from_array(np.ones((5, 1, 4), np.float32), "ws"))
    site = refused(proto)
    assert site.code == "weight-not-constant"
    assert "is not evaluated" in site.reason


def test_integers_of_no_known_type_are_named() -> None:
    proto = Case(op="ConvInteger", per_channel=False, **LINE).model()
    proto.graph.node[0].input[2] = ""
    proto.graph.node.insert(0, helper.make_node("Identity", ["x"], ["i"]))
    proto.graph.node[1].input[0] = "i"
    assert refused(proto).code == "unknown-type"


def test_a_dequantized_input_and_a_weight_of_floats_are_folded_in_floats() -> None:
    case = Case(op="QDQ Conv", per_channel=False, bias=False, **LINE)
    proto = case.model()
    maker = next(n for n in proto.graph.node if n.output[0] == "wf")
    proto.graph.node.remove(maker)
    kept = case.constants()
    weight = (kept["w"].astype(np.float32) - kept["wz"]) * kept["ws"]
    proto.graph.initializer.append(numpy_helper.from_array(weight, "wf"))
    folded, (site,) = fold_model(proto, FOLD)
    assert site.status == "folded"
    x = case.data()
    np.testing.assert_array_equal(run(folded, x), case.expected(x))


FLAT = {
    "shape": (1, 4, 6, 10),
    "weight": (6, 2, 3, 3),
    "attributes": {"pads": [1, 0, 1, 2], "group": 2, "strides": [1, 2], "kernel_shape": [3, 3]},
    "pads": (1, 0, 1, 2),
}
KINDS = pytest.mark.parametrize("kind", [np.uint8, np.int8])
OPSETS = pytest.mark.parametrize("opset", [13, 19, 21])


def quantized_first(case: Case) -> onnx.ModelProto:
    """The model of a case with a QuantizeLinear in front, whose bytes a runtime may make unsigned.

    It takes floats that are whole numbers of steps, so the integers are those of the case.
    """
    model = case.model()
    maker = next(n for n in model.graph.node if n.output[0] == "xf")
    front = helper.make_node("QuantizeLinear", ["x", *maker.input[1:]], ["xq"])
    maker.input[0] = "xq"
    model.graph.node.insert(0, front)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def steps(case: Case) -> np.ndarray:
    kept, x = case.constants(), case.data()
    return (x.astype(np.float32) - kept["xz"].astype(np.float32)) * kept["xs"]


@OPSETS
@KINDS
@pytest.mark.parametrize("ragged", [False, True])
def test_moves_behind_a_dequantizer_end_with_its_pair(
    ragged: bool, kind: type[np.integer], opset: int, tmp_path: Path
) -> None:
    """The groups of the NHWC form have no state, so the moves of such a Conv are its own."""
    layer = FLAT | ({"shape": (1, 4, 6, 13)} if ragged else {})
    case = Case(op="QDQ Conv", plain=True, kinds=(kind, np.int8), opset=opset, **layer)
    options = FoldOptions(
        factor=5, axis=AxisName.WIDTH, layout=Layout.NHWC, ragged=ragged, max_flops_growth=99
    )
    model = quantized_first(case)
    folded, (site,) = fold_model(model, options)
    assert (site.status, site.spread) == ("folded", 1.0)
    makers = {node.output[0]: node for node in folded.graph.node}
    conv = next(node for node in folded.graph.node if node.op_type == "Conv")
    pair = [makers[conv.input[0]]]
    pair.insert(0, makers[pair[0].input[0]])
    assert [node.op_type for node in pair] == ["QuantizeLinear", "DequantizeLinear"]
    assert makers[pair[0].input[0]].op_type in ("Reshape", "Transpose")
    # A dequantized bias stays so: with one of floats the runtime would quantize the weight as well.
    assert makers[conv.input[2]].op_type == "DequantizeLinear"
    expected = case.expected(case.data())
    np.testing.assert_array_equal(run(folded, steps(case)), expected)
    for found in (model, folded):
        np.testing.assert_array_equal(run(found, steps(case), "ORT_ENABLE_ALL"), expected)
    kernels = [optimized(found, tmp_path) for found in (model, folded)]
    assert kernels[1].count("QLinearConv") >= kernels[0].count("QLinearConv")


@OPSETS
@KINDS
@pytest.mark.parametrize(
    "behind",
    [
        helper.make_node("MaxPool", ["xf"], ["m"], kernel_shape=[1, 1]),
        helper.make_node("Transpose", ["xf"], ["m"], perm=[0, 1, 2, 3]),
    ],
    ids=lambda node: node.op_type,
)
def test_behind_what_only_selects_elements_a_conv_is_one_of_integers(
    behind: onnx.NodeProto, kind: type[np.integer], opset: int, tmp_path: Path
) -> None:
    case = Case(op="QDQ Conv", behind=behind, kinds=(kind, np.int8), opset=opset, **FLAT)
    folded, (site,) = fold_model(case.model(), FoldOptions(factor=5, axis=AxisName.WIDTH))
    assert (site.status, site.spread) == ("folded", 1.0)
    makers = {node.output[0]: node.op_type for node in folded.graph.node}
    conv = next(node for node in folded.graph.node if node.op_type == "Conv")
    assert [makers[name] for name in conv.input[1:]] == ["DequantizeLinear"] * 2
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, case.data(), level), case.expected(case.data()))
    # The bytes of the pair behind the moves are those that the runtime can make unsigned. Of signed
    # ones that no QuantizeLinear made the original has no such kernel.
    assert optimized(folded, tmp_path).count("QLinearConv") == 1


def test_a_max_pool_whose_windows_may_be_empty_ends_what_is_known() -> None:
    pool = helper.make_node("MaxPool", ["xf"], ["m"], kernel_shape=[1], ceil_mode=1)
    case = Case(op="QDQ Conv", behind=pool, **LINE)
    _, (site,) = fold_model(case.model(), FOLD)
    assert site.spread > 1


@pytest.mark.parametrize(
    ("scale", "spread"), [(0.25, 1.0), (np.nan, 1.6), (np.inf, 1.6), (2e36, 1.6), (1e36, 1.0)]
)
def test_what_finite_scales_dequantize_does_not_spread(scale: float, spread: float) -> None:
    case = Case(op="QDQ Conv", plain=True, bias=False, **LINE)
    model = case.model()
    held = next(t for t in model.graph.initializer if t.name == "xs")
    held.CopyFrom(numpy_helper.from_array(np.float32(scale), "xs"))
    _, (site,) = fold_model(model, FOLD)
    assert (site.status, site.spread > 1) == ("folded", spread > 1)


def joined(kind: type[np.integer], opset: int) -> onnx.ModelProto:
    """Two QDQ Convs, and one of a Concat: that returns anything, for all that is known."""
    rng = np.random.default_rng(4)
    constants: dict[str, np.ndarray] = {"s": np.float32(0.125), "z": kind(6)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["d0"]),
    ]
    for i, (reads, inputs, outputs) in enumerate([("d0", 3, 5), ("d1", 5, 2), ("both", 5, 5)], 1):
        constants[f"w{i}"] = rng.integers(-9, 9, (outputs, inputs, 3)).astype(np.int8)
        constants[f"ws{i}"] = np.float32(2.0**-7)
        if reads == "both":
            nodes.append(helper.make_node("Concat", ["d2", "d0"], ["both"], axis=1))
        nodes += [
            helper.make_node("DequantizeLinear", [f"w{i}", f"ws{i}"], [f"wf{i}"]),
            helper.make_node("Conv", [reads, f"wf{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1]),
            helper.make_node("QuantizeLinear", [f"c{i}", "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
        ]
    nodes.append(helper.make_node("Add", ["d3", "d1"], ["y"]))
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [port("x", TensorProto.FLOAT, (1, 3, 24))],
        [port("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def test_only_what_needs_a_guard_leaves_its_region() -> None:
    model = joined(np.int8, 21)
    options = FoldOptions(
        factor=4, axis=AxisName.WIDTH, layout=Layout.NHWC, nonfinite=NonFinite.GUARD
    )
    folded, sites = fold_model(model, options)
    assert [(site.status, site.guard) for site in sites] == [
        ("folded", ""),
        ("folded", ""),
        ("folded", "finite"),
    ]
    makers = {name: node for node in folded.graph.node for name in node.output}
    between = [n for n in folded.graph.node if n.op_type == "Conv"]
    assert [makers[n.input[0]].op_type for n in between] == ["DequantizeLinear"] * 2
    x = np.random.default_rng(5).normal(0, 3, (1, 3, 24)).astype(np.float32)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, x, level), run(model, x, level))


@OPSETS
@KINDS
def test_moves_behind_a_pool_between_folded_convs_end_with_its_pair(
    kind: type[np.integer], opset: int
) -> None:
    """The pool runs on packed tensors, and a Concat reads what it returns unfolded."""
    rng = np.random.default_rng(6)
    constants: dict[str, np.ndarray] = {"s": np.float32(0.125), "z": kind(6)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["d0"]),
    ]
    for i, (reads, inputs, outputs) in enumerate([("d0", 3, 5), ("pool", 5, 2)], 1):
        constants[f"w{i}"] = rng.integers(-9, 9, (outputs, inputs, 3)).astype(np.int8)
        constants[f"ws{i}"] = np.float32(2.0**-7)
        nodes += [
            helper.make_node("DequantizeLinear", [f"w{i}", f"ws{i}"], [f"wf{i}"]),
            helper.make_node("Conv", [reads, f"wf{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1]),
            helper.make_node("QuantizeLinear", [f"c{i}", "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
        ]
        if i == 1:
            pool = {"kernel_shape": [2], "strides": [2]}
            nodes.append(helper.make_node("MaxPool", ["d1"], ["pool"], **pool))
    nodes.append(helper.make_node("Concat", ["d2", "pool"], ["y"], axis=1))
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [port("x", TensorProto.FLOAT, (2, 3, 14))],
        [port("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    folded, sites = fold_model(model, FoldOptions(factor=2, axis=AxisName.BATCH))
    assert [site.status for site in sites] == ["folded", "folded"]
    makers = {name: node for node in folded.graph.node for name in node.output}
    (concat,) = [node for node in folded.graph.node if node.op_type == "Concat"]
    assert makers[concat.input[1]].op_type == "DequantizeLinear"
    x = rng.normal(0, 3, (2, 3, 14)).astype(np.float32)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, x, level), run(model, x, level))


def test_zero_points_that_are_computed_are_passed_on() -> None:
    """As in models that are quantized dynamically."""
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 256, (5, 3, 4)).astype(np.uint8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"], "c", pads=[2, 1]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 19))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.uint8(77), "wz")],
    )
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    folded, (site,) = fold_model(model, FoldOptions(factor=4, axis=AxisName.WIDTH, ragged=True))
    assert site.status == "folded"
    pad = next(node for node in folded.graph.node if node.op_type == "Pad")
    assert pad.input[2] == "z"
    x = rng.standard_normal((2, 3, 19)).astype(np.float32)
    np.testing.assert_array_equal(run(folded, x), run(model, x))
