"""Guards of single layers: which sizes the folded nodes compute; every other runs as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.folding import fold_model, optimize
from tests.rewrite.guards.cases import CASES, HEAD, OPEN, SAME, one
from tests.rewrite.guards.guarded import draw, folded, guards, parsed, watched
from tests.rewrite.proved import assert_proved
from tests.rewrite.quantized.convs import Case
from tests.running import opened
from widthfold_onnx.options import DeliveryOptions


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("case", CASES)
def test_every_size_runs_and_the_right_nodes_compute(case: str, level: str) -> None:
    model, options, sizes = CASES[case]
    result = folded(model, options, 1)
    before, after = opened(model, level), opened(watched(result), level)
    for shape, is_folded in sizes.items():
        x = draw(shape)
        (expected,), (actual, chosen) = before.run(None, {"x": x}), after.run(None, {"x": x})
        assert bool(chosen) == is_folded, shape
        if is_folded:
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("case", ["height", "batch", "both assumed", "rows of a transposed Gemm"])
def test_both_branches_are_proved_and_run(case: str, tmp_path: Path) -> None:
    model, options, _ = CASES[case]
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    prove = DeliveryOptions(seeds=1)
    report = optimize(tmp_path / "in.onnx", tmp_path / "out.onnx", options, prove)
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    assert report.verification.proof.verdict == "equal"
    assert len(report.verification.proof.extents) >= 2
    assert len(report.verification.folds) == 1
    assert [site.guard for site in report.sites] == ["extents"]


@pytest.mark.parametrize("is_planned", [True, False])
@pytest.mark.parametrize("op", ["QLinearConv", "ConvInteger", "QDQ Conv"])
def test_quantized_layers_are_guarded_and_proved(op: str, is_planned: bool) -> None:
    """At sizes that the caller gives, and at any."""
    shape, pads = (2, 3, 7, 16), (1, 1, 1, 1)
    case = Case(
        op=op,
        shape=shape,
        weight=(5, 3, 3, 3),
        per_channel=op != "ConvInteger",
        attributes={"pads": list(pads)},
        pads=pads,
        open_axes=frozenset({3}),
    )
    sizes = {"x": shape} if is_planned else {}
    result = folded(case.model(), replace(OPEN, axis="width", input_shapes=sizes), 1)
    assert len(guards(result)) == 1
    assert_proved(case.model(), result, 1)
    session = opened(watched(result))
    for width in (16, 13, 1):
        data = replace(case, shape=(*shape[:3], width))
        y, fits = session.run(None, {"x": data.data()})
        np.testing.assert_array_equal(y, data.expected(data.data()))
        assert fits == (width == 16)


def test_a_product_of_dequantized_operands_is_guarded_and_proved() -> None:
    rng = np.random.default_rng(7)
    w = rng.integers(-64, 64, (3, 5))
    model = parsed(f"""{HEAD} main (uint8[N, 3] x) => (float[N, 5] y)
    <float s = {{0.25}}, uint8 z = {{31}}, int8[3, 5] w = {{{", ".join(map(str, w.ravel()))}}}> {{
      d = DequantizeLinear (x, s, z)
      m = DequantizeLinear (w, s)
      y = MatMul (d, m)
    }}""")
    result = folded(model, OPEN, 1)
    assert_proved(model, result, 1)
    session = opened(watched(result))
    for rows in (8, 7):
        x = rng.integers(0, 256, (rows, 3)).astype(np.uint8)
        y, fits = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, (x - 31.0) @ w / 16)
        assert fits == (rows == 8)


def test_what_is_dequantized_behind_a_guarded_layer_is_outside_of_its_guard() -> None:
    model = parsed(
        f"""{HEAD} main (float[B, T, 3] x) => (float[B, T, 5] y)
        <float s = {{0.25}}, uint8 z = {{131}}> {{
          c = MatMul (x, u)
          q = QuantizeLinear (c, s, z)
          d = DequantizeLinear (q, s, z)
          a = Abs (d)
          y = Softmax (a)
        }}""",
        u=(3, 5),
    )
    result = folded(model, replace(OPEN, input_shapes={"x": (2, 16, 3)}), 1)
    assert [list(guard.output) for guard in guards(result)] == [["c"]]
    for rows in (16, 13):
        x = draw((2, rows, 3))
        before, after = (opened(m).run(None, {"x": x})[0] for m in (model, result))
        np.testing.assert_array_equal(before, after)


def test_a_quantized_product_with_its_weight_on_the_left_is_guarded_and_proved() -> None:
    w = np.random.default_rng(7).integers(64, 192, (5, 3))
    model = parsed(f"""{HEAD} main (uint8[3, L] x) => (uint8[5, L] y)
    <float s = {{0.25}}, float e = {{16}}, uint8 z = {{31}}, uint8 v = {{128}},
     uint8[5, 3] w = {{{", ".join(map(str, w.ravel()))}}}> {{
      y = QLinearMatMul (w, s, v, x, s, z, e, v)
    }}""")
    result = folded(model, replace(OPEN, mix_samples=True), 1)
    assert_proved(model, result, 1)
    session = opened(watched(result))
    for columns in (8, 7):
        x = np.random.default_rng(5).integers(0, 256, (3, columns)).astype(np.uint8)
        y, fits = session.run(None, {"x": x})
        expected = np.rint((w - 128) @ (x - 31.0) / 256) + 128
        np.testing.assert_array_equal(y, np.clip(expected, 0, 255))
        assert fits == (columns == 8)


def test_no_samples_at_all() -> None:
    model, options, _ = CASES["batch"]
    x = draw((0, 3, 11, 13))
    assert opened(folded(model, options, 1)).run(None, {"x": x})[0].shape == (0, 5, 11, 13)


def test_several_layers_share_a_test_of_what_a_region_reads() -> None:
    text = f"""{HEAD} main (float[1, 3, H, W] x) => (float[1, 3, H, W] y) {{
      c = Conv <{SAME}> (x, u, b)
      r = Relu (c)
      y = Conv <{SAME}> (r, w, b)
    }}"""
    model = parsed(text, u=(3, 3, 3, 3), w=(3, 3, 3, 3), b=(3,))
    options = replace(OPEN, axis="width", input_shapes={"x": (1, 3, 7, 28)})
    result = folded(model, options, 2)
    (guard,) = guards(result)
    assert [n.op_type for n in result.graph.node if n.op_type == "Shape"] == ["Shape"]
    assert guard.attribute[0].name == "else_branch"
    before, after = opened(model), opened(watched(result))
    for shape, is_folded in (((1, 3, 7, 28), True), ((1, 3, 11, 29), False)):
        x = draw(shape)
        actual, chosen = after.run(None, {"x": x})
        np.testing.assert_allclose(actual, before.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
        assert bool(chosen) == is_folded


def test_what_every_run_can_use_goes_before_what_a_guard_keeps_for_some() -> None:
    """An open batch mostly is 1, where a fold of the batch would never compute."""
    weights = {"w": (5, 3, 3, 3)}
    for dims, axis, kind in (("N, 3, H, 28", "width", ""), ("N, 3, H, 27", "height", "extents")):
        model = one(dims, f"Conv <{SAME}> (x, w)", dims.replace("3, H", "5, H"), **weights)
        _, (site,) = fold_model(model, OPEN)
        assert (site.axis, site.guard) == (axis, kind)


def test_known_extents_need_no_guard() -> None:
    model = one("1, 3, 8, 28", f"Conv <{SAME}> (x, w)", "1, 5, 8, 28", w=(5, 3, 3, 3))
    assert not guards(folded(model, OPEN, 1))


@pytest.mark.parametrize("opset", [10, 11, 13, 18, 21, 23])
def test_every_operator_set_from_10_on_can_say_it(opset: int) -> None:
    model, options, sizes = CASES["height"]
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.opset_import[0].version = opset
    session = opened(watched(folded(model, options, 1)))
    for shape, is_folded in sizes.items():
        assert bool(session.run(None, {"x": draw(shape)})[1]) == is_folded


def test_opset_9_has_no_mod() -> None:
    model, options, _ = CASES["height"]
    old = onnx.ModelProto()
    old.CopyFrom(model)
    old.opset_import[0].version = 9
    _, (site,) = fold_model(old, options)
    assert site.code == "opset-too-old"
    assert "below 10" in site.reason


def test_a_second_run_changes_nothing() -> None:
    for model, options, _ in CASES.values():
        result = folded(model, options, 1)
        again, sites = fold_model(result, options)
        assert again == result
        assert [site.code for site in sites] == ["already-folded"] * 2  # in either branch


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_the_other_name_of_the_default_domain(level: str) -> None:
    """A runtime that takes it for nodes of the main graph takes it for none of a body."""
    model = one("N, 3, 11, 13", f"Conv <{SAME}> (x, w)", "N, 5, 11, 13", w=(5, 3, 3, 3))
    model.graph.node[0].domain = "ai.onnx"
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.arange(135, dtype=np.float32).reshape(5, 3, 3, 3), "w")
    )
    result, (site,) = fold_model(model, replace(OPEN, axis="batch"))
    assert site.status == "folded"
    for samples in (4, 7):
        x = np.round(draw((samples, 3, 11, 13)) * 4)
        expected, actual = (opened(m, level).run(None, {"x": x}) for m in (model, result))
        np.testing.assert_array_equal(actual[0], expected[0])


def test_in_a_loop_and_in_a_function() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "loc" : 1]>
    main (float[1, 3, H, 7] x, int64 m, bool go) => (float[1, 3, H, 7] y, float[1, 5, H, 7] z) {{
      y = Loop (m, go, x) <body = turn (int64 i, bool c, float[1, 3, L, 7] s)
        => (bool d, float[1, 3, L, 7] t) {{
          d = Identity (c)
          t = Conv <{SAME}> (s, u)
      }}>
      z = loc.conv (x, w)
    }}
    <domain: "loc", opset_import: ["" : 17]>
    conv (p, v) => (q) {{ q = Conv <{SAME}> (p, v) }}"""
    model = parsed(text, u=(3, 3, 3, 3), w=(5, 3, 3, 3))
    result, sites = fold_model(model, replace(OPEN, axis="height"))
    assert [site.status for site in sites] == ["folded", "folded"]
    for extent in (7, 8):
        feeds = {"x": draw((1, 3, extent, 7)), "m": np.array(2), "go": np.array(True)}
        for a, b in zip(
            opened(model).run(None, feeds), opened(result).run(None, feeds), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)
