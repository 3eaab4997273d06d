"""The report of regions: members, carried ops, and the reason why one ends."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.folding import read, rewriting
from tests.rewrite.graphs import Builder
from tests.rewrite.quantized.models import qdq_chain
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.results import RegionReport
from widthfold_onnx.rules.selection import preferred_form

WIDTH = FoldOptions(factor=4, axis=AxisName.WIDTH)


def builder(*shape: int | str) -> Builder:
    return Builder(list(shape or (1, 3, 7, 12)), np.random.default_rng(1))


def regions(model: onnx.ModelProto, options: FoldOptions = WIDTH) -> list[RegionReport]:
    reading = read(model, options)
    before = reading.document.proto.SerializeToString()
    choose = functools.partial(preferred_form, options=options)
    names = {site.node: site.name for site in reading.sites}
    reports = rewriting(reading, options, choose).region_reports(names)
    assert reading.document.proto.SerializeToString() == before
    return reports


def stops(region: RegionReport) -> list[tuple[str, str]]:
    return [(stop.node, stop.code) for stop in region.stops]


def test_a_chain_is_one_region_that_ends_at_the_output() -> None:
    g = builder()
    first = g.op("Relu", g.conv("x", 2, [3, 3]))
    (region,) = regions(g.model([g.conv(first, 3, [3, 3])]))
    assert region.folded == ["conv0", "conv2"]
    assert region.carried == ["Relu relu1"]
    assert stops(region) == [("conv2", "output")]
    assert region.graph == ""


def test_the_first_op_that_is_not_carried_is_named_with_its_reason() -> None:
    g = builder()
    value = g.op("Tanh", g.conv("x", 2, [3, 3]))
    pooled = g.op("MaxPool", value, kernel_shape=[1, 3], pads=[0, 1, 0, 1])
    (region,) = regions(g.model([g.op("Asinh", value), pooled]))
    assert region.carried == ["Tanh tanh1"]
    assert sorted(stops(region)) == [("asinh3", "not-carried"), ("maxpool2", "along-folded-axis")]
    reasons = {stop.op: stop.reason for stop in region.stops}
    assert reasons == {
        "Asinh": "no rule runs Asinh on packed tensors",
        "MaxPool": "it acts along the axes [3]",
    }


def test_a_conv_that_is_cut_ends_its_region_itself() -> None:
    g = builder(1, 2, 5, 11)
    value = g.conv("x", 3, [3, 3])
    options = FoldOptions(factor=4, axis=AxisName.WIDTH, ragged=True)
    (region,) = regions(g.model([g.op("Relu", value)]), options)
    assert (region.folded, region.carried) == (["conv0"], [])
    assert stops(region) == [("conv0", "cut")]
    assert region.stops[0].reason == "[1, 3, 5, 12] is cut to [1, 3, 5, 11]"


def test_layers_that_are_folded_otherwise_are_regions_of_their_own() -> None:
    g = builder(1, 3, 8, 12)
    first = g.conv("x", 2, [3, 3])
    # Its width is not divisible any more, its height is.
    second = g.conv(first, 2, [1, 2], pads=[0, 0, 0, 0])
    reports = regions(g.model([second]), FoldOptions(factor=4))
    assert [region.folded for region in reports] == [["conv0"], ["conv1"]]
    assert list(map(stops, reports)) == [[("conv1", "another-fold")], [("conv1", "output")]]


def test_branches_that_meet_are_one_region() -> None:
    g = builder()
    first, second = g.conv("x", 3, [3, 3]), g.conv("x", 3, [1, 3])
    (region,) = regions(g.model([g.op("Relu", g.op("Add", first, second))]))
    assert region.folded == ["conv0", "conv1"]
    assert region.carried == ["Add add2", "Relu relu3"]
    assert stops(region) == [("relu3", "output")]


def test_an_op_that_would_move_more_stays_natural_and_says_so() -> None:
    g = builder()
    value = g.conv("x", 3, [3, 3])
    copies = g.op("Concat", value, value, value, axis=1, channels=9)
    (region,) = regions(g.model([g.op("Asinh", copies)]))
    assert region.carried == []
    assert stops(region) == [("concat1", "moves-more")]
    assert region.stops[0].reason == "running it packed would copy more elements than it saves"


def test_what_a_body_reads_ends_a_region() -> None:
    g = builder()
    value = g.conv("x", 3, [3, 3])
    model = g.model([value])
    bodies = [
        helper.make_graph(
            [helper.make_node(op, [value], ["r"], op.lower())],
            op,
            [],
            [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
        )
        for op in ("Relu", "Neg")
    ]
    model.graph.node.append(
        helper.make_node("If", ["c"], ["y"], "if", then_branch=bodies[0], else_branch=bodies[1])
    )
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model.graph.output[0].name = "y"
    (region,) = regions(model)
    assert sorted(stops(region)) == [("neg", "in-a-body"), ("relu", "in-a-body")]


def test_nothing_folded_is_no_region() -> None:
    g = builder(1, 3, 7, 11)
    assert regions(g.model([g.conv("x", 2, [3, 3])])) == []


def test_dequantizers_stand_inside_of_a_region() -> None:
    (region,) = regions(qdq_chain())
    assert region.folded == ["conv0", "conv1"]
    assert region.carried == ["QuantizeLinear q0", "QuantizeLinear q1"]
    assert stops(region) == [("q1", "output")]
