"""Pairs of small models that differ, or do not, in one thing that an operator or a graph means."""

from __future__ import annotations

import onnx
import pytest

from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import prove_at_sizes

PAD = """<ir_version: 8, opset_import: ["": {opset}]>
    g (float[2, 3, 4] x) => (float[2, 3, 6] y)
    {{ y = Pad <pads = [0, 0, 1, 0, 0, 1], value = {value}> (x) }}"""
DEFAULT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 2] x, float[2] w = {{{value}, 1.5}}) => (float[2, 2] y) {{ y = Add (x, w) }}"""
CONSTANT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2] x) => (float[2] y, float[1] {output}) <float[1] {stored} = {{{value}}}>
    {{ y = Relu (x) {node} }}"""
MEAN = """<ir_version: 8, opset_import: ["": 13]>
    g ({kind}[3, 2] x) => ({kind}[3] y)
    {{ m = ReduceMean <axes = [1], keepdims = 0> (x)  y = Add (m, m) }}"""
SUM = """<ir_version: 8, opset_import: ["": 13]>
    g ({kind}[3, 2] x) => ({kind}[3] y) <int64[1] axis = {{1}}>
    {{ y = ReduceSum <keepdims = 0> (x, axis) }}"""
NESTED = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2] x) => (float[2] y) <int64 n = {{3}}>
    {{ y = Loop (n, , x) <body = outer (int64 i, bool c, float[2] s) => (bool d, float[2] t) {{
        d = Identity (c)  r = Relu (s)
        t = Loop (n, , r) <body = inner (int64 j, bool a, float[2] u) => (bool b, float[2] v) {{
            b = Identity (a)  v = Add ({read}, s) }}> }}> }}"""


def verdicts(first: str, other: str) -> list[str]:
    both = (Program.of(onnx.parser.parse_model(text), None) for text in (first, other))
    return [proof.verdict for proof in prove_at_sizes(*both, ({},), {})]


def verdict(first: str, other: str) -> str:
    (text,) = verdicts(first, other)
    return text


@pytest.mark.parametrize("opset", [2, 10])
def test_the_number_that_pad_pads_with(opset: int) -> None:
    half, quarter = (PAD.format(opset=opset, value=value) for value in (0.5, 0.25))
    assert verdict(half, quarter) == "different"
    assert verdict(half, half.replace("y = Pad", "z = Identity (x) y = Pad")) == "equal"


def test_the_default_of_an_input() -> None:
    first = DEFAULT.format(value=2.5)
    assert verdict(first, DEFAULT.format(value=3.5)) == "different"
    assert verdict(first, first.replace("Add (x, w)", "Add (w, x)")) == "equal"


@pytest.mark.parametrize("is_open", [False, True])
def test_a_run_that_leaves_an_input_to_its_default(is_open: bool) -> None:
    first = DEFAULT.format(value=2.5)
    for other, expected in (("Add (w, x)", "equal"), ("Sub (w, x)", "different")):
        both = [onnx.parser.parse_model(t) for t in (first, first.replace("Add (x, w)", other))]
        for model in both if is_open else ():
            model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "N"
        size_proofs = prove_at_sizes(
            *(Program.of(model, None) for model in both), ({},), {"x": (2, 2)}
        )
        assert size_proofs[0].verdict == expected


def test_an_output_that_is_a_constant() -> None:
    stored = {v: CONSTANT.format(output="z", stored="z", value=v, node="") for v in (0.5, 0.25)}
    computed = CONSTANT.format(output="z", stored="w", value=0.5, node="z = Identity (w)")
    assert verdict(stored[0.5], stored[0.25]) == "different"
    assert verdict(computed, stored[0.25]) == "different"
    assert verdict(computed, stored[0.5]) == "equal"


def test_a_mean_of_integers_is_cut_off() -> None:
    equal = {kind: verdict(MEAN.format(kind=kind), SUM.format(kind=kind)) == "equal"
             for kind in ("float", "int32")}  # fmt: skip
    assert equal == {"float": True, "int32": False}


def test_the_states_of_a_loop_in_a_loop_are_two() -> None:
    assert verdict(NESTED.format(read="u"), NESTED.format(read="s")) == "different"


@pytest.mark.parametrize(("kind", "decides"), [("And", "false"), ("Or", "true")])
def test_one_operand_decides(kind: str, decides: str) -> None:
    """The other branch may be impossible to compute."""
    branch = "then" if kind == "Or" else "else"
    other = "else" if kind == "Or" else "then"
    guarded = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[3] x, bool k) => (float[3] y) <bool d = {{{int(decides == "true")}}},
        int64[1] two = {{2}}> {{
            c = {kind} (k, d)
            y = If (c) <{branch}_branch = a () => (float[3] p) {{ p = Relu (x) }},
                {other}_branch = b () => (float[2] q) {{ q = Reshape (x, two) }}> }}"""
    plain = """<ir_version: 8, opset_import: ["": 17]>
        g (float[3] x, bool k) => (float[3] y) { y = Relu (x) }"""
    assert verdict(plain, guarded) == "equal"
    assert verdict(plain, guarded.replace("(k, d)", "(k, k)")) == "different"


def test_extents_behind_a_computed_reshape_are_seen_by_the_next_function() -> None:
    """Inference of the whole model does not know what Gather chooses of the second Shape."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 6] x) => (float[a, b] y) <int64[1] at = {{1}}, int64[1] less = {{-1}}> {{
            s = Shape (x)  c = Gather (s, at)  d = Concat <axis = 0> (less, c)
            r = Reshape (x, d)  f = CumSum (r, z)  t = Transpose <perm = [1, 0]> (f)
            {end} }}"""
    text = text.replace("{{-1}}>", "{{-1}}, int64 z = {{0}}>")
    first = text.format(end="y = Concat <axis = 0> (t, t)")
    other = text.format(end="e = Concat <axis = 1> (f, f)  y = Transpose <perm = [1, 0]> (e)")
    assert set(verdicts(first, other)) == {"equal"}


def test_an_input_that_is_lost() -> None:
    first = DEFAULT.format(value=2.5)
    lost = first.replace(", float[2] w = {2.5, 1.5})", ")").replace("Add (x, w)", "Relu (x)")
    assert verdict(first, lost) == "different"


def test_a_branch_of_other_extents_is_chosen_by_what_is_known() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3] x) => (float[a, b] y) <int64[1] one = {{{wanted}}}, int64 at = {{0}}> {{
            s = Shape (x)  k = Gather (s, at)  c = Equal (k, one)
            z = If (c) <then_branch = t () => (float[n] p) {{ p = ReduceMax <axes = [0],
                keepdims = 0> (x) }}, else_branch = e () => (float[n, 3] q) {{ q = Relu (x) }}>
            {nodes} }}"""
    plain = text.format(wanted=2, nodes="y = Neg (z)")
    assert set(verdicts(plain, text.format(wanted=2, nodes="w = Neg (z) y = Identity (w)"))) == {
        "equal"
    }
    assert "different" in verdicts(plain, text.format(wanted=3, nodes="y = Neg (z)"))
