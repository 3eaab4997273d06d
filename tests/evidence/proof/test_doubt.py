"""Numbers that another optimizer rounded are not provable; a fault is different."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import SizeProof, proof_report, prove_at_sizes

RNG = np.random.default_rng(5)
W = RNG.standard_normal((3, 2, 3)).astype(np.float32)
SCALE, BIAS, MEAN = RNG.standard_normal((3, 3)).astype(np.float32)
VARIANCE = RNG.uniform(0.5, 2, 3).astype(np.float32)
NORMAL = {"w": W, "s": SCALE, "b": BIAS, "m": MEAN, "v": VARIANCE}
BEFORE = "c = Conv (x, w)  y = BatchNormalization (c, s, b, m, v)"
FACTOR = SCALE / np.sqrt(VARIANCE + np.float32(1e-5))
MERGED = {"w": W * FACTOR[:, None, None], "b": BIAS - MEAN * FACTOR}
AFTER = "y = Conv (x, w, b)"


def model(nodes: str, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 2, 7] x) => (float[2, 3, 5] y) {{ {nodes} }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return proto


def proof(first: onnx.ModelProto, other: onnx.ModelProto) -> SizeProof:
    (size_proof,) = prove_at_sizes(Program.of(first, None), Program.of(other, None), ({},), {})
    return size_proof


def test_a_merged_normalization_is_named() -> None:
    size_proof = proof(model(BEFORE, NORMAL), model(AFTER, MERGED))
    assert size_proof.verdict == "not provable"
    assert "BatchNormalization" in size_proof.reason


@pytest.mark.parametrize("name", MERGED)
def test_a_normalization_that_is_merged_wrongly(name: str) -> None:
    wrong = {**MERGED, name: MERGED[name] * np.float32(1.001)}
    assert proof(model(BEFORE, NORMAL), model(AFTER, wrong)).verdict == "different"


def test_a_factor_that_is_left_out() -> None:
    before = model("c = Conv (x, w)  y = Mul (c, k)", {"w": W, "k": np.float32([1.0001])})
    assert proof(before, model("y = Conv (x, w)", {"w": W})).verdict == "different"


def test_constants_that_were_computed_in_another_order() -> None:
    before = model("k = Mul (w, t)  l = Mul (k, u)  y = Conv (x, l)",
                   {"w": W, "t": np.float32([0.3]), "u": np.float32([0.7])})  # fmt: skip
    once = W * (np.float32([0.3]) * np.float32([0.7]))
    assert (once != W * np.float32(0.3) * np.float32(0.7)).any()
    size_proof = proof(before, model("y = Conv (x, l)", {"l": once}))
    assert size_proof.verdict == "not provable"
    assert "Mul" in size_proof.reason


def test_as_many_constants_are_no_rounding() -> None:
    """One unit in the last place of a weight, in a fold or elsewhere, is another function."""
    wrong = W.copy()
    wrong[0, 0, 0] = np.nextafter(wrong[0, 0, 0], np.float32(9))
    before = model("y = Conv (x, w)", {"w": W})
    assert proof(before, model("y = Conv (x, w)", {"w": wrong})).verdict == "different"


def test_a_normalization_behind_a_transposed_convolution_in_groups_of_an_old_operator_set() -> None:
    weight = RNG.standard_normal((2, 1, 3)).astype(np.float32)
    sides = {"s": SCALE[:2], "b": BIAS[:2], "m": MEAN[:2], "v": VARIANCE[:2]}
    merged = {"w": weight * FACTOR[:2, None, None], "b": (BIAS - MEAN * FACTOR)[:2]}
    text = """<ir_version: 8, opset_import: ["": 11]>
        g (float[2, 2, 7] x) => (float[2, 2, 9] y) {{ {nodes} }}"""
    transposed = "{} = ConvTranspose <group = 2> (x, w{})"
    before = onnx.parser.parse_model(
        text.format(nodes=transposed.format("c", "")
                    + " y = BatchNormalization <momentum = 0.9> (c, s, b, m, v)")
    )  # fmt: skip
    after = onnx.parser.parse_model(text.format(nodes=transposed.format("y", ", b")))
    for proto, constants in ((before, {"w": weight, **sides}), (after, merged)):
        proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    assert proof(before, after).verdict == "not provable"


HALF = {"h": np.float32([0.5]), "one": np.float32([1]), "two": np.float32([2]),
        "root": np.float32([np.sqrt(2)]), "w": W}  # fmt: skip
LAWS = {
    "Relu twice": ("c = Conv (x, w)  r = Relu (c)  y = Relu (r)", "c = Conv (x, w)  y = Relu (c)"),
    "Div by a power of two": (
        "c = Conv (x, w)  y = Div (c, two)",
        "c = Conv (x, w)  y = Mul (c, h)",
    ),
    "Sigmoid by its formula": (
        "c = Conv (x, w)  y = Sigmoid (c)",
        "c = Conv (x, w)  n = Neg (c)  e = Exp (n)  p = Add (e, one)  y = Reciprocal (p)",
    ),
    "Relu by Where": (
        "c = Conv (x, w)  y = Relu (c)",
        "c = Conv (x, w)  z = Sub (one, one)  l = Less (c, z)  y = Where (l, z, c)",
    ),
}


@pytest.mark.parametrize(("before", "after"), LAWS.values(), ids=LAWS)
def test_a_law_that_the_proof_does_not_know(before: str, after: str) -> None:
    for first, other in ((before, after), (after, before)):
        size_proof = proof(model(first, HALF), model(other, HALF))
        assert size_proof.verdict == "not provable"
        assert "the numbers agree, but" in size_proof.reason


@pytest.mark.parametrize(("before", "after"), LAWS.values(), ids=LAWS)
def test_a_fault_beside_a_law(before: str, after: str) -> None:
    wrong = W.copy()
    wrong[0, 0, 0] = np.nextafter(wrong[0, 0, 0], np.float32(9))
    size_proof = proof(model(before, HALF), model(after, {**HALF, "w": wrong}))
    assert size_proof.verdict == "different"


@pytest.mark.parametrize("after", ["LeakyRelu", "Abs", "Sigmoid"])
def test_another_function_is_no_law(after: str) -> None:
    before = model("c = Conv (x, w)  y = Relu (c)", {"w": W})
    size_proof = proof(before, model(f"c = Conv (x, w)  y = {after} (c)", {"w": W}))
    assert size_proof.verdict == "different"


def test_an_operator_that_nobody_here_knows() -> None:
    before = model("c = Conv (x, w)  y = Relu (c)", {"w": W})
    after = model('y = com.microsoft.FusedConv <activation = "Relu"> (x, w)', {"w": W})
    after.opset_import.add(domain="com.microsoft", version=1)
    size_proof = proof(before, after)
    assert size_proof.verdict == "not provable"
    assert "the definition of com.microsoft.FusedConv is not known" in size_proof.reason
    assert proof(after, after).verdict == "equal"


def test_one_branch_of_an_if_is_no_law() -> None:
    """Numbers would take one branch: a fault in the other must not pass as a law."""
    branches = """s = ReduceSum <keepdims = 0> (x)  z = Sub (s, s)  b = Greater (z, s)
        y = If (b) <then_branch = t () => (y1) {{ c = Conv (x, w)  y1 = {} (c) }},
                    else_branch = e () => (y2) {{ d = Conv (x, w)  y2 = {} (d) }}>"""
    for exchanged in (("Abs", "Sigmoid"), ("Relu", "Abs")):
        before = model(branches.format("Relu", "Sigmoid"), {"w": W})
        assert proof(before, model(branches.format(*exchanged), {"w": W})).verdict == "different"


@pytest.mark.parametrize("after", ["a = Mul (t, m)", "z = Sub (t, t)  a = Sub (z, t)"])
def test_a_law_in_a_branch_whose_extents_are_not_known(after: str) -> None:
    """Nothing shows a difference: no numbers can be computed of what nobody here knows."""
    branches = """s = ReduceSum <keepdims = 0> (x)  z = Sub (s, s)  b = Greater (z, s)
        y = If (b) <then_branch = t () => (a) {{ t = some.where.Made (x)  {} }},
                    else_branch = e () => (d) {{ d = Conv (x, w) }}>"""
    constants = {"w": W, "m": np.float32([-1])}
    first, other = (model(branches.format(nodes), constants) for nodes in ("a = Neg (t)", after))
    for proto in (first, other):
        proto.opset_import.add(domain="some.where", version=1)
    size_proof = proof(first, other)
    assert size_proof.verdict == "not provable"
    assert size_proof.reason.endswith("its extents are not known")


def test_a_law_behind_a_cast_to_fewer_digits() -> None:
    """Numbers are computed in float64 wherever the models say float32."""
    head = '<ir_version: 9, opset_import: ["" : 20]> g (double[2, 9] x) => (float[2, 9] y)'
    laws = "y = Tanh (c)", "d = Add (c, c)  s = Sigmoid (d)  t = Add (s, s)  y = Sub (t, one)"
    first, *others = (
        onnx.parser.parse_model(f"{head} <float one = {{{n}}}> {{ c = Cast <to = 1> (x) {law} }}")
        for law, n in ((laws[0], 1), (laws[1], 1), (laws[1], 1.001))
    )
    assert [proof(first, other).verdict for other in others] == ["not provable", "different"]


@pytest.mark.parametrize("rows", [1, 4, 10, 30, 80])
def test_a_merged_normalization_behind_a_table(rows: int) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (int64[2, 7] i) => (float[2, 3, 5] y) {
        e = Gather (t, i)  x = Transpose <perm = [0, 2, 1]> (e)  %s }"""

    def read(nodes: str, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
        proto = onnx.parser.parse_model(text % nodes)
        arrays = {"t": np.random.default_rng(rows).standard_normal((rows, 2)), **constants}
        tensors = (numpy_helper.from_array(np.float32(a), n) for n, a in arrays.items())
        proto.graph.initializer.extend(tensors)
        return proto

    before = read(BEFORE, NORMAL)
    size_proof = proof(before, read(AFTER, MERGED))
    assert size_proof.verdict == "not provable"
    assert "BatchNormalization" in size_proof.reason
    wrong = {**MERGED, "w": MERGED["w"] * np.float32(1.001)}
    assert proof(before, read(AFTER, wrong)).verdict == "different"


LIMITS = {
    "wraps": ("int32", "a = Cast<to = 2>(x) b = Cast<to = 6>(a)"),
    "wraps at 16 bits": ("int64", "a = Cast<to = 5>(x) b = Cast<to = 7>(a)"),
    "sign": ("int16", "b = Abs(x)"),
    "sign of bytes": ("int8", "b = Abs(x)"),
    "upper limit": ("int32", "h = Constant<value = int32 {255}>() b = Min(x, h)"),
    "lower limit": ("int32", "h = Constant<value = int32 {-255}>() b = Max(x, h)"),
    "remainder": ("int32", "h = Constant<value = int32 {256}>() b = Mod(x, h)"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_of_integers_that_is_gone(limit: str) -> None:
    kind, nodes = LIMITS[limit]
    text = f"""<ir_version: 8, opset_import: ["": 17]> g ({kind}[1, 2, 64] x) => (float[1, 3, 62] y)
        {{ %s  f = Cast<to = 1>(b)  y = Conv (f, w) }}"""
    models = [onnx.parser.parse_model(text % body) for body in (nodes, "b = Identity(x)")]
    for proto in models:
        proto.graph.initializer.append(numpy_helper.from_array(W, "w"))
    assert proof(*models).verdict == "different"


K, L = RNG.standard_normal((2, 1, 3, 1)).astype(np.float32)
V = RNG.standard_normal((3, 2, 3)).astype(np.float32)
GAIN = RNG.uniform(1, 3, (1, 3, 1)).astype(np.float32)
SUMS = {
    "Conv and Add": (
        "c = Conv (x, w, b)  y = Add (k, c)",
        {"w": W, "b": BIAS, "k": K},
        "y = Conv (x, w, b)",
        {"w": W, "b": BIAS + K.ravel()},
    ),
    "two Adds": (
        "c = Conv (x, w)  a = Add (c, k)  y = Sub (a, l)",
        {"w": W, "k": K, "l": L},
        "c = Conv (x, w)  y = Add (c, k)",
        {"w": W, "k": K - L},
    ),
    "parallel Convs": (
        "c = Conv (x, w)  d = Conv (x, v)  y = Add (c, d)",
        {"w": W, "v": V},
        "y = Conv (x, w)",
        {"w": W + V},
    ),
    "Div as Mul": (
        "c = Conv (x, w)  y = Div (c, g)",
        {"w": W, "g": GAIN},
        "c = Conv (x, w)  y = Mul (c, g)",
        {"w": W, "g": 1 / GAIN},
    ),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums_of_constants_are_named(case: str) -> None:
    before, constants, after, rounded = SUMS[case]
    size_proof = proof(model(before, constants), model(after, rounded))
    assert size_proof.verdict == "not provable"
    assert "the new model has rounded results of" in size_proof.reason
    for name, array in rounded.items():
        wrong = {**rounded, name: array * np.float32(1.001)}
        assert proof(model(before, constants), model(after, wrong)).verdict == "different"


CHOICE = """i = If (flag) <then_branch = t () => (a) {{ a = Relu (x) }},
                           else_branch = e () => (b) {{ b = {} (x) }}>  """


def chosen(nodes: str, constants: dict[str, np.ndarray], other: str = "Neg") -> onnx.ModelProto:
    proto = model(CHOICE.format(other) + nodes.replace("x", "i"), constants)
    flag = onnx.helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    proto.graph.input.append(flag)
    return proto


def test_a_normalization_that_is_merged_behind_an_if() -> None:
    before = chosen(BEFORE, NORMAL)
    assert proof(before, chosen(AFTER, MERGED)).verdict == "not provable"
    wrong = {**MERGED, "b": MERGED["b"] * np.float32(1.001)}
    assert proof(before, chosen(AFTER, wrong)).verdict == "different"
    for other in ("Abs", "Sigmoid"):  # in a branch that the drawn flag may not choose
        assert proof(before, chosen(AFTER, MERGED, other)).verdict == "different"


def test_casts_at_other_places() -> None:
    half = W.astype(np.float16)
    before = model(
        """h = Cast <to = 10> (x)  c = Conv (h, w)  r = Relu (c)  y = Cast <to = 1> (r)""",
        {"w": half},
    )
    after = """v = Cast <to = 1> (w)  c = Conv (x, v)  h = Cast <to = 10> (c)  r = Relu (h)
        y = Cast <to = 1> (r)"""
    size_proof = proof(before, model(after, {"w": half}))
    assert size_proof.verdict == "not provable"
    assert "Casts round at other places" in size_proof.reason
    wrong = half.copy()
    wrong[0, 0, 0] = np.nextafter(wrong[0, 0, 0], np.float16(9))
    assert proof(before, model(after, {"w": wrong})).verdict == "different"


def test_a_choice_by_extents_that_nobody_knows_is_no_difference() -> None:
    """The input has no shape: two branches that may be equal are unknown functions of it."""
    before = model(AFTER, MERGED)
    guarded = """s = Shape (x)  t = Size (s)  three = Constant <value_int = 3> ()
        is = Equal (t, three)  y = If (is) <
            then_branch = one () => (float[2, 3, 5] p) { p = Conv (x, w, b) },
            else_branch = two () => (float[2, 3, 5] q) { d = Conv (x, w)  q = Add (d, c) }>"""
    after = model(guarded, {**MERGED, "c": MERGED["b"][:, None]})
    assert proof(before, after).verdict == "equal"
    for proto in (before, after):
        proto.graph.input[0].type.tensor_type.ClearField("shape")
    size_proof = proof(before, after)
    assert size_proof.verdict == "not provable"
    assert size_proof.reason.endswith("the extents of x are not known")


def test_another_weight_behind_an_input_without_a_shape_is_different() -> None:
    before, after = model("y = Conv (x, w)", {"w": W}), model("y = Conv (x, w)", {"w": -W})
    for proto in (before, after):
        proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert proof(before, after).verdict == "different"


def test_a_type_that_only_one_model_knows_makes_no_difference():
    """A tool may drop the value_info behind an operator that nobody knows."""
    text = """<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
    main (float[2, 3] x) => (float[3, 2] y) <float[2, 3] u> {
      u = acme.Unknown (x, W)
      y = Transpose <perm = [1, 0]> (u)
    }"""
    old, new = (onnx.parser.parse_model(text.replace("W", name)) for name in ("w", "v"))
    for proto, name in ((old, "w"), (new, "v")):
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), name))
    del new.graph.value_info[:]
    first, second = (Program.of(proto, None) for proto in (old, new))
    report = proof_report(first, second, [{}], {})
    assert report.verdict == "not provable", report
    assert "its element type is not known in one model" in report.reason


def test_texts_are_no_numbers_in_float64() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g () => (string[n] y) <string[2] x = {%s}> {
      y = StringNormalizer <case_change_action = "NONE", stopwords = [%s]> (x)
    }"""
    models = [onnx.parser.parse_model(text % ('"a", "b"', words)) for words in ('"a"', '"b"')]
    assert proof(models[0], models[0]).verdict == "equal"
    assert proof(*models).verdict != "equal"


ORDERS = {
    "Relu and MaxPool": (
        "c = Conv (x, w)  r = Relu (c)  y = MaxPool <kernel_shape = [2]> (r)",
        "c = Conv (x, w)  m = MaxPool <kernel_shape = [2]> (c)  y = Relu (m)",
        "c = Conv (x, w)  m = MaxPool <kernel_shape = [2]> (c)  y = Abs (m)",
    ),
    "ReduceMax and Exp": (
        "c = Conv (x, w)  e = Exp (c)  y = ReduceMax (e)",
        "c = Conv (x, w)  m = ReduceMax (c)  y = Exp (m)",
        "c = Conv (x, w)  e = Exp (c)  y = ReduceMin (e)",
    ),
    "a sum behind a Relu": (
        "c = Conv (x, w)  r = Relu (c)  y = Sub (r, one)",
        "c = Conv (x, w)  r = Relu (c)  d = Sub (one, r)  y = Neg (d)",
        "c = Conv (x, w)  s = Sub (c, one)  y = Relu (s)",
    ),
}


@pytest.mark.parametrize("case", ORDERS)
def test_another_order_of_the_same_functions(case: str) -> None:
    """Both directions get one verdict: a law that holds is no difference, another one is."""
    first, other, wrong = (model(nodes, HALF) for nodes in ORDERS[case])
    verdicts = {proof(first, other).verdict, proof(other, first).verdict}
    assert verdicts == {"equal" if case == "a sum behind a Relu" else "not provable"}
    assert {proof(first, wrong).verdict, proof(wrong, first).verdict} == {"different"}


@pytest.mark.parametrize("case", SUMS)
def test_rounded_results_in_either_model(case: str) -> None:
    before, constants, after, rounded = SUMS[case]
    first, other = model(before, constants), model(after, rounded)
    assert proof(other, first).verdict == "not provable"
    for name, array in rounded.items():
        wrong = model(after, {**rounded, name: array * np.float32(1.001)})
        assert proof(wrong, first).verdict == "different"


def test_sequences_are_no_numbers_in_float64() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[3, 3] x) => (float[m, n] y)
      <int64[2] l = {%s}, int64 i = {0}> {
      s = SplitToSequence <axis = 0> (x, l)
      y = SequenceAt (s, i)
    }"""
    models = [onnx.parser.parse_model(text % lengths) for lengths in ("1, 2", "2, 1")]
    assert proof(models[0], models[0]).verdict == "equal"
    assert proof(*models).verdict != "equal"


def test_another_order_of_functions_that_read_a_text() -> None:
    text = """<ir_version: 8, opset_import: ["" : 19]> g (string[2] s, float[1, 1, 2] x)
      => (float[m] y) <string[2] c = {"left", "right"}> { %s }"""
    orders = (
        "e = Equal (s, c) f = Where (e, x, x) r = Relu (f) y = MaxPool <kernel_shape = [2]> (r)",
        "d = Equal (s, c) g = Where (d, x, x) r = MaxPool <kernel_shape = [2]> (g) y = Relu (r)",
    )
    models = [onnx.parser.parse_model(text % order) for order in orders]
    assert proof(*models).verdict == "not provable"


def test_extents_that_only_one_of_two_models_needs() -> None:
    """Without them no numbers can be computed, whichever model is the first."""
    first = model("y = Conv (x, w)", {"w": W})
    other = model("n = Size (z)  f = Cast <to = 1> (n)  k = Mul (x, f)  y = Conv (k, w)", {"w": W})
    for proto in (first, other):
        proto.graph.input.append(onnx.ValueInfoProto(name="z"))
        proto.graph.input[-1].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for pair in ((first, other), (other, first)):
        size_proof = proof(*pair)
        assert size_proof.verdict == "not provable"
        assert "the extents of z are not known" in size_proof.reason
