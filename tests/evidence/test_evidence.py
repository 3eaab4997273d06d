"""Options of the child process, and the report where it gives no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode
from onnx import ModelProto, parser

from tests.evidence.compared import SCALED, stored
from tests.reports.sample import passing
from tests.small_models import build, save
from widthfold_onnx import evidence
from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.evidence import verify
from widthfold_onnx.evidence.parity import truth
from widthfold_onnx.model import check
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import Provider, Tolerance, VerifyOptions
from widthfold_onnx.progress import progress_to
from widthfold_onnx.results import VerifyReport
from widthfold_onnx.runtime import contest


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load(save(build(), tmp_path / "m.onnx"))


def test_the_gain_is_judged_beside_the_baseline_alone(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child knows of no baseline: it would ask that gain of the speed-up itself."""
    thresholds: list[float | None] = []

    def child(*arguments: object, on_message: object) -> VerifyReport:
        (options,) = [item for item in arguments if isinstance(item, VerifyOptions)]
        thresholds.append(options.fail_under)
        return passing()

    monkeypatch.setattr(evidence, "isolated", child)
    saved = tmp_path / "saved.json"
    saved.write_bytes(encode(passing()))
    options = VerifyOptions(baseline=saved, fail_under=0.5)
    report = verify(model, model, options)
    assert thresholds == [None]
    assert (report.timing.fail_under, report.timing.baseline.report) == (0.5, "saved.json")


def test_without_an_answer_nothing_is_verified(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def child(*arguments: object, on_message: object) -> VerifyReport:
        raise UnverifiedError("it crashed")

    monkeypatch.setattr(evidence, "isolated", child)
    report = verify(model, replace(model, name="new.onnx"), VerifyOptions())
    assert (report.verdict, report.reasons) == ("unverified", ["it crashed"])
    assert (report.original, report.rewritten) == ("m.onnx", "new.onnx")


def test_each_process_reads_each_model_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not equal, so the truth is computed; they differ by one ulp, so they are timed."""
    weights = "0.1", "0.10000001"
    models = [load(stored(tmp_path, f"{weight}.onnx", SCALED % weight)) for weight in weights]
    reads: list[list[bytes]] = []  # by process
    parse = check.parse

    def counting_parse(data: bytes) -> ModelProto:
        reads[-1].append(data)
        return parse(data)

    def in_process(
        function: Callable[..., Any], *arguments: Any, on_message: Any = None, **_: Any
    ) -> Any:
        reads.append([])
        return function(*arguments, **({} if on_message is None else {"send": on_message}))

    monkeypatch.setattr(check, "parse", counting_parse)
    for module in (evidence, truth, contest):
        monkeypatch.setattr(module, "isolated", in_process)
    options = VerifyOptions(provider=Provider.CPU, seeds=1, time_budget=0.1)
    report = verify(*models, options)
    assert report.proof.verdict == "different"
    assert report.timing is not None
    original, rewritten = (model.path.read_bytes() for model in models)
    child, of_truth, *of_timing = reads
    assert child == [original, rewritten]
    assert of_truth == []  # it gets the model that was read
    assert of_timing
    assert not any(of_timing)


def test_a_temporary_file_is_named_as_the_file_that_it_becomes(tmp_path: Path) -> None:
    head = (
        '<ir_version: 8, opset_import: ["" : 17, "acme" : 1]> g (float[4] x) => (float[4] y) { %s }'
    )
    steps: list[str] = []
    models = []
    for name, node in (("m.onnx", "y = Neg (x)"), (".temporary", "y = acme.Neg (x)")):
        path = save(parser.parse_model(head % node), tmp_path / name)
        models.append(load(path, "out.onnx" if name == ".temporary" else ""))
    with progress_to(lambda step: steps.append(step.text)):
        report = verify(*models, VerifyOptions(provider=Provider.CPU, seeds=1, timing=False))
    assert report.rewritten == "out.onnx"
    text = "the original runs, the rewritten model does not: out.onnx does not load: "
    assert any(reason.startswith(text) for reason in report.reasons)
    assert not any(".temporary" in line for line in (*report.reasons, *steps))


@pytest.mark.parametrize("name", ["{}[0]", "z", "z[0]"])
def test_a_tolerance_of_an_output_that_is_not_there(model: LoadedModel, name: str) -> None:
    """Only a sequence has items: for a tensor such a tolerance was taken, and had no effect."""
    given = name.format(model.proto.graph.output[0].name)
    options = VerifyOptions(tolerance=Tolerance(per_output={given: 0.1}))
    with pytest.raises(UsageError, match="which is no output"):
        verify(model, model, options)
