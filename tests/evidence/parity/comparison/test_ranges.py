"""What limits numbers is reached from both sides by some input set, whatever the type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.evidence.compared import HEAD, compare_models, compared
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.inputs.cases import for_model

OPTIONS = VerifyOptions(provider=Provider.CPU, truth_work=0)
PLAIN = "y = Cast<to = 1>(x)"
LIMITS = {
    "wraps at 8 bits": ("int32", "a = Cast<to = 2>(x) y = Cast<to = 1>(a)"),
    "wraps at 8 signed bits": ("int32", "a = Cast<to = 3>(x) y = Cast<to = 1>(a)"),
    "wraps at 16 bits": ("int64", "a = Cast<to = 5>(x) y = Cast<to = 1>(a)"),
    "wraps at 32 bits": ("int64", "a = Cast<to = 6>(x) y = Cast<to = 1>(a)"),
    "wraps at 32 unsigned bits": ("int64", "a = Cast<to = 12>(x) y = Cast<to = 1>(a)"),
    "wraps unsigned numbers": ("uint16", "a = Cast<to = 5>(x) y = Cast<to = 1>(a)"),
    "wraps unsigned bytes": ("uint8", "a = Cast<to = 3>(x) y = Cast<to = 1>(a)"),
    "sign of samples": ("int16", "a = Cast<to = 1>(x) y = Abs(a)"),
    "sign of bytes": ("int8", "a = Cast<to = 1>(x) y = Abs(a)"),
    "sign": ("int64", "a = Abs(x) y = Cast<to = 1>(a)"),
    "remainder": ("int32", "m = Constant<value = int32 {256}>() a = Mod(x, m) y = Cast<to = 1>(a)"),
    "upper limit": (
        "int32",
        "h = Constant<value = int32 {1000}>() a = Min(x, h) y = Cast<to = 1>(a)",
    ),
    "lower limit": (
        "int32",
        "l = Constant<value = int32 {-9}>() a = Max(x, l) y = Cast<to = 1>(a)",
    ),
    "end of the type": (
        "int16",
        "l = Constant<value = int32 {-32767}>() a = Cast<to = 6>(x) b = Max(a, l) "
        "y = Cast<to = 1>(b)",
    ),
    "limits of floats": (
        "float",
        "h = Constant<value_float = 1000.0>() a = Min(x, h) y = Identity(a)",
    ),
    "lower limit of floats": ("float", "l = Constant<value_float = -1000.0>() y = Max(x, l)"),
    "sign of floats": ("float", "y = Abs(x)"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_is_gone_is_found(limit: str, tmp_path: Path) -> None:
    kind, body = LIMITS[limit]
    head = f"g ({kind}[1, 3, 64] x) => (float[1, 3, 64] y)"
    texts = [f"{head} {{ {text} }}" for text in (body, PLAIN)]
    assert compared(tmp_path, texts[0], texts[0], OPTIONS).verdict == "pass"
    for original, rewritten in (texts, texts[::-1]):
        assert compared(tmp_path, original, rewritten, OPTIONS).verdict == "fail"


@pytest.mark.parametrize(
    "body", ["a = Cast<to = 2>(x) y = Cast<to = 1>(a)", "a = Abs(x) y = Cast<to = 1>(a)"]
)
def test_a_limit_of_few_integers_that_is_gone_is_found(body: str, tmp_path: Path) -> None:
    texts = [f"g (int64[1, 3] x) => (float[1, 3] y) {{ {text} }}" for text in (body, PLAIN)]
    assert compared(tmp_path, texts[0], texts[0], OPTIONS).verdict == "pass"
    assert compared(tmp_path, *texts, OPTIONS).verdict == "fail"


MASKS = {
    "samples": ("int16", 6, 1000),
    "labels": ("int64", 7, 1000),
    "counts": ("uint32", 12, 4000),
    "pixels": ("uint8", 2, 200),
    "bytes": ("int8", 3, 100),
    "floats": ("float", 1, 1000),
    "halves": ("float16", 10, 50),
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("always", ["x", "z"])
def test_a_mask_that_is_gone_is_found(masks: str, always: str, tmp_path: Path) -> None:
    """Where the largest number is above a limit, all are returned, else zeros."""
    kind, _, limit = MASKS[masks]
    head = f"g ({kind}[1, 3, 64] x) => (float[1, 3, 64] y) <float limit = {{{limit}}}>"
    body = (
        " { f = Cast<to = 1>(x) m = ReduceMax(f) g = Greater(m, limit) c = Cast<to = 1>(g)"
        " z = Sub(f, f) n = Identity(f) y = %s }"
    )
    original = head + body % "Mul(f, c)"
    rewritten = head + body % ("Identity(f)" if always == "x" else "Identity(z)")
    assert compared(tmp_path, original, rewritten, OPTIONS).verdict == "fail"


def test_a_mask_of_truth_values_is_reached(tmp_path: Path) -> None:
    head = "g (bool[1, 64] x) => (float[1, 1] y)"
    every = head + " { f = Cast<to = 1>(x) y = ReduceMin(f) }"
    none = head + " { f = Cast<to = 1>(x) a = ReduceMin(f) y = Sub(a, a) }"
    assert compared(tmp_path, every, none, OPTIONS).verdict == "fail"


@pytest.mark.parametrize("rows", [1, 2, 4, 30])
def test_every_row_of_a_table_is_read(rows: int, tmp_path: Path) -> None:
    text = "g (int64[1, 200] i) => (float y) { y = Gather(t, i) }"
    paths = []
    for change in (0, 1):
        proto = parser.parse_model(HEAD + text)
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        table = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        table[-1] += change
        proto.graph.initializer.append(numpy_helper.from_array(table, "t"))
        paths.append(tmp_path / f"{change}.onnx")
        onnx.save(proto, paths[-1])
    options = for_model(OPTIONS, onnx.load(paths[0]))
    equal = compare_models(paths[0], paths[0], options)
    assert (equal.verdict, equal.input_sets, equal.reasons) == ("pass", 5, ())
    assert compare_models(*paths, options).verdict == "fail"


def test_a_set_whose_integers_stop_the_original_has_zeros_and_ones(tmp_path: Path) -> None:
    """The table is computed, so that its extent is not known before it runs."""
    text = (
        "g (float[7, 3] t, int64[1, 200] i) => (float[1, 200, 3] y)"
        " { a = Relu(t) y = Gather(a, i) }"
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    steps: list[str] = []
    result = compare_models(path, path, OPTIONS, send=lambda step: steps.append(step.text))
    assert (result.verdict, result.input_sets, result.reasons) == ("pass", 5, ())
    assert "original: seed 1, uniform 0 to 1, integers 0 and 1" in steps
