"""The judgement: what outputs are compared with, and how far off they may be.

Steps of a quantizer that rounding tips: a right fold passes, and no other one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.evidence.compared import compare_models
from tests.evidence.parity.planted_runs import planted_runs
from tests.folding import fold_model
from tests.rewrite.quantized.models import FOLD, rounding
from widthfold_onnx.evidence.parity import rounding as rounding_module
from widthfold_onnx.evidence.parity.judgement import (
    Judgement,
    Rows,
    failed_rows,
    judge,
    stored_faults,
)
from widthfold_onnx.evidence.parity.original_runs import OriginalRuns
from widthfold_onnx.evidence.parity.outputs import (
    GRAINS,
    MULTIPLE_IF_PROVED,
    MULTIPLE_IF_UNPROVED,
    SLACK,
    Distance,
    Movements,
    Outputs,
)
from widthfold_onnx.evidence.parity.rounding import Rounding
from widthfold_onnx.evidence.parity.runs import Runs
from widthfold_onnx.options import Provider, Tolerance, VerifyOptions
from widthfold_onnx.results import OutputParity
from widthfold_onnx.runtime.inputs.feeds import InputSet

TRUTH = np.array([1.0, 0.25])
EPS = float(np.finfo(np.float32).eps)


def away(distance: float) -> Outputs:
    """float32 values whose second is `distance` from the truth, relative to the largest."""
    values = TRUTH.astype(np.float32)
    values[1] += np.float32(distance)
    return {"y": values}


def judged(
    original: float,
    rewritten: float,
    moved: float = 0.0,
    *,
    is_proved: bool = False,
    tolerance: Tolerance | None = None,
    truth: np.ndarray | None = TRUTH,
    unsteady: bool = False,
) -> tuple[Judgement, Rows, str]:
    """Compare two models that are that far from the truth, where rounding moves the original."""
    options = VerifyOptions(provider=Provider.CPU, tolerance=tolerance or Tolerance())
    run = planted_runs(options, [InputSet("s", {})])
    run.outputs.append(away(original))
    run.unsteady_outputs.update(["y"] if unsteady else [])
    truths: list[Outputs] = [{} if truth is None else {"y": truth}]
    movements = [{"y": Distance(moved, moved)}]
    usable, larger_movements, unused = Rounding(run, truths, movements).usable()
    assert movements == [{"y": Distance(moved, moved)}]
    judgement = Judgement(run, usable, larger_movements, is_proved)
    return judgement, judgement.rows({"disabled": Runs([away(rewritten)])}), unused


def passes(*distances: float, **arguments: object) -> bool:
    return not failed_rows(judged(*distances, **arguments)[1])


@pytest.mark.parametrize(
    ("is_proved", "multiple", "least"),
    [(True, MULTIPLE_IF_PROVED, 1e-5), (False, MULTIPLE_IF_UNPROVED, 4 * EPS)],
)
def test_a_multiple_of_the_movement_is_the_limit(
    is_proved: bool, multiple: float, least: float
) -> None:
    for factor, passed in ((0.9, True), (1.1, False)):
        assert passes(0.0, factor * multiple * 1e-4, 1e-4, is_proved=is_proved) is passed
        assert passes(0.0, factor * least, is_proved=is_proved) is passed


def test_the_error_of_the_original_is_a_movement_as_well() -> None:
    for factor, passed in ((0.97, True), (1.03, False)):
        assert passes(2e-6, factor * MULTIPLE_IF_UNPROVED * 2e-6) is passed
    judgement, rows, _ = judged(2e-6, 0.0)
    assert judgement.movements[0]["y"].largest == pytest.approx(2e-6, rel=0.05)
    assert rows["disabled", "y", 0].movement == pytest.approx(2e-6, rel=0.05)


def test_without_a_truth_the_default_tolerance_is_the_least_that_is_allowed() -> None:
    assert passes(0.0, 9e-6, truth=None)
    assert not passes(0.0, 1.1e-5, truth=None)


def test_a_tolerance_of_the_caller_is_all_that_counts() -> None:
    for tolerance in (
        Tolerance(rtol=1e-5),
        Tolerance(per_output={"y": 1e-5}),
        Tolerance(atol=1e-5),
    ):
        assert passes(0.0, 9e-6, tolerance=tolerance)
        assert not passes(0.0, 3e-5, 1e-3, is_proved=True, tolerance=tolerance)
    assert not passes(0.0, 9e-6, tolerance=Tolerance(per_output={"z": 1e-5}))


GRAIN = 2.0**-25
"""A Sigmoid of float32 on the CPU returns multiples of it."""


def of_grains(*counts: float) -> Outputs:
    return {"y": np.array(counts, np.float32) * np.float32(GRAIN)}


@pytest.mark.parametrize(
    ("original", "rewritten", "is_proved", "passed"),
    [
        ((8, 2), (7, 3), True, True),
        ((8, 2), (8, 2 + GRAINS), True, True),
        ((0, 0), (0, 1), True, True),
        ((8, 2), (8, 3 + GRAINS), True, False),
        ((8, 2), (7, 3), False, False),
        ((8, 2), (8, 2.001), True, False),
        ((8, 2.001), (8, 3), True, False),
        ((8 << 20, 2 << 20), (8 << 20, 3 << 20), True, False),
    ],
    ids=[
        *("one grain", "a few", "beside zeros", "too many", "unproved"),
        *("a finer result", "a finer original", "a coarse one"),
    ],
)
def test_a_few_grains_of_an_output_are_no_fault_of_a_proved_model(
    original: tuple[float, ...], rewritten: tuple[float, ...], is_proved: bool, passed: bool
) -> None:
    options = VerifyOptions(provider=Provider.CPU)
    run = planted_runs(options, [InputSet("s", {})])
    run.outputs.append(of_grains(*original))
    judgement = Judgement(run, [{}], [{"y": Distance()}], is_proved)
    rows = judgement.rows({"disabled": Runs([of_grains(*rewritten)])})
    assert rows["disabled", "y", 0].passed is passed
    strict = replace(options, tolerance=Tolerance(rtol=1e-6))
    if original != rewritten:
        chosen = replace(judgement, original=replace(run, options=strict))
        assert failed_rows(chosen.rows({"disabled": Runs([of_grains(*rewritten)])}))


def test_an_output_that_cannot_be_judged_fails_nobody() -> None:
    assert passes(0.0, 0.5, unsteady=True)


@pytest.mark.parametrize(("moved", "used"), [(0.0, False), (1e-6, False), (1.1e-5, True)])
def test_a_truth_further_away_needs_rounding_to_explain_it(moved: float, used: bool) -> None:
    _, rows, unused = judged(1e-4, 1e-4, moved)
    row = rows["disabled", "y", 0]
    assert row.max_rel == pytest.approx(1e-4 if used else 0.0, rel=0.01)
    assert ("output y: the original is 0.0001 away from it" in unused) is not used
    assert bool(unused) is not used


def test_a_truth_of_another_shape_is_no_truth() -> None:
    assert "an unknown amount away" in judged(0.0, 0.0, truth=np.ones(4))[2]


def test_a_truth_that_is_usable_stays_so_at_larger_movements() -> None:
    movements = (0.0, 1e-6, 1.1e-5, 1e-3)
    usable = [bool(judged(1e-4, 1e-4, moved)[0].truths[0]) for moved in movements]
    assert usable == [False, False, True, True]


def judged_with_copies(
    monkeypatch: pytest.MonkeyPatch, *copies: tuple[Movements, str]
) -> tuple[OutputParity, list[str]]:
    """Compare a wrong model where the first shaken copies move the original by given distances."""

    def movements(_: OriginalRuns, copy_index: int, sets: set[int]) -> tuple[Movements, str]:
        assert sets == {0}
        return copies[copy_index] if copy_index < len(copies) else ([{}], "")

    monkeypatch.setattr(rounding_module, "moved_by_copy", movements)
    options = VerifyOptions(provider=Provider.CPU, truth_work=0.0)
    run = planted_runs(options, [InputSet("s", {})])
    run.outputs.append(away(0.0))
    rows, remarks = judge(run, {"disabled": Runs([away(0.1)])}, is_proved=True)
    return rows["disabled", "y", 0], remarks


@pytest.mark.parametrize("distances", [(1e-3, 1e-4), (1e-4, 1e-3)])
def test_the_largest_movement_of_all_copies_counts(
    distances: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [([{"y": Distance(distance, distance)}], "") for distance in distances]
    row, remarks = judged_with_copies(monkeypatch, *copies)
    assert row.movement == pytest.approx(1e-3)
    assert remarks == []


def test_a_copy_that_does_not_run_is_said_and_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    movement = [{"y": Distance(1e-3, 1e-3)}]
    row, remarks = judged_with_copies(monkeypatch, ([{}], "it stops"), (movement, ""))
    assert remarks == ["it stops"]
    assert row.movement is None


def test_what_is_proved_and_near_runs_no_copy_and_no_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy runs on the input sets that are not near, and the truth only after all copies."""
    seen: list[tuple[int, set[int]]] = []
    moved_by_copy = rounding_module.moved_by_copy

    def counted(runs: OriginalRuns, copy_index: int, sets: set[int]) -> tuple[Movements, str]:
        seen.append((copy_index, sets))
        return moved_by_copy(runs, copy_index, sets)

    def no_truth(*_: object) -> tuple[list[Outputs], str]:
        raise AssertionError("no truth is needed")

    monkeypatch.setattr(rounding_module, "moved_by_copy", counted)
    monkeypatch.setattr(rounding_module, "true_outputs", no_truth)
    options = VerifyOptions(provider=Provider.CPU)
    files = pair(tmp_path, "2", "2", "2.000019", "2.001")
    assert compare_models(files[0], files[1], options, is_proved=True).verdict == "pass"
    assert seen == []
    near = compare_models(files[0], files[2], options, is_proved=True)
    assert (near.verdict, near.outputs[0].movement) == ("pass", None)
    with pytest.raises(AssertionError, match="no truth is needed"):
        compare_models(files[0], files[3], options, is_proved=True)
    assert seen == [(index, {0, 1, 2, 3, 4}) for index in range(4)]


NAN = {"y": np.array([1.0, np.nan], np.float32)}
OTHER_SHAPE = {"y": np.ones(3, np.float32)}


@pytest.mark.parametrize(
    ("original", "rewritten", "is_fault"),
    [
        (away(0.0), away(0.9e-3), False),
        (away(0.0), away(1.1e-3), True),
        (away(0.1), away(0.1 * SLACK * 0.9), False),
        (away(0.1), away(0.1 * SLACK * 1.1), True),
        (away(0.0), NAN, True),
        (NAN, NAN, False),
        (away(0.0), OTHER_SHAPE, True),
        (OTHER_SHAPE, away(0.1), True),
        (away(0.0), {}, False),
    ],
)
def test_a_stored_output_is_met_as_by_the_original(
    original: Outputs, rewritten: Outputs, is_fault: bool
) -> None:
    """Comparing both models reports an output that is missing."""
    options = VerifyOptions(provider=Provider.CPU, tolerance=Tolerance(rtol=1e-3))
    stored_set = InputSet("s", {}, (TRUTH.astype(np.float32),))
    run = planted_runs(options, [stored_set])
    run.outputs.append(original)
    run.names.append("y")
    faults = stored_faults(run, [rewritten])
    assert [line.startswith("s: stored output y: ") for line in faults] == [True] * is_fault


def pair(folder: Path, *weights: str) -> list[Path]:
    head = '<ir_version: 8, opset_import: ["" : 17]>\n'
    text = "g (float[N, 4] x) => (float[N, 4] y) <float w = {%s}> { y = Mul(x, w) }"
    paths = [folder / f"{i}.onnx" for i in range(len(weights))]
    for path, weight in zip(paths, weights, strict=True):
        path.write_bytes(parser.parse_model(head + text % weight).SerializeToString())
    return paths


@pytest.mark.parametrize(("broken", "verdict"), [(False, "fail"), (True, "pass")])
def test_a_broken_reference_calls_no_model_wrong(
    broken: bool, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_outputs = rounding_module.true_outputs

    def reference(*arguments):
        runs, why = true_outputs(*arguments)
        return [{"y": run["y"] * (1.2 if broken else 1.0)} for run in runs], why

    monkeypatch.setattr(rounding_module, "true_outputs", reference)
    options = VerifyOptions(provider=Provider.CPU, seeds=2, truth_work=100)
    result = compare_models(*pair(tmp_path, "2", "2.000014"), options)
    assert result.verdict == verdict
    unused = [line for line in result.reasons if line.startswith("float64 truth not used")]
    assert len(unused) == broken
    assert compare_models(*pair(tmp_path, "2", "2.1"), options).verdict == "fail"


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("seed", [85, 186])
def test_a_right_fold_passes_where_only_its_sums_are_next_to_half_a_step(
    seed: int, integers: bool, tmp_path: Path
) -> None:
    """On the CPU where these seeds were found, the original returns the same at both levels."""
    model = rounding(seed)
    if integers:
        del model.graph.node[-1]
        port = onnx.helper.make_tensor_value_info("q", onnx.TensorProto.UINT8, [None] * 4)
        model.graph.output[0].CopyFrom(port)
    assert fold_verdict(model, tmp_path) == "pass"


def test_a_bias_of_another_scale_fails_though_the_runtime_does_not_look_at_it(
    tmp_path: Path,
) -> None:
    """Both return the same bits as they are deployed."""
    assert fold_verdict(rounding(85), tmp_path, scale=1.01) == "fail"


@pytest.mark.parametrize("scales", [(0.02, 0.003, 0.04), (0.05, 0.01, 0.2), (0.1, 0.01, 0.5)])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_right_fold_passes_where_round_decimals_put_sums_on_half_a_step(
    op: str, scales: tuple[float, ...], tmp_path: Path
) -> None:
    """In tenths many sums are exactly half a step; in binary rounding decides each of them."""
    model = rounding(2, op, scales)
    assert fold_verdict(model, tmp_path) == "pass"
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    wrong = onnx.numpy_helper.to_array(weight).copy()
    wrong.flat[np.abs(wrong).argmax()] //= 2
    fault = onnx.ModelProto.FromString(model.SerializeToString())
    next(t for t in fault.graph.initializer if t.name == "w").CopyFrom(
        onnx.numpy_helper.from_array(wrong, "w")
    )
    assert fold_verdict(model, tmp_path, other=fault) == "fail"


def fold_verdict(
    model: onnx.ModelProto,
    folder: Path,
    scale: float = 1.0,
    other: onnx.ModelProto | None = None,
) -> str:
    """Compare the values of a model with its fold, or with the fold of another model.

    The scale of the bias of that fold is multiplied by `scale`.
    """
    folded, _ = fold_model(other or model, FOLD)
    (held,) = (tensor for tensor in folded.graph.initializer if tensor.name == "bs")
    changed = onnx.numpy_helper.to_array(held) * np.float32(scale)
    held.CopyFrom(onnx.numpy_helper.from_array(changed, "bs"))
    files = folder / "a.onnx", folder / "b.onnx"
    for path, item in zip(files, (model, folded), strict=True):
        onnx.save(item, path)
    options = VerifyOptions(provider=Provider.CPU, timing=False, truth_work=0.0)
    rows = compare_models(*files, options, is_proved=True).outputs
    return "pass" if all(row.passed for row in rows) else "fail"
