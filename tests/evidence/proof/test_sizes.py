"""Extents at which models are evaluated: symbols that fixed shapes name, and bounds."""

from __future__ import annotations

import math

import onnx
import pytest

import widthfold_onnx as wf
from tests.evidence.mutants.proof import difference
from tests.rewrite.guards.guarded import guards, parsed
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.proof import proving
from widthfold_onnx.evidence.proof.program import Correspondence, Program
from widthfold_onnx.evidence.proof.sizes import (
    MAX_GUESSED,
    branch_tries,
    first_tries,
    second_tries,
    size_tests,
)
from widthfold_onnx.evidence.proof.values import Extents

PAIR = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 3, H, W] x, float[1, 3, H, W] z) => (float[1, 4, H, W] y) {
  c = Concat <axis = 1> (x, z)
  y = Conv <pads = [1, 1, 1, 1]> (c, w)
}"""
WEIGHTS = {"w": (4, 6, 3, 3)}


@pytest.mark.parametrize("sizes", [[(1, 3, 8, 12)], [(1, 3, 8, 12), (1, 3, 16, 20)]])
def test_a_symbol_of_a_fixed_shape_is_known_everywhere(sizes: list[tuple[int, ...]]) -> None:
    model = parsed(PAIR, **WEIGHTS)
    folded = wf.fold(model, factor=4, input_shape=[{"x": shape} for shape in sizes])
    assert folded != model
    old, fixed = Program.of(model, None), {"x": sizes[-1]}
    both = dict.fromkeys("xz", sizes[-1])
    ran_at = dict.fromkeys("xz", sizes[0])
    assert [next(first_tries(old, fixed, at)) for at in ({}, ran_at)] == [both, both]
    assert list(second_tries(old, fixed, both)) == []


MASKED = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 3, T] x, float[T] mask) => (float[1, 4, T] y) {
  q = Mul (x, mask)
  y = Conv <pads = [1, 1]> (q, w)
}"""


def test_a_length_that_a_mask_has_at_axis_0_is_no_batch() -> None:
    old = Program.of(parsed(MASKED, w=(4, 3, 3)), None)
    at_24 = {"x": (1, 3, 24), "mask": (24,)}
    assert next(first_tries(old, {}, {})) == at_24
    lengths = [shapes["mask"] for shapes in second_tries(old, {}, at_24)]
    assert lengths == [(25,), (23,), (47,), (48,)]


def test_a_run_that_lacks_an_input_tells_no_extents() -> None:
    old = Program.of(parsed(PAIR, **WEIGHTS), None)
    lacking = {"x": (1, 3, 8, 12)}
    named = first_tries(old, {}, {**lacking, "z": (1, 3, 8, 12)})
    assert next(named) == dict.fromkeys("xz", (1, 3, 8, 12))
    anonymous = parsed(PAIR.replace("float[1, 3, H, W] z", "float[1, 3, H, ?] z"), **WEIGHTS)
    assert next(first_tries(Program.of(anonymous, None), {}, lacking))["x"] == (1, 3, 24, 24)


def test_extents_that_nobody_names_are_bounded() -> None:
    """At 16384 everywhere the inputs of this model take 13 GB."""
    old = Program.of(parsed(PAIR, **WEIGHTS), None)
    tries = list(first_tries(old, {}, {}))
    elements = [sum(map(math.prod, shapes.values())) for shapes in tries]
    assert 1 << 18 < max(elements) <= MAX_GUESSED
    large = {"x": (1, 3, 4096, 4096)}
    assert next(first_tries(old, large, {})) == dict.fromkeys("xz", large["x"])


LAYERS = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 3, H, 8] x, float[M, 3, L, 7] z) => (float[N, 4, H, 8] a, float[M, 4, L, 7] b) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w)
  b = Conv <pads = [1, 1, 1, 1]> (z, w)
}"""


def test_folds_without_a_guard_may_fail_on_empty_tensors() -> None:
    """An empty batch is tried for the guard of one layer, and stops the other one."""
    model = parsed(LAYERS, w=(4, 3, 3, 3))
    folded = wf.fold(model, factor=4)
    assert len(guards(folded)) == 1
    (smallest,) = (node for node in folded.graph.node if node.op_type == "ReduceMin")
    smallest.op_type = "ReduceMax"  # a guard that takes an empty batch
    assert "b/widthfold/fold_reshape" in difference(model, folded)


ONE_INPUT = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 3, H, 8] x) => (float[N, 4, H, 7] b, float[N, 4, H, 8] a) {{
  begin = Constant <value_ints = [0]> ()
  end = Constant <value_ints = [7]> ()
  axis = Constant <value_ints = [3]> ()
  {nodes}
}}"""
UNGUARDED = "a = Conv <pads = [1, 1, 1, 1]> (x, w)"
GUARDED = "z = Slice (x, begin, end, axis) b = Conv <pads = [1, 1, 1, 1]> (z, w)"


def a_wrong_guard(nodes: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a model of two layers, and its fold by 4 with a guard that takes an empty batch."""
    model = parsed(ONE_INPUT.format(nodes=nodes), w=(4, 3, 3, 3))
    folded = wf.fold(model, factor=4)
    assert difference(model, folded) == ""
    (smallest,) = (node for node in folded.graph.node if node.op_type == "ReduceMin")
    smallest.op_type = "ReduceMax"
    return model, folded


@pytest.mark.parametrize("nodes", [f"{GUARDED} {UNGUARDED}", f"{UNGUARDED} {GUARDED}"])
def test_a_fold_without_a_guard_does_not_hide_a_wrong_guard_of_the_same_input(nodes: str) -> None:
    """On an empty batch both layers stop; only the fold of `a` may."""
    assert "b/widthfold/fold_reshape" in difference(*a_wrong_guard(nodes))


def test_a_difference_on_empty_inputs_counts_where_no_run_excuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = parsed(LAYERS, w=(4, 3, 3, 3))
    folded = wf.fold(model, factor=4)
    prove = proving.prove

    def unable(both: object, shapes: object, forced: frozenset[str] = frozenset()) -> object:
        if forced:
            raise UnverifiedError("the proof needs more memory than there is")
        return prove(both, shapes, forced)

    monkeypatch.setattr(proving, "prove", unable)
    assert "a/widthfold" in difference(model, folded)


TWO_GUARDS = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 3, W] x) => (float[N, 3, W] y) <float o = {0}> {
  last = Constant <value = int64[1] {2}> ()
  first = Constant <value = int64[1] {0}> ()
  zero = Constant <value = int64[1] {0}> ()
  two = Constant <value = int64[1] {2}> ()
  s = Shape (x)
  g = Gather (s, last)
  d = Sub (g, zero)
  m = Mod (d, two)
  c = Equal (m, zero)
  a = If (c) <then_branch = t () => (float[N, 3, W] p) { p = Relu (x) },
    else_branch = e () => (float[N, 3, W] q) { q = Max (x, o) }>
  u = Shape (a)
  h = Gather (u, first)
  f = Sub (h, zero)
  n = Mod (f, two)
  b = Equal (n, zero)
  y = If (b) <then_branch = t () => (float[N, 3, W] r) { r = Neg (a) },
    else_branch = e () => (float[N, 3, W] v) { v = Neg (a) }>
}"""


def test_an_if_chooses_by_its_own_test_and_by_none_that_stands_before() -> None:
    program = Program.of(parsed(TWO_GUARDS), None)
    tests = {test.value: test.choosers for test in size_tests(program)}
    assert tests == {"x": {"a"}, "a": {"y"}}
    tries = branch_tries(program, program, {"x": (3, 3, 5)}, lambda: ["y"], lambda _: True)
    assert len({shapes["x"][0] % 2 for shapes in tries}) == 2


HALVED = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 2, W] x) => (float[1, 2, W] y) <float[3] scales = {1, 1, 2}> {
  p = MaxPool <kernel_shape = [2], strides = [2]> (x)
  u = Resize (p, , scales)
  s = Add (u, x)
  y = Conv <pads = [1, 1]> (s, w)
}"""


def test_extents_at_which_operands_do_not_fit_are_not_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = parsed(HALVED, w=(2, 2, 3))
    seen: list[int] = []
    prove = proving.prove

    def recorded(models: Correspondence, shapes: Extents, *more: object) -> proving.SizeProof:
        seen.append(shapes["x"][2])
        return prove(models, shapes, *more)

    monkeypatch.setattr(proving, "prove", recorded)
    folded = wf.fold(model, factor=4, ragged=False)
    assert guards(folded)
    assert 20 in seen  # a multiple of the guard's modulus
    assert 21 not in seen


RESIZED = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 3, H, W] x, float[1, 3, L, 4] z) => (float[1, 3, H2, W2] y) {{
  shape = Shape ({of})
  h = Gather (shape, {first})
  w = Gather (shape, {second})
  sizes = Concat <axis = 0> (one, three, h, w)
  half = AveragePool <kernel_shape = [2, 1], strides = [2, 1]> (x)
  y = Resize <mode = "nearest"> (half, , , sizes)
}}"""
PLACES = "<int64[1] one = {1}, int64[1] three = {3}, int64[1] two = {2}, int64[1] last = {3}>"


def resized(of: str, first: str, second: str) -> onnx.ModelProto:
    text = RESIZED.format(of=of, first=first, second=second)
    return onnx.parser.parse_model(text.replace("y) {", f"y) {PLACES} {{", 1))


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        (("x", "two", "last"), "equal"),
        (("x", "last", "two"), "different"),  # height and width exchanged
        (("z", "two", "last"), "different"),  # the Shape of another input
    ],
)
def test_open_dimensions_of_different_names_differ(new: tuple[str, str, str], verdict: str) -> None:
    old = Program.of(resized("x", "two", "last"), None)
    proof = proving.proof_report(old, Program.of(resized(*new), None), ({},), {})
    assert proof.verdict == verdict
    alike = {"x": (1, 3, 64, 64), "z": (1, 3, 64, 4)}
    ran = proving.proof_report(old, Program.of(resized(*new), None), ({},), alike)
    assert ran.verdict == verdict, "the run had equal extents"


@pytest.mark.parametrize(
    ("join", "verdict"),
    [
        ("Concat <axis = 1> (x, z)", "equal"),  # H is W, or nothing runs
        ("Add (x, z)", "different"),  # or one of them is 1
        ("Concat <axis = 0> (x, z)", "different"),
    ],
)
def test_only_dimensions_that_may_differ_are_told_apart(join: str, verdict: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    main (float[H, 3] x, float[W, 3] z) => (float[A, B] y, int64[2] n)
    {{ y = {join}  n = Shape (NAME) }}"""
    models = (onnx.parser.parse_model(text.replace("NAME", name)) for name in "xz")
    old, new = (Program.of(model, None) for model in models)
    at = {"x": (8, 3), "z": (8, 3)}
    assert proving.proof_report(old, new, ({},), at).verdict == verdict
    assert proving.proof_report(old, old, ({},), at).verdict == "equal"


def test_extents_of_one_are_tried() -> None:
    """This Expand changes nothing but a length of 1."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[2, 3, L] x) => (float[2, 3, K] y) <int64[3] least = {{2, 3, 2}}> {{ {nodes} }}"""
    nodes = (
        "n = Shape (x)  m = Max (n, least)  y = Expand (x, m)",
        "y = Identity (x)",
    )
    old, new = (Program.of(onnx.parser.parse_model(text.format(nodes=n)), None) for n in nodes)
    report = proving.proof_report(old, new, ({},), {})
    assert report.verdict == "different"
    assert report.extents[-1] == {"x": [2, 3, 1]}
