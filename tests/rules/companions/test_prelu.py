"""The companions of PRelu return the same bits, or say why they do not replace it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests.folding import exchange_all, fold_model
from tests.lacking import needs_prelu
from tests.rewrite.proved import assert_proved
from tests.rules.companions.prelu import LEAKY, MAX, MIN, PRELU, WHERE, net, replacements
from tests.rules.companions.prelu import keeping_inf as keeping_inf
from tests.running import run
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.runtime import kernels

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
TINY = float(np.finfo(np.float32).tiny)
EDGES = (
    *(0.0, np.inf, np.nan, 1e-45, 1e-40, TINY, 1.5 * TINY, 0.1, 1.0, 1.0 + 2**-23, 3.0, 1e19),
    np.finfo(np.float32).max,
)


def bits(array: np.ndarray) -> bytes:
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


def edges(channels: int) -> np.ndarray:
    """Every special number of both signs in every channel."""
    line = np.array([*EDGES, *(-n for n in EDGES)], np.float32)
    return np.ascontiguousarray(np.broadcast_to(line, (1, channels, line.size)))


def test_prelu_stays_where_the_runtime_makes_nan_of_inf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "prelu_keeps_inf", lambda: False)
    result = replacements(net("float[3,1] s = {0.3, 0.5, 1.0}"))
    assert isinstance(result, Refusal)
    assert (result.code, "NaN for an Inf" in result.reason) == (Code.INEXACT, True)


@needs_prelu
@pytest.mark.parametrize(
    ("slopes", "expected_ops"),
    [
        *(([s], LEAKY) for s in (0.25, 1.0, 0.0, -0.0, -0.5, 1.5, 1e-40, 3e38, np.inf)),
        ([0.3, 0.3, 0.3], LEAKY),
        ([0.3, 0.5, 1.0], MAX),
        ([TINY, 0.5, 1.0], MAX),
        ([-1.0, 0.5, 1.0], MAX),
        ([-3e38, -0.5, -TINY], MAX),
        ([1.0, 1.5, 3e38], MIN),
        ([0.0, 0.5, 0.0], WHERE),
        ([1e-40, 0.5, 1.0], WHERE),
        ([-1e-40, 0.5, 1.0], WHERE),
        ([-np.inf, 0.5, 1.0], WHERE),
        ([-1.0, 0.5, 2.0], WHERE),
        ([0.5, 2.0, 0.0], WHERE),
        ([1.0, 2.0, np.inf], WHERE),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_every_form_returns_the_same_bits(
    slopes: list[float], expected_ops: tuple[str, ...], level: str
) -> None:
    channels = max(len(slopes), 2)
    x, s = edges(channels), np.array(slopes, np.float32).reshape(-1, 1)
    before = net("float s = {0}", ",".join(map(str, x.shape)))
    before.graph.initializer[0].CopyFrom(numpy_helper.from_array(s, "s"))
    after, (match,) = exchange_all(before, PRELU)
    assert match.replacements == expected_ops
    (expected,), (result,) = run(before, x), run(after, x, level)
    with np.errstate(all="ignore"):
        defined = np.where(x < 0, x * s, x)
    assert bits(result) == bits(expected) == bits(defined)
    if np.isfinite(s).all():
        assert_proved(before, after, 0)


@needs_prelu
def test_only_the_sign_of_zeros_at_the_end_differs_from_prelu() -> None:
    """The slope is below 0; the runtime's Max returns another one of two zeros there."""
    before = net("float[3,1] s = {-0.5, -1.0, 0.5}")
    after, (match,) = exchange_all(before, PRELU)
    assert match.replacements == MAX
    x = np.array([0.0, -0.0, -1.5] * 14, np.float32).reshape(2, 3, 7)
    (expected,), (result,) = run(before, x), run(after, x)
    np.testing.assert_array_equal(result, expected)
    assert bits(result.ravel()[:40]) == bits(expected.ravel()[:40])


@needs_prelu
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("slope", [0.25, 0.0, -0.5, 1.5])
def test_a_fused_companion_returns_the_same_bits(slope: float, level: str) -> None:
    """The runtime computes a LeakyRelu in the Conv before it."""
    x = edges(16)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,16,{x.shape[2]}] x) => (float[1,16,{x.shape[2]}] y) <float[1] s = {{{slope}}}>
    {{ c = Conv<group=16>(x, w)  y = PRelu (c, s) }}"""
    before = parser.parse_model(text)
    weight = np.ones((16, 1, 1), np.float32)
    before.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    after, _ = exchange_all(before, PRELU)
    assert bits(run(after, x, level)[0]) == bits(run(before, x)[0])


@pytest.mark.parametrize(
    ("slope", "expected_ops"),
    [
        ("float s = {0.5}", LEAKY),
        ("float[1,3,1] s = {0.5, 0.25, 0.75}", MAX),
        ("float[7] s = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}", MAX),
        ("float[2,3,7] s = {{{}}}".format(", ".join(["0.5"] * 41 + ["0.25"])), MAX),
        ("float[1,1,1,1] s = {0.5}", Code.INCONSISTENT_SHAPES),
        ("float[2] s = {0.5, 0.5}", Code.INCONSISTENT_SHAPES),
    ],
)
def test_slopes_are_broadcast_to_the_data_alone(
    slope: str, expected_ops: tuple[str, ...] | Code
) -> None:
    result = replacements(net(slope))
    assert (result.code if isinstance(result, Refusal) else result) == expected_ops


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (net("float s = {0.5}", opset=6, ir=3), Code.OPSET_TOO_OLD),
        (net("float[3,1] s = {-0.5, 0.5, 2.0}", opset=8, ir=4), Code.OPSET_TOO_OLD),
        (net("float[3,1] s = {-0.0, 0.5, 2.0}"), Code.INEXACT),
        (net("float[3,1] s = {0.5, 0.5, 0.5}", "2,c,7"), Code.INCONSISTENT_SHAPES),
    ],
)
def test_refusals(model: onnx.ModelProto, code: Code) -> None:
    result = replacements(model)
    assert isinstance(result, Refusal)
    assert result.code == code


def test_an_overridable_slope_is_refused_and_one_of_ir_version_3_is_not() -> None:
    for ir, expected_ops in ((3, LEAKY), (4, Code.OVERRIDABLE)):
        model = net("float s = {0.5}", opset=9, ir=ir)
        model.graph.input.append(helper.make_tensor_value_info("s", 1, []))
        result = replacements(model)
        assert (result.code if isinstance(result, Refusal) else result) == expected_ops


def test_a_computed_slope_is_refused() -> None:
    model = net("float t = {0.5}")
    model.graph.node.insert(0, helper.make_node("ReduceMax", ["x"], ["s"], keepdims=0))
    result = replacements(model)
    assert isinstance(result, Refusal)
    assert result.code == Code.NOT_CONSTANT


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_a_type_has_its_own_numbers(kind: str) -> None:
    """A float32 attribute holds 0.25 exactly, and not every double."""
    for number, expected_ops in ((0.25, LEAKY), (0.3, LEAKY if kind == "float16" else MAX)):
        array = np.array([number], kind)
        model = net("float t = {0}")
        del model.graph.initializer[:]
        model.graph.initializer.append(numpy_helper.from_array(array, "s"))
        for port in (*model.graph.input, *model.graph.output):
            port.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        assert replacements(model) == expected_ops
        assert_proved(model, exchange_all(model, PRELU)[0], 0)


def test_half_floats_return_the_same_bits() -> None:
    x = np.array([0, -0.0, 6e-8, -6e-8, -1, 1, -3.3, np.inf, -np.inf, -6e4], np.float16)
    for numbers in ([0.3, 0.7], [1.5, 2.5], [-1.5, 0.5]):
        slopes = np.array(numbers, np.float16).reshape(2, 1)
        text = """<ir_version: 8, opset_import: ["" : 17]>
        net (float16[1,2,10] x) => (float16[1,2,10] y) { y = PRelu (x, s) }"""
        before = parser.parse_model(text)
        before.graph.initializer.append(numpy_helper.from_array(slopes, "s"))
        after, _ = exchange_all(before, PRELU)
        feed = np.stack([x, x])[None]
        for level in LEVELS:
            assert run(after, feed, level)[0].tobytes() == run(before, feed)[0].tobytes()


@pytest.mark.parametrize(
    "slopes", ["0.5, 0.5, 0.5", "0.5, 0.25, 1.0", "2.0, 1.0, 3.0", "0.0, 2.0, -1"]
)
def test_a_companion_stays_packed_between_folds(slopes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,2,32] x) => (float[1,4,32] y) <float[3,1] s = {{{slopes}}}>
    {{ c = Conv<pads=[1,1]>(x, v)  p = PRelu (c, s)  y = Conv<pads=[1,1]>(p, w) }}"""
    before = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("v", (3, 2, 3)), ("w", (4, 3, 3))):
        weight = rng.integers(-4, 5, shape).astype(np.float32)
        before.graph.initializer.append(numpy_helper.from_array(weight, name))
    folded, _ = fold_model(exchange_all(before, PRELU)[0], FoldOptions(factor=4))
    moves = [node.op_type for node in folded.graph.node if node.op_type in ("Reshape", "Transpose")]
    alone, _ = fold_model(before, FoldOptions(factor=4))
    assert len(moves) == sum(n.op_type in ("Reshape", "Transpose") for n in alone.graph.node) == 6
    assert_proved(before, folded, 2)
    x = rng.integers(-4, 5, (1, 2, 32)).astype(np.float32)
    assert run(folded, x)[0].tobytes() == run(before, x)[0].tobytes()
