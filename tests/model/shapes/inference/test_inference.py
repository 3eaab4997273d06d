"""Negative extents: inferring a whole graph with them ends the process at the next Slice."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import defs, helper

from tests.model.shapes.shaped import parsed, shape

NUMBERS = {
    "k": np.ones((1, 1, 2, 9), np.float32),
    "amounts": np.array([0, 0, 0, -4, 0, 0, 0, -5]),
    "below": np.array([1, 1, 2, -3]),
    "parts": np.array([9, -2]),
    "minus": np.array([-4]),
    "one": np.ones((1, 1, 1, 1), np.float32),
    "rois": np.zeros((5, 4), np.float32),
    "batch": np.zeros(5, np.int64),
    "at": np.array([1]),
    "to": np.array([-1]),
    "last": np.array([3]),
}
CUT = "(v, at, to, last, at)"

MAKERS = {
    "Conv": ("v = Conv (x, k)", (1, 1, 7, None)),
    "Conv, quantized": (
        """i = Cast <to = 2> (x)
        l = Cast <to = 2> (k)
        c = ConvInteger (i, l)
        v = Cast <to = 1> (c)""",
        (1, 1, 7, None),
    ),
    "MaxPool": ("v = MaxPool <kernel_shape = [3, 9]> (x)", (1, 1, 6, None)),
    "AveragePool": ("v = AveragePool <kernel_shape = [3, 9]> (x)", (1, 1, 6, None)),
    "LpPool": ("v = LpPool <kernel_shape = [3, 9]> (x)", (1, 1, 6, None)),
    "ConvTranspose": ("v = ConvTranspose <pads = [0, 9, 0, 9]> (x, k)", (1, 1, 9, None)),
    "Pad": ("v = Pad (x, amounts)", (1, 1, 8, None)),
    "Expand": ("v = Expand (one, below)", (1, 1, 2, None)),
    "Split": ("u, v = Split <axis = 3> (x, parts)", (1, 1, 8, None)),
    "TopK": ("v, u = TopK (x, minus)", (1, 1, 8, None)),
    "RoiAlign": (
        "v = RoiAlign <output_height = 2, output_width = -3> (x, rois, batch)",
        (5, 1, 2, None),
    ),
    "behind another Slice": (
        f"""r = Slice {CUT.replace("v", "x")}
        c = Conv (r, k)
        v = Relu (c)""",
        (1, 1, 7, None),
    ),
    "through what may carry extents": (
        """c = Conv (x, k)
        w = Unsqueeze (c, at)
        q = Squeeze (w, at)
        s = Add (q, q)
        v = Concat <axis = 2> (s, q)""",
        (1, 1, 14, None),
    ),
    "through a sequence": (
        """c = Conv (x, k)
        l = SequenceConstruct (c, c)
        n = Constant <value = int64 {0}> ()
        v = SequenceAt (l, n)""",
        (1, 1, 7, None),
    ),
}


@pytest.mark.parametrize("case", MAKERS)
def test_what_a_slice_reads(case: str) -> None:
    text, dims = MAKERS[case]
    model = parsed(
        f"(float[1, 1, 8, 7] x) => (float[a, b, c, e] y) {{\n{text}\ny = Slice {CUT} }}", **NUMBERS
    )
    assert shape(model, "v") == dims
    assert shape(model, "y") == dims


def test_an_extent_below_zero_is_open_and_all_others_are_found() -> None:
    text = f"""(float[1, 1, 8, w] x) => (float[a, b, c, e] y) {{
      v = Conv (x, k)
      s = Slice {CUT}
      y = Conv <pads = [0, 4, 0, 4]> (s, k)
    }}"""
    model = parsed(text, **NUMBERS)
    assert shape(model, "y", x=(1, 1, 8, 7)) == (1, 1, 6, None)
    assert shape(model, "s", x=(1, 1, 8, 23)) == (1, 1, 7, 13)
    assert shape(model, "y", x=(1, 1, 8, 23)) == (1, 1, 6, 13)


def test_an_extent_declared_as_minus_one_is_open() -> None:
    """An exporter wrote it for an unknown size."""
    model = parsed(
        """(float[2, 3, 8, 7] x) => (float[a, b, c, e] y) <float[5, 3, 8, 7] v> {
          v = Relu (x)
          y = Slice (v, at, to, first, at)
        }""",
        first=np.array([0]),
        **NUMBERS,
    )
    for value in (*model.graph.input, *model.graph.value_info):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    assert shape(model, "y") == (None, 3, 8, 7)
    assert shape(model, "y", x=(13, 3, 8, 7)) == (11, 3, 8, 7)


OWN = """at = Constant <value = int64[1] {1}> ()
      to = Constant <value = int64[1] {-1}> ()
      last = Constant <value = int64[1] {3}> ()"""

NESTED = {
    "a captured value": f"""y = If (flag) <
        then_branch = one () => (float[a, b, c, e] t) {{
          {OWN}
          t = Slice {CUT} }},
        else_branch = two () => (float[a, b, c, e] f) {{ f = Neg (v) }}>""",
    "a Conv within": f"""y = If (flag) <
        then_branch = one () => (float[a, b, c, e] t) {{
          {OWN}
          w = Conv (x, k)
          t = Slice {CUT.replace("v", "w")} }},
        else_branch = two () => (float[a, b, c, e] f) {{ f = Neg (v) }}>""",
    "what an If returns": f"""i = If (flag) <
        then_branch = one () => (float[a, b, c, e] t) {{ t = Relu (v) }},
        else_branch = two () => (float[a, b, c, e] f) {{ f = Neg (v) }}>
      {OWN}
      y = Slice {CUT.replace("v", "i")}""",
    "an input of a Scan": f"""y = Scan <num_scan_inputs = 1, body = turn (s) => (t) {{
          {OWN.replace("{3}", "{2}")}
          t = Slice {CUT.replace("v", "s")} }}> (v)""",
    "in a Loop": f"""z, y = Loop (count, flag, v) <
        body = turn (int64 i, bool go, s) => (bool on, s2, t) {{
          {OWN}
          on = Identity (go)
          s2 = Identity (s)
          t = Slice {CUT} }}>""",
    "an item of a sequence": f"""l = SequenceConstruct (v, v)
      m = SequenceMap <body = each (s) => (t) {{
          {OWN}
          t = Slice {CUT.replace("v", "s")} }}> (l)
      y = ConcatFromSequence <axis = 0> (m)""",
}


@pytest.mark.parametrize("case", NESTED)
def test_a_slice_in_a_body(case: str) -> None:
    model = parsed(
        f"""(float[1, 1, 8, 7] x, bool flag, int64 count) => (y) {{
          v = Conv (x, k)
          {NESTED[case]} }}""",
        k=NUMBERS["k"],
    )
    assert shape(model, "v") == (1, 1, 7, None)


FUNCTIONS = {
    "of what goes in": ("v = Conv (x, k)\ny = own.f (v)", "s = Identity (v)"),
    "of what is passed on": ("u = Conv (x, k)\nv = Add (u, u)\ny = own.f (v)", "s = Add (v, v)"),
    "of a Conv in it": ("y = own.f (x)", "w = Constant <value = K> ()\ns = Conv (v, w)"),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_slice_in_a_function(case: str) -> None:
    main, inner = FUNCTIONS[case]
    kernel = "float[1, 1, 2, 9] {" + ", ".join(["1"] * 18) + "}"
    text = f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    main (float[1, 1, 8, 7] x) => (float[a, b, c, e] z)
    <float[1, 1, 2, 9] k = {kernel.split("] ")[1]}> {{
      {main}
      z = own.g (y)
    }}
    <opset_import: ["" : 17, "own" : 1], domain: "own"> f (v) => (t) {{
      {inner.replace("K", kernel)}
      {OWN}
      t = Slice {CUT.replace("v", "s")}
    }}
    <opset_import: ["" : 17], domain: "own"> g (v) => (t) {{
      w = Constant <value = {kernel}> ()
      {OWN}
      u = Conv (v, w)
      t = Slice {CUT.replace("v", "u")}
    }}"""
    model = onnx.parser.parse_model(text)
    assert shape(model, "z") == (1, 1, 6, None)


def test_extents_that_are_data_are_found_through_slices_everywhere() -> None:
    model = parsed(
        f"""(float[5, 7, 3, 2] x, bool flag) => (float[a, b, c] y) {{
          v = Relu (x)
          h = Shape (v)
          m = Slice (h, from, till)
          n = Concat <axis = 0> (m, rest)
          y = Reshape (v, n)
          z = If (flag) <
            then_branch = one () => (float[a, b, c] t) {{
              {OWN}
              g = Shape (v)
              i = Slice (g, at, to)
              r = Constant <value = int64[1] {{10}}> ()
              j = Concat <axis = 0> (i, r)
              t = Reshape (v, j) }},
            else_branch = two () => (float[a, b, c] f) {{ f = Neg (y) }}>
          o = own.first (h)
          p = Concat <axis = 0> (o, left)
          q = Reshape (v, p)
        }}""",
        **{"from": np.array([1]), "till": np.array([3])},
        rest=np.array([10]),
        left=np.array([-1]),
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(
        helper.make_function(
            *("own", "first", ["h"], ["t"]),
            [
                helper.make_node("Constant", [], ["a"], value_ints=[0]),
                helper.make_node("Constant", [], ["b"], value_ints=[1]),
                helper.make_node("Constant", [], ["r"], value_ints=[21]),
                helper.make_node("Slice", ["h", "a", "b"], ["s"]),
                helper.make_node("Mul", ["s", "r"], ["t"]),
            ],
            [helper.make_opsetid("", 17)],
        )
    )
    assert shape(model, "y") == (7, 3, 10)
    assert shape(model, "t", "z/then_branch") == (7, 3, 10)
    assert shape(model, "q") == (105, 2)


def test_no_operator_of_onnx_that_is_inferred_as_its_body_slices() -> None:
    """Within such a body nothing would keep a negative extent from a Slice."""
    for schema in defs.get_all_schemas_with_history():
        if not schema.has_type_and_shape_inference_function:
            for opset in schema.function_opset_versions:
                text = schema.get_function_with_opset_version(opset)
                body = onnx.FunctionProto.FromString(text)
                assert all(node.op_type != "Slice" for node in body.node), schema.name


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "ConvInteger", "QLinearConv"])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_a_weight_of_another_rank_tells_nothing(op: str, rank: int) -> None:
    """No runtime runs such a node, and inference of onnx 1.17 ends the process."""
    dtype = np.float32 if op in ("Conv", "ConvTranspose") else np.uint8
    name = "float" if dtype is np.float32 else "uint8"
    scales = "s, z, w, s, z, s, z" if op == "QLinearConv" else "w"
    model = parsed(
        f"({name}[1, 3, N, 8] x) => (r) {{ y = {op} (x, {scales})  r = Identity (x) }}",
        w=np.ones((3, 3, 2, 2, 2)[:rank], dtype),
        s=np.float32(1),
        z=np.uint8(0),
    )
    assert (shape(model, "y") is None) == (rank != 4)
    assert shape(model, "r") == (1, 3, None, 8)
