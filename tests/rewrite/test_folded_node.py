"""Folded weights: of constants that a model computes, from file to file, and shared by nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.folding import fold_model, optimize
from tests.rewrite.guards import guarded
from tests.rewrite.proved import assert_proved
from widthfold_onnx.options import DeliveryOptions, FoldOptions

RNG = np.random.default_rng(7)
W = RNG.standard_normal((3, 2, 3, 5)).astype(np.float32)
B = RNG.standard_normal(3).astype(np.float32)
WQ = RNG.integers(-128, 127, W.shape).astype(np.int8)
STEP = RNG.uniform(0.01, 0.02, 3).astype(np.float32)
PROVE = DeliveryOptions(seeds=2)


def parsed(text: str, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> main {text}')
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    model.graph.initializer.extend(tensors)
    return model


def folded(model: onnx.ModelProto, folder: Path, **options: object) -> onnx.ModelProto:
    """Fold by 4, verified; every Conv must be folded and proved."""
    (folder / "in.onnx").write_bytes(model.SerializeToString())
    fold = FoldOptions(factor=4, **options)
    report = optimize(folder / "in.onnx", folder / "out.onnx", fold, PROVE)
    assert report.verification is not None, report.sites
    assert report.verification.verdict == "pass", report.verification.reasons
    assert not report.verification.reasons
    assert {site.status for site in report.sites} == {"folded"}
    assert report.verification.proof.verdict == "equal"
    assert len(report.verification.folds) == len(report.sites)
    return onnx.load(folder / "out.onnx")


def graph(chain: str) -> str:
    return f"""(float[1, 2, 7, 8] x) => (float[1, 3, 7, 8] y) {{
      {chain}
      [c] y = Conv <pads = [1, 2, 1, 2]> (x, v, b)
    }}"""


CHAINS = {
    "transpose": ("v = Transpose <perm = [3, 2, 1, 0]> (w)", {"w": W.T.copy()}),
    "default domain by name": (
        "v = ai.onnx.Transpose <perm = [3, 2, 1, 0]> (w)",
        {"w": W.T.copy()},
    ),
    "reshape": ("v = Reshape (w, s)", {"w": W.ravel(), "s": np.array([3, -1, 3, 5])}),
    "cast half": ("v = Cast <to = 1> (w)", {"w": W.astype(np.float16)}),
    "cast double": ("v = Cast <to = 1> (w)", {"w": W.astype(np.float64)}),
    "unsqueeze": (
        "v = Unsqueeze (w, a)\n b = Squeeze (k)",
        {"w": W[:, :, :1, 0], "a": [3], "k": B[:, None]},
    ),
    "dequantize": ("v = DequantizeLinear <axis = 0> (w, k)", {"w": WQ, "k": STEP}),
    "requantize": (
        "q = QuantizeLinear (w, k, z)\n v = DequantizeLinear (q, k, z)",
        {"w": W, "k": np.float32(0.02), "z": np.int8(3)},
    ),
    "constant node": (
        "w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]> ()\n v = Reshape (w, s)",
        {"s": np.array([3, 2, 1, 1])},
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_computed_weight_is_folded_and_what_computed_it_goes(name: str, tmp_path: Path) -> None:
    chain, constants = CHAINS[name]
    if "b =" not in chain:
        constants = {"b": B, **constants}
    text = graph(chain)
    if name == "unsqueeze":
        text = text.replace("[1, 2, 1, 2]", "[0, 0, 0, 0]")
    if name == "constant node":
        text = text.replace("[1, 2, 1, 2]", "[0, 0, 0, 0]")
    result = folded(parsed(text, constants), tmp_path)
    assert {node.op_type for node in result.graph.node} <= {"Reshape", "Transpose", "Conv"}
    assert not set(constants) & {tensor.name for tensor in result.graph.initializer}


@pytest.mark.parametrize(
    ("chain", "stored"),
    [
        ("v = Transpose (w)", True),
        ("v = Identity (w)", True),
        (
            "v = Constant <value_floats = [2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0]> ()",
            False,
        ),
    ],
)
def test_a_computed_weight_of_several_sites_goes_once(
    chain: str, stored: bool, tmp_path: Path
) -> None:
    maker = chain if stored else chain.replace("v =", "u =") + "\n v = Reshape (u, s)"
    text = f"""(float[2, 8, 3] x) => (float[2, 8, 3] y) {{
      {maker}
      a = MatMul (x, v)
      y = MatMul (a, v)
    }}"""
    w = RNG.integers(1, 5, (3, 3)).astype(np.float32)
    result = folded(parsed(text, {"w": w} if stored else {"s": np.array([3, 3])}), tmp_path)
    assert {node.op_type for node in result.graph.node} == {"MatMul", "Reshape"}
    names = {tensor.name for tensor in result.graph.initializer}
    assert not {"w", "s"} & names
    assert sum(name.endswith("/widthfold") for name in names) == 1


def test_a_bias_and_operands_of_carried_ops_may_be_computed_as_well(tmp_path: Path) -> None:
    model = parsed(
        """(float[1, 2, 7, 8] x) => (float[1, 2, 7, 8] y) {
          b = DequantizeLinear (q, step)
          k = Transpose (scale)
          [one] c = Conv <pads = [1, 2, 1, 2]> (x, w, b)
          m = Mul (c, k)
          [two] y = Conv <pads = [0, 1, 0, 1]> (m, v)
        }""",
        {
            "w": W,
            "q": np.array([5, -7, 11], np.int32),
            "step": np.float32(0.1),
            "scale": np.array([2.0, 3.0, 0.5], np.float32)[None, None, :],
            "v": RNG.standard_normal((2, 3, 1, 3)).astype(np.float32),
        },
    )
    result = folded(model, tmp_path, axis=3)
    ops = [node.op_type for node in result.graph.node]
    assert ops.count("Conv") == 2
    assert "DequantizeLinear" not in ops
    # One fold before, one unfold behind: the product stays folded.
    assert ops.count("Mul") == 1
    assert ops.count("Transpose") == 2


def test_what_others_read_of_the_chain_stays(tmp_path: Path) -> None:
    model = parsed(
        """(float[1, 2, 7, 8] x) => (float[1, 3, 7, 8] y, float[5, 3, 2, 3] t) {
          t = Transpose (w)
          v = Transpose (t)
          [c] y = Conv <pads = [1, 2, 1, 2]> (x, v)
        }""",
        {"w": W},
    )
    result = folded(model, tmp_path)
    assert result.graph.node[0] == model.graph.node[0]
    assert sum(list(node.input) == ["w"] for node in result.graph.node) == 1
    assert "v" not in {name for node in result.graph.node for name in node.output}


CAPTURED = """(float[1, 2, 7, 8] x, bool flag) => (float[1, 3, 7, 8] y) {
  v = Transpose (w)
  y = If (flag) <
    then_branch = then () => (float[1, 3, 7, 8] t) {
      [left] t = Conv <pads = [1, 2, 1, 2]> (x, v)
    },
    else_branch = else () => (float[1, 3, 7, 8] e) {
      u = Cast <to = 10> (v)
      r = Cast <to = 1> (u)
      i = Identity (v)
      [right] c = Conv <pads = [1, 2, 1, 2]> (x, i)
      [rounded] d = Conv <pads = [1, 2, 1, 2]> (x, r)
      e = Sub (c, d)
    }
  >
}"""


def test_captured_constants_are_folded_once_and_lie_where_they_were_made(tmp_path: Path) -> None:
    result = folded(parsed(CAPTURED, {"w": W.T.copy()}), tmp_path, axis=3)
    assert [node.op_type for node in result.graph.node] == ["If"]
    then, other = (attribute.g for attribute in result.graph.node[0].attribute)
    (names,) = (node.input[1] for node in then.node if node.op_type == "Conv")
    right, rounded = (node.input[1] for node in other.node if node.op_type == "Conv")
    assert names == right
    assert names in {tensor.name for tensor in result.graph.initializer}
    assert "w" not in {tensor.name for tensor in result.graph.initializer}
    assert rounded in {tensor.name for tensor in other.initializer}
    assert "Cast" not in {node.op_type for node in other.node}


def sparse(name: str) -> tuple[onnx.SparseTensorProto, np.ndarray]:
    full = np.where(RNG.random(W.shape) < 0.2, W, np.float32(0))
    places = np.flatnonzero(full)
    values = numpy_helper.from_array(full.ravel()[places], name)
    indices = numpy_helper.from_array(places, f"{name} places")
    return helper.make_sparse_tensor(values, indices, full.shape), full


@pytest.mark.parametrize("form", ["initializer", "constant", "two readers"])
def test_sparse_weights(form: str, tmp_path: Path) -> None:
    model = parsed(graph("k = Relu (x)"), {"b": B})
    tensor, full = sparse("v")
    if form == "constant":
        model.graph.node.insert(0, helper.make_node("Constant", [], ["v"], sparse_value=tensor))
    else:
        model.graph.sparse_initializer.append(tensor)
    if form == "two readers":
        model.graph.node.add(op_type="Conv", input=["x", "v"], output=["z"], name="d")
        model.graph.output.add(name="z").type.CopyFrom(model.graph.output[0].type)
        model.graph.output[1].type.tensor_type.ClearField("shape")
    result = folded(model, tmp_path, axis=2, ragged=True)
    assert not result.graph.sparse_initializer
    stored = [numpy_helper.to_array(tensor) for tensor in result.graph.initializer]
    wide = max(stored, key=lambda array: array.size)
    assert set(wide.ravel()) == set(full.ravel())


def test_a_sparse_weight_that_a_kept_node_reads_stays_as_it_was(tmp_path: Path) -> None:
    model = parsed(graph("k = Relu (x)"), {"b": B})
    tensor, _ = sparse("v")
    model.graph.sparse_initializer.append(tensor)
    model.graph.node.add(op_type="Conv", input=["x", "v"], output=["z"], name="kept")
    model.graph.output.add(name="z").type.CopyFrom(model.graph.output[0].type)
    model.graph.output[1].type.tensor_type.ClearField("shape")
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    options = FoldOptions(factor=7, axis=2, skip=("kept",))
    report = optimize(tmp_path / "in.onnx", tmp_path / "out.onnx", options, PROVE)
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    assert report.summary.folded == 1
    assert onnx.load(tmp_path / "out.onnx").graph.sparse_initializer == [tensor]


def test_attributes_beside_a_sparse_constant_are_still_read(tmp_path: Path) -> None:
    """A Concat along the folded axis must not be taken for one along its default."""
    model = parsed(
        """(float[1, 2, 7, 8] x) => (float[1, 3, 7, 16] y) {
          k = Conv <pads = [1, 2, 1, 2]> (x, v)
          r = Concat <axis = 3> (k, k)
          y = Relu (r)
        }""",
        {},
    )
    tensor, _ = sparse("v")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["v"], sparse_value=tensor))
    result = folded(model, tmp_path, axis=3)
    (concat,) = (node for node in result.graph.node if node.op_type == "Concat")
    assert concat == model.graph.node[2]


def test_a_weight_that_depends_on_an_input_is_refused_with_its_root() -> None:
    model = parsed(
        """(float[1, 2, 7, 8] x, float[5, 3, 2, 3] w) => (float[1, 3, 7, 8] y) {
          t = Transpose (w)
          v = Identity (t)
          [c] y = Conv <pads = [1, 2, 1, 2]> (x, v)
        }""",
        {},
    )
    result, (site,) = fold_model(model, FoldOptions(factor=4))
    assert result == model
    assert site.code == "weight-not-constant"
    assert site.reason == "the weight v is no constant: w is an input"


@pytest.mark.parametrize(("samples", "count"), [(4, 1), (3, 2)])
def test_only_nodes_that_are_folded_alike_share_a_weight(samples: int, count: int) -> None:
    """Of 4 samples the batch is folded; of 3 it cannot be, so the rows are."""
    model = guarded.parsed(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[4, 2, 8, 5] a, float[{samples}, 2, 8, 5] b)
          => (float[4, 3, 8, 5] y, float[{samples}, 3, 8, 5] z) {{
          y = Conv (a, w) z = Conv (b, w) }}""",
        w=(3, 2, 1, 1),
    )
    after, sites = fold_model(model, FoldOptions(factor=4))
    assert [site.axis for site in sites] == ["batch", "batch" if count == 1 else "height"]
    weights = [t for t in after.graph.initializer if len(t.dims) == 4]
    assert len(weights) == count
    assert_proved(model, after, 2)
