"""Declared extents that do not hold are found, named and not used."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.model.shapes.facts import check
from tests.model.shapes.shaped import parsed
from widthfold_onnx.model.shapes import declarations, table
from widthfold_onnx.model.shapes.declarations import (
    WrongDeclaration,
    contradict,
    declaration_remarks,
)
from widthfold_onnx.model.shapes.table import Derivation, ShapeTable, inputs_of

OPEN = """(float[{x}] x) => (float[{y}] y) <float[{r}] r> {{
  r = Relu (x)
  y = Neg (r)
}}"""


def stale(x: str, r: str, y: str = "n, 3, t") -> onnx.ModelProto:
    return parsed(OPEN.format(x=x, r=r, y=y))


def wrong_names(shapes: ShapeTable) -> dict[str, object]:
    return {item.name: (item.declared, item.found) for item in shapes.wrong_declarations}


def test_an_extent_that_follows_from_an_open_input_is_not_the_declared_one():
    shapes = ShapeTable(stale("n, 3, t", "1, 3, 17"), {})
    assert shapes.get("", "r") == shapes.get("", "y") == (None, 3, None)
    assert wrong_names(shapes) == {"r": ((1, 3, 17), (None, 3, None))}


def test_sizes_of_a_caller_tell_what_the_extent_is():
    model = stale("n, 3, t", "1, 3, 17", y="n, 3, 17")
    shapes = ShapeTable(model, {"x": (2, 3, 19)})
    found = (2, 3, 19)
    assert wrong_names(shapes) == {"r": ((1, 3, 17), found), "y": ((None, 3, 17), found)}
    at_declared = ShapeTable(model, {"x": (1, 3, 17)})
    assert not at_declared.wrong_declarations


def test_another_rank_is_wrong_and_symbols_are_not():
    shapes = ShapeTable(stale("2, 3, 5", "6, 5"), {})
    assert wrong_names(shapes) == {"r": ((6, 5), (2, 3, 5))}
    assert not ShapeTable(stale("n, 3, t", "batch, c, length"), {}).wrong_declarations


BEHIND = """(float[n, 3, t] x) => (float[n, a, b] y) <float[{u}] u, float[{r}] r> {{
  u = acme.Unknown (x)
  r = Relu (u)
  y = Neg (r)
}}"""


def test_a_declaration_stays_where_inference_knows_nothing_else():
    shapes = ShapeTable(parsed(BEHIND.format(u="2, 4, 7", r="2, 4, 7")), {})
    assert shapes.get("", "y") == (2, 4, 7)
    assert not shapes.wrong_declarations


def test_two_declarations_that_contradict_each_other_name_the_later_one():
    shapes = ShapeTable(parsed(BEHIND.format(u="2, 4, 7", r="2, 4, 9")), {})
    assert wrong_names(shapes) == {"r": ((2, 4, 9), (2, 4, 7))}


def test_sizes_that_a_model_cannot_have_judge_nothing():
    """Only 17 steps fit the matrix, so that a declared 17 may be right."""
    text = """(float[n, t] x) => (float[n, 2] y) <float[1, 17] r> {
      r = Relu (x)
      y = MatMul (r, w)
    }"""
    model = parsed(text, w=np.random.default_rng(0).integers(-3, 4, (17, 2)).astype("float32"))
    shapes = ShapeTable(model, {})
    assert shapes.get("", "r") == (1, 17)
    assert not shapes.wrong_declarations


def test_a_branch_is_judged_and_a_loop_is_not():
    text = """(float[n, 3] x, bool c, int64 k) => (float[a, b] y, float[d, e] z) {
      y = If (c) <
        then_branch = yes () => (float[5, 3] p) <float[5, 3] q> { q = Neg (x) p = Relu (q) },
        else_branch = no () => (float[5, 3] s) { s = Neg (x) }>
      z = Loop (k, c, x) <body = turn (int64 i, bool on, float[n, 3] v)
        => (bool go, float[m, 3] w) <float[7, 3] u>
        { go = Identity (on) u = Neg (v) w = Relu (u) }>
    }"""
    shapes = ShapeTable(parsed(text), {})
    assert shapes.get("y/then_branch", "q") == (None, 3)
    assert shapes.get("", "y") == (None, 3)
    places = {(item.path, item.name) for item in shapes.wrong_declarations}
    assert places == {
        ("y/then_branch", "p"),
        ("y/then_branch", "q"),
        ("y/else_branch", "s"),
    }


def test_a_derivation_forgets_what_it_derived_from_a_wrong_declaration():
    model = stale("n, 3, t", "1, 3, 17", y="n, 3, 17")
    derivation = Derivation(model)
    first = ShapeTable(model, {"x": (1, 3, 17)}, derivation)
    assert first.get("", "y") == (1, 3, 17)
    assert ShapeTable(model, {}, derivation).get("", "y") == (None, 3, None)
    assert derivation.dropped == {("", "r"), ("", "y")}


def test_facts_hold_for_what_the_runtime_computes():
    x = np.random.default_rng(1).integers(-5, 6, (2, 3, 19)).astype("float32")
    check(stale("n, 3, t", "1, 3, 17"), {"x": x})


def test_nothing_is_derived_twice_where_declarations_fill_no_gap(monkeypatch):
    seen = []
    monkeypatch.setattr(table, "probes", lambda *args: seen.append(args) or iter(()))
    ShapeTable(stale("2, 3, 5", "2, 3, 5"), {})
    ShapeTable(stale("n, 3, t", "n, 3, t"), {})
    assert not seen
    ShapeTable(stale("n, 3, t", "n, 3, 5"), {})
    assert seen


def test_probes_give_one_extent_to_one_name():
    model = parsed("(float[n, t] x, float[t, m] z, float[2] k) => (y) { y = MatMul (x, z) }")
    dims = {"x": ("n", "t"), "z": ("t", "m"), "k": (2,)}
    facts = inputs_of(model, {})
    alike, apart = declarations.probes(dims, facts)
    assert [alike[name].dims for name in "xzk"] == [(960, 960), (960, 960), (2,)]
    assert [apart[name].dims for name in "xzk"] == [(1009, 2022), (2022, 3035), (2,)]


@pytest.mark.parametrize(
    ("declared", "found", "answer"),
    [
        (None, (1,), False),
        ((1,), None, False),
        ((), (), False),
        ((), (1,), True),
        ((None, 2), (3, None), False),
        ((None, 2), (3, 1), True),
    ],
)
def test_what_contradicts(declared, found, answer):
    assert contradict(declared, found) is answer


def test_the_remark():
    one = WrongDeclaration("", "r", (1, None), (2, 3))
    text = "the model declares [1, ?] for r, which is [2, 3]; this declaration is not used"
    assert declaration_remarks("the model", [one]) == [text]
    both = [f"{text}; values that are declared wrong: 2"]
    assert declaration_remarks("the model", [one, one]) == both
    assert not declaration_remarks("the model", [])
