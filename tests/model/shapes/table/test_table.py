"""Facts of values behind and inside of branches, loops and functions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.model.shapes.facts import check
from tests.model.shapes.shaped import parsed, shape
from tests.running import run
from widthfold_onnx.model.check import checked
from widthfold_onnx.model.shapes import table

LOOP = """(float[2, {width}] x, float[5, 3] z, int64 n, bool go) => (y) {{
  width = Shape <start = 1> (x)
  a, b, y = Loop (n, go, x, z) <
    body = turn (int64 i, bool on, float[2, 4] p, float[5, 3] q) => (bool on2, p2, q2, s)
    <float[2, 4] r> {{
      on2 = Identity (on)
      {body}
    }}>
}}"""

TURNS = {
    "nothing changes": ("p2 = Neg (p)\nq2 = Neg (q)\ns = Neg (p)", (2, 4), (5, 3), (None, 2, 4)),
    "one grows": (
        "p2 = Concat <axis = 1> (p, x)\nq2 = Neg (q)\nr = Neg (p)\ns = Concat <axis = 1> (q, q)",
        (2, None),
        (5, 3),
        (None, 5, 6),
    ),
    "one follows the other": (
        "p2 = Concat <axis = 1> (p, p)\nq2 = Neg (p)\ns = Relu (q)",
        (2, None),
        (None, None),
        (None, None, None),
    ),
    "the rank changes": (
        "p2 = Unsqueeze (p, i)\nq2 = Neg (q)\ns = Relu (p)",
        None,
        (5, 3),
        None,
    ),
    "by what is known outside": (
        "c = Concat <axis = 0> (two, width)\np2 = Reshape (p, c)\nq2 = Neg (q)\ns = Relu (p2)",
        (2, 4),
        (5, 3),
        (None, 2, 4),
    ),
}


@pytest.mark.parametrize("case", TURNS)
def test_a_loop(case):
    body, first, second, stacked = TURNS[case]
    model = parsed(LOOP.format(body=body, width=4), two=np.int64([2]))
    for output in (model.graph.output[0], *model.graph.node[1].attribute[0].g.output):
        output.type.tensor_type.elem_type = output.type.tensor_type.elem_type or 1
    assert (shape(model, "a"), shape(model, "b"), shape(model, "y")) == (first, second, stacked)
    assert shape(model, "p", "a/body") == first
    if case == "one grows":  # the declared extents hold in the first turn alone
        assert shape(model, "r", "a/body") == (2, None)


COUNTED = """(float[2, 3] x, int64 n, bool go) => (y, t) {{
  t, y = Loop ({inputs}, x) <
    body = turn (int64 i, bool on, float[2, 3] p) => (on2, p2, s) {{
      p2 = Neg (p)
      s = Gather (x, i)
      {condition} }}>
}}"""


@pytest.mark.parametrize(
    ("inputs", "condition", "rows"),
    [
        ("two, yes", "on2 = Identity (on)", 2),
        ("two, ", "on2 = Identity (on)", 2),
        ("two, yes", "on2 = Identity (yes)", 2),
        ("none, yes", "on2 = Identity (on)", 0),
        ("n, yes", "on2 = Identity (on)", None),
        ("two, go", "on2 = Identity (on)", None),
        ("two, yes", "on2 = Not (on)", 1),
        ("many, yes", "on2 = Less (i, one)", 2),
        (", ", "on2 = Less (i, one)", 2),
        ("n, yes", "on2 = Less (i, one)", None),
        ("many, yes", "on2 = Less (i, thousand)", None),
        ("two, no", "on2 = Identity (on)", 0),
        ("two, yes", "on2 = Identity (go)", None),
        (", yes", "on2 = Identity (on)", None),
    ],
)
def test_the_rows_of_a_loop_with_a_trip_count(inputs, condition, rows):
    numbers = {"two": np.int64(2), "none": np.int64(-1), "yes": np.bool_(True)}
    numbers |= {"one": np.int64(1), "many": np.int64(1 << 62), "thousand": np.int64(1000)}
    numbers |= {"no": np.bool_(False)}
    text = COUNTED.format(inputs=inputs, condition=condition)
    model = parsed(text, **{name: n for name, n in numbers.items() if name in text})
    assert shape(model, "y") == (rows, 3)
    for output in model.graph.output:
        output.type.tensor_type.elem_type = 1
    if rows is not None or "n" in inputs.split(","):  # some run for ever, or beyond the rows of x
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        check(model, {"x": x, "n": np.array(2), "go": np.array(False)})


def test_a_scan():
    model = parsed(
        """(float[3, 4] x, float[5, 2, 7] z) => (y) {
          a, y, w = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [0, -1],
            body = turn (float[u, v] p, float[k, l] q) => (p2, s, t) {
              p2 = Neg (p)
              s = Relu (q)
              t = Concat <axis = 1> (q, q) }> (x, z)
        }"""
    )
    assert shape(model, "a") == (3, 4)
    assert shape(model, "y") == (2, 5, 7)
    assert shape(model, "w") == (5, 14, 2)
    assert shape(model, "q", "a/body") == (5, 7)


BRANCHES = """(float[2, 4] x, bool given) => (float[n, m] y) {{
  s = Shape (x)
  four = Constant <value = int64 {{4}}> ()
  one = Constant <value = int64 {{1}}> ()
  width = Gather (s, one)
  known = Equal (width, four)
  y = If ({condition}) <
    then_branch = yes () => (float[a, b] t) {{ t = Concat <axis = 0> (x, x) }},
    else_branch = no () => (float[c, d] e) {{ z = Slice (x, far, far2, one1)
      e = Concat <axis = 1> (x, x) }}>
}}"""


@pytest.mark.parametrize(
    ("condition", "dims"), [("known", (4, 4)), ("given", (None, None))], ids=["known", "not known"]
)
def test_a_branch(condition, dims):
    numbers = {"far": [9], "far2": [11], "one1": [1]}
    model = parsed(
        BRANCHES.format(condition=condition), **{k: np.int64(v) for k, v in numbers.items()}
    )
    assert shape(model, "y") == dims
    assert shape(model, "t", "y/then_branch") == (4, 4)
    assert shape(model, "z", "y/else_branch") == (2, 0)
    check(model, {"x": np.ones((2, 4), np.float32), "given": np.array(True)})


FUNCTION = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
main (float[2, 12] x) => (float[a, b, c] y, float[d, e] z) {
  y = own.split <parts = 3> (x)
  z = own.split2 (x)
}
<opset_import: ["" : 13, "own" : 1], domain: "own"> split <parts> (v) => (w) {
  s = Shape (v)
  n = Constant <value_int: int = @parts> ()
  o = Constant <value_ints = [0]> ()
  m = Unsqueeze (n, o)
  minus = Constant <value_ints = [-1]> ()
  k = Slice (s, o, m)
  l = Size (k)
  p = Unsqueeze (l, o)
  r = Concat <axis = 0> (minus, m, p)
  w = Reshape (v, r)
}
<opset_import: ["" : 17, "own" : 1], domain: "own"> split2 (v) => (w) {
  u = own.split <parts = 2> (v)
  o = Constant <value_ints = [0]> ()
  w = ReduceSum <keepdims = 0> (u, o)
}"""


def test_functions_with_attributes_and_operator_sets_of_their_own():
    model = onnx.parser.parse_model(FUNCTION)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in "yz")
    y, z = run(model, np.ones((2, 12), np.float32))
    assert shape(model, "y") == y.shape
    assert shape(model, "z") == z.shape


def test_a_function_that_is_given_its_graphs():
    """The output of an If in a function is unknown: its branches belong to the caller."""
    names = ("then_branch", "else_branch")
    model = parsed("(float[4] x, bool k) => (float[n] y, float[m] z) { z = Neg (x) }")
    model.opset_import.append(helper.make_opsetid("own", 1))
    choice = helper.make_node("If", ["c"], ["r"])
    call = model.graph.node.add(op_type="f", domain="own", input=["k"], output=["y"])
    for name in names:
        graph = onnx.AttributeProto.GRAPH
        choice.attribute.add(name=name, ref_attr_name=name, type=graph)
        branch = onnx.parser.parse_graph(f"{name} () => (float[4] {name}) {{ {name} = Sin (x) }}")
        call.attribute.append(helper.make_attribute(name, branch))
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "f", ["c"], ["r"], [choice], opsets, names)
    model.functions.append(function)
    checked(model, None)
    assert shape(model, "y") == (None,)
    assert shape(model, "z") == (4,)


def chain(calls: int) -> onnx.ModelProto:
    model = parsed("(float[2] x) => (float[n] y) { y = own.f0 (x) }")
    model.opset_import.append(helper.make_opsetid("own", 1))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for i in range(calls):
        inner = [helper.make_node(f"f{i + 1}", [a], [b], domain="own") for a, b in ("ab", "bc")]
        last = [helper.make_node("Neg", ["a"], ["c"])]
        function = helper.make_function("own", f"f{i}", ["a"], ["c"], inner, opsets)
        model.functions.append(function)
    model.functions.append(helper.make_function("own", f"f{calls}", ["a"], ["c"], last, opsets))
    return model


def test_the_work_for_functions_is_bounded(monkeypatch):
    """18 functions that call the next one twice are a quarter of a million nodes."""
    assert shape(chain(4), "y") == (2,)
    seen = []
    infer = table.infer_node
    monkeypatch.setattr(table, "infer_node", lambda *args: seen.append(1) or infer(*args))
    monkeypatch.setattr(table, "MAX_REPEATED", 1000)
    assert shape(chain(18), "x") == (2,)
    assert len(seen) <= table.MAX_REPEATED
    assert shape(chain(table.MAX_CALLS + 1), "y") == (None,)


def test_what_is_left_in_the_middle_of_a_loop_is_not_known(monkeypatch):
    monkeypatch.setattr(table, "MAX_REPEATED", 1)
    model = parsed(LOOP.format(body=TURNS["one grows"][0], width=4))
    assert shape(model, "p", "a/body") is None
    assert shape(model, "a") is None


def test_the_rank_of_what_a_convolution_reads_follows_from_its_weight():
    model = parsed(
        """(float[1, 8, 9] x, bool given) => (float[a, b, c] y) {
          v = If (given) < then_branch = yes () => (t) { t = Squeeze (x, zero) },
                           else_branch = no () => (e) { e = Identity (x) }>
          y = Conv (v, w)
        }""",
        zero=np.int64([0]),
        w=np.ones((4, 8, 3), np.float32),
    )
    assert shape(model, "v") == (None, None, None)
    assert shape(model, "y") == (None, 4, None)


def test_numbers_that_a_caller_may_replace_are_not_known_since_they_may_be():
    text = "(float[6] x, int64[2] to) => (float[a, b] y) { y = Reshape (x, to) }"
    assert shape(parsed(text, ir=3, opset=8, to=np.int64([2, 3])), "y") == (2, 3)
    assert shape(parsed(text, to=np.int64([2, 3])), "y") == (None, None)


AGAIN = {
    "extents that shape a Reshape": (
        """(float[n, 12] x) => (float[a, b] y) {
          s = Shape (x)
          n = Slice (s, zero, one)
          half = Div (n, two)
          target = Concat <axis = 0> (half, minus)
          y = Reshape (x, target)
        }""",
        [(2, 12), (6, 12), (2, 12), (10, 12)],
    ),
    "a rank that follows from a weight": (
        """(float[n, 2, m] x) => (float[a, b, c] y) <float[3, 2, 3] w> {
          r = Relu (x)
          y = Conv (r, w)
        }""",
        [(1, 2, 7), (1, 2, 11), (3, 2, 7)],
    ),
    "branches that read values around them": (
        """(float[n, 4] x) => (float[a, b] y) {
          s = Shape (x)
          n = Gather (s, zero)
          c = Less (n, two)
          r = Relu (x)
          y = If (c) <
            then_branch = short () => (t) { k = Shape (r)  p = Add (k, k)  t = Expand (r, p) },
            else_branch = long () => (e) { e = Concat <axis = 0> (r, x) }>
        }""",
        [(1, 4), (5, 4), (1, 4), (9, 4)],
    ),
    "zeros of either sign": (
        """(float[n] x) => (float[m] y, bool is_below) {
          three = Constant <value_float = 3.0> ()
          five = Constant <value_float = 5.0> ()
          s = Shape (x)
          n = Cast <to = 1> (s)
          p = Sub (n, three)
          q = Sub (n, five)
          product = Mul (p, q)
          inverse = Div (three, product)
          is_below = Less (inverse, product)
          y = Relu (x)
        }""",
        [(5,), (3,), (5,)],
    ),
    "a loop that grows": (
        """(float[n, 3] x) => (float[a, b] y) {
          y, z = Loop (two, yes, x) <
            body = turn (int64 i, bool on, float[k, 3] p) => (on2, p2, q) {
              on2 = Identity (on)
              p2 = Concat <axis = 0> (p, x)
              q = Shape (p)
            }>
        }""",
        [(2, 3), (7, 3), (2, 3)],
    ),
}


def described(facts) -> dict[str, dict[str, object]]:
    """The facts of all values in a form that can be compared."""
    return {
        path: {
            name: (fact.type, None if fact.numbers is None else fact.numbers.tolist())
            for name, fact in inner.items()
        }
        for path, inner in facts.items()
    }


@pytest.mark.parametrize("case", AGAIN)
def test_a_repeated_derivation_is_as_good_as_a_new_one(case: str) -> None:
    text, sizes = AGAIN[case]
    constants = {"zero": [0], "one": [1], "two": [2], "minus": [-1]}
    scalars = {"yes": np.bool_(True)} if "loop" in case else {}
    arrays = {name: np.int64(value) for name, value in constants.items()} | scalars
    if "loop" in case:
        arrays["two"] = np.int64(2)
    model = parsed(text, **{name: array for name, array in arrays.items() if name in text})
    derivation = table.Derivation(model)
    tables = []
    for dims in sizes:
        again = table.ShapeTable(model, {"x": dims}, derivation)
        assert described(again.facts) == described(table.ShapeTable(model, {"x": dims}).facts)
        tables.append(described(again.facts))
    assert tables[0] != tables[1]
    for dims, facts in zip(sizes, tables, strict=True):
        last = table.ShapeTable(model, {"x": dims}, derivation).facts
        assert described(last) == facts


def test_a_node_is_derived_again_only_if_its_inputs_differ(monkeypatch) -> None:
    """Batches differ; what the model computes of the width stays, and all nodes behind it."""
    model = parsed(
        """(float[n, 12] x) => (float[a, b] y, int64[1] w) {
          s = Shape (x)
          width = Slice (s, one, two)
          half = Div (width, two)
          w = Mul (half, half)
          y = Relu (x)
        }""",
        one=np.int64([1]),
        two=np.int64([2]),
    )
    derived = []
    node_of = table.Derivation._node

    def spy(derivation, node, *arguments):
        derived.append(node.op_type)
        return node_of(derivation, node, *arguments)

    monkeypatch.setattr(table.Derivation, "_node", spy)
    derivation = table.Derivation(model)
    expected = {
        (2, 12): ["Shape", "Slice", "Div", "Mul", "Relu"],
        (3, 12): ["Shape", "Slice", "Relu"],
    }
    for dims, ops in expected.items():
        for repeated in (ops, []):
            derived.clear()
            facts = table.ShapeTable(model, {"x": dims}, derivation)
            assert derived == repeated
            assert facts.numbers("", "w").tolist() == [36]
            assert facts.get("", "y") == dims


def test_what_there_was_no_room_for_is_derived_again_where_there_is(monkeypatch) -> None:
    """A large input leaves no room for the numbers of `k`, which depend on constants alone."""
    model = parsed(
        """(float[n] x) => (float[m] e, float[600] k) {
          s = Shape (x)
          e = ConstantOfShape (s)
          k = ConstantOfShape (count)
        }""",
        count=np.int64([600]),
    )
    monkeypatch.setattr(table, "MAX_KNOWN_ELEMENTS", 1700)
    derivation = table.Derivation(model)
    has_numbers = []
    for size in (900, 900, 3, 900):
        again = table.ShapeTable(model, {"x": (size,)}, derivation)
        assert described(again.facts) == described(table.ShapeTable(model, {"x": (size,)}).facts)
        has_numbers.append(again.numbers("", "k") is not None)
    assert has_numbers == [False, False, True, False]
