"""What several checks need of two models is made once, and only where the checks before allow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.evidence.compared import LINE, stored
from tests.reports.sample import timing
from widthfold_onnx.evidence import pair as pair_module
from widthfold_onnx.evidence.checks import verification_of
from widthfold_onnx.model.loader import load
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


def verification(folder: Path, original: str, rewritten: str) -> VerifyReport:
    texts = {"a.onnx": original, "b.onnx": rewritten}
    return verification_of(*(load(stored(folder, *item)) for item in texts.items()), OPTIONS)


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
