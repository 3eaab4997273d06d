"""Copies of a model that rounding might have made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

from widthfold_onnx import verify
from widthfold_onnx.evidence.parity.rounding import shake, shaken_array, shaken_input, ulps_of
from widthfold_onnx.evidence.parity.runs import attempt
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.provider_traits import Level

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 2, 8] x, bool k) => (float[1, 2, 6] y)
<float[2, 2, 3] w = {1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12}, float low = {0.5}, float[2] b = {1, 2},
 int8[2, 2, 1] q = {1, 2, 3, 4}, float s = {0.1}> {
    v = Transpose<perm = [1, 0, 2]>(w)
    c = Conv(x, v, b)
    d = DequantizeLinear(q, s)
    e = Conv(c, d)
    f = Max(e, low)
    y = If (k) <then_branch = t () => (float[1, 2, 6] p) {
            u = Constant<value = float[2, 2, 1] {1, 2, 3, 4}>()  p = Conv(f, u) },
        else_branch = r () => (float[1, 2, 6] z) { z = Mul(f, low) }>
}"""
X = np.arange(16, dtype=np.float32).reshape(1, 2, 8)


def test_linear_weights_move_by_a_unit_in_the_last_place_and_nothing_else() -> None:
    model = parser.parse_model(TEXT)
    before = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    inner = numpy_helper.to_array(model.graph.node[-1].attribute[0].g.node[0].attribute[0].t)
    shake(model, ulps_of(0, 1))
    after = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for name in ("q", "s", "low"):
        np.testing.assert_array_equal(after[name], before[name])
    for name in ("w", "b"):
        step = np.where(before[name] == 0, 0, np.spacing(before[name]))
        np.testing.assert_array_equal(np.abs(after[name] - before[name]), step)
    node = next(n for n in model.graph.node if n.op_type == "If")
    moved = numpy_helper.to_array(node.attribute[0].g.node[0].attribute[0].t)
    np.testing.assert_array_equal(np.abs(moved - inner), np.spacing(inner))


SHARED_WEIGHT = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 2, 8] x, bool k) => (float[1, 3, 8] y)
<float[3, 2, 1] w = {0.1, -0.2, 0.3, 0.4, -0.5, 0.7}> {
    a = Conv (x, w)
    b = If (k) <then_branch = t () => (float[1, 3, 8] p) { p = Conv (x, w) },
        else_branch = r () => (float[1, 3, 8] z) { z = Conv <pads = [0, 0]> (x, w) }>
    y = Add (a, b)
}"""


def test_a_weight_that_several_graphs_read_moves_once() -> None:
    model = parser.parse_model(SHARED_WEIGHT)
    before = numpy_helper.to_array(model.graph.initializer[0])
    shake(model, ulps_of(0, 1))
    after = numpy_helper.to_array(model.graph.initializer[0])
    np.testing.assert_array_equal(np.abs(after - before), np.spacing(np.abs(before)))


def test_dequantized_weights_move_behind_their_scale() -> None:
    """Other sources of movement are taken out."""
    text = TEXT.replace("Conv(x, v, b)", "Slice(x, zero, six, two)").replace("Conv(f, u)", "Neg(f)")
    ends = "int64[1] zero = {0}, int64[1] six = {6}, int64[1] two = {2}"
    text = text.replace("int8[2", f"{ends}, int8[2")
    sets = [InputSet("counted", {"x": X, "k": np.array(True)})]
    options = VerifyOptions(provider=Provider.CPU)
    models = parser.parse_model(text), shake(parser.parse_model(text), ulps_of(0, 1))
    runs = [attempt(lambda m=m: m, options, Level.DISABLED, sets).outputs for m in models]
    expected, result = (run[0]["y"] for run in runs)
    assert 0 < np.abs(result - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 10])
def test_two_copies_move_every_number_both_ways(dtype: type, size: int) -> None:
    array = np.array([1.5, -3.25, 1e-3], dtype)
    first, second = (shaken_array(array, ulps_of(copy, size)) for copy in (2, 3))
    for moved in (first, second):
        np.testing.assert_array_equal(np.abs(moved - array), size * np.spacing(np.abs(array)))
    assert ((first > array) != (second > array)).all()
    np.testing.assert_array_equal(shaken_array(array, ulps_of(2, size)), first)


def test_inputs_that_choose_stay() -> None:
    """A unit in the last place would turn `rate < 10`, and a mask of ones."""
    draw_ulps = ulps_of(0, 1)
    mask = np.array([1, 0, 1, 1, 0.5, 7], np.float32)
    for small in (np.float32(0.1), np.full(4, 0.1), np.full((2, 2), 0.1), np.arange(9)):
        np.testing.assert_array_equal(shaken_input(np.asarray(small), draw_ulps), small)
    moved = shaken_input(mask, draw_ulps)
    assert list(moved != mask) == [False, False, False, False, True, False]
    assert moved.dtype == mask.dtype
    assert (shaken_input(np.full(5, 0.1), draw_ulps) != 0.1).all()


ACTIVATION = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[1, 16] x, float r) => (float[1, 16] y) <float t = {10}, float k = {1.702}>
{ c = Less(r, t) a = Relu(x) %s y = Where(c, a, b) }"""


@pytest.mark.parametrize(("alpha", "verdict"), [(1.702, "pass"), (0.5, "fail"), (1.7, "fail")])
def test_a_switch_explains_no_difference(tmp_path: Path, alpha: float, verdict: str) -> None:
    """One of the values that are drawn for r is 10, and a unit less is the other branch."""
    quick_gelu = f"b = com.microsoft.QuickGelu <alpha = {alpha}> (x)"
    paths = []
    for name, body in {
        "old": "s = Mul(x, k) g = Sigmoid(s) b = Mul(x, g)",
        "new": quick_gelu,
    }.items():
        paths.append(tmp_path / f"{name}.onnx")
        paths[-1].write_bytes(parser.parse_model(ACTIVATION % body).SerializeToString())
    report = verify(*paths, provider="cpu", no_timing=True)
    assert report.proof.verdict == "not provable"
    assert report.verdict == verdict


def test_zeros_and_other_types_stay() -> None:
    others = [0.0, -0.0, np.nan, np.inf, -np.inf]
    for array in (np.array(others), np.arange(3), np.array([True]), np.array(["a"])):
        np.testing.assert_array_equal(shaken_array(array, ulps_of(0, 1)), array)
