"""Constants that are results of others, rounded once, are taken as these; no others are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.evidence.proof.rounding import Operand, Rounded
from widthfold_onnx.results import Proof

Constants = dict[str, np.ndarray]

RNG = np.random.default_rng(7)
W = RNG.standard_normal((3, 2, 3)).astype(np.float32)
SCALE, SHIFT, MEAN, BIAS = RNG.standard_normal((4, 3)).astype(np.float32)
VARIANCE = RNG.uniform(0.5, 2, 3).astype(np.float32)
EPSILON = np.float32(1e-5)


def model(nodes: str, constants: Constants) -> Program:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 2, 7] x) => (float[2, 3, 5] y) {{ {nodes} }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return Program.of(proto, None)


def proof(first: Program, other: Program) -> Proof:
    return proof_report(first, other, ({},), {})


def single(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def one_unit_off(array: np.ndarray) -> np.ndarray:
    """Move the second number, or the only one, to the next float."""
    moved = array.copy()
    moved.flat[-2 % array.size] = np.nextafter(array.flat[-2 % array.size], np.float32(99))
    return moved


def normalized(shift: np.ndarray, bias: np.ndarray | None) -> tuple[Constants, Constants]:
    weight, scale, mean, variance, added = single(W, SCALE, MEAN, VARIANCE, shift)
    factor = scale / np.sqrt(variance + np.float64(EPSILON))
    start = -mean if bias is None else bias.astype(np.float64) - mean
    merged = {"w": rounded(weight * factor[:, None, None]), "b": rounded(start * factor + added)}
    return {"w": W, "s": SCALE, "b": shift, "m": MEAN, "v": VARIANCE}, merged


COLUMN = SCALE[:, None]
PLAIN, MERGED = normalized(SHIFT, None)
BIASED, MERGED_BIAS = normalized(SHIFT, BIAS)
WEIGHTS = {"w": W, "s": COLUMN}
SUMMED = {"w": W, "b": BIAS, "c": SHIFT[:, None]}
CASES = {
    "a BatchNormalization": (
        ("c = Conv (x, w)  y = BatchNormalization (c, s, b, m, v)", PLAIN),
        ("y = Conv (x, w, b)", MERGED),
        2,
    ),
    "a BatchNormalization behind a bias": (
        ("c = Conv (x, w, a)  y = BatchNormalization (c, s, b, m, v)", {**BIASED, "a": BIAS}),
        ("y = Conv (x, w, b)", MERGED_BIAS),
        2,
    ),
    "a factor": (
        ("c = Conv (x, w)  y = Mul (c, s)", WEIGHTS),
        ("y = Conv (x, w)", {"w": rounded(np.multiply(*single(W, SCALE[:, None, None])))}),
        1,
    ),
    "a sum of biases": (
        ("d = Conv (x, w, b)  y = Add (d, c)", SUMMED),
        ("y = Conv (x, w, b)", {"w": W, "b": BIAS + SHIFT}),
        1,
    ),
    "a difference": (
        ("d = Conv (x, w, b)  y = Sub (d, c)", SUMMED),
        ("y = Conv (x, w, b)", {"w": W, "b": BIAS - SHIFT}),
        1,
    ),
    "a factor and a sum": (
        ("d = Conv (x, w, b)  e = Mul (d, s)  y = Add (e, c)", {**SUMMED, "s": COLUMN}),
        (
            "y = Conv (x, w, b)",
            {
                "w": rounded(np.multiply(*single(W, SCALE[:, None, None]))),
                "b": rounded(np.add(*single(BIAS.astype(np.float64) * SCALE, SHIFT))),
            },
        ),
        2,
    ),
    "a reciprocal": (
        ("d = Conv (x, w)  y = Div (d, s)", WEIGHTS),
        ("d = Conv (x, w)  y = Mul (d, r)", {"w": W, "r": 1 / COLUMN}),
        1,
    ),
    "the reciprocal of a whole number": (
        ("d = Conv (x, w)  y = Div (d, k)", {"w": W, "k": np.float32(3)}),
        ("d = Conv (x, w)  y = Mul (d, r)", {"w": W, "r": np.float32([1 / 3])}),
        1,
    ),
    "the reciprocal of a power of two": (
        ("d = Conv (x, w)  y = Div (d, k)", {"w": W, "k": np.float32(4)}),
        ("d = Conv (x, w)  y = Mul (d, r)", {"w": W, "r": np.float32([1 / 4])}),
        0,
    ),
    "a Constant node": (
        ("d = Conv (x, w)  y = Div (d, k)", {"w": W, "k": np.float32(6)}),
        ("d = Conv (x, w)  r = Constant <value = float {0.16666667}> ()  y = Mul (d, r)", {"w": W}),
        1,
    ),
    "HardSwish": (
        ("d = Conv (x, w)  y = HardSwish (d)", {"w": W}),
        (
            "d = Conv (x, w)  t = Add (d, k)  u = Clip (t, z, s)  v = Mul (u, d)  y = Mul (v, r)",
            {
                "w": W,
                "k": np.float32(3),
                "z": np.float32(0),
                "s": np.float32(6),
                "r": np.float32([1 / 6]),
            },
        ),
        1,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_constant_that_was_rounded_once(case: str) -> None:
    before, after, count = CASES[case]
    for first, other in ((before, after), (after, before)):
        result = proof(model(*first), model(*other))
        assert (result.verdict, result.rounded) == ("equal", count), result.reason


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"a Constant node"}))
def test_one_unit_beside_the_rounded_result(case: str) -> None:
    before, (nodes, constants), _ = CASES[case]
    changed = [name for name, array in constants.items() if before[1].get(name) is not array]
    for name in changed:
        if (constants[name] % 1 == 0).all():
            continue
        wrong = model(nodes, {**constants, name: one_unit_off(constants[name])})
        for pair in ((model(*before), wrong), (wrong, model(*before))):
            assert proof(*pair).verdict != "equal", name


def test_a_number_that_was_rounded_twice_is_not_provable() -> None:
    """As where a tool computes in float32: each number is within a unit, but not within half."""
    (nodes, constants), (merged_nodes, _), _ = CASES["a BatchNormalization"]
    factor = SCALE / np.sqrt(VARIANCE + EPSILON)
    twice = {"w": W * factor[:, None, None], "b": SHIFT - MEAN * factor}
    assert (twice["w"] != MERGED["w"]).any()
    assert proof(model(nodes, constants), model(merged_nodes, twice)).verdict == "not provable"


def test_nodes_on_constants_are_exact() -> None:
    before = model("d = Conv (x, w)  y = Mul (d, s)", WEIGHTS)
    nodes = "k = Mul (w, f)  y = Conv (x, k)"
    after = {"w": W, "f": SCALE[:, None, None]}
    assert proof(before, model(nodes, after)).verdict == "equal"
    assert proof(before, model(nodes, after)).rounded == 0
    wrong = {**after, "f": one_unit_off(after["f"])}
    assert proof(before, model(nodes, wrong)).verdict != "equal"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_middle_of_two_floats_is_decided_exactly(dtype: type[np.floating]) -> None:
    """1 + half a unit lies in the middle: both neighbours are nearest, a hair more leaves one."""
    unit = float(np.finfo(dtype).eps)
    one, half = (Operand(np.array([number], dtype)) for number in (1, unit / 2))
    hair = Operand(np.array([2.0**-24 if dtype == np.float16 else 2.0**-126], dtype))
    below, above = np.array([1], dtype), np.array([1 + unit], dtype)
    for stored in (below, above):
        assert Rounded(lambda a, b: a + b, [one, half], stored).is_nearest()
    more = [Rounded(lambda a, b, c: a + b + c, [one, half, hair], n) for n in (below, above)]
    assert [item.is_nearest() for item in more] == [False, True]
    less = [Rounded(lambda a, b, c: a + b - c, [one, half, hair], n) for n in (below, above)]
    assert [item.is_nearest() for item in less] == [True, False]


def test_an_exact_result_is_known_as_such() -> None:
    quarter, third = (
        Rounded(lambda a, b: a / b, [Operand(np.array(1.0)), Operand(np.array(n))], np.float32([r]))
        for n, r in ((4.0, 1 / 4), (3.0, 1 / 3))
    )
    assert quarter.is_exact()
    assert not third.is_exact()


def test_a_root_is_computed_in_many_digits() -> None:
    variance = np.float32([0.3, 1.7])
    root = Operand(variance, float(EPSILON))
    stored = rounded(1 / np.sqrt(variance.astype(np.float64) + np.float64(EPSILON)))
    one = Operand(np.array(1.0))
    assert Rounded(lambda a, b: a * b, [one, root], stored).is_nearest()
    wrong = one_unit_off(stored)
    assert not Rounded(lambda a, b: a * b, [one, root], wrong).is_nearest()
    assert not Rounded(lambda a, b: a * b, [one, root], stored).is_exact()
