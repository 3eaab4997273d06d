"""Guards and fixed sizes as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import widthfold_onnx as wf
from tests.cli.tool import widthfold
from tests.rewrite.guards.cases import CASES
from tests.rewrite.guards.guarded import draw, guards, parsed
from tests.running import opened

QUICK = ("--provider", "cpu", "--seeds", "1")
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 1, L] x) => (float[1, 1, L] y) { y = Conv <pads = [15, 15]> (x, w) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "in.onnx"
    path.write_bytes(CASES["height"][0].SerializeToString())
    return path


def test_reports_name_the_guards(model: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    flags = ("--factor", "4", "--axis", "height")
    run = widthfold("optimize", model, out, *flags, "--report", report)
    assert run.code == 0
    assert "guarded" in run.out
    document = json.loads(report.read_text())
    (site,) = document["sites"]
    assert site["guard"] == "extents"
    assert document["verification"]["proof"]["verdict"] == "equal"
    assert "proof: equal" in run.out
    second = widthfold("optimize", out, tmp_path / "again.onnx", *flags)
    assert second.code == 0
    assert (tmp_path / "again.onnx").read_bytes() == out.read_bytes()
    assert "already-folded" in second.out


def test_fixed_sizes_are_declared(model: Path, tmp_path: Path) -> None:
    out, sizes = tmp_path / "out.onnx", ("--input-shape", "x:1,3,12,28")
    flags = ("--factor", "12", "--axis", "height", *sizes)
    assert widthfold("optimize", model, out, *flags).code == 0
    assert len(guards(onnx.load(out))) == 1
    run = widthfold("optimize", model, out, *flags, "--fixed-shapes")
    assert run.code == 0, run.err
    folded = onnx.load(out)
    dims = folded.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [1, 3, 12, 28]
    assert not guards(folded)
    assert "x takes 1x3x12x28 only (--fixed-shapes)" in " ".join(run.out.split())
    assert widthfold("verify", model, out, *QUICK, "--no-timing", *sizes).code == 0
    narrower = widthfold("verify", model, out, *QUICK, "--no-timing")
    assert narrower.code == 1
    assert "input x is declared float[1, 3, 12, 28] instead of float[1, 3, H, 28]" in narrower.out


def test_fixed_sizes_have_to_be_given(model: Path) -> None:
    run = widthfold("optimize", model, "--factor", "4", "--fixed-shapes")
    assert run.code == 2
    assert "--fixed-shapes declares the sizes of --input-shape: give them" in run.err


def test_one_size_only_is_fixed(model: Path, tmp_path: Path) -> None:
    several = ("--input-shape", "x:1,3,12,28", "--input-shape", "x:1,3,24,28")
    run = widthfold("optimize", model, "--factor", "4", "--fixed-shapes", *several)
    assert run.code == 2
    message = "--fixed-shapes declares one size of each input, and --input-shape gives 2: give one"
    assert message in run.err
    out, flags = tmp_path / "out.onnx", ("--factor", "12", "--axis", "height", "--fixed-shapes")
    assert widthfold("optimize", model, out, *flags, *several[:2]).code == 0
    wider = widthfold("verify", model, out, *QUICK, "--no-timing", *several)
    assert wider.code == 1
    assert "input x is declared float[1, 3, 12, 28] instead of float[1, 3, H, 28]" in wider.out


def test_verify_sees_a_wrong_branch(model: Path, tmp_path: Path) -> None:
    """At the size that is compared the folded nodes compute, and they are right."""
    out = tmp_path / "out.onnx"
    flags = ("--factor", "4", "--axis", "height", "--no-verify")
    assert widthfold("optimize", model, out, *flags).code == 0
    wrong = onnx.load(out)
    (guard,) = guards(wrong)
    (original,) = (a.g for a in guard.attribute if a.name == "else_branch")
    original.node[0].attribute[0].ints[:] = [2, 1, 0, 1]
    onnx.save(wrong, out)
    quick = (*QUICK, "--truth-work", "0", "--no-timing")
    run = widthfold("verify", model, out, *quick, "--input-shape", "x:1,3,8,28")
    assert run.code == 1
    message = " ".join(run.out.split())
    assert "proof: different: " in message


def test_auto_measures_and_writes_what_is_guarded(tmp_path: Path) -> None:
    """The output is a fold or a copy, by what pays; either runs at every size."""
    original = parsed(TEXT, w=(1, 1, 31))
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(original.SerializeToString())
    flags = ("--time-budget", "2", "--max-flops-growth", "8")
    words = (*QUICK, *flags, "--store", tmp_path / "store", "--input-shape", "x:1,1,8192")
    run = widthfold("optimize", path, out, *words)
    assert run.code == 0, run.err
    before, after = opened(original), opened(onnx.load(out))
    for length in (8192, 64, 37):
        x = draw((1, 1, length))
        result, expected = after.run(None, {"x": x})[0], before.run(None, {"x": x})[0]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


NEVER_EVEN = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 1, H, 8] x) => (float[1, 1, A, 8] y, float[1, 1, B, 8] z)
<float[1, 1, 1, 8] row = {1, 2, 3, 4, 5, 6, 7, 8}> {
  d = Concat <axis = 2> (x, x, row)
  [odd] y = Conv <pads = [1, 1, 1, 1]> (d, w)
  [any] z = Conv <pads = [1, 1, 1, 1]> (x, w)
}"""


def test_a_guard_that_no_size_opens_is_left_out_alone(tmp_path: Path) -> None:
    path, out, report = (tmp_path / name for name in ("in.onnx", "out.onnx", "report.json"))
    path.write_bytes(parsed(NEVER_EVEN, w=(1, 1, 3, 3)).SerializeToString())
    flags = ("--factor", "2", "--axis", "height", "--report", report)
    run = widthfold("optimize", path, out, *flags, "--details")
    assert (run.code, run.err) == (0, "")
    codes = {site["node"]: site["code"] for site in json.loads(report.read_text())["sites"]}
    assert codes == {"odd": "guard-not-proved", "any": "folded"}
    assert "guard-not-proved: no sizes were tried at which the model is known to run" in " ".join(
        run.out.split()
    )
    assert len(guards(onnx.load(out))) == 1
    brief = widthfold("optimize", path, out, *flags)
    assert "left alone: 1 guard-not-proved; --details says why" in brief.out


NEVER_WIDE = """<ir_version: 8, opset_import: ["" : 17]>
main (float[1, 3, H, 6] x) => (float[1, 3, A, 6] y, float[1, 3, H, 6] z)
<int64 three = {3}, int64 nine = {9}> {
  r = Relu (x)
  s = Shape (r)
  n = Gather (s, three)
  c = Greater (n, nine)
  y = If (c) <
    then_branch = wide () => (float[1, 3, B, 6] o) {
      [dead] o = Conv <pads = [1, 1, 1, 1]> (r, w)
    },
    else_branch = narrow () => (float[1, 3, C, 6] p) { p = Tanh (r) }
  >
  [any] z = Conv <pads = [1, 1, 1, 1]> (x, w)
}"""
NEVER_ELSE = (
    NEVER_WIDE.replace("Greater", "Less")
    .replace("else_branch", "last")
    .replace("then_branch", "else_branch")
    .replace("last", "then_branch")
)


def test_a_layer_in_a_branch_that_no_size_reaches_is_left_out_alone(tmp_path: Path) -> None:
    path, out, report = (tmp_path / name for name in ("in.onnx", "out.onnx", "report.json"))
    path.write_bytes(parsed(NEVER_WIDE, w=(3, 3, 3, 3)).SerializeToString())
    flags = ("--factor", "2", "--axis", "height", "--report", report)
    run = widthfold("optimize", path, out, *flags)
    assert (run.code, run.err) == (0, "")
    codes = {site["node"]: site["code"] for site in json.loads(report.read_text())["sites"]}
    assert codes == {"dead": "guard-not-proved", "any": "folded"}
    assert len(guards(onnx.load(out))) == 1


@pytest.mark.parametrize(
    ("text", "weight", "dead"),
    [(NEVER_EVEN, 1, "odd"), (NEVER_WIDE, 3, "dead"), (NEVER_ELSE, 3, "dead")],
)
def test_a_model_in_memory_loses_the_same_layers(text: str, weight: int, dead: str) -> None:
    model = parsed(text, w=(weight, weight, 3, 3))
    result = wf.optimize(model, factor=2, axis="height")
    codes = {site.node: site.code for site in result.report.sites}
    assert codes == {dead: "guard-not-proved", "any": "folded"}
    assert [layer.node for layer in result.plan.layers] == ["any"]
    assert len(guards(result.model)) == 1
