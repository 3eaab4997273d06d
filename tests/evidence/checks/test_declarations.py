"""Outputs that are declared wrong are named where only a run knows their extents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.folding import verify
from widthfold_onnx.options import Provider, VerifyOptions

TEXT = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
main (float[1, 4, 6] x) => (float[{y}] y) {{ y = com.microsoft.FusedMatMul (x, w) }}"""


def reasons(y: str, path: Path) -> list[str]:
    model = onnx.parser.parse_model(TEXT.format(y=y))
    weight = np.random.default_rng(2).integers(-3, 4, (6, 5)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)
    report = verify(path, path, VerifyOptions(provider=Provider.CPU, timing=False))
    assert report.verdict == "pass"
    assert report.proof is not None
    assert report.proof.verdict == "equal"
    return report.reasons


def test_an_output_of_another_rank_or_size_is_named_once(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    (line,) = reasons("4, 7", file)
    assert line == (
        "the original declares [4, 7] for y, which is [1, 4, 5]; this declaration is not used"
    )
    (line,) = reasons("1, n, 7", file)
    assert line.startswith("the original declares [1, ?, 7] for y, which is [1, 4, 5]")
    assert not reasons("1, n, 5", file)
