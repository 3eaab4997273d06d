"""Quantized models as deployed: tests for CPUs whose kernels of 8 bits saturate, and for others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.evidence.compared import compare_models
from tests.evidence.parity.alternating import FURTHER, VALUES, alternating, alternating_floats
from tests.evidence.parity.planted_runs import planted_runs
from tests.folding import fold_model, verify
from tests.lacking import refuses_signed_convs
from tests.small_models import MODELS
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.findings import Findings
from widthfold_onnx.evidence.parity import as_deployed, chosen_inputs
from widthfold_onnx.evidence.parity.as_deployed import compare_as_deployed
from widthfold_onnx.evidence.parity.runs import Runs
from widthfold_onnx.evidence.saturation import run_as_judged
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import AxisName, DeliveryOptions, FoldOptions, Provider, VerifyOptions
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.providers import PRECISION

SATURATES = "this CPU's 8-bit kernels saturate (no VNNI)"
EXACT = DeliveryOptions(provider=Provider.CPU, session_options={PRECISION: "1"})


def pair(model: onnx.ModelProto, folder: Path, factor: int = 2) -> tuple[Path, Path]:
    """A model and its fold, as files."""
    options = FoldOptions(factor=factor, axis=AxisName.WIDTH, ragged=True)
    folded, sites = fold_model(model, options)
    assert any(site.status == "folded" for site in sites)
    paths = folder / "a.onnx", folder / "b.onnx"
    for path, item in zip(paths, (model, folded), strict=True):
        onnx.save(item, path)
    return paths


def test_a_fold_that_saturates_where_the_original_does_not_fails(tmp_path: Path) -> None:
    files = pair(alternating([-127, 127, 127, -127]), tmp_path)
    parity = compare_models(*files, VALUES)
    assert all(row.passed for row in parity.outputs), "the values are those of the definition"
    if not u8s8_error():
        assert (parity.verdict, parity.reasons) == ("pass", ())
        return
    assert parity.verdict == "fail"
    further, reason = parity.reasons
    assert further == FURTHER
    assert reason.startswith(
        f"{SATURATES}: from its own definition the original is at most 0 steps "
    )
    assert reason.endswith(
        f"(output y); {PRECISION}=1, weights of 7 bits, or unsigned ones, may be exact"
    )


@pytest.mark.parametrize("worse", [[], [FURTHER]])
def test_on_any_cpu_what_saturates_further_fails_and_is_said_so(
    worse: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "widthfold_onnx.evidence.parity.comparison"
    findings = Findings(failures=tuple(worse), remarks=(SATURATES,))
    monkeypatch.setattr(f"{module}.saturates", lambda options: True)
    monkeypatch.setattr(f"{module}.compare_as_deployed", lambda *arguments: findings)
    parity = compare_models(*pair(alternating([-127, 127, 127, -127]), tmp_path), VALUES)
    assert parity.saturates_further is bool(worse)
    assert (parity.verdict, parity.reasons) == ("fail" if worse else "pass", (*worse, SATURATES))


def test_data_that_fill_the_range_show_what_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pair(alternating_floats(), tmp_path)
    parity = compare_models(*files, VALUES)
    assert (parity.verdict, parity.input_sets) == ("fail" if u8s8_error() else "pass", 6)
    assert (FURTHER in parity.reasons) is parity.saturates_further is bool(u8s8_error())
    monkeypatch.setattr(chosen_inputs, "filling_set", lambda *arguments: None)
    parity = compare_models(*files, VALUES)
    assert (parity.verdict, parity.reasons, parity.input_sets) == ("pass", (), 5)


def test_with_the_option_it_is_exact_everywhere(tmp_path: Path) -> None:
    files = pair(alternating([-127, 127, 127, -127]), tmp_path)
    verification = verify(*files, EXACT)
    assert (verification.verdict, verification.reasons) == ("pass", [])
    assert verification.environment.session_options == {PRECISION: "1"}
    assert verification.environment.u8s8_error == u8s8_error()


def test_weights_of_seven_bits_say_nothing(tmp_path: Path) -> None:
    parity = compare_models(*pair(alternating([63, -64, 63, 63]), tmp_path), VALUES)
    assert (parity.verdict, parity.reasons) == ("pass", ())


def test_what_saturates_on_both_sides_passes_and_is_told(tmp_path: Path) -> None:
    model = onnx.load(MODELS / "quantized_cnn.onnx")
    parity = compare_models(*pair(model, tmp_path, factor=8), VALUES)
    assert parity.verdict == "pass"
    assert [SATURATES in reason for reason in parity.reasons] == [True] * bool(u8s8_error())


def deployed(original: int, rewritten: int, monkeypatch: pytest.MonkeyPatch) -> Findings:
    """Judge models that are so many steps away from their definition as deployed."""
    feeds = [InputSet("seed 0", {"x": np.zeros((1, 1, 67), np.uint8)}, random=True)]
    models = [
        LoadedModel(onnx.ModelProto(), Path(), Path(name), "", name=name) for name in ("a", "b")
    ]
    values = np.full((1, 1, 64), 100, np.uint8)
    exact = Runs([{"y": values}])
    steps = dict(zip(("a", "b"), (original, rewritten), strict=True))
    monkeypatch.setattr(
        as_deployed,
        "attempt",
        lambda model, *arguments, **more: Runs([{"y": values + np.uint8(steps[model.path.name])}]),
    )
    run = planted_runs(VALUES, feeds, models[0])
    vars(run)["optimized_runs"] = exact
    return compare_as_deployed(run, models[1], exact)


@pytest.mark.parametrize(("steps", "is_named"), [(0, False), (1, False), (2, True)])
def test_distances_within_the_slack_are_not_told(
    steps: int, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = deployed(steps, steps, monkeypatch)
    assert (findings.failures, bool(findings.remarks)) == ((), is_named)


@pytest.mark.parametrize(
    ("original", "rewritten", "grew"),
    [(0, 1, False), (0, 2, True), (5, 11, False), (5, 12, True), (9, 3, False)],
)
def test_twice_as_far_and_a_step_is_the_limit(
    original: int, rewritten: int, grew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = deployed(original, rewritten, monkeypatch)
    assert findings.failures == (FURTHER,) * grew
    words = f"{original} steps away here, the rewritten model {rewritten} steps (output y)"
    assert [words in line for line in findings.remarks] == [True] * (max(original, rewritten) > 1)


@pytest.mark.parametrize("options", [VALUES, EXACT])
@pytest.mark.parametrize("model", ["alternating", "quantized_cnn"])
def test_values_alone_show_a_fault_of_one_weight(
    model: str, options: VerifyOptions, tmp_path: Path
) -> None:
    if model == "quantized_cnn":
        if options is EXACT:
            pytest.skip("the runtime does not load it so: its weights share a zero point")
        source = onnx.load(MODELS / f"{model}.onnx")
    else:
        source = alternating([-127, 127, 127, -127])
    original, rewritten = pair(source, tmp_path)
    folded = onnx.load(rewritten)
    held = next(
        t for t in folded.graph.initializer if t.data_type == TensorProto.INT8 and len(t.dims) > 1
    )
    array = numpy_helper.to_array(held).copy()
    place = np.unravel_index(np.abs(array.astype(int)).argmax(), array.shape)
    array[place] -= 9 * np.sign(array[place])
    held.CopyFrom(numpy_helper.from_array(array, held.name))
    onnx.save(folded, rewritten)
    parity = compare_models(original, rewritten, options)
    assert parity.verdict == "fail"
    assert any(reason.startswith("output y: ") for reason in parity.reasons)


@refuses_signed_convs
def test_options_with_which_the_original_does_not_load_leave_nothing_to_judge(
    tmp_path: Path,
) -> None:
    files = pair(onnx.load(MODELS / "quantized_cnn.onnx"), tmp_path, 8)
    parity = compare_models(*files, EXACT)
    (reason,) = parity.reasons
    assert (parity.verdict, parity.missing_kernel) == ("unverified", "")
    assert reason.startswith(f"with {PRECISION}=1 a.onnx does not load: ")
    with pytest.raises(UnverifiedError, match=f"with {PRECISION}=1 a.onnx does not load: "):
        run_as_judged(load(files[0]), EXACT)


def test_models_of_floats_ask_nothing_of_the_cpu(tmp_path: Path) -> None:
    path = MODELS / "signal_1d.onnx"
    verification = verify(path, path, VALUES)
    assert verification.environment.u8s8_error is None


INTEGERS = """
<ir_version: 8, opset_import: ["" : 17]>
g (uint8[3,16] x) => (int32[3,5] y) <int8[16,5] w> { y = MatMulInteger (x, w) }"""
FLOATS = """
<ir_version: 8, opset_import: ["" : 17]>
g (uint8[3,16] x) => (int32[3,5] y) <int8[16,5] w> {
  xf = Cast <to = 1> (x)
  wf = Cast <to = 1> (w)
  yf = MatMul (xf, wf)
  y = Cast <to = 6> (yf)
}"""


@pytest.mark.parametrize("texts", [(INTEGERS, FLOATS), (FLOATS, INTEGERS)])
def test_either_model_may_hold_the_integers(texts: tuple[str, str], tmp_path: Path) -> None:
    files = tmp_path / "a.onnx", tmp_path / "b.onnx"
    weight = np.random.default_rng(1).integers(100, 127, (16, 5)).astype(np.int8)
    for path, text in zip(files, texts, strict=True):
        model = onnx.parser.parse_model(text)
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
        onnx.save(model, path)
    verification = verify(*files, VALUES)
    assert verification.environment.u8s8_error == u8s8_error()
    worse = bool(u8s8_error()) and texts[1] == INTEGERS
    assert (verification.verdict, FURTHER in verification.reasons) == (
        "fail" if worse else "pass",
        worse,
    )
    assert verification.saturates_further is worse
    assert any(SATURATES in reason for reason in verification.reasons) is bool(u8s8_error())
