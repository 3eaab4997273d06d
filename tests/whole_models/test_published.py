"""Layers like in published models: their right folds pass."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from tests.folding import optimize, verify
from tests.shared import SHARED
from widthfold_onnx.evidence.parity.chosen_inputs import all_windows_fit
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import FoldOptions, Provider, VerifyOptions

SWIFT = SHARED / "published" / "swift-f0__model_0.3.0.onnx"
PITCH = SHARED / "models" / "basic-pitch__nmp.onnx"


@pytest.mark.skipif(not SWIFT.is_file(), reason=f"no {SWIFT}")
def test_limits_among_the_inputs_hide_no_fold(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    report = optimize(SWIFT, out, FoldOptions(factor=8))
    assert report.verification is not None
    assert (report.verification.verdict, report.summary.folded) == ("pass", 18)
    # The graph compares fmin and fmax with constants of its own; these are tried before others.
    assert report.verification.reasons == []
    assert not any(row.caveat == "meaningless" for row in report.verification.outputs)
    assert onnx.load(out).graph.node


@pytest.mark.slow
@pytest.mark.skipif(not PITCH.is_file(), reason=f"no {PITCH}")
@pytest.mark.parametrize("factor", [3, 5])
def test_right_folds_of_ill_conditioned_outputs_pass(factor: int, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    optimize(PITCH, out, FoldOptions(factor=factor, ragged=True))
    report = verify(PITCH, out, VerifyOptions(provider=Provider.CPU, timing=False))
    assert report.verdict == "pass", report.reasons
    assert any(row.caveat == "ill-conditioned" for row in report.outputs)


@pytest.mark.parametrize(("length", "fits"), [(8, True), (3, True), (2, False)])
def test_a_window_must_fit_into_its_data(length: int, fits: bool) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, l] x, float[2, 2, 3] w) => (float[1, 2, k] y) {
            c = Conv<kernel_shape = [3], pads = [1, 0]>(x, w)
            p = MaxPool<kernel_shape = [2], strides = [2]>(c)
            y = MaxPool<kernel_shape = [2], auto_pad = "SAME_UPPER">(p) }"""
    )
    assert all_windows_fit(model, ShapeTable(model, {"x": (1, 2, length)})) is fits
