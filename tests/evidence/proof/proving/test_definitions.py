"""Operators that onnx defines by others are proved equal to their definitions, and to no others."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.running import LEVELS, run
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report

W = np.random.default_rng(3).standard_normal((3, 2, 3)).astype(np.float32)
CONSTANTS = {
    name: np.float32(value)
    for name, value in {
        "zero": 0,
        "half": 0.5,
        "one": 1,
        "two": 2,
        "three": 3,
        "six": 6,
        "lowest": -np.finfo(np.float32).max,
        "largest": np.finfo(np.float32).max,
        "sixth": np.float32(1 / 6),
        "below_sixth": np.nextafter(np.float32(1 / 6), np.float32(0)),
        "below_six": np.nextafter(np.float32(6), np.float32(0)),
        "root": np.sqrt(2),
        "above_half": np.nextafter(np.float32(0.5), np.float32(1)),
        "alpha": 1.6732632,
        "below_alpha": np.nextafter(np.float32(1.6732632), np.float32(0)),
        "gamma": 1.050701,
        "above_two": np.nextafter(np.float32(2), np.float32(3)),
    }.items()
}


def model(nodes: str, **constants: np.ndarray) -> Program:
    text = f"""<ir_version: 9, opset_import: ["": 20]>
        g (float[2, 2, 7] x) => (float[a, b, c] y) {{ v = Conv (x, w)  {nodes} }}"""
    proto = onnx.parser.parse_model(text)
    arrays = {"w": W, **CONSTANTS, **constants}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return Program.of(proto, None)


def verdict(first: Program, other: Program) -> str:
    return proof_report(first, other, ({},), {}).verdict


PAIRS = {
    "Relu": ("y = Relu (v)", "y = Max (zero, v)", "y = Max (one, v)"),
    "Clip of one bound": ("y = Clip (v, one)", "y = Max (v, one)", "y = Max (v, two)"),
    "Clip of the other": ("y = Clip (v, , six)", "y = Min (six, v)", "y = Min (three, v)"),
    "Clip without an effect": (
        "y = Clip (v, lowest, largest)",
        "y = Clip (v)",
        "y = Clip (v, lowest, lowest)",
    ),
    "Clip": (
        "y = Clip (v, zero, six)",
        "r = Relu (v)  y = Min (r, six)",
        "r = Relu (v)  y = Min (r, three)",
    ),
    "HardSwish": (
        "y = HardSwish (v)",
        "s = HardSigmoid <alpha = 0.16666667163372, beta = 0.5> (v)  y = Mul (s, v)",
        "s = HardSigmoid <alpha = 0.16666665, beta = 0.5> (v)  y = Mul (s, v)",
    ),
    "HardSwish by a Clip": (
        "y = HardSwish (v)",
        "p = Add (v, three)  c = Clip (p, zero, six)  m = Mul (v, c)  y = Div (m, six)",
        "p = Add (v, three)  c = Clip (p, zero, six)  m = Mul (v, c)  y = Div (m, below_six)",
    ),
    "HardSwish by a Clip and a rounded sixth": (
        "y = HardSwish (v)",
        "p = Add (v, three)  c = Clip (p, zero, six)  m = Mul (v, c)  y = Mul (m, sixth)",
        "p = Add (v, three)  c = Clip (p, zero, six)  m = Mul (v, c)  y = Mul (m, below_sixth)",
    ),
    "Softplus": (
        "y = Softplus (v)",
        "e = Exp (v)  p = Add (one, e)  y = Log (p)",
        "e = Exp (v)  p = Add (two, e)  y = Log (p)",
    ),
    "Mish": (
        "y = Mish (v)",
        "s = Softplus (v)  t = Tanh (s)  y = Mul (v, t)",
        "s = Softplus (v)  t = Tanh (v)  y = Mul (v, t)",
    ),
    "Elu": (
        "y = Elu <alpha = 2.0> (v)",
        "n = Less (v, zero)  e = Exp (v)  s = Sub (e, one)  m = Mul (s, two)  y = Where (n, m, v)",
        "n = Less (v, zero)  e = Exp (v)  s = Sub (e, one)  m = Mul (s, above_two) "
        "y = Where (n, m, v)",
    ),
    "Elu with its default": (
        "y = Elu (v)",
        "n = Less (v, zero)  e = Exp (v)  s = Sub (e, one)  y = Where (n, s, v)",
        "n = Less (v, one)  e = Exp (v)  s = Sub (e, one)  y = Where (n, s, v)",
    ),
    "Selu": (
        "y = Selu (v)",
        "n = Less (v, zero)  e = Exp (v)  s = Sub (e, one)  m = Mul (s, alpha) "
        "q = Where (n, m, v)  y = Mul (q, gamma)",
        "n = Less (v, zero)  e = Exp (v)  s = Sub (e, one)  m = Mul (s, below_alpha) "
        "q = Where (n, m, v)  y = Mul (q, gamma)",
    ),
    "Selu and Elu": (
        "y = Selu (v)",
        "e = Elu <alpha = 1.6732632> (v)  y = Mul (e, gamma)",
        "e = Elu <alpha = 1.6732633> (v)  y = Mul (e, gamma)",
    ),
    "Celu": (
        "y = Celu <alpha = 2.0> (v)",
        "d = Div (v, two)  n = Less (d, zero)  e = Exp (d)  s = Sub (e, one) "
        "q = Where (n, s, d)  y = Mul (q, two)",
        "d = Div (v, two)  n = Less (d, zero)  e = Exp (d)  s = Sub (e, one) "
        "q = Where (n, s, d)  y = Mul (q, above_two)",
    ),
    "a factor behind a Where": (
        "n = Greater (v, one)  q = Where (n, v, two)  y = Mul (q, three)",
        "n = Greater (v, one)  p = Mul (v, three)  y = Where (n, p, six)",
        "n = Greater (v, one)  p = Mul (v, three)  y = Where (n, p, three)",
    ),
    "LayerNormalization": (
        "y = LayerNormalization <axis = -1, epsilon = 0.5> (v, five, shift)",
        "m = ReduceMean (v, axes)  d = Sub (v, m)  q = Pow (d, two)  e = ReduceMean (q, axes) "
        "p = Add (e, half)  r = Sqrt (p)  n = Div (d, r)  k = Mul (n, five)  y = Add (k, shift)",
        "m = ReduceMean (v, axes)  d = Sub (v, m)  q = Pow (d, two)  e = ReduceMean (q, axes) "
        "p = Add (e, above_half)  r = Sqrt (p)  n = Div (d, r)  k = Mul (n, five) "
        "y = Add (k, shift)",
    ),
    "Gelu": (
        "y = Gelu (v)",
        "d = Div (v, root)  e = Erf (d)  p = Add (e, one)  h = Mul (v, p)  y = Mul (h, half)",
        "d = Div (v, root)  e = Erf (d)  p = Add (e, one)  h = Mul (v, p)  y = Mul (h, above_half)",
    ),
    "BatchNormalization of nothing": (
        "y = BatchNormalization <epsilon = 0.0> (v, scales, shifts, zeros, ones)",
        "k = Mul (v, scale_column)  y = Add (k, shift_column)",
        "k = Mul (v, scale_column)  y = Add (k, above_column)",
    ),
    "BatchNormalization": (
        "y = BatchNormalization <epsilon = 0.5> (v, scales, shifts, shifts, scales)",
        "d = Sub (v, shift_column)  e = Add (scale_column, half)  r = Sqrt (e)  q = Div (d, r) "
        "k = Mul (q, scale_column)  y = Add (k, shift_column)",
        "d = Sub (v, shift_column)  e = Add (scale_column, above_half)  r = Sqrt (e) "
        "q = Div (d, r)  k = Mul (q, scale_column)  y = Add (k, shift_column)",
    ),
    "Pow of 2": ("y = Pow (v, two)", "y = Mul (v, v)", "d = Mul (v, v)  y = Mul (d, v)"),
    "Pow of 3": ("y = Pow (v, three)", "d = Mul (v, v)  y = Mul (d, v)", "y = Mul (v, v)"),
    "Pow of a half": ("y = Pow (v, half)", "y = Sqrt (v)", "y = Pow (v, two)"),
    "a mean over all positions": (
        "y = GlobalAveragePool (v)",
        "y = ReduceMean <keepdims = 1> (v, axes)",
        "y = ReduceMean <keepdims = 1> (v, wrong)",
    ),
    "Gemm of a bias, and Add": (
        "m = Reshape (v, rows)  g = Gemm (m, square, five)  a = Add (g, shift) "
        "y = Reshape (a, planes)",
        "m = Reshape (v, rows)  g = Gemm (m, square, total)  y = Reshape (g, planes)",
        "m = Reshape (v, rows)  g = Gemm (m, square, above_total)  y = Reshape (g, planes)",
    ),
    **{
        f"{op_type} of a state of zeros": (
            f"t = {op_type} <hidden_size = 4> (v, {op_type}_w, {op_type}_r) y = Squeeze (t, wrong)",
            *(
                f"t = {op_type} <hidden_size = 4> (v, {op_type}_w, {op_type}_r, , , {states}) "
                "y = Squeeze (t, wrong)"
                for states in (state, other)
            ),
        )
        for op_type, state, other in (
            ("LSTM", "still, still", "still, stirred"),
            ("GRU", "still", "stirred"),
            ("RNN", "still", "stirred"),
        )
    },
    **{
        f"{op_type} of full sequences": (
            f"t = {op_type} <hidden_size = 4> (v, {op_type}_w, {op_type}_r) y = Squeeze (t, wrong)",
            *(
                f"t = {op_type} <hidden_size = 4> "
                f"(v, {op_type}_w, {op_type}_r, , {lengths}) y = Squeeze (t, wrong)"
                for lengths in ("full", "short")
            ),
        )
        for op_type in ("LSTM", "GRU", "RNN")
    },
}


MERGEABLE = {"BatchNormalization of nothing", "Gemm of a bias, and Add"}
"""Cases in which a number that is a few units off may be the result of constants, rounded twice."""

ROUNDED = {"HardSwish by a Clip and a rounded sixth", "Gemm of a bias, and Add"}
"""Cases in which one constant of the second model is the rounding of a result."""


@pytest.mark.parametrize("case", PAIRS)
def test_a_definition(case: str) -> None:
    scales, shifts = np.float32([0.7, 1.3, 2.1]), np.float32([0.1, -0.3, 0.9])
    five, shift = (np.linspace(*ends, 5, dtype=np.float32) for ends in ((0.3, 1.7), (-0.3, 0.9)))
    stirred = np.zeros((1, 3, 4), np.float32)
    stirred[0, 2, 3] = np.finfo(np.float32).smallest_subnormal
    numbers = np.linspace(-1, 1, 80, dtype=np.float32).reshape(1, 16, 5)
    arrays = {
        "axes": np.int64([2]),
        "wrong": np.int64([1]),
        "rows": np.int64([6, 5]),
        "planes": np.int64([2, 3, 5]),
        "five": five,
        "shift": shift,
        "total": five + shift,
        "above_total": np.nextafter(five + shift, np.float32(9)),
        "square": numbers[0, :5],
        "still": np.zeros((1, 3, 4), np.float32),
        "stirred": stirred,
        "full": np.int32([2, 2, 2]),
        "short": np.int32([2, 2, 1]),
        **{
            f"{name}_{end}": numbers[:, : 4 * gates, :columns]
            for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
            for end, columns in (("w", 5), ("r", 4))
        },
        "scales": scales,
        "shifts": shifts,
        "zeros": np.zeros(3, np.float32),
        "ones": np.ones(3, np.float32),
        "scale_column": scales[:, None],
        "shift_column": shifts[:, None],
        "above_column": np.nextafter(shifts[:, None], np.float32(9)),
    }
    programs = [model(nodes, **arrays) for nodes in PAIRS[case]]
    for pair in (programs[:2], programs[1::-1]):
        report = proof_report(*pair, ({},), {})
        assert (report.verdict, report.rounded) == ("equal", case in ROUNDED)
    wrong = verdict(programs[0], programs[2])
    assert wrong == ("not provable" if case in MERGEABLE else "different")


def resized(mode: str, rounding: str, scale: float, kind: str = "nearest") -> Program:
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[1, 2, 4, 6] x) => (float[n, c, h, w] y) {{
        y = Resize <mode = "{kind}", coordinate_transformation_mode = "{mode}",
            nearest_mode = "{rounding}"> (x, , scales) }}"""
    proto = onnx.parser.parse_model(text)
    scales = np.float32([1, 1, scale, scale])
    proto.graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    return Program.of(proto, None)


FLOORS = {
    *(("half_pixel", side, scale) for side in ("floor", "ceil") for scale in (2, 3)),
    ("half_pixel", "floor", 1.5),
    ("asymmetric", "floor", 2),
}
"""Places, the side to which halves are rounded, and scales at which position i is i // scale."""


@pytest.mark.parametrize("scale", [1.5, 2, 3])
@pytest.mark.parametrize("side", ["floor", "ceil"])
@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric"])
def test_nearest_positions(mode: str, side: str, scale: float) -> None:
    whole = resized("asymmetric", "floor", scale)
    rounded = resized(mode, f"round_prefer_{side}", scale)
    expected = "equal" if (mode, side, scale) in FLOORS else "different"
    assert (verdict(whole, rounded), verdict(rounded, whole)) == (expected, expected)
    x = np.arange(48, dtype=np.float32).reshape(1, 2, 4, 6)
    first, other = (run(program.proto, x, LEVELS[0])[0] for program in (whole, rounded))
    assert np.array_equal(first, other) == (expected == "equal")
    assert verdict(whole, resized("half_pixel", "floor", scale)) == "different"


@pytest.mark.parametrize(("scale", "expected"), [(1.5, "equal"), (0.25, "different")])
def test_half_pixels_as_pytorch_counts_them(scale: float, expected: str) -> None:
    """By 0.25 there is one row, which one of them takes from the first of four."""
    programs = [
        resized(mode, "floor", scale, "linear") for mode in ("half_pixel", "pytorch_half_pixel")
    ]
    assert verdict(*programs) == expected


@pytest.mark.parametrize(
    ("chosen", "product"),
    [
        ("q = Log (v)  y = Where (n, zero, q)", "q = Log (v)  k = Where (n, zero, one)"),
        (
            "q = Identity (low)  y = Where (n, q, zero)",
            "q = Identity (low)  k = Where (n, one, zero)",
        ),
    ],
)
def test_a_where_hides_what_a_factor_of_0_does_not(chosen: str, product: str) -> None:
    """Log of a negative number is NaN, and so is 0 * -Inf."""
    low = np.float32(-np.inf)
    where = model(f"n = Less (v, zero)  {chosen}", low=low)
    factor = model(f"n = Less (v, zero)  {product}  y = Mul (k, q)", low=low)
    assert verdict(where, factor) == "different"


def recurrent(op_type: str, attributes: str) -> Program:
    text = f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[3, 2, 5] x) => (float[3, a, 2, 7] y) {{
        y = {op_type} <hidden_size = 7, {attributes}> (x, w, r) }}"""
    proto = onnx.parser.parse_model(text)
    rows = {"GRU": 3, "LSTM": 4, "RNN": 1}[op_type] * 7
    directions = 1 + ("bidirectional" in attributes)
    for name, columns in (("w", 5), ("r", 7)):
        array = np.ones((directions, rows, columns), np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return Program.of(proto, None)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(
    ("op_type", "names", "others"),
    [
        ("GRU", ["Sigmoid", "Tanh"], ["Tanh", "Sigmoid"]),
        ("LSTM", ["Sigmoid", "Tanh", "Tanh"], ["Sigmoid", "Tanh", "Relu"]),
        ("RNN", ["Tanh"], ["Relu"]),
    ],
)
def test_activations_that_are_left_out(
    op_type: str, names: list[str], others: list[str], direction: str
) -> None:
    count = 2 if direction == "bidirectional" else 1
    bare = recurrent(op_type, f'direction = "{direction}"')
    listed, changed = (
        recurrent(op_type, f'direction = "{direction}", activations = {json.dumps(item * count)}')
        for item in (names, others)
    )
    assert verdict(bare, listed) == "equal"
    assert verdict(bare, changed) == "different"


def normalized(extents: str, spatial: int, epsilon: float = 0.5) -> Program:
    text = f"""<ir_version: 3, opset_import: ["": 8]>
        g (float[{extents}] x) => (float[{extents}] y)
        <float[3] s = {{1, 2, 3}}, float[3] b = {{5, 7, 9}}, float[3] v = {{0.5, 3.5, 8.5}}>
        {{ y = BatchNormalization <spatial = {spatial}, epsilon = {epsilon}> (x, s, b, b, v) }}"""
    return Program.of(onnx.parser.parse_model(text), None)


def test_normalization_of_every_position_where_a_channel_has_one() -> None:
    """Until opset 9, an attribute says whether all positions of a channel share their numbers."""
    alone, shared = (normalized("2, 3", spatial) for spatial in (0, 1))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(*(run(program.proto, x, LEVELS[0])[0] for program in (alone, shared)))
    assert verdict(alone, shared) == verdict(shared, alone) == "equal"
    above = float(np.nextafter(np.float32(0.5), np.float32(1)))
    assert verdict(alone, normalized("2, 3", 1, above)) == "different"
    lines = [normalized("2, 3, 1", spatial) for spatial in (0, 1)]
    assert verdict(*lines) != "equal"
