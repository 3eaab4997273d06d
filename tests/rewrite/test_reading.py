"""A model that contains folds is not folded again; without metadata it is a model like any other.

Its folds state extents that were only assumed. They fail at any other, so that a fold that takes
them for facts is right or fails as well.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

import widthfold_onnx as wf
from tests import running
from tests.folding import fold_model
from tests.rewrite.proved import assert_proved, proof
from widthfold_onnx.model.proto.walk import all_nodes
from widthfold_onnx.options import AxisName, FoldOptions

# Nodes between "x" and "m" of rank 2, extents of x, assumed extents, and other extents that the
# factor divides as well.
CASES = {
    "rows": ("s = MatMul(x, w35) m = Squeeze(s, zero)", [1, "n", 3], [1, 14, 3], [1, 22, 3]),
    "region": (
        "s = MatMul(x, w35) r = Relu(s) a = Add(r, w5) m = Squeeze(a, zero)",
        *([1, "n", 3], [1, 14, 3], [1, 22, 3]),
    ),
    "two products": (
        "s = MatMul(x, w35) r = Relu(s) u = MatMul(r, w57) m = Squeeze(u, zero)",
        *([1, "n", 3], [1, 14, 3], [1, 22, 3]),
    ),
    "columns": ("s = MatMul(w35, x) m = Transpose(s)", [5, "n"], [5, 14], [5, 22]),
    "transposed": ("m = Gemm <transA = 1> (x, w35)", [3, "n"], [3, 14], [3, 22]),
    "quantized": (
        "q = QuantizeLinear(x, scale, byte) d = DequantizeLinear(q, scale, byte) "
        "v = DequantizeLinear(b35, scale, byte) m = MatMul(d, v)",
        *(["n", 3], [14, 3], [22, 3]),
    ),
    "batch and rows": (
        "q = QuantizeLinear(x, scale, byte) d = DequantizeLinear(q, scale, byte) "
        "v = DequantizeLinear(b35, scale, byte) s = MatMul(d, v) m = Reshape(s, rows_of_5)",
        *(["n", 7, 3], [2, 7, 3], [4, 7, 3]),
    ),
    "integers": (
        "q = QuantizeLinear(x, scale, byte) s = MatMulInteger(q, b35) m = Cast <to = 1> (s)",
        *(["n", 3], [14, 3], [22, 3]),
    ),
    "columns of a Conv": (
        "c = Conv <pads = [1, 1]> (x, k3) s = Squeeze(c, zero) m = Transpose(s)",
        *([1, 1, "n"], [1, 1, 14], [1, 1, 22]),
    ),
    "columns of a region": (
        "c = Conv <pads = [1, 1]> (x, k3) r = Relu(c) "
        "a = Conv <group = 5, pads = [2, 0]> (r, k5) s = Squeeze(a, zero) m = Transpose(s)",
        *([1, 1, "n"], [1, 1, 14], [1, 1, 22]),
    ),
    "batch of a Conv": (
        "s = Conv <pads = [1, 0, 0, 0]> (x, k) r = Relu(s) m = Flatten(r)",
        *(["n", 1, 5, 3], [14, 1, 5, 3], [22, 1, 5, 3]),
    ),
}


STATES = ort.capi.onnxruntime_pybind11_state
REFUSALS = (STATES.Fail, STATES.InvalidArgument, STATES.RuntimeException)


def model(case: str) -> onnx.ModelProto:
    """x -> nodes -> m -> Gemm -> y; the Gemm is not folded where its rows are open."""
    nodes, dims, _, _ = CASES[case]
    shown = ", ".join(map(str, dims))
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[{shown}] x) => (float[p, q] y) '
        f"{{ {nodes} y = Gemm(m, last) }}"
    )
    rng = np.random.default_rng(0)
    last = ({"columns": 3, "two products": 7}.get(case, 5), 2)
    arrays = {
        "zero": np.zeros(1, np.int64),
        "rows_of_5": np.array([-1, 5]),
        "scale": np.float32(0.25),
        "byte": np.uint8(3),
        "b35": rng.integers(0, 99, (3, 5), np.uint8),
        "k": rng.integers(-9, 9, (1, 1, 2, 3)).astype(np.float32),
        "k3": rng.integers(-9, 9, (5, 1, 3)).astype(np.float32),
        "k5": rng.integers(-9, 9, (5, 1, 3)).astype(np.float32),
        "last": rng.integers(-9, 9, last).astype(np.float32),
        "w35": rng.integers(-9, 9, (3, 5)).astype(np.float32),
        "w57": rng.integers(-9, 9, (5, 7)).astype(np.float32),
        "w5": rng.integers(-9, 9, 5).astype(np.float32),
    }
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in arrays.items()
        if name in nodes or name == "last"
    )
    return proto


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    (y,) = running.run(proto, x, running.LEVELS[1])
    return y


def stripped(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model as a tool hands it on that keeps no metadata."""
    result = onnx.ModelProto.FromString(proto.SerializeToString())
    del result.metadata_props[:]
    for node in all_nodes(result.graph.node):
        del node.metadata_props[:]
    return result


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_for_a_second_run(case: str, ragged: bool) -> None:
    original, assumed = model(case), CASES[case][2]
    options = FoldOptions(factor=2, ragged=ragged, input_shapes={"x": tuple(assumed)})
    folded, sites = fold_model(original, options)
    assert sites[-1].code == "mixes-samples"
    assert {site.status for site in sites[:-1]} == {"folded"}
    assert_proved(original, folded, len(sites) - 1, options.input_shapes)
    again, sites = fold_model(folded, replace(options, mix_samples=True))
    assert again.SerializeToString() == folded.SerializeToString()
    assert {site.code for site in sites} == {"already-folded"}


@pytest.mark.parametrize("case", CASES)
def test_without_its_metadata_it_is_folded_again_and_right(case: str) -> None:
    original, (_, _, assumed, other) = model(case), CASES[case]
    options = FoldOptions(factor=2, mix_samples=True, input_shapes={"x": tuple(assumed)})
    folded, _ = fold_model(original, options)
    again, sites = fold_model(stripped(folded), options)
    assert "already-folded" not in {site.code for site in sites}
    x = np.random.default_rng(1).integers(-9, 10, assumed).astype(np.float32)
    np.testing.assert_array_equal(run(again, x), run(original, x))
    x = np.random.default_rng(1).integers(-9, 10, other).astype(np.float32)
    try:
        result = run(again, x)
    except REFUSALS:
        return
    np.testing.assert_array_equal(result, run(original, x))


def test_a_fold_in_a_body_or_function_counts() -> None:
    """The function holds no site, so that it is not inlined."""
    text = """<ir_version: 10, opset_import: ["" : 17, "loc" : 1]>
    main (float[16, 3] x, bool go) => (float[16, 3] y, float[16, 3] z) {
      c = MatMul (x, w)
      y = loc.f (c)
      z = If (go) <
        then_branch = then () => (float[16, 3] t) { t = Neg (c) },
        else_branch = other () => (float[16, 3] e) { e = Abs (c) }>
    }
    <opset_import: ["" : 17], domain: "loc"> f (p) => (q) { q = Relu (p) }"""
    plain = onnx.parser.parse_model(text)
    plain.graph.initializer.append(numpy_helper.from_array(np.eye(3, dtype=np.float32), "w"))
    _, (site,) = fold_model(plain, FoldOptions(factor=8, mix_samples=True))
    assert site.code == "folded"
    for nodes in (lambda m: m.functions[0].node, lambda m: m.graph.node[2].attribute[1].g.node):
        marked = onnx.ModelProto.FromString(plain.SerializeToString())
        nodes(marked)[0].metadata_props.add(key="widthfold.fold", value="of another version")
        result, (site,) = fold_model(marked, FoldOptions(factor=8, mix_samples=True))
        assert (site.status, site.code) == ("kept", "already-folded")
        assert result == marked


@pytest.mark.parametrize("case", CASES)
def test_what_was_assumed_is_right_and_so_is_anything_else(case: str) -> None:
    original, (_, dims, assumed, other) = model(case), CASES[case]
    folded, _ = fold_model(original, FoldOptions(factor=2, input_shapes={"x": tuple(assumed)}))
    x = np.random.default_rng(1).integers(-9, 10, assumed).astype(np.float32)
    np.testing.assert_array_equal(run(folded, x), run(original, x))
    odd = [extent + (dim == "n") for dim, extent in zip(dims, other, strict=True)]
    for shape in (other, odd):
        x = np.random.default_rng(1).integers(-9, 10, shape).astype(np.float32)
        try:
            expected = run(original, x)
        except REFUSALS:
            continue  # the model itself takes no such size
        np.testing.assert_array_equal(run(folded, x), expected)


# Nodes between "x" and "y" whose folds infer an extent, the extents of x, and two that fit.
INFERRED = {
    "batches and rows": ("y = MatMul(x, w35)", ["2", "n", "3", "3"], [2, 5, 3, 3], [2, 2, 3, 3]),
    "width": (
        "y = Conv <pads = [1, 1, 1, 1]> (x, k33)",
        *(["1", "1", "6", "n"], [1, 1, 6, 5], [1, 1, 6, 8]),
    ),
    "width of a region": (
        "c = Conv <pads = [1, 1, 1, 1]> (x, k33) r = Relu(c) "
        "y = Conv <pads = [1, 1, 1, 1]> (r, k33)",
        *(["1", "1", "6", "n"], [1, 1, 6, 5], [1, 1, 6, 8]),
    ),
    "batch and width": (
        "y = Conv <pads = [1, 1, 1, 1]> (x, k33)",
        *(["m", "1", "6", "n"], [2, 1, 6, 5], [3, 1, 6, 8]),
    ),
}


def alike(original: onnx.ModelProto, mutant: onnx.ModelProto, shape: list[int]) -> bool:
    x = np.random.default_rng(1).integers(-9, 10, shape).astype(np.float32)
    try:
        return np.array_equal(run(mutant, x), run(original, x))
    except REFUSALS:
        return False


@pytest.mark.parametrize("case", INFERRED)
def test_the_proof_sees_an_inferred_extent_that_is_wrong(case: str) -> None:
    """A number beside the inferred one becomes 1, in each Reshape in turn."""
    nodes, dims, *sizes = INFERRED[case]
    original = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[{", ".join(dims)}] x) => '
        f"(float[a, b, c, d] y) {{ {nodes} }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in {"w35": (3, 5), "k33": (1, 1, 3, 3)}.items():
        if name in nodes:
            array = rng.integers(1, 9, shape).astype(np.float32)
            original.graph.initializer.append(numpy_helper.from_array(array, name))
    axis = AxisName.HEIGHT if "Conv" in nodes else AxisName.AUTO
    folded, _ = fold_model(original, FoldOptions(factor=2, axis=axis, mix_samples=True))
    planted = 0
    for index, tensor in enumerate(folded.graph.initializer):
        numbers = numpy_helper.to_array(tensor)
        if "/widthfold/" not in tensor.name or -1 not in numbers or numbers.max() < 2:
            continue
        wrong = numbers.copy()
        wrong[numbers.argmax()] = 1
        mutant = onnx.ModelProto.FromString(folded.SerializeToString())
        mutant.graph.initializer[index].CopyFrom(numpy_helper.from_array(wrong, tensor.name))
        for shape in sizes:
            size_proof = proof(original, mutant, {"x": tuple(shape)})
            # The next Reshape may mend the value: the runtime says whether this is a fault.
            assert (size_proof.verdict == "equal") == alike(original, mutant, shape), tensor.name
            planted += size_proof.verdict == "different"
    assert planted >= 2


@st.composite
def networks(draw: st.DrawFn) -> tuple[onnx.ModelProto, int, FoldOptions]:
    """x [n, 2, t] -> up to three layers of all kinds -> y; the extent that is assumed of t."""
    length, value, nodes, constants = draw(st.integers(8, 24)), "x", [], {}
    channels, extent = 2, length
    for index in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["Conv", "Conv", "Conv", "ConvTranspose", "Relu", "Resize"]))
        result, inputs, attributes = f"v{index}", [value], {}
        if kind.startswith("Conv"):
            kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 2))
            attributes = {"strides": [stride]}
            if kind == "Conv" and draw(st.booleans()):
                attributes["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
            elif kind == "Conv":
                attributes["pads"] = [draw(st.integers(0, 2)), draw(st.integers(0, 2))]
            weight = np.random.default_rng(index).integers(-3, 4, (channels, channels, kernel))
            constants[f"w{index}"] = weight.astype(np.float32)
            inputs.append(f"w{index}")
            pads = attributes.get("pads", [0, 0])
            if "auto_pad" in attributes:
                extent = -(-extent // stride)
            elif kind == "Conv":
                extent = (extent + sum(pads) - kernel) // stride + 1
            else:
                extent = (extent - 1) * stride + kernel
        if kind == "Resize":
            constants[f"s{index}"] = np.array([1, channels, extent])
            inputs += ["", "", f"s{index}"]
            attributes = {"mode": "nearest"}
        nodes.append(helper.make_node(kind, inputs, [result], f"n{index}", **attributes))
        value = result
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, "t"])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [None] * 3)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = FoldOptions(
        factor=draw(st.integers(2, 4)),
        ragged=draw(st.booleans()),
        input_shapes={"x": (1, channels, length)},
    )
    return proto, length, options


@given(networks())
def test_another_extent_is_refused_by_the_runtime_or_right(
    case: tuple[onnx.ModelProto, int, FoldOptions],
) -> None:
    original, length, options = case
    folded, _ = fold_model(original, options)
    again, _ = fold_model(stripped(folded), options)
    for other in (length, length + 1, length - 1, length + (options.factor or 0), 2 * length):
        x = np.random.default_rng(other).integers(-3, 4, (1, 2, other)).astype(np.float32)
        try:
            expected = run(original, x)
        except REFUSALS:
            continue
        for rewritten in (folded, again):
            try:
                result = run(rewritten, x)
            except REFUSALS:
                assert other != length
                continue
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["Conv -> y", "Conv"])
def test_layers_of_one_shown_name_are_refused(name: str) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> net
        (float[1, 2, 16, 8] x) => (float[1, 2, 16, 8] y, float[1, 2, 16, 8] z)
        <float[2, 2, 1, 1] w = {1, 2, 3, 4}, float[2, 2, 1, 1] v = {5, 6, 7, 8}> {
            y = Conv(x, w)
            z = Conv(x, v)
        }"""
    )
    model.graph.node[0].name, model.graph.node[1].name = "", name
    plan = wf.plan(model, factor=2)
    if name == "Conv":
        assert [layer.node for layer in plan.layers] == ["Conv", "Conv -> y"]
    else:
        assert plan.layers == ()
        refusals = [site.refusals for site in wf.inspect(model).sites]
        assert ["called the same" in str(refusal) for refusal in refusals] == [True, True]


@pytest.mark.parametrize(
    ("name", "index", "exchanged"),
    [
        ("Conv -> a", 2, ["PRelu -> b", "PRelu -> d"]),
        ("Conv -> a", 1, ["Conv -> a", "PRelu -> d"]),
        ("PRelu -> b", 3, []),
        ("PRelu -> b", 4, ["PRelu -> b", "PRelu -> d"]),
    ],
)
def test_what_is_called_as_another_node_is_neither_padded_nor_exchanged(
    name: str, index: int, exchanged: list[str]
) -> None:
    """A node without a name is shown by its output, as another node may be named."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> net
        (float[1, 2, 16, 8] x) => (float[1, 2, 16, 8] y) <
        float[3, 2, 1, 1] u = {1, 2, 3, 4, 5, 6}, float[5, 3, 1, 1] w =
        {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}, float[2, 5, 1, 1] v =
        {1, 2, 3, 4, 5, 6, 7, 8, 9, 1}, float[1] s = {0.25}> {
            a = Conv(x, u)
            b = PRelu(a, s)
            c = Conv(b, w)
            d = PRelu(c, s)
            y = Conv(d, v)
        }"""
    )
    model.graph.node[index].name = name
    plan = wf.plan(model, factor=2, pad_channels=4, companion=("prelu",))
    assert [part.node for part in plan.companions] == exchanged
    assert name not in {layer.node for layer in (plan.padding.layers if plan.padding else ())}
    data = np.arange(256, dtype=np.float32).reshape(1, 2, 16, 8)
    expected, result = (running.run(m, data) for m in (model, wf.apply(model, plan)))
    np.testing.assert_array_equal(result, expected)
