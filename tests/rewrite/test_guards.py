"""`--nonfinite guard`: the same NaN and Inf as the original, whatever the data is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.rewrite.guarded import (
    FINITE,
    LEVELS,
    draw,
    folded,
    guards,
    mask,
    opened,
    parsed,
    watched,
)
from widthfold_onnx import AxisName, FoldOptions, NonFinite, fold_model

SHAPE = (2, 3, 7, 20)
PADS = "pads = [1, 2, 1, 2]"
WEIGHTS = {"u": (3, 3, 3, 5), "v": (3, 3, 3, 5), "w": (5, 3, 3, 5), "b": (3,), "d": (5,)}
CHAIN = f"""<ir_version: 8, opset_import: ["" : 17]>
main (float[2, 3, 7, 20] x) => (float[2, 5, 7, 20] y) {{
  c = Conv <{PADS}> (x, u, b)
  r = Relu (c)
  e = Conv <{PADS}> (r, v, b)
  a = Add (e, r)
  y = Conv <{PADS}> (a, w, d)
}}"""
HOSTILE = (np.nan, np.inf, -np.inf)
PLACES = ((0, 0, 0, 0), (1, 2, 6, 19), (0, 1, 3, 8), (1, 0, 6, 0))
"""Corners and the first position of a block."""


def chain(dtype: type = np.float32) -> onnx.ModelProto:
    kind = {np.float32: "float", np.float16: "float16", np.float64: "double"}[dtype]
    return parsed(CHAIN.replace("float[", f"{kind}["), dtype=dtype, **WEIGHTS)


def same_mask(model: onnx.ModelProto, result: onnx.ModelProto, feeds: dict, level: str) -> None:
    for one, other in zip(
        opened(model, level).run(None, feeds), opened(result, level).run(None, feeds), strict=True
    ):
        np.testing.assert_array_equal(mask(one), mask(other))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_masks_are_the_originals_bit_for_bit(dtype: type, level: str) -> None:
    model = chain(dtype)
    result = folded(model, FINITE, 3)
    before, after = opened(model, level), opened(result, level)
    for value in HOSTILE:
        for place in PLACES:
            x = draw(SHAPE, dtype)
            x[place] = value
            one, other = (session.run(None, {"x": x})[0] for session in (before, after))
            assert mask(one).any()
            np.testing.assert_array_equal(mask(one), mask(other))


def test_without_the_guard_they_are_not() -> None:
    model = chain()
    result = folded(model, replace(FINITE, nonfinite=NonFinite.SPREAD), 3)
    x = draw(SHAPE)
    x[PLACES[2]] = np.nan
    one, other = (opened(m).run(None, {"x": x})[0] for m in (model, result))
    assert np.count_nonzero(mask(other)) > np.count_nonzero(mask(one))


def test_a_region_has_one_guard_and_one_test_of_what_it_reads() -> None:
    result = folded(chain(), FINITE, 3)
    ops = [node.op_type for node in result.graph.node]
    assert ops == ["ReduceL1", "Constant", "Less", "If"]
    assert not result.graph.initializer  # each weight is read by one branch, and lies in it
    (guard,) = guards(result)
    bodies = {a.name: [n.op_type for n in a.g.node] for a in guard.attribute}
    assert bodies["else_branch"] == ["Conv", "Relu", "Conv", "Add", "Conv"]
    assert bodies["then_branch"].count("Conv") == 3
    assert bodies["then_branch"][0] == "Reshape" == bodies["then_branch"][-1]


def test_finite_data_takes_the_folded_nodes_and_all_else_the_originals() -> None:
    session = opened(watched(folded(chain(), FINITE, 3)))
    for value, taken in ((1.0, True), (1e9, True), (np.nan, False), (np.inf, False)):
        x = draw(SHAPE)
        x[PLACES[1]] = value
        assert bool(session.run(None, {"x": x})[1]) == taken, value


def test_finite_data_that_overflows_inside_of_a_region_takes_the_originals() -> None:
    """1e38 is finite, the second Conv would read Inf, and its zeros would make NaN of it."""
    model = chain()
    result = folded(model, FINITE, 3)
    for size in (1e30, 1e36, 1e37, 1e38, 3e38):
        x = draw(SHAPE)
        x[PLACES[2]] = size
        same_mask(model, result, {"x": x}, "ORT_DISABLE_ALL")
    overflown = opened(model).run(None, {"x": x})[0]
    assert mask(overflown).any()
    assert not bool(opened(watched(result)).run(None, {"x": x})[1])


def test_half_precision_runs_conv_by_conv() -> None:
    """65504 is near: no bound keeps what lies inside of a region finite."""
    result = folded(chain(np.float16), FINITE, 3)
    assert len(guards(result)) == 3
    session = opened(watched(result))
    large = np.full(SHAPE, 2000, np.float16)  # adds up to more than 65504
    assert bool(session.run(None, {"x": large})[1])


def test_double_precision_has_a_bound_of_its_own() -> None:
    result = folded(chain(np.float64), FINITE, 3)
    (bound,) = (a.t for n in result.graph.node if n.op_type == "Constant" for a in n.attribute)
    number = float(onnx.numpy_helper.to_array(bound))
    assert bound.data_type == onnx.TensorProto.DOUBLE
    assert 1e280 < number < 1e308


def test_what_may_make_inf_of_finite_data_ends_a_region() -> None:
    text = CHAIN.replace("r = Relu (c)", "r = Exp (c)")
    model = parsed(text, **WEIGHTS)
    result = folded(model, FINITE, 3)
    assert len(guards(result)) == 3
    x = draw(SHAPE)
    x[PLACES[2]] = 1e4
    assert mask(opened(model).run(None, {"x": x})[0]).any()
    same_mask(model, result, {"x": x}, "ORT_DISABLE_ALL")


SEVERAL = f"""<ir_version: 8, opset_import: ["" : 17]>
main (float[2, 3, 7, 20] x, float[2, 3, 7, 20] z) => (float[2, 5, 7, 20] y, float[2, 3, 7, 20] s) {{
  c = Conv <{PADS}> (x, u, b)
  e = Conv <{PADS}> (z, v, b)
  s = Sub (c, e)
  y = Conv <{PADS}> (s, w, d)
}}"""


@pytest.mark.parametrize("name", ["x", "z"])
def test_every_input_of_a_region_is_tested(name: str) -> None:
    model = parsed(SEVERAL, **WEIGHTS)
    result = folded(model, FINITE, 3)
    assert len(guards(result)) == 1
    feeds = {"x": draw(SHAPE), "z": draw(SHAPE, seed=6)}
    assert bool(opened(watched(result)).run(None, feeds)[2])
    for value in HOSTILE:
        feeds[name] = draw(SHAPE)
        feeds[name][PLACES[3]] = value
        same_mask(model, result, feeds, "ORT_DISABLE_ALL")
        assert not bool(opened(watched(result)).run(None, feeds)[2])


def test_a_way_out_of_a_region_and_back_splits_it() -> None:
    """The Softmax sees natural data, and what is made of it joins the packed tensors behind it."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    main (float[2, 3, 7, 20] x) => (float[2, 5, 7, 20] y) {{
      c = Conv <{PADS}> (x, u, b)
      r = Relu (c)
      m = Softmax <axis = 3> (r)
      e = Conv <{PADS}> (m, v, b)
      a = Add (e, r)
      y = Conv <{PADS}> (a, w, d)
    }}"""
    model = parsed(text, **WEIGHTS)
    spread = folded(model, replace(FINITE, nonfinite=NonFinite.SPREAD), 3)
    assert [n.op_type for n in spread.graph.node if n.output[0].endswith("packed")] == [
        "Relu",
        "Add",
    ]
    result = folded(model, FINITE, 3)
    assert len(guards(result)) == 3
    for value in (1.0, *HOSTILE):
        x = draw(SHAPE)
        x[PLACES[0]] = value
        same_mask(model, result, {"x": x}, "ORT_DISABLE_ALL")


def test_a_grouped_batch_fold_needs_no_guard() -> None:
    options = FoldOptions(factor=2, axis=AxisName.BATCH, nonfinite=NonFinite.GUARD)
    assert not guards(folded(chain(), options, 3))


def test_reports_say_what_is_guarded_and_nothing_spreads() -> None:
    model, sites = fold_model(chain(), FINITE)
    assert {(site.guard, site.spread) for site in sites} == {("finite", 1.0)}
    assert all("guarded (finite)" in site.reason for site in sites)
    assert not [e for e in model.metadata_props if e.key == "widthfold.nonfinite"]


def test_a_second_run_changes_nothing_and_sees_no_original() -> None:
    once = folded(chain(), FINITE, 3)
    again, sites = fold_model(once, FINITE)
    assert again == once
    assert [site.code for site in sites] == ["already-folded"] * 3
    other, _ = fold_model(once, replace(FINITE, nonfinite=NonFinite.SPREAD))
    assert other == once


def test_inside_of_bodies() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    main (bool f, float[2, 3, 7, 20] x) => (float[2, 3, 7, 20] y) {{
      z = Neg (x)
      y = If (f) <
        then_branch = yes () => (float[2, 3, 7, 20] r) {{ r = Conv <{PADS}> (z, u, b) }},
        else_branch = no () => (float[2, 3, 7, 20] n) {{ n = Conv <{PADS}> (z, v, b) }}
      >
    }}"""
    model = parsed(text, **{name: WEIGHTS[name] for name in "uvb"})
    result = folded(model, FINITE, 2)
    for value in (1.0, *HOSTILE):
        for flag in (True, False):
            x = draw(SHAPE)
            x[PLACES[1]] = value
            same_mask(model, result, {"x": x, "f": np.array(flag)}, "ORT_DISABLE_ALL")
    assert fold_model(result, FINITE)[0] == result


def test_weights_that_both_branches_or_others_read_stay_outside() -> None:
    text = CHAIN.replace(
        "r = Relu (c)", "n = Neg (b)\n  k = ReduceSum <keepdims = 0> (n)\n  r = Relu (c)"
    )
    text = text.replace("y = Conv", "t = Mul (a, k)\n  y = Conv").replace("(a, w, d)", "(t, w, d)")
    model = parsed(text, **WEIGHTS)
    result, _ = fold_model(model, FINITE)
    assert "b" in {tensor.name for tensor in result.graph.initializer}
    same_mask(model, result, {"x": draw(SHAPE)}, "ORT_ENABLE_ALL")


def test_ir_version_3_keeps_its_constants_in_the_main_graph() -> None:
    model = chain()
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    model.opset_import[0].version = 9
    result, sites = fold_model(model, FINITE)
    assert [site.status for site in sites] == ["folded"] * 3
    onnx.checker.check_model(result)
    x = draw(SHAPE)
    x[PLACES[2]] = np.nan
    same_mask(model, result, {"x": x}, "ORT_DISABLE_ALL")


def test_opset_6_cannot_say_it() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 6]>
    main (float[2, 3, 7, 20] x) => (float[2, 3, 7, 20] y) {{ y = Conv <{PADS}> (x, u, b) }}"""
    model = parsed(text, **{name: WEIGHTS[name] for name in "ub"})
    _, (site,) = fold_model(model, FINITE)
    assert (site.code, site.reason) == (
        "opset-too-old",
        "opset 6 is below 7, which the guard needs",
    )


def test_a_product_is_guarded() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[1, 40, 3] x) => (float[1, 40, 5] y) { y = MatMul (x, m) }"""
    model = parsed(text, m=(3, 5))
    result = folded(model, replace(FINITE, factor=8, axis=AxisName.AUTO), 1)
    for value in (1.0, *HOSTILE):
        x = draw((1, 40, 3))
        x[0, 39, 2] = value
        same_mask(model, result, {"x": x}, "ORT_ENABLE_ALL")


def test_a_region_of_products_has_one_guard() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[1, 40, 3] x) => (float[1, 40, 5] y) {
      h = MatMul (x, m)
      a = Add (h, c)
      r = Relu (a)
      y = MatMul (r, k)
    }"""
    model = parsed(text, m=(3, 7), k=(7, 5), c=(7,))
    options = replace(FINITE, factor=8, axis=AxisName.AUTO)
    result = folded(model, options, 2)
    assert len(guards(result)) == 1
    for value in (1.0, *HOSTILE, 3e38):
        x = draw((1, 40, 3))
        x[0, 39, 2] = value
        same_mask(model, result, {"x": x}, "ORT_ENABLE_ALL")


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 21, 23])
def test_every_operator_set_can_say_it(opset: int) -> None:
    model = chain()
    model.opset_import[0].version = opset
    result = folded(model, FINITE, 3)
    assert len(guards(result)) == 1
    for value in HOSTILE:
        x = draw(SHAPE)
        x[PLACES[1]] = value
        same_mask(model, result, {"x": x}, "ORT_DISABLE_ALL")
