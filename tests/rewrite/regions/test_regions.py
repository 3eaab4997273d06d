"""Regions of folded Convs: no needless conversion lies between them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from tests.folding import fold_model
from tests.rewrite.graphs import ops
from tests.rewrite.proved import assert_proved
from tests.rewrite.regions.regions import (
    MOVES,
    REVERSED,
    WIDTH,
    builder,
    conversions,
    folded,
    optimized,
)
from tests.running import LEVELS, run
from widthfold_onnx.options import AxisName, FoldOptions, Layout


def four_convs() -> onnx.ModelProto:
    g = builder(1, 3, 16, 32)
    value = "x"
    for _ in range(4):
        value = g.op("Relu", g.conv(value, 3, [3, 3]))
    return g.model([value])


def test_a_chain_of_four_convs_is_folded_once_and_every_relu_still_fuses(tmp_path) -> None:
    result = folded(four_convs(), FoldOptions(factor=4), 4)
    assert [kind for kind in ops(result) if kind not in MOVES] == ["Conv", "Relu"] * 4
    assert conversions(result) == 2
    kinds = optimized(result, "EXTENDED", tmp_path)
    assert "Relu" not in kinds
    assert kinds.count("FusedConv") == 4


def test_a_residual_block_reads_the_fold_of_its_first_conv() -> None:
    g = builder()
    value = g.conv(g.op("Relu", g.conv("x", 3, [3, 3])), 3, [1, 3])
    value = g.op("Relu", g.op("Add", value, "x"))
    assert conversions(folded(g.model([value]), count=2)) == 2


def test_a_residual_that_is_nowhere_folded_is_not() -> None:
    g = builder()
    value = g.op("Add", g.conv(g.op("Abs", "x"), 3, [3, 3]), "x")
    result = folded(g.model([value]))
    assert result.graph.node[-1] == g.nodes[-1]
    assert conversions(result) == 2


def test_concat_of_folded_tensors() -> None:
    g = builder()
    first, second = g.conv("x", 2, [3, 3]), g.conv("x", 5, [1, 3])
    value = g.conv(g.op("Concat", first, second, axis=1, channels=7), 3, [3, 3])
    assert conversions(folded(g.model([value]), count=3)) == 2


@pytest.mark.parametrize("last", ["nothing", "relu"])
def test_a_concat_that_only_grows_what_is_unfolded_is_not_carried(last: str) -> None:
    g = builder()
    value = g.op("Concat", g.conv("x", 2, [3, 3]), "x", axis=-3, channels=5)
    value = g.op("Relu", value) if last == "relu" else value
    result = folded(g.model([value]))
    assert g.nodes[1] in list(result.graph.node)


def test_a_concat_of_samples_folded_into_channels_is_not_carried() -> None:
    g = builder(4, 3, 7, 12)
    first, second = g.conv("x", 2, [3, 3]), g.conv("x", 5, [1, 3])
    value = g.conv(g.op("Concat", first, second, axis=1, channels=7), 3, [3, 3])
    result = folded(g.model([value]), FoldOptions(factor=2, axis=AxisName.BATCH), 3)
    assert g.nodes[2] in list(result.graph.node)


def test_a_value_that_is_read_both_ways_is_unfolded_once() -> None:
    g = builder()
    middle = g.op("Relu", g.conv("x", 3, [3, 3]))
    softmax = g.op("Softmax", middle, axis=-1)
    largest = g.op("ReduceMax", middle, axes=[3], keepdims=1)
    last = g.conv(middle, 2, [1, 3])
    result = folded(g.model([softmax, largest, last]), count=2)
    assert conversions(result) == 3


def test_an_output_in_the_middle_of_a_region() -> None:
    g = builder()
    first = g.conv("x", 3, [3, 3])
    middle = g.op("Relu", first)
    last = g.conv(middle, 2, [1, 3])
    result = folded(g.model([middle, first, last]), count=2)
    assert [output.name for output in result.graph.output] == [middle, first, last]
    assert conversions(folded(g.model([middle, last]), count=2)) == 3


def test_another_packed_layout_is_reached_by_the_logical_one() -> None:
    """A kernel of one position is folded in blocks, a wider one into neighbours."""
    g = builder()
    value = g.conv(g.op("Relu", g.conv("x", 3, [3, 1])), 2, [1, 3])
    assert conversions(folded(g.model([value]), count=2)) == 3


@pytest.mark.parametrize(
    ("options", "group"), [({"layout": Layout.NHWC}, 3), ({"ragged": True, "factor": 5}, 1)]
)
def test_what_is_extended_or_tile_major_by_groups_is_not_carried(options: dict, group: int) -> None:
    g = builder()
    value = g.op("Relu", g.conv("x", 3, [3, 3], group))
    value = g.conv(value, 3, [1, 3], group)
    result = folded(g.model([value]), FoldOptions(**{"factor": 4, "axis": 3, **options}), 2)
    assert g.nodes[1] in list(result.graph.node)


def test_tiles_before_channels_are_carried_and_the_runtime_absorbs_the_transposes(
    tmp_path,
) -> None:
    """On the CPU the runtime computes in blocks of channels, which it makes of NHWC at no cost."""
    g = builder(2, 1, 7, 64)
    value = g.op("Add", g.conv("x", 3, [3, 3]), g.integers(3, 1, 1))
    value = g.conv(g.op("Relu", value), 1, [1, 3])
    options = FoldOptions(factor=16, axis=AxisName.WIDTH, layout=Layout.NHWC)
    result = folded(g.model([value]), options, 2)
    assert ops(result) == ["Reshape", "Transpose", "Conv", "Add", "Relu", "Conv", *REVERSED]
    assert set(optimized(result, "ALL", tmp_path)) >= {"ReorderInput", "ReorderOutput"}
    assert "Transpose" not in optimized(result, "ALL", tmp_path)
    assert optimized(result, "EXTENDED", tmp_path).count("Transpose") == 2
    # Joined along the channels, the tiles would lie between them: both are unfolded before.
    joined = g.op("Concat", value, g.conv(value, 3, [1, 3]), axis=1)
    assert conversions(folded(g.model([joined]), options, 3)) == 3


def test_an_open_batch_runs_at_every_size() -> None:
    g = builder("N", 3, 7, 12)
    value = g.op("Add", g.conv(g.op("Relu", g.conv("x", 3, [3, 3])), 3, [1, 3]), "x")
    model = g.model([value])
    result = folded(model, count=2)
    assert conversions(result) == 2
    for batch in (0, 1, 5):
        x = np.random.default_rng(0).integers(-3, 4, (batch, 3, 7, 12)).astype(np.float32)
        np.testing.assert_array_equal(run(result, x, LEVELS[0])[0], run(model, x, LEVELS[0])[0])


def test_what_names_a_value_keeps_it() -> None:
    g = builder()
    value = g.conv(g.op("Relu", g.conv("x", 3, [3, 3])), 2, [1, 3])
    model = g.model([value])
    model.graph.value_info.append(helper.make_tensor_value_info("v0", 1, [2, 3, 7, 12]))
    assert not folded(model, count=2).graph.value_info
    model.graph.quantization_annotation.add(tensor_name="v0")
    result = folded(model, count=2)
    assert [info.name for info in result.graph.value_info] == ["v0"]
    assert any("v0" in node.output for node in result.graph.node)


def test_regions_stay_in_their_graph() -> None:
    """Each branch folds captured tensors by itself."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 3, 7, 12] x) => (float[2, 3, 7, 12] y, float[2, 3, 7, 12] z) {
          c = Conv <pads = [1, 1, 1, 1]> (x, w)
          a = Relu (c)
          z = Conv <pads = [1, 1, 1, 1]> (a, w)
          flag = Constant <value = bool {1}> ()
          y = If (flag) <
            then_branch = then () => (float[2, 3, 7, 12] t) {
              k = Conv <pads = [1, 1, 1, 1]> (a, w)
              m = Relu (k)
              t = Conv <pads = [1, 1, 1, 1]> (m, w)
            },
            else_branch = else () => (float[2, 3, 7, 12] e) { e = Neg (c) }
          >
        }"""
    )
    weight = np.random.default_rng(1).integers(-2, 3, (3, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    result = folded(model, count=4)
    names = {name for node in result.graph.node for name in node.output}
    assert {"a", "c"} <= names
    (then,) = (a.g for a in result.graph.node[-1].attribute if a.name == "then_branch")
    assert [n.op_type for n in then.node if n.op_type not in MOVES] == ["Conv", "Relu", "Conv"]


def test_nodes_in_any_order() -> None:
    g = builder()
    value = g.op("Relu", g.conv("x", 3, [3, 3]))
    model = g.model([g.conv(value, 2, [1, 3])])
    backwards = onnx.ModelProto()
    backwards.CopyFrom(model)
    del backwards.graph.node[:]
    backwards.graph.node.extend(reversed(model.graph.node))
    result, _ = fold_model(backwards, WIDTH)
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 7, 12)).astype(np.float32)
    np.testing.assert_array_equal(run(result, x, LEVELS[0])[0], run(model, x, LEVELS[0])[0])
    kinds = [kind for kind in ops(result) if kind not in MOVES]
    assert kinds == ["Conv", "Relu", "Conv"]


@pytest.mark.parametrize("declared", [[], [8], [8, 8], [2, 3, 7, 12, 1]])
def test_what_is_declared_with_another_rank_is_not_believed(declared: list[int]) -> None:
    """The runtime warns, and runs the model."""
    g = builder()
    first = g.conv("x", 5, [3, 3])
    model = g.model([g.conv(g.op("Relu", first), 2, [3, 3])])
    described = onnx.helper.make_tensor_value_info(first, onnx.TensorProto.FLOAT, declared)
    model.graph.value_info.append(described)
    result, sites = fold_model(model, WIDTH)
    assert [site.status for site in sites] == ["folded", "folded"]
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 7, 12)).astype(np.float32)
    for level in LEVELS:
        np.testing.assert_array_equal(run(result, x, level)[0], run(model, x, level)[0])


def test_a_node_without_outputs_reads_what_is_unfolded() -> None:
    """Operators of other domains may have none."""
    before = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        net (float[1,2,4,8] x) => (float[1,2,4,8] y)
        <float[2,2,1,1] w = {1, 2, 3, 4}> { a = Conv (x, w)  y = Conv (a, w) }"""
    )
    before.graph.node.append(helper.make_node("Sink", ["a"], [], domain="own"))
    after, sites = fold_model(before, FoldOptions(factor=2))
    assert {site.status for site in sites} == {"folded"}
    assert after.graph.node[-1] == before.graph.node[-1]
    assert_proved(before, after, 2)
