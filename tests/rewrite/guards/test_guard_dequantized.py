"""Guards behind a DequantizeLinear: none reads a value that would end ONNX Runtime while it loads.

ONNX Runtime moves a DequantizeLinear behind some operators, and dies where an If captures their
outputs (1.31.1, from the basic level on).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.folding import fold_model
from tests.rewrite.guards.guarded import folded, guards, watched
from tests.running import opened
from widthfold_onnx.options import FoldOptions

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL")
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
QUANTIZED = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
OPEN = FoldOptions(factor=2, axis="height")
CONSTANTS = {
    "s": np.array(0.5, np.float32),
    "z": np.array(3, np.uint8),
    "v": np.random.default_rng(6).integers(-2, 3, (2, 3, 1, 1)).astype(np.float32),
    "w": np.random.default_rng(5).integers(-2, 3, (3, 2, 1, 1)).astype(np.float32),
    "shape": np.array([0, 0, 0, -1]),
    "one": np.array([1]),
    "end": np.array([11]),
    "last": np.array([3]),
    "five": np.array([4]),
}
MOVES = {
    "Reshape": "m = Reshape (d, shape)",
    "Slice": "m = Slice (d, one, end, last)",
    "MaxPool": "m = MaxPool <kernel_shape = [1, 2]> (d)",
    "MaxPool that rounds up": "m = MaxPool <kernel_shape = [1, 2], ceil_mode = 1> (d)",
    "Transpose": "m = Transpose <perm = [0, 1, 2, 3]> (d)",
    "Unsqueeze and Squeeze": "u = Unsqueeze (d, five) m = Squeeze (u, five)",
    "Identity": "r = Reshape (d, shape) m = Identity (r)",
    "Dropout": "r = Reshape (d, shape) m = Dropout (r)",
    "another between": "i = Identity (d) m = Reshape (i, shape)",
}


def model(body: str, dims: str = "1, 2, H, 13", outputs: str = "y") -> onnx.ModelProto:
    """A model of x with the constants that its body names."""
    ports = ", ".join(f"float[a{i}, b{i}, c{i}, e{i}] {n}" for i, n in enumerate(outputs.split()))
    result = onnx.parser.parse_model(f"{HEAD} main (float[{dims}] x) => ({ports}) {{ {body} }}")
    read = {name for node in result.graph.node for name in node.input}
    for name, array in CONSTANTS.items():
        if name in read:
            result.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(result, full_check=True)
    return result


def same(first: onnx.ModelProto, other: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    """Assert that both load at every level, and return the same."""
    x = np.random.default_rng(7).integers(-4, 5, shape).astype(np.float32)
    for level in LEVELS:
        for a, b in zip(
            opened(first, level).run(None, {"x": x}),
            opened(other, level).run(None, {"x": x}),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("move", MOVES)
def test_a_guard_that_would_read_what_was_moved_is_refused(move: str) -> None:
    plain = model(f"{QUANTIZED} {MOVES[move]} y = Conv (m, w)")
    result, (site,) = fold_model(plain, OPEN)
    assert (site.status, site.code) == ("refused", "guard-not-loadable")
    assert site.reason == (
        "height: it needs a guard, and its data comes from a DequantizeLinear through moves: ONNX "
        "Runtime aborts while it loads an If that captures it"
    )
    assert result == plain


@pytest.mark.parametrize("move", MOVES)
def test_without_a_guard_it_is_folded(move: str) -> None:
    plain = model(f"{QUANTIZED} {MOVES[move]} y = Conv (m, w)")
    assumed = replace(OPEN, fixed_shapes=True, input_shapes={"x": (1, 2, 6, 13)})
    result, (site,) = fold_model(plain, assumed)
    assert (site.status, site.guard) == ("folded", "")
    assert [d.dim_value for d in result.graph.input[0].type.tensor_type.shape.dim] == [1, 2, 6, 13]
    same(plain, result, (1, 2, 6, 13))


def test_an_axis_that_needs_no_guard_is_folded_instead() -> None:
    assumed = FoldOptions(factor=2, input_shapes={"x": (1, 2, 6, 12)})
    direct = model("y = Conv (x, w)", dims="1, 2, H, 12")
    moved = model(f"{QUANTIZED} m = Reshape (d, shape) y = Conv (m, w)", dims="1, 2, H, 12")
    for plain, axis in ((direct, "width"), (moved, "width")):
        _, (site,) = fold_model(plain, assumed)
        assert (site.status, site.axis) == ("folded", axis)
    result = folded(moved, assumed, 1)
    assert not guards(result)
    for height in (6, 7):
        same(moved, result, (1, 2, height, 12))


@pytest.mark.parametrize("between", ["Relu", "Neg"])
def test_any_other_operator_between_may_be_read(between: str) -> None:
    plain = model(f"{QUANTIZED} r = Reshape (d, shape) m = {between} (r) y = Conv (m, w)")
    result = folded(plain, OPEN, 1)
    assert len(guards(result)) == 1
    for height in (6, 7):
        same(plain, result, (1, 2, height, 13))


def test_two_guards_behind_one_dequantizer() -> None:
    """Its own result may be read, also where others read data that are moved behind it."""
    body = "m = MaxPool <kernel_shape = [1, 3]> (d) a = Conv (d, w) b = Conv (m, w) c = Conv (d, w)"
    plain = model(f"{QUANTIZED} {body} r = Relu (m)", outputs="a b c r")
    result, sites = fold_model(plain, OPEN)
    assert [site.code for site in sites] == ["folded", "guard-not-loadable", "folded"]
    assert len(guards(result)) == 2
    for height, is_folded in ((6, True), (7, False)):
        same(plain, result, (1, 2, height, 13))
        x = np.zeros((1, 2, height, 13), np.float32)
        assert [bool(c) for c in opened(watched(result)).run(None, {"x": x})[-2:]] == [
            is_folded
        ] * 2


def test_in_a_loop() -> None:
    text = f"""{HEAD} main (float[1, 2, H, 13] x, int64 n, bool go) => (float[1, 2, K, 13] y)
    <float s = {{0.5}}, uint8 z = {{3}}, int64[4] shape = {{0, 0, 0, -1}}> {{
      y = Loop (n, go, x) <body = turn (int64 i, bool c, float[1, 2, L, 13] t)
        => (bool d, float[1, 2, L, 13] u) {{
          d = Identity (c)
          q = QuantizeLinear (t, s, z)
          f = DequantizeLinear (q, s, z)
          m = Reshape (f, shape)
          u = Conv (m, w)
      }}>
    }}"""
    plain = onnx.parser.parse_model(text)
    weight = numpy_helper.from_array(CONSTANTS["w"][:2], "w")
    plain.graph.initializer.append(weight)
    _, (site,) = fold_model(plain, OPEN)
    assert site.code == "guard-not-loadable"


def test_a_group_that_would_read_it_is_guarded_node_by_node() -> None:
    """The second Conv needs no guard, its extents are known: but a guard of both reads its data."""
    text = f"""{HEAD} main (float[1, 2, H, 12] x, float[1, 2, 6, 12] k) => (float[1, 3, 6, 12] y) {{
      q = QuantizeLinear (k, s, z) d = DequantizeLinear (q, s, z) m = Reshape (d, shape)
      a = Conv (x, w) b = Conv (m, w) c = Add (a, b) y = Relu (c)
    }}"""
    plain = onnx.parser.parse_model(text)
    for name in ("s", "z", "shape", "w"):
        plain.graph.initializer.append(numpy_helper.from_array(CONSTANTS[name], name))
    result = folded(plain, replace(OPEN, input_shapes={"x": (1, 2, 6, 12)}), 2)
    (guard,) = guards(result)
    (original,) = (a.g for a in guard.attribute if a.name == "else_branch")
    assert [node.op_type for node in original.node] == ["Conv"]
    rng = np.random.default_rng(7)
    for height, is_folded in ((6, True), (1, False)):
        shapes = {"x": (1, 2, height, 12), "k": (1, 2, 6, 12)}
        feeds = {n: rng.integers(-4, 5, s).astype(np.float32) for n, s in shapes.items()}
        for level in LEVELS:
            (expected,) = opened(plain, level).run(None, feeds)
            actual, chosen = opened(watched(result), level).run(None, feeds)
            np.testing.assert_array_equal(actual, expected)
            assert bool(chosen) == is_folded


def test_moves_behind_the_dequantizer_of_another_layer_are_refused() -> None:
    body = "a = Conv (x, w) q = QuantizeLinear (a, s, z) d = DequantizeLinear (q, s, z)"
    more = "m = MaxPool <kernel_shape = [1, 2]> (d) y = Conv (m, v)"
    plain = model(f"{body} {more}", dims="2, 2, H, 13")
    *_, site = fold_model(plain, replace(OPEN, nodes=("Conv -> y",)))[1]
    assert site.code == "guard-not-loadable"
