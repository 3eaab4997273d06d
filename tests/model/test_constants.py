"""Constants that a model computes: the runtime computes the same bits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the runtime is the oracle here
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.lacking import needs_arrays
from widthfold_onnx.model import constants
from widthfold_onnx.model.document import Document
from widthfold_onnx.model.proto import constant_folding
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.refusal import Refusal

Arrays = Mapping[str, np.ndarray]
RNG = np.random.default_rng(5)
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL")
QUANTIZED = ("INT8", "UINT8", "INT16", "UINT16")


def kind(name: str) -> int:
    return TensorProto.DataType.Value(name)


def numbers(name: str, size: int = 3000) -> np.ndarray:
    """Numbers of every size; many of them lie in the middle between two of a narrower type."""
    dtype = helper.tensor_dtype_to_np_dtype(kind(name))
    if name in FLOATS:
        wide = RNG.standard_normal(size) * np.exp2(RNG.integers(-30, 15, size))
        middle = RNG.integers(0, 2**12, size) * 2.0**-10 + 2.0**-11 + 2.0**-33
        return np.concatenate([wide, middle, [0.0, -0.0, np.inf, -np.inf]]).astype(dtype)
    if name == "BOOL":
        return RNG.integers(0, 2, size).astype(bool)
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)


def document(nodes: Sequence[onnx.NodeProto], stored: Arrays, opset: int) -> Document:
    """A model whose output `o` the nodes make of stored constants; it has one input beside it."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("Neg", ["x"], ["unused"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [onnx.ValueInfoProto(name="o"), onnx.ValueInfoProto(name="unused")],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return Document(helper.make_model(graph, opset_imports=opsets, ir_version=10), None, OPERATORS)


def constant_value(linked: Document) -> np.ndarray | Refusal:
    (value,) = [v for s in linked.scopes for n in s.graph for v in n.outputs if v.name == "o"]
    constant = linked.constant(value)
    return constant if isinstance(constant, Refusal) else linked.read(constant)


def by_the_runtime(linked: Document) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(linked.proto.SerializeToString(), options)
    return session.run(["o"], {"x": np.zeros(1, np.float32)})[0]


def assert_same(nodes: Sequence[onnx.NodeProto], stored: Arrays, opset: int = 21) -> None:
    linked = document(nodes, stored, opset)
    ours = constant_value(linked)
    assert isinstance(ours, np.ndarray), ours
    if ours.dtype.name == "bfloat16":  # which numpy cannot be given; every one is a float32
        ours = ours.astype(np.float32)
        nodes[-1].output[0] = "narrow"
        nodes = [*nodes, helper.make_node("Cast", ["narrow"], ["o"], to=TensorProto.FLOAT)]
        linked = document(nodes, stored, opset)
    theirs = by_the_runtime(linked)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.tobytes() == theirs.tobytes()


def refusal(nodes: Sequence[onnx.NodeProto], stored: Arrays, opset: int = 21) -> str:
    ours = constant_value(document(nodes, stored, opset))
    assert isinstance(ours, Refusal)
    return f"{ours.code}: {ours.reason}"


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.permutations((*FLOATS, *INTEGERS), 2))
)
def test_a_cast_gives_the_bits_of_the_runtime_or_is_refused(source: str, target: str) -> None:
    needs_arrays(source, target)
    cast = helper.make_node("Cast", ["c"], ["o"], to=kind(target))
    if (source in FLOATS and target in INTEGERS) or (source, target) == ("DOUBLE", "FLOAT16"):
        expected = f"not-constant: o is no constant: Cast from {source} to {target} is not"
        assert refusal([cast], {"c": numbers(source)}).startswith(expected)
    else:
        assert_same([cast], {"c": numbers(source)})


def quantizing(op: str, arrays: Arrays, **attributes: int) -> list[onnx.NodeProto]:
    return [helper.make_node(op, list(arrays), ["o"], **attributes)]


def scales(name: str, count: int | None) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(kind(name))
    return np.asarray(RNG.uniform(0.001, 0.1, () if count is None else count)).astype(dtype)


def zeros(name: str, like: np.ndarray) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(kind(name))
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max, like.shape)).astype(dtype)


@pytest.mark.parametrize("along", [None, 0, 1, -1])
@pytest.mark.parametrize("scale", ["FLOAT", "FLOAT16"])
@pytest.mark.parametrize("source", [*QUANTIZED, "INT32"])
def test_dequantizing_gives_the_bits_of_the_runtime(source, scale, along) -> None:
    data = numbers(source).reshape(5, 600)
    step = scales(scale, None if along is None else data.shape[along])
    axis = {} if along is None else {"axis": along}
    bare = {"c": data, "s": step}
    assert_same(quantizing("DequantizeLinear", bare, **axis), bare)
    if source != "INT32":
        shifted = bare | {"z": zeros(source, step)}
        assert_same(quantizing("DequantizeLinear", shifted, **axis), shifted)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 25])
@pytest.mark.parametrize("source", ["INT8", "UINT8"])
def test_every_opset_dequantizes_and_quantizes(source: str, opset: int) -> None:
    data = {"c": numbers(source).reshape(5, 600), "s": scales("FLOAT", None)}
    data["z"] = zeros(source, data["s"])
    assert_same(quantizing("DequantizeLinear", data), data, opset)
    data["c"] = (RNG.standard_normal((5, 600)) * 3).astype(np.float32)
    assert_same(quantizing("QuantizeLinear", data), data, opset)


@pytest.mark.parametrize("along", [None, 0, 1])
@pytest.mark.parametrize("target", QUANTIZED)
def test_quantizing_gives_the_bits_of_the_runtime(target: str, along: int | None) -> None:
    data = (RNG.standard_normal((5, 600)) * 3).astype(np.float32)
    step = scales("FLOAT", None if along is None else data.shape[along])
    axis = {} if along is None else {"axis": along}
    arrays = {"c": data, "s": step, "z": zeros(target, step)}
    assert_same(quantizing("QuantizeLinear", arrays, **axis), arrays)
    del arrays["z"]
    assert_same(quantizing("QuantizeLinear", arrays, **axis), arrays)


@pytest.mark.parametrize(
    ("op", "source", "scale", "why"),
    [
        ("QuantizeLinear", "FLOAT16", "FLOAT16", "of FLOAT16 to UINT8"),
        ("DequantizeLinear", "INT8", "BFLOAT16", "of INT8 with a scale of BFLOAT16"),
    ],
)
def test_quantizing_that_rounds_otherwise_is_refused(op, source, scale, why) -> None:
    needs_arrays(source, scale)
    arrays = {"c": numbers(source).reshape(4, -1), "s": scales(scale, None)}
    assert f"{op} {why} is not evaluated" in refusal(quantizing(op, arrays), arrays)


def test_blocks_and_scales_that_do_not_fit_are_refused() -> None:
    data = numbers("INT8").reshape(5, 600)
    blocks = {"c": data, "s": np.ones((5, 2), np.float32)}
    nodes = quantizing("DequantizeLinear", blocks, axis=1, block_size=300)
    assert "with other than one scale" in refusal(nodes, blocks)
    wide = {"c": data[:, :1], "s": np.ones(10_000, np.float32)}
    assert "with other than one scale" in refusal(quantizing("DequantizeLinear", wide), wide)
    single = {"c": data, "s": np.float32(1), "z": np.zeros(7, np.int8)}
    assert "with other than one scale" in refusal(quantizing("DequantizeLinear", single), single)
    half = {"c": data, "s": np.float32(1)}
    nodes = quantizing("DequantizeLinear", half, output_dtype=TensorProto.FLOAT16)
    assert "with output_dtype is not evaluated" in refusal(nodes, half, 23)


@pytest.mark.parametrize("opset", range(7, 26))
def test_moves_of_every_opset(opset: int) -> None:
    data = numbers("FLOAT16", 105)[:105].reshape(3, 1, 5, 7)
    stored = {"c": data, "shape": np.array([0, -1, 5], np.int64)}
    new = opset >= 13
    stored |= {"one": np.array([1], np.int64), "ends": np.array([0, 3], np.int64)} if new else {}
    nodes = [
        helper.make_node("Transpose", ["c"], ["t"], perm=[2, 1, 3, 0]),
        helper.make_node("Squeeze", ["t", "one"], ["s"])
        if new
        else helper.make_node("Squeeze", ["t"], ["s"], axes=[1]),
        helper.make_node("Identity", ["s"], ["i"]),
        helper.make_node("Unsqueeze", ["i", "ends"], ["u"])
        if new
        else helper.make_node("Unsqueeze", ["i"], ["u"], axes=[0, 3]),
        helper.make_node("Reshape", ["u", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["o"]),
    ]
    assert_same(nodes, stored, opset)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("value_float", 0.1),
        ("value_floats", [0.1, 0.2, 0.3]),
        ("value_int", 2**40),
        ("value_ints", [1, 2, 3]),
    ],
)
def test_every_attribute_of_a_constant_node(attribute: str, value: object) -> None:
    assert_same([helper.make_node("Constant", [], ["o"], **{attribute: value})], {})


def test_a_constant_of_strings_holds_no_numbers() -> None:
    node = helper.make_node("Constant", [], ["o"], value_strings=["a"])
    assert refusal([node], {}) == "not-constant: a Constant holds no numbers"


def sparse(name: str, *, flat: bool) -> tuple[onnx.SparseTensorProto, np.ndarray]:
    full = np.zeros((3, 2, 5), np.float32)
    places = np.array([3, 7, 11, 29])
    full.reshape(-1)[places] = [1.5, -2, 3, 4]
    index = places if flat else np.stack(np.unravel_index(places, full.shape), 1)
    values = numpy_helper.from_array(full.reshape(-1)[places], name)
    indices = numpy_helper.from_array(index.astype(np.int64), "places")
    return helper.make_sparse_tensor(values, indices, full.shape), full


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_constants(flat: bool) -> None:
    tensor, full = sparse("c", flat=flat)
    # As an output the runtime has none of three axes; tests/rewrite lets it convolve with some.
    node = helper.make_node("Constant", [], ["o"], sparse_value=tensor)
    np.testing.assert_array_equal(constant_value(document([node], {}, 21)), full)
    linked = document([helper.make_node("Transpose", ["c"], ["o"])], {}, 21)
    linked.proto.graph.sparse_initializer.append(tensor)
    np.testing.assert_array_equal(constant_value(Document(linked.proto, None, OPERATORS)), full.T)


@pytest.mark.parametrize(
    ("dims", "index", "why"),
    [
        ([3, 2], [9], "broken"),
        ([3, 2], [[0, 5]], "broken"),
        ([1 << 40, 1 << 40], [0], "too-large"),
    ],
)
def test_broken_sparse_tensors_are_refused(dims, index, why) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "c")
    indices = numpy_helper.from_array(np.array(index, np.int64), "places")
    tensor = onnx.SparseTensorProto(values=values, indices=indices, dims=dims)
    assert why in refusal([helper.make_node("Constant", [], ["o"], sparse_value=tensor)], {})


def test_nonsense_is_refused_with_what_is_wrong() -> None:
    data = {"c": np.ones((2, 3), np.float32)}
    bad = helper.make_node("Transpose", ["c"], ["o"], perm=[0, 7])
    assert "o is no constant: Transpose fails on inputs of [2, 3]" in refusal([bad], data)


def test_a_long_chain_names_the_end_of_it_and_costs_no_stack() -> None:
    ops = itertools.cycle(("Identity", "Transpose"))
    names = ["x", *(f"v{i}" for i in range(5000)), "o"]
    nodes = [helper.make_node(next(ops), [a], [b]) for a, b in itertools.pairwise(names)]
    assert refusal(nodes, {}) == "not-constant: o is no constant: x is an input"
    nodes[0].input[0] = "c"
    array = constant_value(document(nodes, {"c": np.arange(6, dtype=np.float32).reshape(2, 3)}, 21))
    np.testing.assert_array_equal(array, np.arange(6).reshape(2, 3))


def test_what_is_evaluated_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MAX_CONSTANT_ELEMENTS", 20)
    nodes = [
        helper.make_node("Transpose", ["c"], ["o1"]),
        helper.make_node("Transpose", ["o1"], ["o"]),
    ]
    stored = {"c": np.ones((2, 9), np.float32)}
    assert refusal(nodes, stored).startswith("too-large: o is no constant: constants of more than")
    assert_same(nodes, {"c": np.ones((2, 5), np.float32)})


def test_an_overridable_or_fed_source_is_no_constant() -> None:
    linked = document([helper.make_node("Transpose", ["c"], ["o"])], {"c": np.eye(2)}, 21)
    linked.proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.DOUBLE, [2, 2]))
    ours = constant_value(Document(linked.proto, None, OPERATORS))
    assert isinstance(ours, Refusal)
    assert ours.code == "overridable"


def test_the_limit_is_the_largest_folded_weight() -> None:
    from widthfold_onnx.rules.legality import MAX_WEIGHT_BYTES

    assert constant_folding.MAX_CONSTANT_ELEMENTS * 4 == MAX_WEIGHT_BYTES
