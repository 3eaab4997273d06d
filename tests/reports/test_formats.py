"""The formats of a report: chosen by suffix, the same bytes twice, refused before the work."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from tests.cli.tool import schema_of
from tests.folding import inspect, optimize, verify
from tests.reports.sample import HOSTILE, failing, hostile, passing
from tests.small_models import MODELS
from widthfold_onnx import UsageError
from widthfold_onnx.options import FoldOptions, VerifyOptions
from widthfold_onnx.reports import formats
from widthfold_onnx.reports.formats import SUFFIXES, Destinations, Format, render, write_report
from widthfold_onnx.results import InspectReport, OptimizeReport, VerifyReport

MODEL = MODELS / "refusals.onnx"
PLAIN = replace(passing(), timing=None, folds=[])
"""A report without pictures, which take seconds."""


@pytest.mark.parametrize("form", Format)
def test_every_form_is_the_same_twice_and_escapes_what_the_model_says(form: Format) -> None:
    text = render(form, hostile(), Path(HOSTILE))
    assert text == render(form, hostile(), Path(HOSTILE))
    assert not set("\x1b\u202e\uffff") & set(text)
    if form not in (Format.JSON, Format.GITHUB):
        assert "<script" not in text
    assert not any(line.lstrip().startswith("::error::") for line in text.splitlines())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("case", ["lower", "upper"])
def test_the_suffix_chooses(suffix: str, case: str, tmp_path: Path) -> None:
    path = tmp_path / f"report{getattr(suffix, case)()}"
    destinations = Destinations((path,))
    destinations.check(VerifyReport, [])
    destinations.deliver(PLAIN, MODEL)
    assert path.read_text() == render(SUFFIXES[suffix], PLAIN, MODEL)


def test_the_format_is_for_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.md"
    Destinations((path,), Format.GITHUB).deliver(PLAIN, MODEL)
    assert path.read_text() == render(Format.MARKDOWN, PLAIN, MODEL)
    assert capsys.readouterr().out == render(Format.GITHUB, PLAIN, MODEL)
    Destinations((path,)).deliver(PLAIN, MODEL)
    assert "\nverdict: pass; " in capsys.readouterr().out


def test_what_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    accepted, unknown, junit = (tmp_path / name for name in ("a.json", "b.txt", "c.xml"))
    for paths, printed, kind, refusal in (
        ([unknown], None, VerifyReport, r"names no format .* \.json, \.xml, \.md, \.html"),
        ([accepted, accepted], None, VerifyReport, "choose another name"),
        ([junit], None, InspectReport, r"it offers \.json, \.md, \.html"),
        (
            [],
            Format.JUNIT,
            OptimizeReport,
            "no junit report .* offers json, markdown, html, github",
        ),
    ):
        with pytest.raises(UsageError, match=refusal):
            Destinations(tuple(paths), printed).check(kind, [])
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'widthfold-onnx\[report\]'"):
        Destinations((tmp_path / "a.html",)).check(VerifyReport, [])
    Destinations((tmp_path / "a.md",)).check(VerifyReport, [])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_an_empty_file_or_an_earlier_report_is_replaced(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"report{suffix}"
    path.write_text("<!doctype html>\n<p>mine, about widthfold.verify/8</p>")
    with pytest.raises(UsageError, match="exists and is no report"):
        Destinations((path,)).check(VerifyReport, [])
    path.write_text("")
    for report in (replace(failing(), timing=None, folds=[]), PLAIN):
        Destinations((path,)).deliver(report, MODEL)
    assert path.read_text() == render(SUFFIXES[suffix], PLAIN, MODEL)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_optimize_and_inspect_offer_json_and_markdown() -> None:
    options = FoldOptions(factor=8)
    for result in (optimize(MODEL, None, options), inspect(MODEL, options)):
        assert json.loads(render(Format.JSON, result, MODEL))["model"] == "refusals.onnx"
        text = render(Format.MARKDOWN, result, MODEL)
        assert text.count("\n| ") == 2 + len(result.sites)
        assert text.count("region of") == len(getattr(result, "regions", []))


def test_reports_validate_and_hold_the_promised_keys(tmp_path: Path) -> None:
    model, out = MODELS / "refusals.onnx", tmp_path / "out.onnx"
    options = FoldOptions(factor=8)
    results = {
        "optimize": optimize(model, out, options, VerifyOptions(timing=False)),
        "inspect": inspect(model, options),
        "verify": verify(model, out, VerifyOptions(time_budget=0.5)),
    }
    built = {
        verb: json.loads(render(Format.JSON, result, model)) for verb, result in results.items()
    }
    for verb, report in built.items():
        jsonschema.validate(report, schema_of(verb))
        assert report["schema"] == results[verb].schema
    assert built["optimize"].keys() >= {"schema", "model", "sites", "summary"}
    assert built["optimize"]["sites"][0].keys() >= {
        *("node", "op", "status", "axis", "factor", "form", "code", "reason", "flops_ratio")
    }
    assert built["verify"].keys() >= {"schema", "outputs", "proof", "folds", "timing", "verdict"}
    assert built["verify"]["outputs"][0].keys() >= {
        *("max_abs", "max_rel", "movement", "tolerance", "nonfinite_match", "passed")
    }
    assert str(tmp_path) not in json.dumps(built)


def test_names_of_a_hostile_model_are_escaped(tmp_path: Path) -> None:
    report = inspect(MODELS / "paper_conv.onnx", FoldOptions(factor=8))
    nasty = replace(report, model="\x1b[2J\u202e\n</script>")
    path = tmp_path / "report.json"
    write_report(render(Format.JSON, nasty, path), path)
    data = path.read_bytes()
    assert max(data) < 0x7F
    assert b"\x1b" not in data
    assert json.loads(data)["model"] == "\x1b[2J\u202e\n</script>"


def test_a_report_replaces_no_model(tmp_path: Path) -> None:
    report = inspect(MODELS / "paper_conv.onnx", FoldOptions(factor=8))
    model = tmp_path / "model.json"
    model.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists and is no report"):
        write_report(render(Format.JSON, report, model), model)
    model.write_bytes(b"")
    with pytest.raises(UsageError, match="is an input or another output"):
        Destinations((model,)).check(InspectReport, [model])
    assert model.read_bytes() == b""
