"""Which extents are known, in every scope, and that finding them costs nothing."""

from __future__ import annotations

import resource

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the runtime is the oracle
import pytest
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model import propagate, small_constants
from widthfold_onnx.model.declared import dims_of, shapes_of
from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.shapes import ShapeTable


def parsed(text: str, *, opset: int = 17, ir: int = 8, **constants) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]> main {text}')
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def shape(model: onnx.ModelProto, name: str, path: str = "", **pins):
    return ShapeTable(model, pins).get(path, name)


# --- the table ----------------------------------------------------------------------------------


def test_symbols_missing_and_negative_dims_are_open():
    model = parsed("(float[N, 2, 8] x) => (float[a, b, c] y) { y = Relu (x) }")
    dim = model.graph.input[0].type.tensor_type.shape.dim
    dim.add()
    dim.add(dim_value=-1)
    dim.add(dim_value=0)
    assert dims_of(model.graph.input[0]) == (None, 2, 8, None, None, 0)
    assert shape(model, "x") == (None, 2, 8, None, None, 0)


def test_what_is_not_known():
    model = parsed(
        "(float[N] x) => (float[1] y) { u = com.acme.Frob (x)\n y = Relu (x) }",
    )
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    assert shape(model, "u") is None
    assert shape(model, "nobody") is None
    assert shape(model, "x", "no/such/body") is None


NESTED = """(float[1, 2, 8] x, bool flag) => (float[1, 2, 8] y) {
  y = If (flag) <
    then_branch = then () => (float[1, 2, 8] t) {
      k = Transpose (x)
      t = If (flag) <
        then_branch = deep () => (float[1, 2, 8] d) { k2 = Concat <axis = 0> (x, x)
          d = Relu (x) },
        else_branch = deeper () => (float[1, 2, 8] u) { k2 = Concat <axis = 1> (x, x)
          u = Relu (x) }
      >
    },
    else_branch = else () => (float[1, 2, 8] e) { k = Concat <axis = 2> (x, x)
      e = Relu (x) }
  >
}"""


def test_bodies_have_their_own_values_and_see_those_around():
    table = ShapeTable(parsed(NESTED), {})
    assert table.get("y/then_branch", "k") == (8, 2, 1)
    assert table.get("y/else_branch", "k") == (1, 2, 16)
    assert table.get("y/then_branch/t/then_branch", "k2") == (2, 2, 8)
    assert table.get("y/then_branch/t/else_branch", "k2") == (1, 4, 8)
    assert table.get("y/then_branch/t/else_branch", "k") == (8, 2, 1)
    assert table.get("y/then_branch/t/else_branch", "x") == (1, 2, 8)
    assert table.get("", "k") is None
    assert table.get("y/else_branch", "k2") is None


def test_paths_are_those_of_the_linked_graph():
    model = parsed(NESTED)
    model.graph.node[0].output.insert(0, "")  # the first output may be left out
    body = onnx.parser.parse_graph(
        "g () => (float[1] q) { q = Constant <value_floats = [1.0]> () }"
    )
    other = onnx.GraphProto()
    other.CopyFrom(body)
    other.node[0].output[0] = other.output[0].name = "r"
    node = helper.make_node("Many", [], ["m"], domain="com.acme", gs=[body, other], one=body)
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    model.graph.node.append(node)
    table = ShapeTable(model, {})
    paths = {scope.path for scope in Document(model, None).scopes}
    assert paths >= {"", "y/then_branch/t/else_branch", "m/gs[0]", "m/gs[1]", "m/one"}
    assert table.get("m/gs[1]", "r") == (1,)
    assert table.get("m/gs[0]", "r") is None


def test_large_weights_have_a_shape_in_every_scope():
    model = parsed(NESTED, big=np.zeros((64, 32), np.float32))
    inner = model.graph.node[0].attribute[0].g
    inner.initializer.append(numpy_helper.from_array(np.zeros((99, 33), np.float32), "inside"))
    table = ShapeTable(model, {})
    assert table.get("y/else_branch", "big") == (64, 32)
    assert table.get("y/then_branch", "inside") == (99, 33)
    assert table.get("y/else_branch", "inside") is None


# --- pins ---------------------------------------------------------------------------------------

OPEN = "(float[N, 2, h, 8] x, float[N, 2, h, 8] z) => (float[a, b, c, d] y) { y = Add (x, z) }"


def test_a_pin_fixes_what_follows_and_leaves_the_model_alone():
    model = parsed(OPEN)
    before = model.SerializeToString()
    assert shape(model, "y")[1:] == (2, None, 8)
    assert shape(model, "y", x=(3, 2, 5, 8), z=(3, 2, 5, 8)) == (3, 2, 5, 8)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("name", "wanted", "says"),
    [
        ("q", (3, 2, 5, 8), "no input q; inputs are x, z"),
        ("x", (3, 2, 5), "x is declared"),
        ("x", (3, 2, 5, 8, 1), "x is declared"),
        ("x", (3, 4, 5, 8), "x is declared"),
        ("w", (1,), "no input w"),
    ],
)
def test_a_pin_that_does_not_fit(name, wanted, says):
    model = parsed(OPEN, w=np.zeros(1, np.float32))
    with pytest.raises(UsageError, match=says) as caught:
        shape(model, "y", **{name: wanted})
    assert "\n" not in str(caught.value)


def test_a_large_constant_is_no_input_to_pin():
    model = parsed(OPEN, w=np.zeros(1000, np.float32))
    with pytest.raises(UsageError, match="inputs are x, z"):
        shape(model, "y", w=(1000,))


def test_a_pin_of_an_input_without_a_shape():
    model = parsed("(float[N] x) => (float[a, b] y) { y = Relu (x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert shape(model, "x") is None
    assert shape(model, "x", x=(4, 5)) == (4, 5)


# --- evaluation ---------------------------------------------------------------------------------

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
    ("bounds", "taken"),
    [
        ("", [2, 3, 5]),
        ("<start = 1>", [3, 5]),
        ("<start = -2, end = -1>", [3]),
        ("<end = 9>", [2, 3, 5]),
        ("<start = 2, end = 1>", []),
    ],
)
def test_a_shape_takes_what_a_slice_takes(bounds, taken):
    model = parsed(
        f"""(float[2, 3, 5] x) => (float[a] y) {{
          s = Shape {bounds} (x)
          y = Relu (x)
        }}"""
    )
    outline = onnx.ModelProto()
    outline.CopyFrom(model)
    propagate.infer(outline)
    (stored,) = outline.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(stored), np.int64(taken))


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


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize(("stride", "more"), [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("side", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("told", ["kernel_shape = [{}], ", ""])
def test_a_transposed_convolution_with_same_padding(kernel, stride, more, side, told):
    """Inference adds all of the output padding; the runtime what the kernel does not reach."""
    site = f"""ConvTranspose <{told.format(kernel)}strides = [{stride}],
      output_padding = [{more}], auto_pad = "{side}"> (x, w)"""
    w = np.ones((3, 7, kernel), np.float32)
    alone = parsed(f"(float[2, 3, 5] x) => (float[a, b, c] y) {{ y = {site} }}", w=w)
    session = ort.InferenceSession(alone.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.ones((2, 3, 5), np.float32)})
    inside = parsed(
        f"""(float[2, 3, 5] x, bool flag) => (float[a, b, c] y) {{
          y = If (flag) <
            then_branch = one () => (float[a, b, c] t) {{ s = {site}
              t = Relu (s) }},
            else_branch = two () => (float[a, b, c] e) {{ e = Neg (x) }}
          >
        }}""",
        w=w,
    )
    assert y.shape == shape(alone, "y") == shape(inside, "t", "y/then_branch")


@pytest.mark.parametrize("wanted", [[1, 9], [2, 5], [1, 5]])
def test_a_transposed_convolution_with_an_output_smaller_than_its_input(wanted):
    text = f"ConvTranspose <strides = [1, 2], output_shape = {wanted}> (x, w)"
    given = "(float[N, 3, 2, 6] x) => (float[a, b] y)"
    model = parsed(
        f"{given} {{ s = {text}\n y = Flatten (s) }}", w=np.ones((3, 5, 2, 2), np.float32)
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.ones((7, 3, 2, 6), np.float32)})
    assert y.shape == (7, 5 * wanted[0] * wanted[1])
    assert shape(model, "s") == (None, 5, *wanted)
    assert shape(model, "y") == (None, y.shape[1])
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.graph.node.pop()
    bare.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="s"))
    bare.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert shape(bare, "s", x=(7, 3, 2, 6)) == (7, 5, *wanted)


def test_the_number_of_evaluations_is_bounded(monkeypatch):
    monkeypatch.setattr(small_constants, "MAX_EVALUATIONS", 10)
    monkeypatch.setattr(propagate, "ROUNDS", 2)
    seen = []
    run = small_constants._run
    monkeypatch.setattr(small_constants, "_run", lambda *args: seen.append(1) or run(*args))
    nodes = "\n".join(f"v{i + 1} = Add (v{i}, v{i})" for i in range(50))
    model = parsed(f"(float[1] x) => (float[1] y) {{ {nodes}\n y = Relu (x) }}", v0=np.int64([1]))
    ShapeTable(model, {})
    assert 10 <= len(seen) <= 20


def test_failures_of_the_evaluator_are_bounded_too(monkeypatch):
    monkeypatch.setattr(small_constants, "MAX_EVALUATIONS", 10)
    seen = []
    monkeypatch.setattr(small_constants, "_run", lambda *args: seen.append(1))
    nodes = "\n".join(f"v{i + 1} = Add (v0, v0)" for i in range(50))
    model = parsed(f"(float[1] x) => (float[1] y) {{ {nodes}\n y = Relu (x) }}", v0=np.int64([1]))
    ShapeTable(model, {})
    assert len(seen) <= 10


def test_what_the_evaluator_refuses_stays_unknown():
    model = parsed(
        """(float[1, 2] x) => (float[a, b] y) {
          zero = Constant <value = int64[1] {0}> ()
          one = Constant <value = int64[1] {1}> ()
          ratio = Div (one, zero)
          far = Constant <value = int64[1] {7}> ()
          lost = Gather (one, far)
          y = Reshape (x, lost)
        }"""
    )
    assert shape(model, "ratio") == (1,)
    assert shape(model, "y") in ((None,), (None, None))


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


# --- STFT ---------------------------------------------------------------------------------------

STFT = """(float[N, t, 1] x) => (float[a, b, c, d] y) {{
  step = Constant <value = int64 {{128}}> ()
  {length}
  y = STFT <onesided = {onesided}> (x, step, {inputs})
}}"""


@pytest.mark.parametrize(
    ("length", "inputs", "onesided", "bins"),
    [
        ("", "w", 1, 129),
        ("", "w", 0, 256),
        ("n = Constant <value = int64 {64}> ()", ", n", 1, 33),
        ("n = Constant <value = int64[1] {64}> ()", ", n", 1, 33),
        ("n = Constant <value = int64[2] {64, 64}> ()", ", n", 1, None),
        ("n = Constant <value_int = 64> ()", "w, n", 1, 129),
    ],
)
def test_the_bins_of_a_transform(length, inputs, onesided, bins):
    text = STFT.format(length=length, inputs=inputs, onesided=onesided)
    if inputs.startswith(","):
        text = text.replace("step, ,", 'step, "",')
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> main ' + text.replace('"",', "absent,")
    )
    for node in model.graph.node:
        if "absent" in node.input:
            node.input[2] = ""
    model.graph.initializer.append(numpy_helper.from_array(np.ones(256, np.float32), "w"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    dims = shape(model, "y")
    assert dims == (None if bins is None else (None, None, bins, 2))


def test_a_transform_of_another_domain_is_left_alone():
    model = parsed("(float[1] x) => (float[1] y) { y = Relu (x) }")
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    for inputs in ([], ["x", "x", "x", "x"]):
        for outputs in ([], ["k"]):
            node = helper.make_node("STFT", inputs, outputs, domain="com.acme")
            del model.graph.node[1:]
            model.graph.node.append(node)
            assert shape(model, "k") is None


# --- models that contradict themselves ------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "(float[1, 2] x) => (int64[1, 2] y) { y = Relu (x) }",
        "(float[1, 2] x) => (float[3, 4] y) { y = Relu (x) }",
        "(int32[1, 2] x) => (float[1, 2] y) { y = Add (x, f) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = Concat <axis = 7> (x, x) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = Transpose <perm = [0, 5]> (x) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = Conv (x, f) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = Relu (x, x, x) }",
        "(float[1, 2] x) => (float[1, 2] y) { y = NoSuchOperator (x) }",
        "(bool c) => (float[1] y) { y = If (c) }",
        "(bool c) => (float[1] y) { y = If (c) <then_branch = g () => () {}> }",
    ],
)
def test_contradictions_leave_shapes_unknown_and_nothing_breaks(text):
    model = parsed(text, f=np.float32([1, 2]))
    table = ShapeTable(model, {})
    assert table.get("", "x") == (None if "bool" in text else (1, 2))
    assert shapes_of(model.graph)["f"] == (2,)


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
    made = []
    monkeypatch.setattr(small_constants, "_run", lambda node, *rest: made.append(node.op_type))
    ShapeTable(model, {})
    assert not made
