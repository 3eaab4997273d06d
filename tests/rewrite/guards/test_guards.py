"""Guards around regions: sizes that are tested together, places of constants, reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.folding import fold_model
from tests.rewrite.guards.guarded import (
    CHAIN,
    PADS,
    REGION,
    SEVERAL,
    SHAPE,
    WEIGHTS,
    draw,
    folded,
    guards,
    parsed,
    watched,
)
from tests.running import opened
from widthfold_onnx.options import AxisName

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
CHAINED = replace(REGION, input_shapes={"x": SHAPE})
SIZES = {20: True, 24: True, 13: False}
"""Whether the folded nodes compute, by the width of the data."""


def chain() -> onnx.ModelProto:
    return parsed(CHAIN, **WEIGHTS)


def same(
    model: onnx.ModelProto, result: onnx.ModelProto, feeds: Mapping[str, np.ndarray]
) -> list[bool]:
    """Compare all outputs of two models; returns what the guards of the second one choose."""
    for level in LEVELS:
        expected = opened(model, level).run(None, feeds)
        actual = opened(watched(result), level).run(None, feeds)
        chosen = [bool(condition) for condition in actual[len(expected) :]]
        for first, other in zip(expected, actual, strict=False):
            np.testing.assert_allclose(other, first, rtol=0, atol=1e-5 * np.abs(first).max())
            if level == LEVELS[0] and not any(chosen):  # else the runtime may fuse otherwise
                np.testing.assert_array_equal(other, first)
    return chosen


def test_a_region_has_one_guard_and_one_test_of_what_it_reads() -> None:
    model = chain()
    result = folded(model, CHAINED, 3)
    ops = [node.op_type for node in result.graph.node]
    assert ops == [
        *("Constant", "Constant", "Constant", "Shape", "Gather", "Sub", "Mod"),
        *("ReduceMax", "ReduceMin", "Sign", "Less", "If"),
    ]
    assert not result.graph.initializer  # each weight is read by one branch, and lies in it
    (guard,) = guards(result)
    bodies = {a.name: [n.op_type for n in a.g.node] for a in guard.attribute}
    assert bodies["else_branch"] == ["Conv", "Relu", "Conv", "Add", "Conv"]
    assert bodies["then_branch"].count("Conv") == 3
    assert bodies["then_branch"][0] == "Reshape" == bodies["then_branch"][-1]
    for width, is_folded in SIZES.items():
        assert same(model, result, {"x": draw((*SHAPE[:3], width))}) == [is_folded]


def test_every_input_of_a_region_is_tested() -> None:
    model = parsed(SEVERAL, **WEIGHTS)
    result = folded(model, REGION, 3)
    assert len(guards(result)) == 1
    for widths in ((20, 20), (1, 20), (20, 1), (13, 13)):
        x, z = (draw((*SHAPE[:3], width), seed=width) for width in widths)
        assert same(model, result, {"x": x, "z": z}) == [widths == (20, 20)]


def test_a_region_of_extents_that_nobody_told_has_the_same_guard() -> None:
    model = chain()
    result = folded(model, replace(CHAINED, input_shapes={}), 3)
    assert len(guards(result)) == 1
    for width, is_folded in SIZES.items():
        assert same(model, result, {"x": draw((*SHAPE[:3], width))}) == [is_folded]


def test_a_way_out_of_a_region_and_back_splits_it() -> None:
    """The Softmax sees logical data, and its output joins the packed tensors behind it."""
    text = CHAIN.replace("e = Conv", "m = Softmax <axis = 3> (r)\n  e = Conv")
    model = parsed(text.replace("(r, v, b)", "(m, v, b)"), **WEIGHTS)
    fixed = parsed(text.replace("(r, v, b)", "(m, v, b)").replace("W]", "20]"), **WEIGHTS)
    plain = folded(fixed, CHAINED, 3)
    assert [n.op_type for n in plain.graph.node if n.output[0].endswith("packed")] == [
        "Relu",
        "Add",
    ]
    result = folded(model, CHAINED, 3)
    assert len(guards(result)) == 3
    for width, is_folded in SIZES.items():
        assert same(model, result, {"x": draw((*SHAPE[:3], width))}) == [is_folded] * 3


def test_reports_say_what_is_guarded() -> None:
    _, sites = fold_model(chain(), CHAINED)
    assert {site.guard for site in sites} == {"extents"}
    assert all("guarded (extents)" in site.reason for site in sites)


def test_a_second_run_changes_nothing_in_either_branch() -> None:
    once = folded(chain(), CHAINED, 3)
    again, sites = fold_model(once, CHAINED)
    assert again == once
    assert [site.code for site in sites] == ["already-folded"] * 6


def test_inside_of_bodies() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    main (bool f, float[2, 3, 7, W] x) => (float[2, 3, 7, W] y) {{
      z = Neg (x)
      y = If (f) <
        then_branch = yes () => (float[2, 3, 7, W] r) {{ r = Conv <{PADS}> (z, u, b) }},
        else_branch = no () => (float[2, 3, 7, W] n) {{ n = Conv <{PADS}> (z, v, b) }}
      >
    }}"""
    model = parsed(text, **{name: WEIGHTS[name] for name in "uvb"})
    result = folded(model, CHAINED, 2)
    (choice,) = (node for node in result.graph.node if node.op_type == "If")
    assert [len(guards(onnx.ModelProto(graph=a.g))) for a in choice.attribute] == [1, 1]
    for width in SIZES:
        for flag in (True, False):
            feeds = {"x": draw((*SHAPE[:3], width)), "f": np.array(flag)}
            expected, actual = (opened(m).run(None, feeds)[0] for m in (model, result))
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    assert fold_model(result, CHAINED)[0] == result


def test_weights_that_both_branches_or_others_read_stay_outside() -> None:
    text = CHAIN.replace(
        "r = Relu (c)", "n = Neg (b)\n  k = ReduceSum <keepdims = 0> (n)\n  r = Relu (c)"
    )
    text = text.replace("y = Conv", "t = Mul (a, k)\n  y = Conv").replace("(a, w, d)", "(t, w, d)")
    model = parsed(text, **WEIGHTS)
    result = folded(model, CHAINED, 3)
    assert "b" in {tensor.name for tensor in result.graph.initializer}
    for width in SIZES:
        same(model, result, {"x": draw((*SHAPE[:3], width))})


def test_ir_version_3_keeps_its_constants_in_the_main_graph() -> None:
    model = chain()
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    model.opset_import[0].version = 10
    result, sites = fold_model(model, CHAINED)
    assert [site.status for site in sites] == ["folded"] * 3
    onnx.checker.check_model(result)
    assert result.graph.initializer
    for width, is_folded in SIZES.items():
        assert same(model, result, {"x": draw((*SHAPE[:3], width))}) == [is_folded]


@pytest.mark.parametrize("rows", [40, 24, 13])
def test_a_region_of_products_has_one_guard(rows: int) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[1, M, 3] x) => (float[1, M, 5] y) {
      h = MatMul (x, m)
      a = Add (h, c)
      r = Relu (a)
      y = MatMul (r, k)
    }"""
    model = parsed(text, m=(3, 7), k=(7, 5), c=(7,))
    options = replace(REGION, factor=8, axis=AxisName.AUTO, input_shapes={"x": (1, 40, 3)})
    assert same(model, folded(model, options, 2), {"x": draw((1, rows, 3))}) == [rows % 8 == 0]


def test_an_op_of_two_results_stands_once_in_each_branch() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 13]>
    main (float[2, 3, 7, W] x) => (float[2, 2, 7, W] s, float[2, 3, 7, W] y) {{
      c = Conv <{PADS}> (x, u)
      p, q = Split <axis = 1> (c)
      s = Relu (p)
      y = Conv <{PADS}> (q, v)
    }}"""
    model = parsed(text, u=(4, 3, 3, 5), v=(3, 2, 3, 5))
    result = folded(model, CHAINED, 2)
    (guard,) = guards(result)
    assert [[n.op_type for n in a.g.node].count("Split") for a in guard.attribute] == [1, 1]
    for width, is_folded in SIZES.items():
        assert same(model, result, {"x": draw((*SHAPE[:3], width))}) == [is_folded]


def test_a_region_that_nothing_reads_is_guarded_node_by_node() -> None:
    """An If returns something: the result of each folded node, as a logical tensor."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    main (float[2, 3, 7, W] x) => (float[2, 3, 7, W] y) {{
      c = Conv <{PADS}> (x, u)
      e = Conv <{PADS}> (c, v)
      r = Relu (e)
      y = Neg (x)
    }}"""
    model = parsed(text, u=(3, 3, 3, 5), v=(3, 3, 3, 5))
    result = folded(model, CHAINED, 2)
    assert len(guards(result)) == 2
    for width, is_folded in SIZES.items():
        assert same(model, result, {"x": draw((*SHAPE[:3], width))}) == [is_folded] * 2
