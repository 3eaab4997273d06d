"""Each operator of the proof on whole numbers, against the loop oracle or onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests import oracle
from tests.evidence.proof.operators.one_node import OPSET, alike, elements, evaluated, same
from widthfold_onnx.evidence.proof.values import Elements, Known, UnevaluableError

FLOAT, INT8, UINT8, INT32 = (
    onnx.TensorProto.DataType.Value(name) for name in ("FLOAT", "INT8", "UINT8", "INT32")
)
LARGE = 1 << 40


def drawn(seed: int, *shape: int, bound: int = LARGE) -> np.ndarray:
    """Integers, most of them far above every prime."""
    return np.random.default_rng(seed).integers(-bound, bound, shape)


def reference(op: str, *inputs: np.ndarray, opset: int = OPSET, **attributes: Any) -> np.ndarray:
    names = [f"i{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], **attributes)
    ports = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (y,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(y)


@st.composite
def windows(draw: st.DrawFn, *, transposed: bool) -> dict[str, Any]:
    """Extents and attributes of a Conv or ConvTranspose that fit together."""
    rank = draw(st.integers(1, 2))
    each = st.lists
    group = draw(st.sampled_from([1, 2, 3]))
    kernel = draw(each(st.integers(1, 4), min_size=rank, max_size=rank))
    dilations = draw(each(st.integers(1, 3), min_size=rank, max_size=rank))
    strides = draw(each(st.integers(1, 3), min_size=rank, max_size=rank))
    pads = draw(each(st.integers(-1, 3), min_size=2 * rank, max_size=2 * rank))
    spare = draw(each(st.integers(0, 6), min_size=rank, max_size=rank))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extents = [r + s + 2 for r, s in zip(reach, spare, strict=True)]
    if transposed:
        extents = [s + 3 for s in spare]
    return {
        "group": group,
        "kernel": kernel,
        "extents": extents,
        "channels": draw(st.integers(1, 2)),
        "outputs": draw(st.integers(1, 3)),
        "attributes": {"strides": strides, "dilations": dilations, "pads": pads},
        "auto_pad": draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])),
        "bias": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


@given(windows(transposed=False))
def test_conv(case: dict[str, Any]) -> None:
    group, seed = case["group"], case["seed"]
    x = drawn(seed, 2, group * case["channels"], *case["extents"], bound=1 << 20)
    w = drawn(seed + 1, group * case["outputs"], case["channels"], *case["kernel"], bound=1 << 20)
    b = [drawn(seed + 2, len(w), bound=1 << 20)] if case["bias"] else []
    attributes, auto_pad = dict(case["attributes"]), case["auto_pad"]
    resolved = dict(attributes)
    if auto_pad != "NOTSET":
        del attributes["pads"]
        attributes["auto_pad"] = auto_pad
        resolved["pads"] = oracle.resolve_auto_pad(
            auto_pad,
            case["extents"],
            case["kernel"],
            *map(attributes.get, ("strides", "dilations")),
        )
    expected = oracle.conv(x, w, *b, group=group, **resolved)
    same(evaluated("Conv", x, w, *b, group=group, **attributes), expected)


@given(windows(transposed=True), st.booleans(), st.integers(0, 2))
def test_conv_transpose(case: dict[str, Any], sized: bool, more: int) -> None:
    group, seed, rank = case["group"], case["seed"], len(case["kernel"])
    x = drawn(seed, 2, group * case["channels"], *case["extents"], bound=1 << 20)
    w = drawn(seed + 1, group * case["channels"], case["outputs"], *case["kernel"], bound=1 << 20)
    b = [drawn(seed + 2, group * case["outputs"], bound=1 << 20)] if case["bias"] else []
    attributes = {**case["attributes"], "output_padding": [0] * rank}
    strides, dilations = attributes["strides"], attributes["dilations"]
    attributes["output_padding"] = [min(more, s - 1) for s in strides]
    resolved, given_ = dict(attributes), dict(attributes)
    if sized:
        del given_["pads"]
        given_["output_shape"] = [n * s for n, s in zip(case["extents"], strides, strict=True)]
        given_["auto_pad"] = case["auto_pad"]
        resolved["pads"] = oracle.resolve_transposed_pads(
            case["auto_pad"], case["extents"], case["kernel"], strides, dilations,
            attributes["output_padding"], given_["output_shape"],
        )  # fmt: skip
    expected = oracle.conv_transpose(x, w, *b, group=group, **resolved)
    if 0 in expected.shape:
        with pytest.raises(UnevaluableError, match=r"would have (0|-\d+) positions"):
            evaluated("ConvTranspose", x, w, *b, group=group, **given_)
    else:
        same(evaluated("ConvTranspose", x, w, *b, group=group, **given_), expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [((5, 3), (3, 7)), ((3,), (3, 7)), ((5, 3), (3,)), ((3,), (3,)), ((2, 1, 5, 3), (7, 3, 2)),
     ((5, 600), (600, 7))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, w = drawn(0, *a, bound=1 << 20), drawn(1, *b, bound=1 << 20)
    same(evaluated("MatMul", x, w), np.asarray(oracle.matmul(x, w)))


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("c", [None, (7,), (5, 1), (5, 7), ()])
def test_gemm(turned: tuple[int, int], c: tuple[int, ...] | None) -> None:
    shapes = [(3, 5) if turned[0] else (5, 3), (7, 3) if turned[1] else (3, 7)]
    a, b = (drawn(i, *shape, bound=1 << 20) for i, shape in enumerate(shapes))
    added = [] if c is None else [drawn(2, *c, bound=1 << 20)]
    expected = oracle.gemm(
        a, b, *added, alpha=3, beta=-2, trans_a=bool(turned[0]), trans_b=bool(turned[1])
    )
    flags = dict(zip(("transA", "transB"), turned, strict=True))
    same(evaluated("Gemm", a, b, *added, alpha=3.0, beta=-2.0, **flags), expected)


@pytest.mark.parametrize("shape", [(5,), (7, 5), (1, 1, 7)])
def test_a_c_that_does_not_broadcast_to_the_result_does_not_run(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnevaluableError):
        evaluated("Gemm", drawn(0, 5, 3), drawn(1, 3, 7), drawn(2, *shape))


DIVISIBLE = 720720
"""A multiple of all numbers up to 16, so that means of multiples are whole."""

POOLS = [
    {"kernel_shape": [3, 2]},
    {"kernel_shape": [3, 4], "pads": [1, 2, 0, 1], "strides": [2, 3]},
    {"kernel_shape": [3, 4], "pads": [1, 2, 0, 1], "count_include_pad": 1},
    {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [1, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1},
    {"kernel_shape": [3, 4], "auto_pad": "SAME_UPPER", "strides": [2, 3]},
    {"kernel_shape": [3, 4], "auto_pad": "SAME_LOWER", "strides": [2, 3]},
]


@pytest.mark.parametrize("attributes", POOLS)
def test_average_pool(attributes: dict[str, Any]) -> None:
    x = drawn(0, 2, 3, 11, 13, bound=9999) * DIVISIBLE
    same(evaluated("AveragePool", x, **attributes), reference("AveragePool", x * 1.0, **attributes))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("axes", [[1], [-1, 0], None])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_sums_and_means(op: str, axes: list[int] | None, keepdims: int) -> None:
    x = drawn(0, 2, 3, 5, bound=9999) * DIVISIBLE
    given_ = [] if axes is None else [np.array(axes)]
    expected = reference(op, x, *given_, keepdims=keepdims)
    same(evaluated(op, x, *(Known(a) for a in given_), keepdims=keepdims), expected)


def test_global_average_pool() -> None:
    x = drawn(0, 2, 3, 5, 2, bound=9999) * DIVISIBLE
    same(evaluated("GlobalAveragePool", x), x.sum((2, 3), keepdims=True) // 10)


@pytest.mark.parametrize(
    ("op", "expected"),
    [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Sum", np.add)],
)
def test_arithmetic_broadcasts(op: str, expected: np.ufunc) -> None:
    x, y = drawn(0, 2, 3, 5, bound=1 << 30), drawn(1, 3, 1, bound=1 << 30)
    same(evaluated(op, x, y), expected(x, y))


def test_a_quotient_times_its_divisor_is_the_dividend() -> None:
    x, y = elements(drawn(0, 2, 3), FLOAT), elements(drawn(1, 2, 3), FLOAT)
    quotient = evaluated("Div", x, y)
    reciprocal = evaluated("Div", elements(np.ones((2, 3)), FLOAT), y)
    assert alike(evaluated("Mul", x, reciprocal), quotient).all()
    assert alike(evaluated("Reciprocal", y), reciprocal).all()


def test_batch_normalization_is_linear_in_what_it_normalizes() -> None:
    x, vectors = drawn(0, 2, 3, 5, bound=999), [drawn(i, 3, bound=999) for i in range(1, 5)]
    scale, bias, mean, variance = vectors
    value = evaluated("BatchNormalization", x, *vectors)
    column = [1, 3, 1]
    unit = evaluated(
        "BatchNormalization", x * 0 + 1, np.ones(3), np.zeros(3), np.zeros(3), variance
    )
    scaled = evaluated("Mul", unit, (x - mean.reshape(column)) * scale.reshape(column))
    assert alike(evaluated("Add", scaled, bias.reshape(column)), value).all()
    other = evaluated("BatchNormalization", x, scale, bias, mean, variance + 1)
    assert not alike(other, value).any()


# ---------------------------------------------------------------- quantized


def integers(seed: int, kind: type, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, kind, endpoint=True)


CONVS = [{}, {"strides": [2], "pads": [1, 3]}, {"dilations": [2], "group": 2}]


@pytest.mark.parametrize("attributes", CONVS)
@pytest.mark.parametrize("points", [(), (6,)])
def test_conv_integer(attributes: dict[str, Any], points: tuple[int, ...]) -> None:
    x = integers(0, np.uint8, 2, 4, 11)
    w = integers(1, np.int8, 6, 4 // attributes.get("group", 1), 3)
    zx, zw = integers(2, np.uint8), integers(3, np.int8, *points)
    less = w.astype(np.int64) - zw.reshape(-1, 1, 1)
    expected = oracle.conv(x.astype(np.int64) - zx, less, **attributes)
    same(evaluated("ConvInteger", x, w, zx, zw, **attributes), expected)


@pytest.mark.parametrize(("za", "zb"), [((), ()), ((5,), (7,)), ((2, 5, 1), (2, 1, 7))])
def test_matmul_integer(za: tuple[int, ...], zb: tuple[int, ...]) -> None:
    a, b = integers(0, np.uint8, 2, 5, 3), integers(1, np.int8, 2, 3, 7)
    of_a, of_b = integers(2, np.uint8, *za), integers(3, np.int8, *zb)
    rows = of_a.reshape(-1, 1) if za == (5,) else of_a
    expected = oracle.matmul(a.astype(np.int64) - rows, b.astype(np.int64) - of_b)
    same(evaluated("MatMulInteger", a, b, of_a, of_b), np.asarray(expected))


@pytest.mark.parametrize("attributes", CONVS)
def test_a_linear_conv_rounds_the_right_sums(attributes: dict[str, Any]) -> None:
    """The same sums that a kernel of one tap makes of what the oracle computes round alike."""
    x = integers(0, np.uint8, 2, 4, 11)
    w = integers(1, np.int8, 6, 4 // attributes.get("group", 1), 3)
    zx, zw = integers(2, np.uint8), integers(3, np.int8, 6)
    b = drawn(4, 6, bound=9999)
    scales = np.array(2.0), np.arange(1.0, 7)
    out = np.array(8.0), integers(5, np.uint8)
    less = w.astype(np.int64) - zw.reshape(-1, 1, 1)
    sums = oracle.conv(x.astype(np.int64) - zx, less, b, **attributes)
    kinds = [UINT8, FLOAT, UINT8, INT8, FLOAT, INT8, FLOAT, UINT8, INT32, UINT8]
    value = evaluated(
        "QLinearConv", x, scales[0], zx, w, scales[1], zw, *out, b, kinds=kinds, **attributes
    )
    one, nothing = np.eye(6, dtype=np.int64).reshape(6, 6, 1), np.zeros((), np.int64)
    again = evaluated(
        "QLinearConv", sums, scales[0], nothing, one, scales[1], nothing, *out, kinds=kinds[:8]
    )
    assert alike(value, again).all()
    other = evaluated(
        "QLinearConv", sums + 1, scales[0], nothing, one, scales[1], nothing, *out, kinds=kinds[:8]
    )
    assert not alike(value, other).any()


@pytest.mark.parametrize(
    ("scales", "attributes"),
    [
        ((), {}),
        ((5,), {"axis": 1}),
        ((3,), {"axis": -3}),
        ((3, 3, 2), {"axis": 1, "block_size": 2}),
    ],
)
def test_dequantize_linear(scales: tuple[int, ...], attributes: dict[str, int]) -> None:
    x = integers(0, np.int8, 3, 5, 2)
    scale = np.random.default_rng(1).integers(1, 99, scales).astype(np.float32)
    zero = integers(2, np.int8, *scales)
    expected = reference("DequantizeLinear", x, scale, zero, **attributes)
    kinds = [INT8, FLOAT, INT8, FLOAT]
    value = evaluated(
        "DequantizeLinear", elements(x), Known(scale), Known(zero), kinds=kinds, **attributes
    )
    same(value, expected)


@pytest.mark.parametrize("change", [(0, 0), (1, 0), (0, 1)])
def test_quantizing_on_the_same_grid_returns_the_integers(change: tuple[int, int]) -> None:
    x, scale, zero = integers(0, np.int8, 3, 5), Known(np.float32(0.3)), Known(np.int8(7))
    floats = evaluated("DequantizeLinear", elements(x, INT8), scale, zero)
    other = Known(np.float32(0.3 + change[0])), Known(np.int8(7 + change[1]))
    again = evaluated("QuantizeLinear", floats, *other, kinds=[FLOAT, FLOAT, INT8, INT8])
    assert alike(again, elements(x)).all() == (change == (0, 0))


# ---------------------------------------------------------------- functions


@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Exp", "Floor", "Abs", "Sqrt", "Erf"])
def test_a_function_is_of_its_operand_and_commutes_with_moves(op: str) -> None:
    x = drawn(0, 2, 3, 5)
    value = evaluated(op, x)
    assert isinstance(value, Elements)
    moved = evaluated(op, x.transpose(2, 0, 1))
    turned = Elements(tuple(draw.transpose(2, 0, 1) for draw in value.draws))
    assert alike(moved, turned).all()
    assert not alike(evaluated(op, x + 1), value).any()
    assert not alike(evaluated("Tanh", x), value).any()
    assert len(np.unique(value.draws[0])) > 25


@pytest.mark.parametrize(("op", "commutes"), [("Max", True), ("And", True), ("Pow", False)])
def test_the_order_of_operands(op: str, commutes: bool) -> None:
    x, y = drawn(0, 2, 3), drawn(1, 3)
    assert alike(evaluated(op, x, y), evaluated(op, y, x)).all() == commutes
    assert not alike(evaluated(op, x, y), evaluated(op, x, x)).any()


def test_an_attribute_belongs_to_the_function() -> None:
    x = drawn(0, 2, 3)
    slopes = [evaluated("LeakyRelu", x, alpha=alpha) for alpha in (0.01, 0.01, 0.02)]
    assert alike(slopes[0], slopes[1]).all()
    assert alike(slopes[0], evaluated("LeakyRelu", x)).all(), "the default is 0.01"
    assert not alike(slopes[0], slopes[2]).any()


@pytest.mark.parametrize(("op", "decisive"), [("And", False), ("Or", True)])
def test_a_known_operand_may_decide(op: str, decisive: bool) -> None:
    unknown = elements(drawn(0, 3))
    result = evaluated(op, unknown, Known(np.array(decisive)))
    assert isinstance(result, Known)
    assert result.array.tolist() == [decisive] * 3
    assert isinstance(evaluated(op, unknown, Known(np.array(not decisive))), Elements)


def test_max_pool_is_of_what_a_window_holds_in_any_order() -> None:
    x = drawn(0, 2, 3, 4, 6)
    value = evaluated("MaxPool", x, kernel_shape=[2, 3], strides=[2, 3])
    windows_ = x.reshape(2, 3, 2, 2, 2, 3)
    turned = windows_[:, :, :, ::-1, :, ::-1].reshape(x.shape)
    assert alike(evaluated("MaxPool", turned, kernel_shape=[2, 3], strides=[2, 3]), value).all()
    other = x.copy()
    other[0, 0, 0, 0] += 1
    changed = ~alike(evaluated("MaxPool", other, kernel_shape=[2, 3], strides=[2, 3]), value)
    assert np.argwhere(changed).tolist() == [[0, 0, 0, 0]]
    taps = [windows_[:, :, :, i, :, j] for i in range(2) for j in range(3)]
    assert alike(evaluated("Max", *taps), value).all()
    whole = evaluated("ReduceMax", x, Known(np.array([2, 3])))
    assert alike(whole, evaluated("GlobalMaxPool", x)).all()


def test_resize_is_of_the_lines_that_change() -> None:
    x = drawn(0, 1, 2, 3, 5)
    sizes = Known(np.array([1, 2, 3, 9]))
    value = evaluated("Resize", x, None, None, sizes, mode="linear")
    assert isinstance(value, Elements)
    assert value.shape == (1, 2, 3, 9)
    swapped = evaluated("Resize", x[:, ::-1].copy(), None, None, sizes, mode="linear")
    turned = Elements(tuple(draw[:, ::-1] for draw in value.draws))
    assert alike(swapped, turned).all()
    other = x.copy()
    other[0, 1, 2, 4] += 1
    changed = ~alike(evaluated("Resize", other, None, None, sizes, mode="linear"), value)
    assert changed[0, 1, 2].all()
    assert changed.sum() == 9
    assert not alike(evaluated("Resize", x, None, None, sizes, mode="cubic"), value).any()


THREE, THIRD = Known(np.array([3])), Known(np.array(2))


@pytest.mark.parametrize(
    ("op", "attributes", "more"),
    [
        *((op, {"axis": 2}, ()) for op in ("ArgMax", "ArgMin", "Hardmax", "LpNormalization")),
        ("ArgMax", {"axis": -1, "keepdims": 0}, ()),
        ("CumSum", {}, (THIRD,)),
        *((op, {"axis": 2}, ()) for op in ("LogSoftmax", "Softmax")),
        ("TopK", {"axis": 2}, (THREE,)),
    ],
)
def test_functions_of_the_line_along_an_axis(
    op: str, attributes: dict[str, Any], more: tuple[Known, ...]
) -> None:
    x = drawn(0, 2, 3, 5)
    value = evaluated(op, x, *more, **attributes)
    assert isinstance(value, Elements)
    extent = {"ArgMax": 1, "ArgMin": 1, "TopK": 3}.get(op, 5)
    kept = attributes.get("keepdims", 1)
    assert value.shape == ((2, 3, extent) if kept else (2, 3))
    moved = {**attributes, **({"axis": 0} if "axis" in attributes else {})}
    places = [Known(np.array(0))] if op == "CumSum" else more
    turned = evaluated(op, x.transpose(2, 0, 1).copy(), *places, **moved)
    assert isinstance(turned, Elements)
    order = (1, 2, 0) if kept else (0, 1)
    assert alike(Elements(tuple(d.transpose(order) for d in turned.draws)), value).all()
    other = x.copy()
    other[1, 2, 4] += 1
    changed = ~alike(evaluated(op, other, *more, **attributes), value)
    assert changed[1, 2].all()
    assert changed.sum() == (extent if kept else 1)
    reversed_ = evaluated(op, x[:, :, ::-1].copy(), *more, **attributes)
    assert not alike(reversed_, value).any()
    if "axis" in attributes and op != "TopK" and kept and extent > 1:
        assert not alike(evaluated(op, x, **{**attributes, "axis": 1}), value).any()


def test_two_functions_of_a_line_differ() -> None:
    x = drawn(0, 2, 3, 5)
    results = [evaluated(op, x, axis=1) for op in ("ArgMax", "ArgMin")]
    assert not alike(*results).any()
    last = evaluated("ArgMax", x, axis=1, select_last_index=1)
    assert not alike(last, results[0]).any()
    largest, smallest = (evaluated("TopK", x, THREE, axis=2, largest=i) for i in (1, 0))
    assert not alike(largest, smallest).any()


def test_a_softmax_of_older_opsets_takes_all_axes_from_one_on() -> None:
    x = drawn(0, 2, 3, 5)
    whole = evaluated("Softmax", x, opset=11, axis=1)
    flat = evaluated("Softmax", x.reshape(2, 15), axis=1)
    assert isinstance(flat, Elements)
    assert alike(Elements(tuple(d.reshape(2, 3, 5) for d in flat.draws)), whole).all()
    assert not alike(evaluated("Softmax", x, opset=13, axis=1), whole).any()
    with pytest.raises(UnevaluableError, match="axis 3 is none of 3"):
        evaluated("Softmax", x, axis=3)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Conv", ((2, 3, 7), (5, 2, 3))),
        ("Conv", ((2, 3, 2), (5, 3, 3))),
        ("Conv", ((2, 3, 7), (5, 3, 3), (4,))),
        ("Conv", ((2, 3, 7), (5, 3, 3, 3))),
        ("ConvTranspose", ((2, 3, 7), (4, 5, 3))),
        ("MatMul", ((2, 3), (2, 3))),
        ("Add", ((2, 3), (2,))),
        ("BatchNormalization", ((2, 3, 5), (4,), (4,), (4,), (4,))),
        ("PRelu", ((2, 3), (2,))),
    ],
)
def test_what_does_not_fit_together_does_not_run(op: str, inputs: tuple[tuple[int, ...]]) -> None:
    with pytest.raises(UnevaluableError):
        evaluated(op, *(drawn(i, *shape) for i, shape in enumerate(inputs)))
