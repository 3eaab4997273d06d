"""Sites in local functions: inlined where they are called, folded and proved there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.tool import widthfold
from tests.folding import fold_model, optimize, verify
from tests.shared import MODELS, needs_models
from widthfold_onnx.model.proto import functions
from widthfold_onnx.options import DeliveryOptions, FoldOptions

RNG = np.random.default_rng(11)
W = RNG.standard_normal((3, 2, 3, 5)).astype(np.float32)
V = RNG.standard_normal((3, 2, 3, 5)).astype(np.float32)
B = RNG.standard_normal(3).astype(np.float32)
PROVE = DeliveryOptions(seeds=2)
HEADER = '<ir_version: 8, opset_import: ["" : 17, "loc" : 1]>'
CONV = """<domain: "loc", opset_import: ["" : 17]>
conv <begin, end> (p, v, b) => (q) {
  [inner] s = Conv <pads: ints = [1, 2, 1, 2]> (p, v, b)
  q = Elu <alpha: float = @begin> (s)
}"""
OUTER = """<domain: "loc", opset_import: ["" : 17, "loc" : 1]>
outer (p, v, b) => (q) {
  q = loc.conv <begin = 0.5, end = 0> (p, v, b)
}"""
CALLS = f"""{HEADER} main (float[1, 2, 7, 8] x, float[2, 2, 5, 12] z, bool flag)
  => (float[1, 3, 7, 8] y, float[2, 3, 5, 12] t) {{
  s__1 = loc.outer (x, w, b)
  k = loc.conv <begin = 0.7, end = 0> (x, v, b)
  y = Add (s__1, k)
  t = If (flag) <
    then_branch = yes () => (float[2, 3, 5, 12] r) {{ r = loc.outer (z, v, b) }},
    else_branch = no () => (float[2, 3, 5, 12] n) {{ n = loc.other (z, w) }}
  >
}}
"""
OTHER = """<domain: "loc", opset_import: ["" : 17]>
other (p, v) => (q) {
  s = Identity (p)
  q = Conv <pads: ints = [1, 2, 1, 2]> (s, v)
}
<domain: "loc", opset_import: ["" : 17]>
plain (p) => (q) { q = Relu (p) }"""


def parsed(text: str, constants: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    arrays = {"w": W, "v": V, "b": B} if constants is None else constants
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    return model


def calls() -> onnx.ModelProto:
    return parsed(CALLS + CONV + OUTER + OTHER)


def written(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "in.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_every_call_is_folded_for_itself_and_proved(tmp_path: Path) -> None:
    model = calls()
    report = optimize(
        written(model, tmp_path), tmp_path / "out.onnx", FoldOptions(factor=4, axis=3), PROVE
    )
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    assert [site.status for site in report.sites] == ["folded"] * 4
    assert report.verification.proof.verdict == "equal"
    assert len(report.verification.folds) == 4
    assert {site.graph for site in report.sites} == {"", "t/then_branch", "t/else_branch"}
    result = onnx.load(tmp_path / "out.onnx")
    assert [function.name for function in result.functions] == ["plain"]
    assert not {"w", "v"} & {tensor.name for tensor in result.graph.initializer}
    again, sites = fold_model(result, FoldOptions(factor=4, axis=3))
    assert again == result
    assert {site.code for site in sites} == {"already-folded"}


def test_a_fault_in_the_fold_of_a_call_is_found(tmp_path: Path) -> None:
    source = written(calls(), tmp_path)
    optimize(source, tmp_path / "out.onnx", FoldOptions(factor=4, axis=3), PROVE)
    result = onnx.load(tmp_path / "out.onnx")
    convs = [node for node in result.graph.node if node.op_type == "Conv"]
    convs[0].input[1], convs[1].input[1] = convs[1].input[1], convs[0].input[1]
    (tmp_path / "out.onnx").write_bytes(result.SerializeToString())
    verification = verify(source, tmp_path / "out.onnx", PROVE)
    assert verification.verdict == "fail"
    assert verification.proof.verdict == "different"


def test_where_nothing_is_folded_out_is_a_copy_with_its_functions(tmp_path: Path) -> None:
    source, out = written(calls(), tmp_path), tmp_path / "out.onnx"
    report = optimize(source, out, FoldOptions(factor=11), PROVE)
    assert report.summary.folded == 0
    assert out.read_bytes() == source.read_bytes()
    assert fold_model(calls(), FoldOptions(factor=11))[0] == calls()


def test_a_constant_of_a_function_is_folded_once_for_all_its_calls(tmp_path: Path) -> None:
    text = f"""{HEADER} main (float[1, 2, 7, 8] x) => (float[1, 1, 7, 8] y) {{
      a = loc.f (x)
      b = Neg (x)
      c = loc.f (b)
      y = Mul (a, c)
    }}
    <domain: "loc", opset_import: ["" : 17]>
    f (p) => (q) {{
      k = Constant <value_floats: floats = [1.0, 2.0, 3.0, 5.0, 7.0, 11.0]> ()
      s = Constant <value_ints: ints = [1, 2, 1, 3]> ()
      v = Reshape (k, s)
      q = Conv <pads: ints = [0, 1, 0, 1]> (p, v)
    }}"""
    source = written(parsed(text, {}), tmp_path)
    report = optimize(source, tmp_path / "out.onnx", FoldOptions(factor=4, axis=3), PROVE)
    assert report.verification is not None
    assert (report.verification.verdict, report.summary.folded) == ("pass", 2)
    result = onnx.load(tmp_path / "out.onnx")
    assert len({node.input[1] for node in result.graph.node if node.op_type == "Conv"}) == 1
    assert "Constant" not in {node.op_type for node in result.graph.node}


def test_a_weight_that_only_some_calls_know_is_refused_for_the_others() -> None:
    text = f"""{HEADER} main (float[1, 2, 7, 8] x, float[3, 2, 3, 5] u)
      => (float[1, 3, 7, 8] y, float[1, 3, 7, 8] z) {{
      y = loc.other (x, w)
      z = loc.other (x, u)
    }}"""
    _, sites = fold_model(parsed(text + OTHER), FoldOptions(factor=4))
    assert [site.code for site in sites] == ["folded", "weight-not-constant"]
    assert sites[1].reason == "the weight u is an input"


def test_operator_sets_that_differ_are_a_reason(tmp_path: Path) -> None:
    model = calls()
    model.functions[0].opset_import[0].version = 13
    result, sites = fold_model(model, FoldOptions(factor=4))
    assert result == model
    assert {site.code for site in sites} == {"in-function"}
    assert {site.reason for site in sites} == {
        "the function cannot be inlined: Model has functions with incompatible opset versions."
    }
    run = widthfold("inspect", written(model, tmp_path))
    assert run.code == 0
    assert "incompatible opset versions" in run.out


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_ADDED_NODES", r"the graph has 16 nodes once inlined, above 8$"),
        ("MAX_INLINED_BYTES", r"the graph has \d+ bytes once inlined, above \d+$"),
    ],
)
def test_what_inlining_would_grow_to_is_bounded(limit, message, monkeypatch) -> None:
    monkeypatch.setattr(functions, limit, 2)
    _, sites = fold_model(calls(), FoldOptions(factor=4))
    assert {site.code for site in sites} == {"in-function"}
    assert re.search(message, sites[0].reason)


def test_a_transposed_convolution_in_a_function(tmp_path: Path) -> None:
    text = f"""{HEADER} main (float[1, 3, 7, 8] x) => (float[1, 2, 7, 16] y) {{ y = loc.up (x, t) }}
    <domain: "loc", opset_import: ["" : 17]>
    up (p, t) => (q) {{
      v = Transpose (t)
      q = ConvTranspose <strides: ints = [1, 2], pads: ints = [1, 2, 1, 1]> (p, v)
    }}"""
    source = written(parsed(text, {"t": W.T.copy()}), tmp_path)
    report = optimize(source, tmp_path / "out.onnx", FoldOptions(factor=4, axis=3), PROVE)
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    assert report.verification.proof.verdict == "equal"
    assert len(report.verification.folds) == 1


def test_products_in_functions(tmp_path: Path) -> None:
    """Twice the same function, whose weight is an argument, and one with attributes of its own."""
    text = f"""{HEADER} main (float[2, 12, 5] x, float[32, 7] t)
      => (float[2, 12, 3] y, float[2, 12, 3] z, float[32, 3] r) {{
      y = loc.twice <scale = 0.5> (x, v)
      z = loc.twice <scale = 0.5> (x, u)
      r = loc.scaled <scale = -1.5> (t, c, b)
    }}
    <domain: "loc", opset_import: ["" : 17, "loc" : 1]>
    twice <scale> (p, v) => (q) {{
      s = MatMul (p, v)
      q = Elu <alpha: float = @scale> (s)
    }}
    <domain: "loc", opset_import: ["" : 17]>
    scaled <scale> (p, v, b) => (q) {{ q = Gemm <alpha: float = @scale, transB = 1> (p, v, b) }}"""
    shapes = {"v": (5, 3), "u": (5, 3), "c": (3, 7), "b": (3,)}
    arrays = {name: RNG.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    source = written(parsed(text, arrays), tmp_path)
    options = FoldOptions(factor=4, mix_samples=True)
    report = optimize(source, tmp_path / "out.onnx", options, PROVE)
    assert report.verification is not None
    assert (report.verification.verdict, report.verification.reasons) == ("pass", [])
    assert [site.status for site in report.sites] == ["folded"] * 3
    assert report.verification.proof.verdict == "equal"
    assert len(report.verification.folds) == 3


@needs_models
def test_convolutions_inside_of_nested_branches_of_a_real_model(tmp_path: Path) -> None:
    """All of silero-vad lies in two branches, by sampling rate; their extents follow from Shape."""
    (source,) = (path for path in MODELS if path.stem == "silero-vad__silero_vad")
    feeds = {
        "input": RNG.standard_normal((1, 576)).astype(np.float32),
        "state": RNG.standard_normal((2, 1, 128)).astype(np.float32),
        "sr": np.array(16000),
    }
    np.savez(tmp_path / "feeds.npz", **feeds)
    options = FoldOptions(
        factor=2,
        ragged=True,
        max_channels=300,
        input_shapes={"input": (1, 576), "state": (2, 1, 128)},
        skip=("If_0_else_branch*",),
    )
    verify_options = DeliveryOptions(inputs=(str(tmp_path / "feeds.npz"),))
    report = optimize(source, tmp_path / "out.onnx", options, verify_options)
    assert report.verification is not None
    assert report.verification.verdict == "pass"
    assert report.verification.proof.verdict == "equal"
    assert len(report.verification.folds) == 3
    codes = [site.code for site in report.sites]
    assert (codes.count("folded"), codes.count("not-selected")) == (3, 6)
    reason = "it has 1 of the 2 positions that would be folded"
    text = ("too-short", f"batch: {reason}; width: {reason}")
    # An If before the last one squeezes in one branch only: the weight tells the rank.
    assert [(s.code, s.reason) for s in report.sites if s.status == "refused"] == [text] * 3
