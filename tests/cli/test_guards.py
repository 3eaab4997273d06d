"""`--guard-shapes` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.tool import widthfold
from tests.rewrite.guarded import draw, guards, parsed
from tests.rewrite.test_guard_shapes import CASES
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
    flags = ("--factor", "4", "--axis", "height", "--guard-shapes")
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


def test_a_refusal_names_what_unlocks_it(model: Path, tmp_path: Path) -> None:
    run = widthfold("optimize", model, tmp_path / "out.onnx", "--factor", "8", "--axis", "height")
    assert run.code == 0
    said = " ".join(run.out.split())
    assert "--input-shape x:1,3,256,28 or --guard-shapes folds it" in said


def test_verify_sees_a_wrong_branch(model: Path, tmp_path: Path) -> None:
    """At the size that is compared the folded nodes compute, and they are right."""
    out = tmp_path / "out.onnx"
    flags = ("--factor", "4", "--axis", "height", "--guard-shapes", "--no-verify")
    assert widthfold("optimize", model, out, *flags).code == 0
    wrong = onnx.load(out)
    (guard,) = guards(wrong)
    (original,) = (a.g for a in guard.attribute if a.name == "else_branch")
    original.node[0].attribute[0].ints[:] = [2, 1, 0, 1]
    onnx.save(wrong, out)
    quick = (*QUICK, "--truth-budget", "0", "--no-timing")
    run = widthfold("verify", model, out, *quick, "--input-shape", "x:1,3,8,28")
    assert run.code == 1
    said = " ".join(run.out.split())
    assert "proof: different: " in said


def test_auto_measures_and_writes_what_is_guarded(tmp_path: Path) -> None:
    """Where it pays, or a copy: either runs at every size."""
    original = parsed(TEXT, w=(1, 1, 31))
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    path.write_bytes(original.SerializeToString())
    flags = ("--guard-shapes", "--time-budget", "2", "--max-flops-growth", "8")
    words = (*QUICK, *flags, "--store", tmp_path / "store", "--input-shape", "x:1,1,8192")
    run = widthfold("optimize", path, out, *words)
    assert run.code == 0, run.err
    before, after = opened(original), opened(onnx.load(out))
    for length in (8192, 64, 37):
        x = draw((1, 1, length))
        found, wanted = after.run(None, {"x": x})[0], before.run(None, {"x": x})[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
