"""Element types, versions, defaults and stored data belong to what a model computes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.proof.field import Draw, elements, fingerprints, variables
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import MIN_BITS, SizeProof, prove_at_sizes

HEAD = '<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>'
QUANTIZED = (
    HEAD.format(opset=19)
    + """ g (float[4] x) => (float[4] y) <float s = {0.1}, TYPE z = {0}>
    { q = DOMAINQuantizeLinear (x, s, z)  y = DOMAINDequantizeLinear (q, s, z) }"""
)
CAST_LIKE = (
    HEAD.format(opset=17)
    + """ g (float[4] x, float[4] n) => (float[4] y) <TYPE z = {0}>
    { a = CastLike (x, z)  b = CastLike (n, z)  c = Greater (a, b)  y = Cast <to = 1> (c) }"""
)
GATHERED = (
    HEAD.format(opset=17)
    + """ g (int64[2] i) => (bool[2] y)
    <TYPE[4] k = {1, 2, 3, 4}, TYPE c = {5}, TYPE d = {100}>
    { a = Gather (k, i)  b = Sub (a, c)  y = Greater (b, d) }"""
)
CHOSEN = (
    HEAD.format(opset=17)
    + """ g (bool[2] i) => (bool[2] y)
    <TYPE k = {1}, TYPE c = {5}, TYPE d = {100}>
    { a = Where (i, k, c)  b = Sub (a, c)  y = Greater (b, d) }"""
)
SCAN = (
    HEAD
    + """ g (float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = Scan <num_scan_inputs = 1,
    body = b (float[3, 4] s) => (float[3, 4] t) {{ t = Softmax <axis = 0> (s) }}> (x) }}"""
)
FUNCTION = (
    HEAD.replace("]>", ', "loc": 1]>')
    + """ g (float[4] x) => (float[4] y)
    {{ y = loc.F (x) }} <domain: "loc", opset_import: ["": {own}]> F {attributes} (a) => (b)
    {{ b = {body} (a) }}"""
)


def compared(first: str | onnx.ModelProto, other: str | onnx.ModelProto) -> SizeProof:
    protos = [onnx.parser.parse_model(m) if isinstance(m, str) else m for m in (first, other)]
    proofs = prove_at_sizes(*(Program.of(proto, None) for proto in protos), ({},), {})
    return next((proof for proof in proofs if proof.verdict != "equal"), proofs[0])


def typed(text: str, kind: str, domain: str = "") -> str:
    return text.replace("TYPE", kind).replace("DOMAIN", domain)


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
def test_the_type_of_a_zero_point_says_where_integers_end(domain: str) -> None:
    first = typed(QUANTIZED, "uint8", domain)
    assert compared(first, first).verdict == "equal"
    assert compared(first, typed(QUANTIZED, "int8", domain)).verdict == "different"
    renamed = typed(QUANTIZED, "int8", domain).replace(" q = ", " p = ").replace("(q,", "(p,")
    assert compared(first, renamed).verdict == "different"


@pytest.mark.parametrize(
    ("text", "first", "other"),
    [
        (CAST_LIKE, "float", "int32"),
        (GATHERED, "uint8", "int32"),
        (CHOSEN, "uint32", "int32"),
    ],
)
def test_whole_numbers_of_another_type(text: str, first: str, other: str) -> None:
    assert compared(typed(text, first), typed(text, first)).verdict == "equal"
    assert compared(typed(text, first), typed(text, other)).verdict == "different"


def test_a_name_may_stand_for_another_type_in_the_new_model() -> None:
    first = (
        HEAD.format(opset=17)
        + """ g (float[3] x) => (float[3] y)
        { t = Shape (x)  c = Cast <to = 1> (t)  y = Mul (x, x) }"""
    )
    other = (
        HEAD.format(opset=17)
        + """ g (float[3] x) => (float[3] y)
        { t = Identity (x)  c = Cast <to = 7> (t)  d = Cast <to = 1> (c)  y = Mul (d, x) }"""
    )
    assert compared(first, other).verdict == "different"


def test_versions_of_what_a_body_holds() -> None:
    old, new = SCAN.format(opset=12), SCAN.format(opset=13)
    assert compared(old, old).verdict == "equal"
    assert compared(old, new).verdict == "different"


def test_a_function_of_another_operator_set_is_not_inlined() -> None:
    text = FUNCTION.format(opset=18, own=17, attributes="", body="Relu")
    with pytest.raises(UnverifiedError, match="cannot be inlined: F of another operator set"):
        Program.of(onnx.parser.parse_model(text), None)


def test_what_a_function_assumes_where_a_call_states_nothing() -> None:
    first, other = (
        FUNCTION.format(
            opset=17,
            own=17,
            attributes=f"<alpha: float = {alpha}>",
            body="LeakyRelu <alpha: float = @alpha>",
        )
        for alpha in (0.1, 0.5)
    )
    assert compared(first, first).verdict == "equal"
    assert compared(first, other).verdict == "different"


@pytest.mark.parametrize("place", ["Constant", "If"])
def test_data_in_two_folders_under_one_name(place: str, tmp_path: Path) -> None:
    text = (
        HEAD.format(opset=17)
        + """ g (bool c, float[4] x) => (float[4] y) {
        w = Constant <value = float[4] {1, 2, 3, 4}> ()  y = Mul (x, w) }"""
    )
    if place == "If":
        text = (
            HEAD.format(opset=17)
            + """ g (bool c, float[4] x) => (float[4] y) { y = If (c) <
            then_branch = t () => (float[4] a) <float[4] w = {1, 2, 3, 4}> { a = Mul (x, w) },
            else_branch = e () => (float[4] b) { b = Relu (x) }> }"""
        )
    programs = []
    for factor in (1, 1, 5):
        proto = onnx.parser.parse_model(text)
        attribute = proto.graph.node[0].attribute[0]
        tensor = attribute.g.initializer[0] if attribute.HasField("g") else attribute.t
        folder = tmp_path / str(len(programs))
        folder.mkdir()
        array = factor * np.arange(1, 5, dtype=np.float32)
        (folder / "w.bin").write_bytes(array.tobytes())
        tensor.ClearField("float_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "16")):
            tensor.external_data.add(key=key, value=value)
        programs.append(Program.of(proto, folder))
    assert [proof.verdict for proof in prove_at_sizes(*programs[:2], ({},), {})] == ["equal"]
    assert [proof.verdict for proof in prove_at_sizes(*programs[1:], ({},), {})] == ["different"]


@pytest.mark.parametrize(
    ("squarings", "verdict"), [(16, "equal"), (17, "equal"), (22, "not provable")]
)
def test_rounds_are_drawn_until_the_bound_holds(squarings: int, verdict: str) -> None:
    """One round bounds the error of a polynomial of degree 2^16 by 2^-37."""
    head = HEAD.format(opset=17) + " g (float[2] x) => (float[2] y) {"
    nets = []
    for a in "pq":  # no value has a name in both
        squares = [f"{a}{i + 1} = Mul ({a}{i}, {a}{i})" for i in range(squarings)]
        nets.append(
            f"{head} {a}0 = Identity (x) {' '.join(squares)} y = Mul (x, {a}{squarings}) }}"
        )
    size_proof = compared(*nets)
    assert size_proof.verdict == verdict
    assert (size_proof.error_bits >= MIN_BITS) is (verdict == "equal")


FIXED_PRIMES = (11862989, 11862979, 11862959, 11862919, 11862911)


def scaled(factors: Sequence[int]) -> str:
    """Return the model x + x * (the product of the factors)."""
    head = HEAD.format(opset=17) + " g (double[2] x) => (double[2] y)"
    numbers = ", ".join(f"double f{i} = {{{factor}}}" for i, factor in enumerate(factors))
    products = [f"p{i + 1} = Mul (p{i}, f{i})" for i in range(len(factors))]
    nodes = f"p0 = Identity (x) {' '.join(products)} y = Add (x, p{len(factors)})"
    return f"{head} <{numbers}> {{ {nodes} }}"


def test_multiples_of_primes_are_not_zero() -> None:
    """Nobody can write a model whose constants are multiples of the primes of its proof."""
    plain = HEAD.format(opset=17) + " g (double[2] x) => (double[2] y) { y = Identity (x) }"
    proof = compared(scaled(FIXED_PRIMES), plain)
    assert proof.verdict == "different"
    again = compared(scaled(proof.primes), plain)
    assert again.verdict == "different", "the constants changed, and so did the primes"
    assert not {*again.primes} & {*proof.primes}
    assert compared(scaled(proof.primes), plain).primes == again.primes, "each proof is repeatable"
    assert compared(plain, scaled(proof.primes)).verdict == "different"


def test_proofs_in_threads_are_as_alone() -> None:
    """A proof of several rounds runs beside one of one round."""
    head = HEAD.format(opset=17) + " g (float[64] x) => (float[64] y) {"
    squares = [
        " ".join(f"{a}{i + 1} = Mul ({a}{i}, {a}{i})" for i in range(17)) for a in ("p", "q")
    ]
    pairs = [
        [
            f"{head} {a}0 = Identity (x) {s} y = Mul (x, {a}17) }}"
            for a, s in zip("pq", squares, strict=True)
        ],
        [head + "a = Relu (x)  y = Add (a, a) }", head + "b = Relu (x)  y = Add (b, b) }"],
    ]
    alone = [compared(*pair) for pair in pairs]
    assert len(alone[0].primes) > len(alone[1].primes) == 5
    with ThreadPoolExecutor(4) as pool:
        proofs = list(pool.map(lambda i: compared(*pairs[i % 2]), range(40)))
    assert proofs == alone * 20


def test_a_degree_that_leaves_no_bound_proves_nothing(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power p of an element is the element modulo p (Fermat)."""
    monkeypatch.setattr(Draw, "of", lambda *_: draw)  # who writes a model does not know its primes
    exponent = int(np.lcm.reduce([p - 1 for p in draw.primes], dtype=object)) + 1
    nodes, power = [], "x"
    for i, bit in enumerate(bin(exponent)[3:]):
        nodes.append(f"s{i} = Mul ({power}, {power})")
        power = f"s{i}"
        if bit == "1":
            nodes.append(f"m{i} = Mul ({power}, x)")
            power = f"m{i}"
    head = HEAD.format(opset=17) + " g (float[2] x) => (float[2] y) {"
    size_proof = compared(
        head + "y = Identity (x) }", f"{head} {' '.join(nodes)} y = Identity ({power}) }}"
    )
    assert size_proof.verdict == "not provable"
    assert "may agree in all draws" in size_proof.reason
    assert size_proof.error_bits < MIN_BITS


@pytest.mark.parametrize("version", [11, 13])
def test_softmax_of_a_constant_is_computed_by_no_other_version(version: int) -> None:
    w = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    wrong = np.exp(w) / np.exp(w).sum(0)  # by opset 13; before, all axes from `axis` on are summed

    def model(nodes: str, **constants: np.ndarray) -> onnx.ModelProto:
        proto = onnx.parser.parse_model(
            HEAD.format(opset=version) + f" g (float[2, 3] x) => (float[2, 3] y) {{ {nodes} }}"
        )
        proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
        return proto

    before = model("s = Softmax <axis = 0> (w)  y = Mul (x, s)", w=w)
    expected = "not provable" if version == 13 else "different"
    assert compared(before, model("y = Mul (x, s)", s=wrong)).verdict == expected
    if version == 11:
        right = np.exp(w) / np.exp(w).sum()
        assert compared(before, model("y = Mul (x, s)", s=right)).verdict == "not provable"


def test_dropouts_in_training_are_sources_of_their_own() -> None:
    head = HEAD.format(opset=17) + " g (float[8] x) => (float[8] y) <float r = {0.5}, bool t = {1}>"
    twice = "{ a = Dropout (x, r, t)  b = Dropout (x, r, t)  y = Sub (a, b) }"
    for seed in range(200):  # of NumPy, from which the reference implementation draws
        np.random.seed(seed)
        assert compared(head + twice, head + "{ y = Sub (x, x) }").verdict == "different"


def test_a_mask_that_nobody_reads() -> None:
    head = HEAD.format(opset=17) + " g (float[8] x) => (float[8] y)"
    first, other = "{ a, m = Dropout (x)  y = Relu (a) }", "{ y = Relu (x) }"
    assert compared(head + first, head + other).verdict == "equal"


@pytest.mark.parametrize(("opset", "verdict"), [(7, "different"), (11, "different"), (12, "equal")])
def test_the_mask_of_a_dropout_is_of_ones_since_opset_12(opset: int, verdict: str) -> None:
    head = HEAD.format(opset=opset) + " g (float[8] x) => (float[8] y)"
    masked = "{ a, m = Dropout (x)  f = Cast <to = 1> (m)  y = Mul (x, f) }"
    assert compared(head + masked, head + masked).verdict == "equal"
    assert compared(head + masked, head + "{ y = Identity (x) }").verdict == verdict
    assert (
        compared(head + "{ a, m = Dropout (x)  y = Relu (a) }", head + "{ y = Relu (x) }").verdict
        == "equal"
    )


def test_two_ways_to_write_one_node() -> None:
    head = HEAD.format(opset=17) + " g (float[3, 4] x) => (float[3, 4] y) <float low = {0.5}>"
    assert (
        compared(
            head + "{ y = Softmax <axis = -1> (x) }", head + "{ y = Softmax <axis = 1> (x) }"
        ).verdict
        == "equal"
    )
    short = onnx.parser.parse_model(head + "{ y = Clip (x, low) }")
    long = onnx.parser.parse_model(head + "{ y = Clip (x, low) }")
    long.graph.node[0].input.append("")
    assert compared(short, long).verdict == "equal"


def test_operators_that_fell_back_are_named() -> None:
    head = HEAD.format(opset=17) + " g (float[8] x, int64[8] i) => (float[8] y)"
    first, other = "{ a = Gather (x, i)  y = Neg (a) }", "{ b = Gather (x, i)  y = Neg (b) }"
    size_proof = compared(head + first, head + other)
    assert size_proof.verdict == "equal"
    assert size_proof.functions == {"Gather"}


def test_both_halves_of_a_fingerprint_are_random() -> None:
    state = fingerprints(0, [variables(7, (1000,))], (1000,))
    assert len(np.unique(state)) == 2000
    assert len(np.unique(np.stack(elements(state)))) > 4950


@pytest.mark.parametrize(
    ("node", "axes", "is_equal"),
    [
        ("OneHot <axis = {}> (i, depth, values)", (-1, 0), False),
        ("OneHot <axis = {}> (i, depth, values)", (-1, 1), True),
        ("OneHot <axis = {}> (i, depth, values)", (-2, 0), True),
        (
            "com.microsoft.QLinearConcat <axis = {}> (s, z, q, s, z, q, s, z)",
            (0, 1),
            False,
        ),
        ("com.microsoft.QLinearConcat <axis = {}> (s, z, q, s, z, q, s, z)", (1, 1), True),
        ("acme.Rank <axis = {}> (x)", (-1, 1), False),
        ("acme.Rank <axis = {}> (x)", (-1, -1), True),
        ("LayerNormalization <axis = {}> (x, w)", (-1, 1), True),
        ("LayerNormalization <axis = {}> (x, w)", (-1, 0), False),
        ("GatherElements <axis = {}> (x, j)", (-2, 0), True),
        ("GatherElements <axis = {}> (x, j)", (-2, 1), False),
    ],
)
def test_an_axis_is_counted_as_the_operator_counts(
    node: str, axes: tuple[int, int], is_equal: bool
) -> None:
    head = (
        '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1, "acme": 1]>'
        " g (float[2, 3] x, int64[3] i, int64[2, 3] j, uint8[2, 2] q) => (y)"
        " <float[1] s = {0.1}, uint8[1] z = {3}, int64 depth = {3}, float[2] values = {0, 1},"
        " float[3] w = {1, 2, 3}>"
    )
    first, other = (f"{head} {{ y = {node.format(axis)} }}" for axis in axes)
    assert (compared(first, other).verdict == "equal") is is_equal


@pytest.mark.parametrize("constant", [False, True])
def test_a_flag_that_is_neither_0_nor_1_is_not_taken_for_1(constant: bool) -> None:
    """ONNX Runtime drops the axis where `keepdims` is 2."""
    body = """{{ r = ReduceMin <keepdims = {keeps}> ({name}, axes)  y = Sub (x, r) }}"""
    head = (
        HEAD.format(opset=18) + " g (float[2, 2] x) => (float[A, B] y) "
        "<float[2, 2] c = {1, 2, 3, 4}, int64[1] axes = {1}>"
    )
    first, other = (
        head + body.format(keeps=keeps, name="c" if constant else "x") for keeps in (1, 2)
    )
    assert compared(first, other).verdict != "equal"
    assert compared(other, other).verdict == "equal"


@pytest.mark.parametrize(
    ("node", "new"),
    [
        ('value_strings = ["cat", "dog"]', 'value_strings = ["cat", "cow"]'),
        ('value_strings = ["cat", "dog"]', 'value_strings = ["cat", "dog "]'),
    ],
)
def test_texts_are_compared(node: str, new: str) -> None:
    head = HEAD.format(opset=17) + " g (int64[1] i) => (string[1] y)"
    first, other = (
        f"{head} {{ names = Constant <{text}> ()  y = Gather (names, i) }}" for text in (node, new)
    )
    proof = compared(first, other)
    assert proof.verdict == "different"
    assert "1 of 2 elements differ, the first at [1]" in proof.reason
    assert compared(first, first).verdict == "equal"


@pytest.mark.parametrize(
    ("node", "result"),
    [
        ("Equal (x, k)", "bool[2] y"),
        ("Concat <axis = 0> (x, k)", "string[4] y"),
        ("Where (c, x, k)", "string[2] y"),
    ],
)
def test_texts_of_inputs_beside_constant_ones(node: str, result: str) -> None:
    head = HEAD.format(opset=17) + f" g (string[2] x, bool[2] c) => ({result})"
    first, renamed, other = (
        f'{head} {{ {name} = Constant <value_strings = ["cat", "{word}"]> ()'
        f"  y = {node.replace('k', name)} }}"
        for name, word in (("k", "dog"), ("n", "dog"), ("n", "cow"))
    )
    assert compared(first, renamed).verdict == "equal"
    assert compared(first, other).verdict == "different"
