"""What several checks need of two models is made once, and only where the checks before allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.evidence.compared import LINE, stored
from tests.reports.sample import timing
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence import pair as pair_module
from widthfold_onnx.evidence.checks import verification_of
from widthfold_onnx.evidence.parity.original_runs import OriginalRuns, original_runs_of
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.results import VerifyReport

RUNS, PROOF, INTEGERS = "original_runs_of", "proof_report", "run_on_integers"
PARITY, TIMING = "model_parity", "time_models"
OPTIONS = VerifyOptions(provider=Provider.CPU, seeds=1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that ran, in their order."""
    steps: list[str] = []

    def step(name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        steps.append(name)
        return function(*arguments, **named)

    monkeypatch.setattr(pair_module, TIMING, lambda *arguments, **named: timing())
    for name in (RUNS, PROOF, INTEGERS, PARITY, TIMING):
        monkeypatch.setattr(pair_module, name, partial(step, name, getattr(pair_module, name)))
    return steps


def verification(
    folder: Path, original: str, rewritten: str, options: VerifyOptions = OPTIONS
) -> VerifyReport:
    texts = {"a.onnx": original, "b.onnx": rewritten}
    return verification_of(*(load(stored(folder, *item)) for item in texts.items()), options)


def sliced(end: int) -> str:
    constants = f"<int64[1] start = {{0}}, int64[1] end = {{{end}}}, int64[1] axes = {{1}}>"
    line = "g (float[1, N] x) => (float[1, M] y)"
    return f"{line} {constants} {{ y = Slice (x, start, end, axes) }}"


def on_short_inputs(folder: Path) -> VerifyOptions:
    """Compare on 7 numbers alone, which show no end of a Slice."""
    np.savez(folder / "short.npz", x=np.ones((1, 7), np.float32))
    return replace(OPTIONS, seeds=0, inputs=(str(folder / "short.npz"),))


def test_each_step_is_made_once(tmp_path: Path, made: list[str]) -> None:
    report = verification(tmp_path, LINE + " { y = Neg (x) }", LINE + " { y = Neg (x) }")
    assert report.verdict == "pass"
    assert report.timing == timing()
    assert made == [RUNS, PROOF, INTEGERS, PARITY, TIMING]


def test_of_models_that_differ_no_node_runs_on_integers(tmp_path: Path, made: list[str]) -> None:
    report = verification(tmp_path, LINE + " { y = Neg (x) }", LINE + " { y = Abs (x) }")
    assert report.verdict == "fail"
    assert [reason.split(":")[0] for reason in report.reasons] == ["proof", "output y"]
    assert made == [RUNS, PROOF, PARITY]


def test_nothing_runs_where_inputs_differ_and_their_difference_is_said_first(
    tmp_path: Path, made: list[str]
) -> None:
    report = verification(
        tmp_path, LINE + " { y = Neg (x) }", LINE.replace(" x)", " z)") + " { y = Neg (z) }"
    )
    assert report.reasons[0] == "inputs are z instead of x"
    assert report.reasons[1].startswith("proof: different: ")
    assert report.environment.provider == "cpu"
    assert made == [PROOF]


def test_an_output_that_is_declared_wrong_leaves_the_proof_at_the_sizes_of_the_runs(
    tmp_path: Path, made: list[str]
) -> None:
    declared = LINE.replace("float[N, 4] y", "float[7, 4] y")
    report = verification(tmp_path, LINE + " { y = Neg (x) }", declared + " { y = Neg (x) }")
    (reason, remark) = report.reasons
    assert reason.endswith("instead of float[N, 4]; the original returned [1, 4]")
    assert "declares [7, 4] for y, which is [1, 4]" in remark
    assert report.proof is not None
    assert (report.proof.verdict, report.proof.extents[0]) == ("equal", {"x": [1, 4]})
    assert (report.outputs, report.timing) == ([], None)
    assert made == [RUNS, PROOF, INTEGERS]


def test_a_proved_difference_has_a_witness_which_the_json_report_keeps(tmp_path: Path) -> None:
    report = verification(tmp_path, LINE + " { y = Neg (x) }", LINE + " { y = Abs (x) }")
    witness = report.witness
    assert witness is not None
    assert witness.output.worst is not None
    assert (witness.output.name, witness.output.level) == ("y", "disabled")
    rows, columns = witness.shapes["x"]
    assert columns == 4
    assert witness.input_set.startswith("seed ")
    assert witness.output.worst.index[0] < rows
    # -x became x
    assert witness.output.worst.original == -witness.output.worst.rewritten
    assert witness.output.max_abs == 2 * witness.output.worst.rewritten > 0
    assert witness.output.max_rel == pytest.approx(2)
    assert msgspec.json.decode(msgspec.json.encode(report), type=VerifyReport) == report
    assert report.error is not None
    assert report.error.exit_code == 1


def test_a_difference_of_one_unit_in_the_last_place_is_proved_and_has_no_witness(
    tmp_path: Path, made: list[str]
) -> None:
    weight, next_weight = np.float32(3), np.nextafter(np.float32(3), np.float32(4))
    scaled = LINE + " <float w = {%.20f}> { y = Mul (x, w) }"
    report = verification(tmp_path, scaled % weight, scaled % next_weight)
    assert report.proof is not None
    assert (report.proof.verdict, report.witness) == ("different", None)
    assert (report.input_sets, [row.passed for row in report.outputs]) == (2, [True, True])
    assert report.error is not None
    assert report.error.exit_code == 1
    assert made == [RUNS, PROOF, PARITY, TIMING], "the extents of the proof were compared before"


def test_models_run_at_the_extents_at_which_the_proof_found_a_difference(
    tmp_path: Path, made: list[str]
) -> None:
    report = verification(tmp_path, sliced(301), sliced(300), on_short_inputs(tmp_path))
    assert report.proof is not None
    assert report.proof.extents[-1]["x"][1] > 300
    assert report.witness is not None
    assert report.witness.shapes == report.proof.extents[-1]
    assert report.witness.output.note == "float32[1, 300] instead of float32[1, 301]"
    assert (report.input_sets, [row.passed for row in report.outputs]) == (1, [True, True])
    assert report.error is not None
    assert report.error.exit_code == 1
    assert made == [RUNS, PROOF, PARITY, RUNS, PARITY]


def test_models_do_not_run_at_extents_of_too_many_products(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("widthfold_onnx.evidence.parity.products.MAX_PRODUCTS", -1)
    report = verification(tmp_path, sliced(301), sliced(300), on_short_inputs(tmp_path))
    assert report.witness is None
    assert made == [RUNS, PROOF, PARITY]


@pytest.mark.parametrize("error", [UnverifiedError, UsageError])
def test_models_that_do_not_run_at_the_extents_of_the_proof_have_no_witness(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof has other bounds than the runtime, and the caller may have given values."""

    def run(model: LoadedModel, options: VerifyOptions) -> OriginalRuns:
        if not options.inputs:
            raise error("it does not run")
        return original_runs_of(model, options)

    monkeypatch.setattr(pair_module, RUNS, run)
    report = verification(tmp_path, sliced(301), sliced(300), on_short_inputs(tmp_path))
    assert report.proof is not None
    assert (report.proof.verdict, report.witness, report.input_sets) == ("different", None, 1)


def test_a_model_that_stops_on_all_inputs_has_no_witness(tmp_path: Path) -> None:
    scaled = LINE + " <float w = {%s}> { y = Mul (x, w) }"
    stopping = LINE + " <int64[2] s = {1, 4}> { y = Reshape (x, s) }"
    report = verification(tmp_path, scaled % "1", stopping)
    assert report.proof is not None
    assert (report.proof.verdict, report.input_sets, report.witness) == ("different", 0, None)
