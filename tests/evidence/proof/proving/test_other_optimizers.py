"""Models that other optimizers write are proved and verified, and a fault in them is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # noqa: TID251 - it is one of the optimizers
import pytest
from onnx import numpy_helper

from tests.folding import verify
from tests.shared import MODELS, ROOT, SHARED
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.proving import proof_report
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.proto.walk import overridable
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.results import Proof

OURS = sorted((ROOT / "models").glob("*.onnx"))
PUBLISHED = sorted((SHARED / "published").glob("*.onnx"))
MERGED = {"depthwise"}
"""They hold a BatchNormalization, which every optimizer multiplies into a weight."""


def by_onnxslim(model: Path, out: Path) -> None:
    onnx.save(pytest.importorskip("onnxslim").slim(onnx.load(model)), out)


def by_onnxsim(model: Path, out: Path) -> None:
    onnx.save(pytest.importorskip("onnxsim").simplify(onnx.load(model))[0], out)


def by_onnxruntime(model: Path, out: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


Optimizer = Callable[[Path, Path], None]
optimizers = pytest.mark.parametrize("optimizer", [by_onnxslim, by_onnxsim, by_onnxruntime])


def proof(model: Path, other: Path) -> Proof:
    old, new = (load(path) for path in (model, other))
    return proof_report(
        Program.of(old.proto, old.folder), Program.of(new.proto, new.folder), ({},), {}
    )


@optimizers
@pytest.mark.parametrize("model", OURS, ids=lambda path: path.stem)
def test_our_models(model: Path, optimizer: Optimizer, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    optimizer(model, out)
    size_proof = proof(model, out)
    lost = {value.name for value in onnx.load(model).graph.input}
    lost -= {value.name for value in onnx.load(out).graph.input}
    if lost:  # a weight that a caller may override is one no more
        assert size_proof.verdict == "different"
        assert size_proof.reason.startswith(f"the new model has no input {sorted(lost)[0]}")
    elif model.stem in MERGED:
        assert size_proof.verdict == "not provable"
        assert "rounded results of BatchNormalization on constants" in size_proof.reason
    else:
        assert size_proof.verdict == "equal"
        assert size_proof.error_bits >= 50


@optimizers
@pytest.mark.parametrize(
    "stem",
    [
        *("depthwise", "pitch_cnn"),
        *(pytest.param(stem, marks=pytest.mark.slow) for stem in ("chain", "pointwise_mlp")),
    ],
)
def test_a_fault_in_what_another_wrote(stem: str, optimizer: Optimizer, tmp_path: Path) -> None:
    model, out = ROOT / "models" / f"{stem}.onnx", tmp_path / "out.onnx"
    optimizer(model, out)
    wrong = onnx.load(out)
    weights = [tensor for tensor in wrong.graph.initializer if len(tensor.dims) > 1]
    for tensor in weights:
        array = numpy_helper.to_array(tensor).copy()
        if stem in MERGED:  # a unit in the last place is what rounding moves as well
            array.flat[0] += np.abs(array).max() / 100
        else:
            array.flat[0] = np.nextafter(array.flat[0], np.float32(9))
        right = tensor.SerializeToString()
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        onnx.save(wrong, out)
        assert proof(model, out).verdict == "different", tensor.name
        tensor.ParseFromString(right)
    assert weights


NOT_PROVABLE = ("has rounded", "is chosen at none", "its extents are not known")
"""Reasons that hold here; the last one for an If whose branches return other extents."""


@pytest.mark.slow
@optimizers
@pytest.mark.parametrize("model", [*OURS, *MODELS, *PUBLISHED], ids=lambda path: path.stem)
def test_whole_verification(model: Path, optimizer: Optimizer, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    try:
        optimizer(model, out)
    except RuntimeError as error:  # of nodes out of order, and of outputs without a shape
        pytest.skip(f"the optimizer does not take this model: {error}")
    options = VerifyOptions(provider=Provider.CPU, seeds=3, timing=False)
    report = verify(model, out, options)
    before, after = (overridable(load(path).proto) for path in (model, out))
    if before - after:
        name = min(before - after)
        assert report.verdict == "fail"
        assert f"overridable initializer {name} is gone" in report.reasons
        return
    assert report.verdict == "pass", report.reasons
    assert report.proof is not None
    assert report.proof.verdict in ("equal", "not provable")
    if report.proof.verdict == "not provable":
        assert any(words in report.proof.reason for words in NOT_PROVABLE)
