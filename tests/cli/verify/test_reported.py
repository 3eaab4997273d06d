"""Small models built after public bug reports get the right verdict, where they are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the runtime writes the second model
import pytest
from onnx import numpy_helper

from tests.folding import optimize, verify
from tests.shared import make_reported
from widthfold_onnx.options import FoldOptions, Provider, VerifyOptions

OPTIONS = VerifyOptions(provider=Provider.CPU, truth_work=0, timing=False)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [*(("080", {"kind": k}) for k in ("wrap", "wrap8", "unsigned", "int16")), ("081", {})],
)
def test_limits_of_integers_that_are_gone(name: str, kinds: dict[str, str], tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.onnx", tmp_path / "broken.onnx"
    make_reported(name, whole, **kinds)
    make_reported(name, broken, broken=True, **kinds)
    assert verify(whole, whole, OPTIONS).verdict == "pass"
    report = verify(whole, broken, OPTIONS)
    assert report.verdict == "fail"
    assert not all(row.passed for row in report.outputs)


@pytest.mark.parametrize("rows", [4, 10, 30, 80])
def test_a_small_table_before_a_normalization_that_the_runtime_merged(
    rows: int, tmp_path: Path
) -> None:
    file, merged = tmp_path / "model.onnx", tmp_path / "merged.onnx"
    make_reported("078", file)
    proto = onnx.load(file)
    (table,) = (tensor for tensor in proto.graph.initializer if tensor.name == "E")
    array = np.random.default_rng(rows).standard_normal((rows, 2)).astype(np.float32)
    table.CopyFrom(numpy_helper.from_array(array, "E"))
    onnx.save(proto, file)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(merged)
    ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(merged).graph.node}
    assert verify(file, merged, OPTIONS).verdict == "pass"


@pytest.mark.parametrize("layers", [("conv",), ("conv", "up", "mm", "fc")])
def test_integers_behind_a_transpose_are_folded(layers: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    make_reported("091", file, layers)
    report = optimize(file, tmp_path / "out.onnx", FoldOptions(factor=2))
    assert report.written
    assert [site.status for site in report.sites] == ["folded"] * len(layers)
    assert report.verification is not None
    assert report.verification.proof is not None
    assert report.verification.proof.verdict == "equal"


def test_extents_of_an_earlier_export_are_named_and_not_used(tmp_path: Path) -> None:
    file, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    make_reported("051", file)
    report = optimize(file, out, FoldOptions(factor=2))
    assert report.written
    (remark,) = report.remarks
    assert remark == (
        "the model declares [1, 4, 16] for r, which is [?, 4, ?]; this declaration is not used; "
        "values that are declared wrong: 2"
    )
    assert not onnx.load(out).graph.value_info
    verification = verify(file, out, OPTIONS)
    assert verification.verdict == "pass"
    (line,) = verification.reasons
    assert line.startswith("the original declares [1, 4, 16] for r, which is [1, 4, 1024]; ")
