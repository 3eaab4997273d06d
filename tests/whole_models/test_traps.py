"""Every trap of the shared generator, judged by the rules of its own index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime  # noqa: TID251 - the tests judge by the runtime itself
import pytest

from tests.folding import optimize
from tests.shared import SHARED, generate
from tests.whole_models.traps import NAMES, SCRIPT
from widthfold_onnx.options import AxisName, FoldOptions, NonFinite, VerifyOptions

OPTIONS = {
    "2": FoldOptions(factor=2),
    "8": FoldOptions(factor=8),
    "8 ragged": FoldOptions(factor=8, ragged=True),
    "2 width": FoldOptions(factor=2, axis=AxisName.WIDTH),
    "2 height": FoldOptions(factor=2, axis=AxisName.HEIGHT),
    "2 batch ragged": FoldOptions(factor=2, axis=AxisName.BATCH, ragged=True),
    "8 width ragged": FoldOptions(factor=8, axis=AxisName.WIDTH, ragged=True),
    "2 strict": FoldOptions(factor=2, nonfinite=NonFinite.REFUSE),
    "8 strict ragged": FoldOptions(factor=8, nonfinite=NonFinite.REFUSE, ragged=True),
    "2 height strict": FoldOptions(factor=2, axis=AxisName.HEIGHT, nonfinite=NonFinite.REFUSE),
}
FOLDED = {
    "shared_weight": 2,
    "inner_value_is_output": 1,
    "pad_nonzero_value": 1,
    "fp16_scale_overflow": 1,
    "per_width_add": 1,
    "fold_row_nonfinite": 1,
    "fold_signal_nonfinite": 1,
    "fold_batch_isolation": 1,
    "fold_padded_reciprocal": 1,
    "fold_cube": 1,
}
"""How many Convs fold by 2; the rest of the traps hold because nothing is touched."""

pytestmark = pytest.mark.skipif(not (SHARED / SCRIPT).is_file(), reason=f"no {SHARED / SCRIPT}")


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SCRIPT, tmp_path_factory)


def entries(folder: Path) -> dict[str, dict]:
    return {e["name"]: e for e in json.loads((folder / "index.json").read_text())["models"]}


def open_model(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def interface(session: onnxruntime.InferenceSession) -> list[list[tuple]]:
    ports = (session.get_inputs(), session.get_overridable_initializers(), session.get_outputs())
    return [[(p.name, p.type, p.shape) for p in side] for side in ports]


def judge(
    reference: npt.NDArray, result: npt.NDArray, tolerance: float, *, spread: bool
) -> str | None:
    """Why one output breaks the rules, None where it holds."""
    if (reference.dtype, reference.shape) != (result.dtype, result.shape):
        return f"{result.dtype}{result.shape} instead of {reference.dtype}{reference.shape}"
    if reference.dtype.kind not in "f":
        return None if np.array_equal(reference, result) else "not equal"
    is_finite = np.isfinite(reference)
    if spread:
        samples = ~is_finite.reshape(len(reference), -1).all(axis=1)
        grown = is_finite & ~np.isfinite(result)
        if grown.reshape(len(reference), -1).any(axis=1)[~samples].any():
            return "a finite sample became non-finite"
        if (~is_finite & np.isfinite(result)).any():
            return "a non-finite value became finite"
        is_finite = is_finite & ~grown
    else:
        same = np.isnan(reference) == np.isnan(result)
        infinite = np.isinf(reference) | np.isinf(result)
        if not same.all() or not (reference[infinite] == result[infinite]).all():
            return "NaN or Inf at other places"
    if tolerance == 0:
        equal = (reference == result) & (np.signbit(reference) == np.signbit(result))
        return None if equal[is_finite].all() else "not equal"
    largest = np.abs(reference[is_finite]).max(initial=0)
    error = np.abs(reference[is_finite] - result[is_finite]).max(initial=0)
    return None if error <= tolerance * largest else f"off by {error} of {largest}"


def test_the_judge_can_fail() -> None:
    reference = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    assert judge(reference, reference, 0, spread=False) is None
    for row, column, value, spread in [
        (0, 0, np.nan, False),
        (0, 1, 1.0, False),
        (0, 1, 1.0, True),
        (1, 0, np.nan, True),
        (1, 1, 3.1, True),
        (1, 1, np.inf, False),
    ]:
        other = reference.copy()
        other[row, column] = value
        assert judge(reference, other, 1e-5, spread=spread), (row, column, value, spread)
    allowed = reference.copy()
    allowed[0, 0] = np.nan
    assert judge(reference, allowed, 1e-5, spread=True) is None
    assert judge(np.array([[0.0]], np.float32), np.array([[-0.0]], np.float32), 0, spread=False)


def test_every_trap_is_tested(traps: Path) -> None:
    assert sorted(NAMES) == sorted(entries(traps))


def test_folding_happens_where_it_can(traps: Path) -> None:
    folded_counts = {}
    for name in NAMES:
        report = optimize(traps / f"{name}.onnx", None, FoldOptions(factor=2))
        if report.summary.folded:
            folded_counts[name] = report.summary.folded
    assert folded_counts.items() >= FOLDED.items()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_trap(traps: Path, name: str, options: FoldOptions, tmp_path: Path) -> None:
    entry = entries(traps)[name]
    model, out = traps / entry["file"], tmp_path / "out.onnx"
    optimize(model, out, options)
    if out.read_bytes() == model.read_bytes():
        return
    original, rewritten = open_model(model), open_model(out)
    assert interface(original) == interface(rewritten)
    spread = entry["check"]["nonfinite"] == "same-sample" and options.nonfinite is NonFinite.SPREAD
    for file in entry["feeds"]:
        with np.load(traps / file, allow_pickle=False) as arrays:
            feeds = dict(arrays)
        outputs = zip(original.run(None, feeds), rewritten.run(None, feeds), strict=True)
        for port, (reference, result) in zip(original.get_outputs(), outputs, strict=True):
            wrong = judge(reference, result, entry["check"]["tolerance"], spread=spread)
            assert wrong is None, f"{file}, output {port.name}: {wrong}"
    names = [node.name for node in onnx.load(out).graph.node if node.name]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", NAMES)
def test_verification_takes_every_trap(traps: Path, name: str, tmp_path: Path) -> None:
    """Nothing is wrong with these models, so optimize has no reason to fail."""
    model, out = traps / f"{name}.onnx", tmp_path / "out.onnx"
    report = optimize(model, out, FoldOptions(factor=2), VerifyOptions(seeds=2, timing=False))
    assert report.written == "out.onnx", report.verification


@pytest.mark.parametrize("name", ["fold_batch_isolation", "fold_row_nonfinite"])
def test_samples_mix_only_on_request(traps: Path, name: str, tmp_path: Path) -> None:
    model, out = traps / f"{name}.onnx", tmp_path / "out.onnx"
    options = FoldOptions(factor=2, axis=AxisName.BATCH, mix_samples=True)
    report = optimize(model, out, options)
    if name == "fold_batch_isolation":
        assert report.summary.folded == 1
    with np.load(traps / f"{name}.0.npz", allow_pickle=False) as arrays:
        feeds = dict(arrays)
    (reference,), (result,) = open_model(model).run(None, feeds), open_model(out).run(None, feeds)
    assert judge(reference, result, 1e-5, spread=False) is None
