"""A Slice behind a Conv becomes smaller pads: at every size at which the original runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests import oracle
from tests.folding import exchange_all
from tests.rewrite.proved import assert_proved, proof
from tests.running import run
from widthfold_onnx.options import Companion
from widthfold_onnx.refusal import Code, Refusal

CROP = [Companion.CROP]
SMALLEST = "at the smallest extent at which the layer runs, the Slice leaves nothing"
DEPENDS = "how much the Slice takes away depends on an extent that is not known"
NO_PADS = "the Slice takes away what no pad of the layer adds"


def numbers(shape: Sequence[int]) -> np.ndarray:
    """Small whole numbers, other ones for other shapes: their sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def net(
    body: str,
    data: str = "1,3,N",
    weight: tuple[int, ...] = (5, 3, 7),
    *,
    opset: int = 17,
    **arguments: Sequence[int],
) -> onnx.ModelProto:
    """A net from x to y of a body; w is the weight, and other constants are of int64."""
    outputs = ",".join("ABCDEFG"[: data.count(",") + 1])
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    net (float[{data}] x) => (float[{outputs}] y) {{ {body} }}"""
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(numbers(weight), "w"))
    for name, value in arguments.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return model


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


NOT_RUN = ("INVALID_ARGUMENT", "FAIL", "dim_size > 0 was false")
"""What the runtime says at sizes that a model does not take. Older releases say the last where a
ConvTranspose of a small input has pads that leave nothing of an axis."""


def result(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray | None:
    """The output of a model, None if it does not run."""
    try:
        return run(model, x)[0]
    except Exception as error:
        assert any(reason in str(error) for reason in NOT_RUN)
        return None


def assert_same(
    before: onnx.ModelProto, after: onnx.ModelProto, shapes: Sequence[tuple[int, ...]]
) -> int:
    """Assert equal bits wherever the original runs; return at how many shapes it does."""
    count = 0
    for shape in shapes:
        x = numbers(shape)
        expected = result(before, x)
        if expected is not None:
            actual = result(after, x)
            assert actual is not None, shape
            assert actual.shape == expected.shape
            assert actual.tobytes() == expected.tobytes()
            count += 1
    return count


SLICE = "y = Slice (%s, s, e, a)"
ENDS = {"s": [0], "e": [-12], "a": [2]}


def test_a_causal_conv_loses_its_slice_at_every_length() -> None:
    before = net(f"c = Conv<pads=[12,12], dilations=[2]>(x, w) {SLICE % 'c'}", **ENDS)
    after, (match,) = exchange_all(before, CROP)
    assert (match.replacements, ops(after)) == (("Conv",), ["Conv"])
    (pads,) = [list(a.ints) for a in after.graph.node[0].attribute if a.name == "pads"]
    assert pads == [12, 0]
    assert [tensor.name for tensor in after.graph.initializer] == ["w"]
    assert assert_same(before, after, [(1, 3, n) for n in (1, 2, 11, 13)]) == 4
    assert_proved(before, after, 0)
    x = numbers((1, 3, 11))
    expected = oracle.conv(x, numbers((5, 3, 7)), pads=[12, 0], dilations=[2])
    assert np.array_equal(run(after, x)[0], expected)


def test_the_new_conv_keeps_name_and_documentation() -> None:
    before = net(f"[own] c = Conv<pads=[12,12]>(x, w) [cut] r = Relu (c) {SLICE % 'r'}", **ENDS)
    before.graph.node[0].doc_string = "the first one"
    after, (match,) = exchange_all(before, CROP)
    assert (match.name.node, match.replacements) == ("own", ("Conv", "Relu"))
    first, second = after.graph.node
    assert (first.name, first.doc_string, second.name) == ("own", "the first one", "cut")
    assert first.output[0] != "c"  # another value has another name
    assert second.output[0] == "y"


def drawn(rng: np.random.Generator) -> tuple[onnx.ModelProto, list[tuple[int, ...]]]:
    """A Conv or ConvTranspose of one or two axes, ops behind it and up to three Slices."""
    rank, transposed = int(rng.integers(1, 3)), bool(rng.integers(2))
    kernel = [int(n) for n in rng.integers(1, 6, rank)]
    strides = [int(n) for n in rng.integers(1, 4, rank)]
    dilations = [int(n) for n in rng.integers(1, 3, rank)]
    pads = [int(n) for n in rng.integers(0, 7, 2 * rank)]
    more = ""
    if transposed:
        pads = [min(p, k - 1) for p, k in zip(pads, kernel * 2, strict=True)]
        more = f", output_padding={[int(rng.integers(s)) for s in strides]}"
    constants: dict[str, list[int]] = {}
    body, value, before, axes = "", "c", "x", list(range(rank + 2))
    if rng.integers(3) == 0:
        extra = [0, 0, *rng.integers(0, 4, rank), 0, 0, *rng.integers(0, 4, rank)]
        constants["p"] = [int(n) for n in extra]
        body, before = "p0 = Pad (x, p) ", "p0"
    kind = "ConvTranspose" if transposed else "Conv"
    body += f"c = {kind}<pads={pads}, strides={strides}, dilations={dilations}{more}>({before}, w)"
    for i in range(int(rng.integers(1, 5))):
        match rng.integers(6):
            case 0:
                body += f" v{i} = Relu ({value})"
            case 1:
                constants[f"u{i}"] = [2]
                body += f" v{i} = Unsqueeze ({value}, u{i})"
                axes = [*axes[:2], -1, *axes[2:]]
            case 2 if -1 in axes:
                constants[f"u{i}"] = [axes.index(-1) - len(axes)]
                body += f" v{i} = Squeeze ({value}, u{i})"
                axes.remove(-1)
            case _:
                count = int(rng.integers(1, rank + 1))
                named = rng.permutation([k for k, axis in enumerate(axes) if axis >= 2])[:count]
                starts = rng.choice([0, 0, 1, 2, 5], count)
                ends = rng.choice([-1, -2, -4, 2**63 - 1, 2**31 - 1, 6], count)
                if (starts == 0).all() and ends.min() > 99:
                    starts[0] = 1
                constants |= {
                    f"s{i}": starts.tolist(),
                    f"e{i}": ends.tolist(),
                    f"a{i}": named.tolist(),
                }
                body += f" v{i} = Slice ({value}, s{i}, e{i}, a{i})"
        value = f"v{i}"
    body += f" y = Identity ({value})"
    weight = (2, 3, *kernel)
    is_open = bool(rng.integers(2))
    extents = [int(n) for n in rng.integers(1, 14, rank)]
    shown = [f"N{i}" if is_open else str(n) for i, n in enumerate(extents)]
    model = net(body, ",".join(["1", "2" if transposed else "3", *shown]), weight, **constants)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for axis in axes:
        model.graph.output[0].type.tensor_type.shape.dim.add().dim_param = f"A{axis}"
    channels = 2 if transposed else 3
    sizes = [[n] for n in (1, 2, 3, 5, 8, 13)] if rank == 1 else [[1, 7], [7, 1], [4, 9], [13, 8]]
    return model, [(1, channels, *n) for n in (sizes if is_open else [extents])]


def test_any_layer_and_slices_return_the_same_at_every_size() -> None:
    rng, seen, runs = np.random.default_rng(3), 0, 0
    for _ in range(400):
        before, shapes = drawn(rng)
        after, _ = exchange_all(before, CROP)
        if after is not before:
            seen += 1
            runs += assert_same(before, after, shapes)
    assert seen > 100
    assert runs > 200


def cropped(before: onnx.ModelProto) -> list[str]:
    """The ops of a net that the companion changed."""
    after, _ = exchange_all(before, CROP)
    assert after is not before
    return ops(after)


def pads_of(model: onnx.ModelProto, index: int = 0) -> list[int]:
    (pads,) = [list(a.ints) for a in model.graph.node[index].attribute if a.name == "pads"]
    return pads


def test_bounds_that_follow_from_extents_are_followed() -> None:
    """The end is the extent of the input, through an Add, a Conv, and another such Slice."""
    body = """n = Shape (x)  m = Gather (n, a)  k = Cast<to=7> (m)
    c = Conv<pads=[12,12], dilations=[2]>(x, w)  d = Slice (c, s, k, a)  r = Relu (d)
    h = Conv<pads=[2,2]>(r, v)  o = Shape (h)  l = Gather (o, i)  f = Sub (l, t)
    g = Unsqueeze (f, s)  q = Slice (h, s, g, a)  j = Add (q, r)
    b = Conv<pads=[2,2]>(j, v)  y = Slice (b, s, m, a)"""
    before = net(body, weight=(3, 3, 7), s=[0], a=[2], i=2, t=2)
    before.graph.initializer.append(numpy_helper.from_array(numbers((3, 3, 3)), "v"))
    after, matches = exchange_all(before, CROP)
    assert [match.replacements for match in matches] == [("Conv",)] * 3
    assert "Shape" not in ops(after)
    shapes = [(1, 3, n) for n in (1, 2, 5, 13)]
    assert assert_same(before, after, shapes) == len(shapes)


def test_the_end_of_a_transposed_conv_is_followed() -> None:
    """The decoders of EnCodec trim like this: from b to the extent less e."""
    body = """c = ConvTranspose<strides=[3], pads=[1,0]>(x, w)  n = Shape (c)  m = Gather (n, a)
    e = Sub (m, t) y = Slice (c, s, e, a)"""
    before = net(body, "1,5,N", s=[2], a=[2], t=[3])
    after, (match,) = exchange_all(before, CROP)
    assert (match.replacements, pads_of(after)) == (("ConvTranspose",), [3, 3])
    shapes = [(1, 5, n) for n in (1, 2, 5, 13)]
    assert assert_same(before, after, shapes) == 4
    assert_proved(before, after, 0)


def test_a_trim_that_passes_through_a_squeeze_spares_two_axes() -> None:
    body = """c = Conv<pads=[0,3,4,0,2,4], strides=[1,1,2]>(x, w)  q = Squeeze (c, u)
    r = Mul (q, f)  z = Unsqueeze (r, t)  d = Slice (z, s, e, a)  y = Slice (d, s, e, b)"""
    constants = {"u": [2], "t": [0], "s": [1], "e": [-1], "a": [3], "b": [4]}
    before = net(body, "2,3,1,M,N", (5, 3, 1, 4, 5), **constants)
    factors = numpy_helper.from_array(numbers((5, 1, 1)), "f")
    before.graph.initializer.append(factors)
    after, (match,) = exchange_all(before, CROP)
    assert match.replacements == ("Conv", "Squeeze", "Mul", "Unsqueeze")
    assert pads_of(after) == [0, 2, 2, 0, 1, 2]
    assert assert_same(before, after, [(2, 3, 1, 5, 7), (2, 3, 1, 11, 4), (2, 3, 1, 1, 9)]) >= 2
    factors.CopyFrom(numpy_helper.from_array(numbers((5, 5, 1)), "f"))
    before.graph.initializer[-1].CopyFrom(factors)  # one for each position that is cut away
    assert exchange_all(before, CROP) == (before, [])


def test_a_value_whose_extents_are_read_elsewhere_is_left_alone() -> None:
    """Else the layer would be computed twice."""
    body = """c = Conv<pads=[12,12]>(x, w)  n = Shape (c)  m = Gather (n, a)  e = Sub (m, t)
    d = Slice (c, s, e, a)  k = Cast<to=1> (%s)  y = Add (d, k)"""
    for read in ("n", "m", "t"):
        before = net(body % read, "1,3,N", s=[0], a=[2], t=[12])
        after, matches = exchange_all(before, CROP)
        assert (after is before, len(matches)) == ((True, 0) if read != "t" else (False, 1))


def test_what_no_pad_takes_stays_a_slice() -> None:
    body = f"c = Conv<pads=[3,4], strides=[2]>(x, w) r = Relu (c) {SLICE % 'r'}"
    before = net(body, "1,3,23", s=[1, 3], e=[4, -3], a=[1, -1])
    after, (match,) = exchange_all(before, CROP)
    assert (match.replacements, pads_of(after)) == (("Conv", "Relu", "Slice"), [1, 0])
    stored = {t.name: numpy_helper.to_array(t).tolist() for t in after.graph.initializer}
    starts, ends, axes = (stored[name] for name in after.graph.node[-1].input[1:])
    assert (starts, ends, axes) == ([1, 2], [-1, -1], [1, 2])
    assert assert_same(before, after, [(1, 3, 23)]) == 1
    assert_proved(before, after, 0)


def test_a_stride_that_skips_the_end_lets_the_pad_go_further() -> None:
    """Of 22 padded positions the last one is not read: 3 positions cost 5 of the pad, not 6."""
    body = f"c = Conv<pads=[0,5], strides=[2]>(x, w) {SLICE % 'c'}"
    for extent, remaining in ((16, False), (17, True)):
        before = net(body, f"1,3,{extent}", s=[0], e=[-3], a=[2])
        after, (match,) = exchange_all(before, CROP)
        assert match.replacements == (("Conv", "Slice") if remaining else ("Conv",))
        assert assert_same(before, after, [(1, 3, extent)]) == 1


def test_below_opset_10_bounds_are_attributes() -> None:
    body = "c = Conv<pads=[2,2]>(x, w) y = Slice<starts=[0], ends=[-4], axes=[2]> (c)"
    before = net(body, opset=9)
    after, _ = exchange_all(before, CROP)
    onnx.checker.check_model(after, full_check=True)
    assert assert_same(before, after, [(1, 3, n) for n in (3, 4, 9)]) == 3


@pytest.mark.parametrize(
    ("pad", "conv", "remaining"),
    [
        ("Pad (x, p)", "Conv", ["Conv"]),
        ("Pad (x, p, z)", "Conv<pads=[1,0]>", ["Conv"]),
        ('Pad<mode="edge"> (x, p)', "Conv", None),
        ("Pad (x, p, o)", "Conv", None),
        ("Pad (x, m)", "Conv", None),
        ("Pad (x, q)", "Conv", None),
        ("Pad (x, k, z, a)", "Conv", ["Conv"]),
    ],
)
def test_a_pad_of_zeros_becomes_pads(pad: str, conv: str, remaining: list[str] | None) -> None:
    constants = {"p": [0, 0, 4, 0, 0, 2], "q": [0, 0, 4, 0, 0, -1], "k": [4, 2], "a": [-1]}
    before = net(f"c = {pad} y = {conv} (c, w)", opset=18, **constants)
    for name, array in (("z", np.float32(0)), ("o", np.float32(1)), ("m", [1, 0, 4, 0, 0, 2])):
        kind = np.int64 if name == "m" else np.float32
        before.graph.initializer.append(numpy_helper.from_array(np.array(array, kind), name))
    if remaining is None:
        assert exchange_all(before, CROP) == (before, [])
        return
    after, _ = exchange_all(before, CROP)
    assert ops(after) == remaining
    assert assert_same(before, after, [(1, 3, n) for n in (1, 2, 11)]) == 3
    assert_proved(before, after, 0)


def test_a_pad_of_an_empty_tensor_stays() -> None:
    before = net("c = Pad (x, p) y = Conv (c, w)", data="1,3,0", p=[0, 0, 4, 0, 0, 4])
    assert exchange_all(before, CROP) == (before, [])
    assert result(before, numbers((1, 3, 0))) is not None


def test_a_pad_that_another_layer_reads_stays_for_that_one() -> None:
    body = "c = Pad (x, p) d = Conv (c, w) e = Relu (c) f = ReduceSum (e) y = Add (d, f)"
    before = net(body, p=[0, 0, 4, 0, 0, 2])
    after, _ = exchange_all(before, CROP)
    assert sorted(ops(after)) == ["Add", "Conv", "Pad", "ReduceSum", "Relu"]
    assert assert_same(before, after, [(1, 3, n) for n in (1, 2, 11)]) == 3


@pytest.mark.parametrize(
    ("pads", "data", "bounds", "refusal"),
    [
        ("0,0", "1,3,41", {}, Refusal(Code.NO_PADS, NO_PADS)),
        ("0,6", "1,3,N", {}, Refusal(Code.EMPTY_TENSOR, SMALLEST)),
        ("3,3", "1,3,N", {}, Refusal(Code.EMPTY_TENSOR, SMALLEST)),
        ("9,9", "1,3,N", {"e": [5]}, Refusal(Code.UNKNOWN_EXTENT, DEPENDS)),
        ("9,9", "1,3,N", {"s": [-3]}, Refusal(Code.UNKNOWN_EXTENT, DEPENDS)),
    ],
)
def test_a_slice_that_cannot_become_pads_is_refused(
    pads: str, data: str, bounds: dict[str, list[int]], refusal: Refusal
) -> None:
    before = net(f"c = Conv<pads=[{pads}]>(x, w) {SLICE % 'c'}", data, **{**ENDS, **bounds})
    after, (match,) = exchange_all(before, CROP)
    assert (after is before, match.replacements) == (True, refusal)


@pytest.mark.parametrize(
    "body",
    [
        f"c = Conv<pads=[9,9]>(x, w) r = Softmax (c) {SLICE % 'r'}",
        f"c = Conv<pads=[9,9]>(x, w) r = CumSum (c, s0) {SLICE % 'r'}",
        "c = Conv<pads=[9,9]>(x, w) d = Slice (c, s, e, a) r = ReduceSum (c) y = Add (d, r)",
        "c = Conv<pads=[9,9]>(x, w) y = Slice (c, s, e, a, t)",
        "c = Conv<pads=[9,9]>(x, w) y = Slice (c, s, e, b)",
        f"c = Conv<pads=[9,9]>(x, w) r = Mul (c, c) {SLICE % 'r'}",
        f"c = Relu (x) {SLICE % 'c'}",
        f"d = DequantizeLinear (v, f) c = Conv<pads=[9,9]>(x, d) {SLICE % 'c'}",
        f"c = ConvTranspose<output_shape=[30]>(x, u) {SLICE % 'c'}",
    ],
)
def test_other_slices_are_left_alone(body: str) -> None:
    before = net(body, "1,3,41", **{**ENDS, "t": [2], "b": [1], "s0": 2})
    for name, array in (
        ("v", numbers((5, 3, 7)).astype(np.int8)),
        ("f", np.float32(1)),
        ("u", numbers((3, 5, 7))),
    ):
        before.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    assert exchange_all(before, CROP) == (before, [])


def test_a_value_that_the_model_returns_is_left_alone() -> None:
    before = net(f"c = Conv<pads=[9,9]>(x, w) {SLICE % 'c'}", "1,3,41", **ENDS)
    before.graph.output.append(helper.make_tensor_value_info("c", 1, None))
    assert exchange_all(before, CROP) == (before, [])


def test_a_bound_that_a_caller_may_change_is_unknown() -> None:
    before = net(f"c = Conv<pads=[9,9]>(x, w) {SLICE % 'c'}", "1,3,41", **ENDS)
    before.graph.input.append(helper.make_tensor_value_info("e", 7, [1]))
    _, (match,) = exchange_all(before, CROP)
    assert match.replacements == Refusal(Code.UNKNOWN_EXTENT, DEPENDS)


def test_statistics_of_all_positions_keep_a_slice() -> None:
    body = f"""c = Conv<pads=[9,9]>(x, w)
    n = BatchNormalization%s (c, b, b, b, b) {SLICE % "n"}"""
    for attributes, count in (("", 1), ("<training_mode=1>", 0)):
        before = net(body % attributes, "1,3,41", **ENDS)
        flat = numpy_helper.from_array(np.ones(5, np.float32), "b")
        before.graph.initializer.append(flat)
        assert len(exchange_all(before, CROP)[1]) == count


def test_layers_of_a_body_are_cropped_and_those_of_a_function_are_not() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    net (float[1,1,9] x, bool b) => (float[1,1,9] y) <int64[1] s = {0}, int64[1] e = {-2},
      int64[1] a = {2}, float[1,1,3] w = {1, 2, 3}>
    { i = If (b) <then_branch = one () => (float[1,1,9] p)
        { c = Conv<pads=[2,2]> (x, w)  p = Slice (c, s, e, a) },
      else_branch = two () => (float[1,1,9] q) { q = Neg (x) }>
      y = own.trim (i, w, s, e, a) }
    <domain: "own", opset_import: ["" : 17]> trim (m, w, s, e, a) => (n)
    { c = Conv<pads=[2,2]> (m, w)  n = Slice (c, s, e, a) }"""
    before = parser.parse_model(text)
    after, matches = exchange_all(before, CROP)
    assert [match.replacements for match in matches] == [("Conv",)]
    onnx.checker.check_model(after, full_check=True)
    for chosen in (True, False):
        feeds = {"x": numbers((1, 1, 9)), "b": np.array(chosen)}
        assert run(after, feeds)[0].tobytes() == run(before, feeds)[0].tobytes()


def test_inf_and_nan_stay_where_they_were() -> None:
    before = net(f"c = Conv<pads=[6,6]>(x, w) {SLICE % 'c'}", s=[0], e=[-6], a=[2])
    after, _ = exchange_all(before, CROP)
    x = numbers((1, 3, 19))
    x[0, 0, 3], x[0, 1, 11], x[0, 2, 18] = np.inf, np.nan, -np.inf
    expected, result = run(before, x)[0], run(after, x)[0]
    np.testing.assert_array_equal(result, expected)
    assert not np.isfinite(expected).all()
    assert proof(before, after).verdict == "equal"
