"""Moves behind a DequantizeLinear: they end with its pair, and the Conv stays one of integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.folding import fold_model
from tests.rewrite.guards.guarded import watched
from tests.rewrite.quantized.convs import Case, run
from tests.rewrite.quantized.models import (
    FOLD,
    LINE,
    joined,
    optimized,
    quantized_first,
    steps,
)
from tests.running import opened
from widthfold_onnx.options import AxisName, FoldOptions, Layout

FLAT = {
    "shape": (1, 4, 6, 10),
    "weight": (6, 2, 3, 3),
    "attributes": {"pads": [1, 0, 1, 2], "group": 2, "strides": [1, 2], "kernel_shape": [3, 3]},
    "pads": (1, 0, 1, 2),
}
KINDS = pytest.mark.parametrize("kind", [np.uint8, np.int8])
OPSETS = pytest.mark.parametrize("opset", [13, 19, 21])


@OPSETS
@KINDS
@pytest.mark.parametrize("ragged", [False, True])
def test_moves_behind_a_dequantizer_end_with_its_pair(
    ragged: bool, kind: type[np.integer], opset: int, tmp_path: Path
) -> None:
    """The groups of the NHWC path have no layout, so the moves of such a Conv are its own."""
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
    for net in (model, folded):
        np.testing.assert_array_equal(run(net, steps(case), "ORT_ENABLE_ALL"), expected)
    kernels = [optimized(net, tmp_path) for net in (model, folded)]
    assert kernels[1].count("QLinearConv") >= kernels[0].count("QLinearConv")


@OPSETS
@KINDS
@pytest.mark.parametrize(
    "behind",
    [
        helper.make_node("MaxPool", ["xf"], ["m"], kernel_shape=[1, 1]),
        helper.make_node("Transpose", ["xf"], ["m"], perm=[0, 1, 2, 3]),
        helper.make_node("Identity", ["xf"], ["m"]),
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
    # The runtime can make the bytes of the pair behind the moves unsigned. For signed bytes that no
    # QuantizeLinear made, the original has no such kernel.
    assert optimized(folded, tmp_path).count("QLinearConv") == 1


@OPSETS
@KINDS
def test_moves_behind_an_identity_of_dequantized_numbers_end_with_its_pair(
    kind: type[np.integer], opset: int
) -> None:
    """The runtime removes the Identity, and moves the DequantizeLinear behind the Reshapes."""
    case = Case(op="QDQ Conv", kinds=(kind, np.int8), opset=opset, **FLAT)
    model = quantized_first(case)
    end = model.graph.output[0]
    model.graph.node.extend(
        [
            helper.make_node("DequantizeLinear", ["y", "ys", "yz"], ["yr"]),
            helper.make_node("Identity", ["yr"], ["end"]),
        ]
    )
    end.name, end.type.tensor_type.elem_type = "end", TensorProto.FLOAT
    folded, (site,) = fold_model(model, FoldOptions(factor=5, axis=AxisName.WIDTH))
    assert site.status == "folded"
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        expected = run(model, steps(case), level)
        np.testing.assert_array_equal(run(folded, steps(case), level), expected)


@pytest.mark.parametrize("opset", [13, 19, 21])
def test_a_scale_that_is_a_vector_of_one_stays_one(opset: int) -> None:
    """Data of one channel may have it, and no integer kernel takes several for data."""
    layer = {"shape": (4, 1, 9), "weight": (1, 1, 3), "pads": (0, 0)}
    case = Case(op="QDQ Conv", per_channel=False, bias=False, opset=opset, **layer)
    model = quantized_first(case)
    for tensor in model.graph.initializer:
        if tensor.name in ("xs", "xz", "ys", "yz"):
            tensor.dims.append(1)
    folded, (site,) = fold_model(model, FoldOptions(factor=4, axis=AxisName.BATCH))
    assert site.status == "folded"
    expected = case.expected(case.data())
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, steps(case), level), expected)


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


@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC])
def test_only_what_needs_a_guard_leaves_its_region(layout: Layout) -> None:
    model = joined(np.int8, 21, is_open=True)
    options = FoldOptions(
        factor=4,
        axis=AxisName.WIDTH,
        layout=layout,
        input_shapes={"k": (1, 3, 24)},
    )
    folded, sites = fold_model(model, options)
    assert [site.status for site in sites] == ["folded"] * 4
    assert [site.guard for site in sites] == ["", "", "", "extents"]
    makers = {name: node for node in folded.graph.node for name in node.output}
    between = [n for n in folded.graph.node if n.op_type == "Conv"]
    assert [makers[n.input[0]].op_type for n in between[:2]] == ["DequantizeLinear"] * 2
    assert ("both/widthfold/packed" in makers) == (layout is Layout.NCHW)
    rng = np.random.default_rng(5)
    x = rng.normal(0, 3, (1, 3, 24)).astype(np.float32)
    for length, is_folded in ((24, True), (1, False)):
        feeds = {"x": x, "k": rng.normal(0, 3, (1, 3, length)).astype(np.float32)}
        for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
            (expected,) = opened(model, level).run(None, feeds)
            result, chosen = opened(watched(folded), level).run(None, feeds)
            np.testing.assert_array_equal(result, expected)
            assert bool(chosen) == is_folded


@OPSETS
@KINDS
def test_moves_behind_a_pool_between_folded_convs_end_with_its_pair(
    kind: type[np.integer], opset: int
) -> None:
    """The pool runs on packed tensors, and a Concat reads its output unfolded."""
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
