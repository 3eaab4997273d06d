"""Graphs as a whole: branches, bodies, functions, open sizes, and values that are only named."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.evidence.mutants.proof import difference, proofs
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.proof.program import Correspondence, Program
from widthfold_onnx.evidence.proof.proving import proof_report, prove, prove_at_sizes

HEAD = '<ir_version: 8, opset_import: ["" : 17, "l" : 1]>'
MAIN = f"{HEAD} g (float[2,3] x, bool c) => (float[2,3] y)"


def parsed(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def branches(then: str, other: str, condition: str = "c", before: str = "") -> onnx.ModelProto:
    return parsed(f"""{MAIN} {{ {before}
        y = If ({condition}) <
            then_branch = t () => (float[2,3] p) {{ {then} }},
            else_branch = e () => (float[2,3] q) {{ {other} }}
        >
    }}""")


PLAIN = parsed(f"{MAIN} {{ y = Relu (x) }}")
CHOSEN = branches("p = Relu (x)", "q = Neg (x)")


def test_two_equal_branches_are_what_they_compute() -> None:
    assert difference(PLAIN, branches("p = Relu (x)", "q = Relu (x)")) == ""
    assert difference(PLAIN, branches("p = Relu (x)", "t = Neg (x) s = Neg (t) q = Relu (s)")) == ""


@pytest.mark.parametrize("then", ["p = Abs (x)", "t = Neg (x) p = Relu (t)"])
def test_a_fault_in_either_branch_is_found(then: str) -> None:
    assert difference(PLAIN, branches(then, "q = Relu (x)"))
    assert difference(PLAIN, branches("p = Relu (x)", then.replace("p =", "q =")))
    assert difference(CHOSEN, branches(then, "q = Neg (x)"))


def test_exchanged_branches_are_found() -> None:
    assert difference(CHOSEN, branches("p = Neg (x)", "q = Relu (x)"))
    assert difference(CHOSEN, branches("p = Relu (x)", "q = Neg (x)")) == ""


def test_another_condition_is_found() -> None:
    assert difference(CHOSEN, branches("p = Relu (x)", "q = Neg (x)", "d", "d = Not (c)"))


def test_a_constant_condition_leaves_one_branch() -> None:
    constant = "d = Constant <value = bool {1}> ()"
    assert difference(PLAIN, branches("p = Relu (x)", "q = Neg (x)", "d", constant)) == ""
    assert difference(PLAIN, branches("p = Neg (x)", "q = Relu (x)", "d", constant))


def loop(body: str, captured: str = "h = Relu (x)", count: int = 5) -> onnx.ModelProto:
    return parsed(f"""{MAIN} {{
        {captured}
        n = Constant <value = int64 {{{count}}}> ()
        y = Loop (n, c, x) <body = b (int64 i, bool d, float[2,3] s) => (bool e, float[2,3] r) {{
            e = Identity (d) {body}
        }}>
    }}""")


LOOP = loop("t = Add (s, h) r = Tanh (t)")


@pytest.mark.parametrize(
    "same",
    [LOOP, loop("t = Add (h, s) r = Tanh (t)"), loop("m = Neg (h) t = Sub (s, m) r = Tanh (t)")],
)
def test_bodies_that_are_the_same_function_are_equal(same: onnx.ModelProto) -> None:
    assert difference(LOOP, same) == ""


@pytest.mark.parametrize(
    "other",
    [
        loop("t = Sub (s, h) r = Tanh (t)"),
        loop("t = Add (s, x) r = Tanh (t)"),
        loop("t = Add (s, h) r = Identity (t)"),
        loop("t = Add (s, h) r = Tanh (t)", "h = Abs (x)"),
        loop("t = Add (s, h) r = Tanh (t)", count=6),
    ],
)
def test_a_fault_in_a_body_or_in_what_it_captures_is_found(other: onnx.ModelProto) -> None:
    assert difference(LOOP, other)


def test_a_node_of_a_body_that_cannot_be_evaluated_is_named_with_the_node_around_it() -> None:
    message = "If node of 'y': in its then_branch, MatMul node of 'p': matrices of"
    assert message in difference(PLAIN, branches("p = MatMul (x, x)", "q = Neg (x)"))


def scan(body: str, axis: int = 1) -> onnx.ModelProto:
    return parsed(f"""{HEAD} g (float[2] x, float[7,3,2] v) => (float[2] y, float[3,7,2] z) {{
        y, z = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}],
            body = b (float[2] s, float[7,2] t) => (float[2] r, float[7,2] o) {{ {body} }}
        > (x, v)
    }}""")


def test_a_scan_is_its_body_and_its_axes() -> None:
    original = scan("o = Add (t, s) r = Tanh (s)")
    assert difference(original, scan("o = Add (s, t) r = Tanh (s)")) == ""
    assert difference(original, scan("o = Sub (t, s) r = Tanh (s)"))
    assert difference(original, scan("o = Add (t, s) r = Abs (s)"))
    assert difference(original, scan("o = Add (t, s) r = Tanh (s)", 0))


FUNCTION = '<domain: "l", opset_import: ["" : 17]> f (a) => (b) {{ {} }}'


def test_local_functions_are_what_their_nodes_compute() -> None:
    call = f"{MAIN} {{ y = l.f (x) }} "
    model = parsed(call + FUNCTION.format("t = Neg (a) b = Relu (t)"))
    plain = parsed(f"{MAIN} {{ t = Neg (x) y = Relu (t) }}")
    assert difference(model, plain) == ""
    assert difference(plain, model) == ""
    assert difference(plain, parsed(call + FUNCTION.format("b = Relu (a)")))


def open_model(shape: str) -> onnx.ModelProto:
    return parsed(f"""{HEAD} g (float[N,L,6] x) => (float[A,B,C] y) {{
        s = Constant <value = int64[3] {{{shape}}}> ()
        y = Reshape (x, s)
    }}""")


def test_open_sizes_are_tried_and_what_holds_at_one_only_is_found() -> None:
    keeps = open_model("0, 0, 6")
    assert len(proofs(keeps, keeps)) == 3
    assert difference(keeps, open_model("0, -1, 6")) == ""
    constant = {"x": (2, 24, 6)}
    size_proofs = proofs(keeps, open_model("2, -1, 6"), constant)
    assert [proof.verdict for proof in size_proofs] == ["equal", "different"]
    size_proofs = proofs(keeps, open_model("0, 24, 6"), constant)
    assert [proof.verdict for proof in size_proofs] == ["equal", "different"]


def test_extents_that_are_demanded_are_the_only_ones() -> None:
    old, new = (Program.of(open_model(shape), None) for shape in ("0, 0, 6", "2, -1, 6"))
    (proof,) = prove_at_sizes(old, new, ({"x": (2, 5, 6)},), {})
    assert (proof.verdict, proof.shapes) == ("equal", {"x": (2, 5, 6)})


def test_an_original_that_cannot_be_evaluated_is_unverified() -> None:
    broken = Program.of(
        parsed(f"{MAIN} {{ z = Transpose <perm = [0, 5]> (x) y = Relu (z) }}"), None
    )
    with pytest.raises(UnverifiedError, match="the original cannot be evaluated"):
        prove(Correspondence(broken, Program.of(PLAIN, None)), {"x": (2, 3)})


CHAIN = "a = Relu (x) b = Tanh (a) d = Exp (b) y = Sin (d)"


@pytest.mark.parametrize(
    ("nodes", "value"),
    [
        ("m = Neg (x) n = Neg (m) a = Abs (n) b = Tanh (a) d = Exp (b) y = Sin (d)", "a"),
        ("a = Relu (x) m = Neg (a) n = Neg (m) b = Cosh (n) d = Exp (b) y = Sin (d)", "b"),
        (
            "a = Relu (x) b = Tanh (a) m = Neg (b) d = Exp (m) n = Neg (d) o = Neg (n) y = Sin (o)",
            "y",
        ),
        ("a = Relu (x) b = Tanh (a) d = Exp (b) y = Sin (b)", "y"),
    ],
)
def test_the_first_value_that_differs_is_named_whatever_reads_it(nodes: str, value: str) -> None:
    """A value that both models name is a variable for its readers, and a target all the same."""
    original, other = (parsed(f"{MAIN} {{ {text} }}") for text in (CHAIN, nodes))
    assert difference(original, other).startswith(f"different: {value} (")


def test_a_value_that_is_computed_again_is_seen_to_be_the_same() -> None:
    original = parsed(f"{MAIN} {{ a = Relu (x) y = Add (a, x) }}")
    again = parsed(f"{MAIN} {{ b = Relu (x) y = Add (x, b) }}")
    assert difference(original, again) == ""


def test_exchanged_names_are_found() -> None:
    original = parsed(f"{MAIN} {{ a = Relu (x) b = Tanh (x) y = Sub (a, b) }}")
    other = parsed(f"{MAIN} {{ b = Relu (x) a = Tanh (x) y = Sub (a, b) }}")
    right = parsed(f"{MAIN} {{ b = Relu (x) a = Tanh (x) y = Sub (b, a) }}")
    assert difference(original, other)
    assert difference(original, right) == ""


def test_random_nodes_are_sources_of_their_own() -> None:
    def noise(*names: str) -> onnx.ModelProto:
        nodes = " ".join(f"{name} = RandomNormalLike (x)" for name in sorted(set(names)))
        return parsed(f"{MAIN} {{ {nodes} y = Sub ({', '.join(names)}) }}")

    assert difference(noise("a", "b"), noise("a", "b")) == ""
    assert difference(noise("a", "b"), noise("a", "a"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_one_unit_in_the_last_place_is_a_difference_in_every_type(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    weight = np.random.default_rng(0).standard_normal((3, 5)).astype(kind)
    other = weight.copy()
    bits = other.view(f"u{kind.itemsize}")
    bits[1, 2] += 1
    name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    text = f"{HEAD} g ({name}[2,3] x) => ({name}[2,5] y) {{ y = MatMul (x, w) }}"
    assert difference(parsed(text, w=weight), parsed(text, w=weight)) == ""
    assert difference(parsed(text, w=weight), parsed(text, w=other)).startswith("different: y ")


def test_a_value_of_another_element_type_is_named_with_both() -> None:
    single, double = (
        parsed(f"{MAIN} {{ v = Cast <to = {to}> (x) r = Relu (v) y = Cast <to = 1> (r) }}")
        for to in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    )
    reason = difference(single, double)
    statement = "v (Cast node of 'v'): elements of type DOUBLE instead of FLOAT"
    doubt = "the numbers agree, but Casts round at other places"
    assert reason == f"not provable: {statement}; {doubt}"


def test_outputs_that_no_node_writes_are_compared() -> None:
    text = f"{HEAD} g (float[2,3] x) => (float[2,3] x, float[3] w, float[2,3] y) {{ y = Relu (x) }}"
    weight = np.arange(3, dtype=np.float32)
    original = parsed(text, w=weight)
    assert difference(original, parsed(text, w=weight)) == ""
    reason = difference(original, parsed(text, w=weight[::-1].copy()))
    assert reason == "different: w: 2 of 3 elements differ, the first at [0]"


def test_an_input_that_is_declared_with_other_extents_is_found() -> None:
    other = parsed(f"{HEAD} g (float[2,4] x, bool c) => (float[2,4] y) {{ y = Relu (x) }}")
    reason = difference(PLAIN, other)
    assert reason == "different: the new model declares other extents of its inputs"


def test_an_output_that_only_one_model_has_is_found() -> None:
    other = parsed(f"{HEAD} g (float[2,3] x, bool c) => (float[2,3] z) {{ z = Relu (x) }}")
    assert difference(PLAIN, other) == "different: only one model computes z"
    assert difference(other, PLAIN) == "different: only one model computes y"


@pytest.mark.parametrize("where", ["program.Program.read", "evaluation.Evaluation._node"])
def test_a_model_that_does_not_fit_into_memory_is_not_proved(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    first, other = (
        Program.of(parsed(f"{MAIN} {{ s = {op} (x, w)  y = Relu (s) }}", w=np.ones(3)), None)
        for op in ("Add", "Sub")
    )
    monkeypatch.setattr(f"widthfold_onnx.evidence.proof.{where}", fail)
    size_proof = proof_report(first, other, ({},), {})
    assert (size_proof.verdict, size_proof.reason) == (
        "skipped",
        "the proof needs more memory than there is",
    )


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_function_with_the_name_of_an_operator_may_be_either(domain: str) -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
                                    "g (float[2] x) => (float[2] y) { y = Relu (x) }")  # fmt: skip
    body = [onnx.helper.make_node("Neg", ["a"], ["b"])]
    imports = [onnx.helper.make_opsetid("", 17)]
    for name in ("Relu", "Rectify"):
        function = onnx.helper.make_function(domain, name, ["a"], ["b"], body, imports)
        model.functions.append(function)
    with pytest.raises(UnverifiedError, match="names of operators, Relu: runtimes take either"):
        Program.of(model, None)
    del model.functions[0]
    Program.of(model, None)


def texts_in_node(*texts: bytes) -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 19]> g (string[1] x) => '
        '(bool[1] y) { c = Constant <value_strings = [""]> () y = Equal (x, c) }')  # fmt: skip
    model.graph.node[0].attribute[0].strings[:] = texts
    return model


def texts_stored(*texts: bytes) -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 19]> g (string[1] x) => '
                                    "(bool[1] y) { y = Equal (x, c) }")  # fmt: skip
    tensor = onnx.TensorProto(name="c", data_type=onnx.TensorProto.STRING, dims=[len(texts)])
    tensor.string_data[:] = texts
    model.graph.initializer.append(tensor)
    return model


@pytest.mark.parametrize("place", [texts_in_node, texts_stored])
@pytest.mark.parametrize("other", [b"a\\xff", b"a\xff\0", b"a", b"a\xef\xbf\xbd", b"a\xfe"])
def test_texts_are_compared_byte_by_byte(
    place: Callable[..., onnx.ModelProto], other: bytes
) -> None:
    assert difference(place(b"a\xff"), place(b"a\xff")) == ""
    assert difference(place(b"a\xff"), place(other))
    assert difference(place(b"a"), place(b"a\0"))
