"""Numbers that stand beside extents, and models that differ beyond them alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from widthfold_onnx.evidence.proof.bounds import size_bounds
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.results import Proof

TEXT = """<ir_version: 8, opset_import: ["" : {opset}]>
main (float[N, T, 2] x) => (float[A, B, C] y) <
  int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
  int64[1] bound = {{{bound}}}, int64[1] last = {{-{bound}}},
  float[1] limit = {{{bound}.0}}, float[1] past = {{{bound}.5}},
  double single = {{{bound}.5}}, int64[1] none = {{9223372036854775807}},
  int64[3] still = {{0, 0, 0}}, float nought = {{0}}, int64 start = {{0}}, int64 step = {{1}}
> {{ s = Shape (x)  t = Gather (s, one)  {nodes} }}"""

SLICED = "y = Slice (x, zero, bound, one)"
SAME = "y = Identity (x)"
BEYOND = {
    "the end of a Slice": (SLICED, SAME),
    "its begin, from the end": ("y = Slice (x, last, none, one)", SAME),
    "an end that is cast": (
        "e = Cast <to = 7> (limit)  y = Slice (x, zero, e, one)",
        SAME,
    ),
    "a compared extent": (
        "c = Less (bound, t)  n = Neg (x)  y = Where (c, n, x)",
        SAME,
    ),
    "a compared float": (
        "f = Cast <to = 1> (t)  c = Less (limit, f)  n = Neg (x)  y = Where (c, n, x)",
        SAME,
    ),
    "a float between two extents": (
        "f = Cast <to = 1> (t)  c = Greater (f, past)  n = Neg (x)  y = Where (c, n, x)",
        SAME,
    ),
    "a scalar between two extents": (
        "f = Cast <to = 11> (t)  c = Less (single, f)  n = Neg (x)  y = Where (c, n, x)",
        SAME,
    ),
    "a clipped extent": ("e = Min (t, bound)  y = Slice (x, zero, e, one)", SAME),
    "a clipped index": (
        "l = Squeeze (t)  r = Range (start, l, step)  h = Squeeze (bound)"
        "  i = Min (r, h)  y = Gather <axis = 1> (x, i)",
        SAME,
    ),
    "the limit of a Range": (
        "u = Min (t, bound)  l = Squeeze (u)  r = Range (start, l, step)"
        "  y = Gather <axis = 1> (x, r)",
        SAME,
    ),
    "the count of a Pad": (
        "d = Sub (t, bound)  m = Max (d, zero)  p = Concat <axis = 0> (still, zero, m, zero)"
        "  y = Pad (x, p)",
        SAME,
    ),
    "the count of a Tile": (
        "d = Div (t, bound)  m = Add (d, one)  r = Concat <axis = 0> (one, m, one)"
        "  y = Tile (x, r)",
        SAME,
    ),
    "positions that are counted": (
        "e = ConstantOfShape <value = float[1] {1}> (t)  k = CumSum (e, start)  c = Less (limit, k)"
        "  v = Unsqueeze (c, one)  n = Neg (x)  y = Where (v, n, x)",
        SAME,
    ),
    "an extent in a body": (
        "c = Greater (t, zero)  y = If (c) <"
        " then_branch = p () => (float[N, T, 2] a) { a = Slice (x, zero, bound, one) },"
        " else_branch = q () => (float[N, T, 2] b) { b = Identity (x) }>",
        "c = Greater (t, zero)  y = If (c) <"
        " then_branch = p () => (float[N, T, 2] a) { a = Identity (x) },"
        " else_branch = q () => (float[N, T, 2] b) { b = Identity (x) }>",
    ),
}


def program(nodes: str, bound: int = 100, opset: int = 17) -> Program:
    text = TEXT.format(nodes=nodes, bound=bound, opset=opset)
    return Program.of(onnx.parser.parse_model(text), None)


def report(old: str, new: str, *bounds: int) -> Proof:
    sides = (program(nodes, bound) for nodes, bound in zip((old, new), bounds, strict=True))
    return proof_report(*sides, ({},), {})


@pytest.mark.parametrize("nodes", BEYOND.values(), ids=BEYOND)
def test_a_difference_beyond_an_integer_is_found(nodes: tuple[str, str]) -> None:
    assert report(*nodes, 100, 100).verdict == "different"
    assert report(*nodes[::-1], 100, 100).verdict == "different"


@pytest.mark.parametrize("nodes", [pair[0] for pair in BEYOND.values()], ids=BEYOND)
def test_another_integer_is_another_model_and_the_same_integer_is_the_same(nodes: str) -> None:
    renamed = nodes.replace("y = ", "z = ") + "  y = Identity (z)"
    assert report(nodes, renamed, 100, 100).verdict == "equal"
    assert report(nodes, renamed, 100, 120).verdict == "different"


TABLES = {
    "a Slice": "r = Slice (table, zero, t)  y = Add (x, r)",
    "a Slice of another axis": "c = Transpose (table)  r = Slice (c, zero, t, one)"
    "  u = Transpose (r)  y = Add (x, u)",
    "a Gather": "l = Squeeze (t)  i = Range (start, l, step)  r = Gather (table, i)"
    "  y = Add (x, r)",
}


@pytest.mark.parametrize("nodes", TABLES.values(), ids=TABLES)
def test_the_last_row_of_a_table_of_positions_counts(nodes: str) -> None:
    sides = []
    for last in (7, 7, 8):
        table = np.arange(2 * 509, dtype=np.float32).reshape(509, 2)
        table[-1, 1] = last
        proto = onnx.parser.parse_model(TEXT.format(nodes=nodes, bound=1, opset=17))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
        sides.append(Program.of(proto, None))
    assert proof_report(*sides[:2], ({},), {}).verdict == "equal"
    assert proof_report(*sides[1:], ({},), {}).verdict == "different"


@pytest.mark.parametrize("other", ["LessOrEqual", "Less"])
def test_a_difference_at_an_integer_alone_is_found(other: str) -> None:
    nodes = "c = Less (t, bound)  n = Neg (x)  y = Where (c, n, x)"
    new = nodes.replace("Less", other).replace("n = Neg", "k = Identity (c)  n = Neg")
    verdict = "equal" if other == "Less" else "different"
    assert report(nodes, new, 100, 100).verdict == verdict


def test_lengths_that_must_be_even_and_are_halved_go_far_beyond_an_integer() -> None:
    halved = """f = Reshape (x, halves)  {}"""
    sliced, same = "y = Slice (f, zero, bound, two)", "y = Identity (f)"
    text = TEXT.replace("int64 step", "int64[4] halves = {{0, 2, -1, 2}}, int64 step")
    text = text.replace("float[A, B, C] y", "float[A, B, C, D] y")

    def side(nodes: str) -> Program:
        proto = text.format(nodes=halved.format(nodes), bound=50, opset=17)
        return Program.of(onnx.parser.parse_model(proto), None)

    old, sized = side(sliced), {"x": (1, 24, 2)}
    assert proof_report(old, side(same), ({},), sized).verdict == "different"
    assert proof_report(old, old, ({},), sized).verdict == "equal"


def test_an_early_slice_has_its_integers_as_attributes() -> None:
    nodes = "y = Slice <axes = [1], starts = [7], ends = [300]> (x)"
    assert {7, 300} <= size_bounds(program(nodes, opset=9), ["y"])


def test_numbers_of_data_are_no_bounds() -> None:
    """Neither are those beside elements that were moved by an extent."""
    nodes = """v = Concat <axis = 0> (still, t)  w = Slice (v, zero, one)
      p = Concat <axis = 0> (still, still)  m = Pad (x, p)  y = Clip (m, nought, top)"""
    text = TEXT.replace("float nought", "float top = {{6000}}, float nought")
    proto = onnx.parser.parse_model(text.format(nodes=nodes, bound=100, opset=17))
    assert 6000 not in size_bounds(Program.of(proto, None), ["y"])


def test_a_fraction_bounds_at_the_integers_next_to_it() -> None:
    nodes = "f = Cast <to = 11> (t)  k = Neg (single)  c = Less (k, f)  y = Where (c, x, x)"
    assert size_bounds(program(nodes), ["y"]) == {100, 101}


def test_what_is_not_compared_bounds_nothing() -> None:
    assert size_bounds(program(f"a = Slice (x, zero, bound, one)  {SAME}"), ["y"]) == set()
