"""Companions stand wherever nodes stand, by name, and every one has a rule of its own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.folding import exchange_all, fold_model
from tests.rewrite.proved import assert_proved
from tests.rules.companions.prelu import LEAKY, MAX, PRELU, WHERE, net, replacements
from tests.rules.companions.prelu import keeping_inf as keeping_inf
from tests.running import run
from tests.small_models import build
from widthfold_onnx import UsageError
from widthfold_onnx.options import Companion, FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.exchange import exchanged, find_matches
from widthfold_onnx.rules.companions import COMPANIONS
from widthfold_onnx.runtime import kernels

SHARED = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
net (float[1,3,7] x, bool b) => (float[1,3,7] y, float[1,3,7] a, float[1,3,7] i)
<float[1] t = {0.5}, float[3,1] u = {0.5, -0.5, 2.0}, int8[3,1] q = {1, 2, 3}, float f = {0.25}>
{ s = DequantizeLinear (q, f)
  a = PRelu (x, s)  c = PRelu (a, s)  d = PRelu (c, t)  g = own.act (d)
  i = If (b) <then_branch = one () => (float[1,3,7] p) { p = PRelu (d, u) },
              else_branch = two () => (float[1,3,7] r) { k = PRelu (g, t)  r = PRelu (k, u) }>
  y = Neg (i) }
<domain: "own", opset_import: ["" : 17]> act (m) => (n)
{ v = Constant<value_float = 0.3> ()  n = PRelu (m, v) }"""


OTHER_OPSET = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
net (float[2,3] x) => (float[2,3] y) { y = own.act (x) }
<domain: "own", opset_import: ["" : 13]> act (m) => (n)
{ v = Constant<value_float = 0.3> ()  n = PRelu (m, v) }"""


def test_companions_stand_in_bodies_and_functions_and_share_constants() -> None:
    before = parser.parse_model(SHARED)
    after, matches = exchange_all(before, PRELU)
    assert sorted(match.replacements for match in matches) == sorted(
        [MAX, MAX, LEAKY, LEAKY, LEAKY, WHERE, WHERE]
    )
    onnx.checker.check_model(after, full_check=True)
    assert_proved(before, after, 0)
    rng = np.random.default_rng(0)
    for chosen in (True, False):
        feeds = {"x": rng.standard_normal((1, 3, 7)).astype(np.float32), "b": np.array(chosen)}
        for expected, result in zip(run(before, feeds), run(after, feeds), strict=True):
            assert expected.tobytes() == result.tobytes()
    names = [tensor.name for tensor in after.graph.initializer]
    assert "t" not in names  # LeakyRelu does not read it
    assert "u" in names
    assert exchange_all(after, PRELU) == (after, [])


CROPPED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2,3,11] x) => (float[2,5,11] y)
<float[5,3,3] w, float[5,1] u = {0.5, -0.5, 2.0, 0.0, 1.5}, float[1] t = {0.25},
 int64[1] z = {0}, int64[1] e = {-2}, int64[1] a = {2}>
{ [conv] c = Conv <pads = [2,2]> (x, w)
  [one] p = PRelu (c, u)
  [two] q = PRelu (p, t)
  y = Slice (q, z, e, a) }"""


@pytest.mark.parametrize("ragged", [False, True])
def test_what_a_crop_copies_is_exchanged_by_other_companions(ragged: bool) -> None:
    before = build(CROPPED)
    (weight,) = [tensor for tensor in before.graph.initializer if tensor.name == "w"]
    numbers = np.random.default_rng(3).integers(-4, 5, (5, 3, 3)).astype(np.float32)
    weight.CopyFrom(numpy_helper.from_array(numbers, "w"))
    after, matches = exchange_all(before, (Companion.CROP, *PRELU))
    assert len(matches) == 3
    assert [node.op_type for node in after.graph.node] == ["Conv", *WHERE, *LEAKY]
    names = [node.name for node in after.graph.node]
    assert (names[0], *names[3:]) == ("conv", "one", "two")
    assert len(set(names)) == len(names)
    folded, (site,) = fold_model(
        before, FoldOptions(factor=3, ragged=ragged, companions=(Companion.CROP, Companion.PRELU))
    )
    assert site.status == ("folded" if ragged else "refused")
    x = np.random.default_rng(5).integers(-9, 10, (2, 3, 11)).astype(np.float32)
    for result in (after, folded):
        assert_proved(before, result, int(result is folded and ragged))
        np.testing.assert_array_equal(run(result, x), run(before, x))


def test_a_function_that_cannot_be_inlined_is_refused() -> None:
    result = replacements(parser.parse_model(OTHER_OPSET))
    assert isinstance(result, Refusal)
    assert result.code == Code.IN_FUNCTION


def test_a_companion_is_asked_for_by_its_name() -> None:
    model = net("float[3,1] s = {0.5, 0.25, 0.75}")
    for name in ("prelu", Companion.PRELU):
        result, _ = fold_model(model, FoldOptions(factor=8, companions=(name,)))
        assert [node.op_type for node in result.graph.node] == list(MAX)
    assert fold_model(model, FoldOptions(factor=8))[0] == model
    assert set(FoldOptions().active_companions) == set(COMPANIONS)
    assert FoldOptions(companions=("none",)).active_companions == ()
    for wrong in ("prelu", ("relu",), ("none", "prelu")):
        with pytest.raises(UsageError, match="companion"):
            FoldOptions(companions=wrong)


def test_every_companion_has_a_rule() -> None:
    assert set(COMPANIONS) == set(Companion) - {Companion.NONE}
    assert len(COMPANIONS) <= 5


def test_no_two_companions_match_the_same_operator() -> None:
    op_types = [op_type for rule in COMPANIONS.values() for op_type in rule.op_types]
    assert len(op_types) == len(set(op_types))


def test_the_runtime_is_asked_where_it_is_decided_and_not_in_a_rewriting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, asked = net("float[3,1] s = {0.3, 0.5, 1.0}"), list[bool]()
    monkeypatch.setattr(kernels, "prelu_keeps_inf", lambda: asked.append(True) or True)
    assert not find_matches(model, None, [Companion.CROP]) + asked
    (match,) = find_matches(model, None, PRELU)
    assert asked == [True]
    result, _ = exchanged(model, None, [(match.companion, match.name)])
    assert [node.op_type for node in result.graph.node] == [*MAX]
    assert asked == [True]
