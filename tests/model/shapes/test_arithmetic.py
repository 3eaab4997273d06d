"""Numbers are computed as the runtime would, within bounds of time and memory."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.model.shapes.shaped import parsed, shape
from widthfold_onnx.model.shapes import arithmetic, table
from widthfold_onnx.model.shapes.table import ShapeTable

PADDED = """(float[N, 2, h, 8] x) => (float[a, b, c, d] y) {
  ends = Constant <value = int64[2] {1, 2}> ()
  zeros = Constant <value = int64[6] {0, 0, 0, 0, 0, 0}> ()
  flat = Concat <axis = 0> (ends, zeros)
  two = Constant <value = int64[2] {4, 2}> ()
  pairs = Reshape (flat, two)
  turned = Transpose <perm = [1, 0]> (pairs)
  minus = Constant <value = int64[1] {-1}> ()
  pads = Reshape (turned, minus)
  y = Pad (x, pads)
}"""


@pytest.mark.parametrize("ir", [3, 4, 8])
def test_pad_amounts_are_evaluated(ir):
    model = parsed(PADDED, ir=ir)
    dims = shape(model, "y")
    assert dims is not None
    # [[1, 2], [0, 0], [0, 0], [0, 0]] turned is 1 0 0 0 2 0 0 0: axis 0 grows by 3.
    assert dims[1:] == (2, None, 8)


def test_the_amounts_come_out_right():
    model = parsed(PADDED.replace("float[N, 2, h, 8] x", "float[5, 2, 3, 8] x"))
    assert shape(model, "y") == (8, 2, 3, 8)


def test_operators_are_those_of_the_models_opset():
    """At opset 11 Squeeze and Unsqueeze have their axes as attributes."""
    model = parsed(
        """(float[5, 8] x) => (float[a, b] y) {
          ends = Constant <value = int64[1, 4] {1, 0, 2, 0}> ()
          more = Unsqueeze <axes = [0]> (ends)
          pads = Squeeze <axes = [0, 1]> (more)
          y = Pad (x, pads)
        }""",
        opset=11,
    )
    assert shape(model, "y") == (8, 8)


def test_evaluation_does_not_touch_the_model():
    model = parsed(PADDED)
    before = model.SerializeToString()
    ShapeTable(model, {})
    assert model.SerializeToString() == before


HUGE = """(float[1] x) => (float[a, b] y) {
  size = Constant <value = int64[2] {1000000, 10000000}> ()
  many = ConstantOfShape (size)
  more = Expand (one, size)
  y = Add (many, x)
}"""


def test_what_is_huge_is_never_made():
    resource = pytest.importorskip("resource")
    model = parsed(HUGE, one=np.ones(1, np.float32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = ShapeTable(model, {})
    assert table.get("", "many") == (1_000_000, 10_000_000)
    assert table.get("", "more") == (1_000_000, 10_000_000)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 100_000  # KiB


BOMBS = {
    "made": """k = ConstantOfShape (huge)
        few = Gather (k, zero)""",
    "fed": "few = Slice (long, zero, one)",
    "found while propagating": """s = Shape (long2)
        k = ConstantOfShape (s)
        few = Slice (k, zero, one)""",
    "doubled": "\n".join(f"v{i + 1} = Concat <axis = 0> (v{i}, v{i})" for i in range(40)),
    "doubled in a function": "\n".join(f"v{i + 1} = loc.f (v{i})" for i in range(40)),
    "doubled inside a function": "few = loc.g (v0)",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_cannot_fill_the_memory(bomb):
    """onnx's own data propagation holds every element of a vector that it meets."""
    resource = pytest.importorskip("resource")
    long = 10**12
    model = parsed(
        f"""(float[1, 2, 8] x, float[{long}] long, float[{long}] long2) => (float[1, 2, 8] y) {{
          huge = Constant <value = int64[1] {{{long}}}> ()
          zero = Constant <value = int64[1] {{0}}> ()
          one = Constant <value = int64[1] {{1}}> ()
          v0 = Constant <value = int64[2] {{1, 1}}> ()
          {BOMBS[bomb]}
          known = Concat <axis = 2> (x, x)
          y = Relu (x)
        }}"""
    )
    model.opset_import.append(helper.make_opsetid("loc", 1))
    opsets = [helper.make_opsetid("", 17)]
    double = helper.make_node("Concat", ["p0", "p0"], ["p1"], axis=0)
    model.functions.append(helper.make_function("loc", "f", ["p0"], ["p1"], [double], opsets))
    many = [
        helper.make_node("Concat", [f"p{i}", f"p{i}"], [f"p{i + 1}"], axis=0) for i in range(40)
    ]
    model.functions.append(helper.make_function("loc", "g", ["p0"], ["p40"], many, opsets))
    if "function" not in bomb:
        del model.functions[:]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = resource.getrlimit(resource.RLIMIT_AS)
    assert shape(model, "known") == (1, 2, 16)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


MEASURED = """{
  amount = Shape <start = 1, end = 2> (x)
  none = ConstantOfShape <value = int64[1] {0}> (amount)
  pads = Concat <axis = 0> (none, two)
  p = Pad (x, pads)
  t = Relu (p)
}"""


def test_pads_computed_of_known_extents_are_evaluated_in_every_graph():
    body = MEASURED.replace("{", "then () => (float[a, b, c] t) {", 1)
    model = parsed(
        f"""(float[2, 4, w] x, bool flag) => (float[a, b, c] y) {{
          y = If (flag) < then_branch = {body}, else_branch = {body.replace("then", "else", 1)} >
        }}""",
        two=np.int64([1, 3]),
    )
    assert shape(model, "p", "y/then_branch") == (2, 5, None)
    assert shape(model, "p", "y/else_branch", x=(2, 4, 5)) == (2, 5, 8)


@pytest.mark.parametrize(
    ("bounds", "piece"),
    [
        ("", [2, 3, 5]),
        ("<start = 1>", [3, 5]),
        ("<start = -2, end = -1>", [3]),
        ("<end = 9>", [2, 3, 5]),
        ("<start = 2, end = 1>", []),
    ],
)
def test_a_shape_takes_what_a_slice_takes(bounds, piece):
    model = parsed(
        f"""(float[2, 3, 5] x) => (float[a] y) {{
          s = Shape {bounds} (x)
          z = ConstantOfShape (s)
          y = Relu (x)
        }}"""
    )
    assert shape(model, "z") == tuple(piece)


def test_what_is_evaluated_has_a_type_before_initializers_stood_alone():
    """Below IR version 4 an initializer had to be an input of the graph as well."""
    model = parsed(
        """(float[2, 3, 7] x, float[3, 5, 1, 3] w) => (float[a, b, c] y) {
          v = Squeeze <axes = [2]> (w)
          u = ConvTranspose (x, v)
          y = Relu (u)
        }""",
        opset=7,
        ir=3,
        w=np.ones((3, 5, 1, 3), np.float32),
    )
    assert shape(model, "y") == (2, 5, 9)


SUM = """(float[1] x) => (float[1] y) {{
  {nodes}
  y = Relu (x)
}}"""


@pytest.mark.parametrize("fails", [False, True])
def test_the_number_of_evaluations_is_bounded(monkeypatch, fails):
    monkeypatch.setattr(table, "MAX_KNOWN_ELEMENTS", 10 * table.NODE_ELEMENTS)
    seen = []
    run = arithmetic.run_reference

    def spy(*args):
        seen.append(1)
        return None if fails else run(*args)

    monkeypatch.setattr(arithmetic, "run_reference", spy)
    nodes = "\n".join(f"v{i + 1} = Add (v0, v0)" for i in range(50))
    ShapeTable(parsed(SUM.format(nodes=nodes), v0=np.int64([1])), {})
    assert 5 <= len(seen) <= 10


def test_what_the_evaluator_refuses_stays_unknown():
    model = parsed(
        """(float[1, 2] x) => (float[a] y) {
          zero = Constant <value = int64[1] {0}> ()
          one = Constant <value = int64[1] {1}> ()
          ratio = Div (one, zero)
          far = Constant <value = int64[1] {7}> ()
          lost = Gather (one, far)
          y = ConstantOfShape (lost)
          z = Reshape (x, lost)
        }"""
    )
    assert shape(model, "ratio") == (1,)
    assert shape(model, "y") == (None,)
    assert shape(model, "z") == (2,)


def test_strings_are_not_evaluated():
    model = parsed("(float[1] x) => (float[1] y) { z = Identity (t)\n y = Relu (x) }")
    text = helper.make_tensor("t", TensorProto.STRING, [1], [b"\xff"])
    model.graph.initializer.append(text)
    assert shape(model, "z") == (1,)


def test_a_constant_of_another_domain_is_no_constant():
    model = parsed("(float[1] x) => (float[1] y) { y = Relu (x) }")
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    for attributes in ({}, {"value": numpy_helper.from_array(np.int64([3]))}):
        for outputs in ([], ["k"], ["k", "l"]):
            node = helper.make_node("Constant", [], outputs, domain="com.acme", **attributes)
            del model.graph.node[1:]
            model.graph.node.append(node)
            assert shape(model, "k") is None


def test_a_size_that_the_model_only_declares_is_not_believed(monkeypatch):
    """2 GiB of ones, declared as one: it must not be made to find its shape."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[1] x) => (float[n] y) <int64[1] many = {2147483648}, float[1] big> {
          big = ConstantOfShape (many)
          y = Add (x, big)
        }
        """
    )
    models = []
    monkeypatch.setattr(arithmetic, "run_reference", lambda node, *_: models.append(node.op_type))
    ShapeTable(model, {})
    assert not models


PARTS = {
    "taken apart": (
        "s = Shape (x)\na, b, c = Split <axis = 0> (s)\nr = Concat <axis = 0> (a, c)",
        None,
        8,
    ),
    "scattered": (
        """s = Shape (x)
        d = Mul (s, s)
        i = Constant <value = int64[1, 1] {0}> ()
        u = Constant <value = int64[1] {40}> ()
        e = ScatterND (d, i, u)
        k = Constant <value = int64[2] {0, 2}> ()
        r = Gather (e, k)""",
        40,
        64,
    ),
    "where they differ": (
        """s = Shape (x)
        l = Constant <value = int64[3] {5, 6, 7}> ()
        g = Greater (s, l)
        w = Where (g, s, l)
        k = Constant <value = int64[2] {1, 2}> ()
        r = Gather (w, k)""",
        6,
        8,
    ),
    "computed in floats": (
        """s = Shape (x)
        f = Cast <to = 1> (s)
        h = Constant <value = float {0.3}> ()
        m = Mul (f, h)
        c = Ceil (m)
        i = Cast <to = 7> (c)
        k = Constant <value = int64[2] {0, 2}> ()
        r = Gather (i, k)""",
        None,
        3,
    ),
}


@pytest.mark.parametrize("case", PARTS)
def test_what_depends_on_an_open_extent_is_open_alone(case):
    nodes, first, last = PARTS[case]
    model = parsed(f"(float[N, 4, 8] x) => (float[n, m] y) {{ {nodes}\n y = ConstantOfShape (r) }}")
    model.graph.output[0].type.tensor_type.shape.dim[0].Clear()
    assert shape(model, "y") == (first, last)
    assert None not in shape(model, "y", x=(2, 4, 8))


CHANGED = {
    "a division by zero": "z = Sub (one, one)\nr = Div (one, z)",
    "too large for its type": "b = Constant <value = float[1] {1e30}> ()\nr = Cast <to = 7> (b)",
    "random": "u = RandomUniform <shape = [1], low = 2.0, high = 9.0> ()\nr = Cast <to = 7> (u)",
    "one that a caller may give": "r = Identity (given)",
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_number_that_a_runtime_may_compute_otherwise_is_not_known(case):
    text = f"""(float[1] x, int64[1] given) => (float[n] y) {{
      {CHANGED[case]}
      y = ConstantOfShape (r)
    }}"""
    model = parsed(text, one=np.int64([1]), given=np.int64([3]))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.shape.dim.add()
    assert shape(model, "y") == (None,)
