from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.folding import optimize
from tests.reports.sample import HOSTILE, failing, hostile, passing
from tests.shared import ROOT
from widthfold_onnx import UsageError
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.pipeline import inspect
from widthfold_onnx.reports import SUFFIXES, Format, formats
from widthfold_onnx.reports.formats import destinations, render
from widthfold_onnx.results import InspectReport, OptimizeReport, VerifyReport

MODEL = ROOT / "models" / "refusals.onnx"


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
    to = destinations([path], None, VerifyReport, [])
    assert (to.files, to.printed) == (((path, SUFFIXES[suffix]),), None)


def test_the_format_is_for_what_has_no_suffix(tmp_path: Path) -> None:
    known, unknown = tmp_path / "a.md", tmp_path / "b.txt"
    to = destinations([known], Format.GITHUB, VerifyReport, [])
    assert (to.files, to.printed) == (((known, Format.MARKDOWN),), Format.GITHUB)
    to = destinations([known, unknown], Format.JUNIT, VerifyReport, [])
    assert to.files == ((known, Format.MARKDOWN), (unknown, Format.JUNIT))
    assert to.printed is None


def test_what_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    known, unknown = tmp_path / "a.json", tmp_path / "b.txt"
    with pytest.raises(UsageError, match=r"\.json, \.xml, \.md, \.html"):
        destinations([unknown], None, VerifyReport, [])
    with pytest.raises(UsageError, match="says no form"):
        destinations([unknown], Format.GITHUB, VerifyReport, [])
    with pytest.raises(UsageError, match="choose another name"):
        destinations([known, known], None, VerifyReport, [])
    with pytest.raises(UsageError, match="offers json, markdown, html"):
        destinations([tmp_path / "c.xml"], None, InspectReport, [])
    with pytest.raises(UsageError, match="no junit report"):
        destinations([tmp_path / "c.xml"], None, OptimizeReport, [])
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'widthfold-onnx\[report\]'"):
        destinations([tmp_path / "a.html"], None, VerifyReport, [])
    assert destinations([tmp_path / "a.md"], None, VerifyReport, []).files


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_an_empty_file_or_an_earlier_report_is_replaced(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"report{suffix}"
    path.write_text("<!doctype html>\n<p>mine, about widthfold.verify/7</p>")
    with pytest.raises(UsageError, match="exists and is no report"):
        destinations([path], None, VerifyReport, [])
    path.write_text("")
    first, second = (replace(report, timing=None, folds=[]) for report in (failing(), passing()))
    for report in (first, second):  # without pictures, which take seconds
        destinations([path], None, VerifyReport, []).write(report, Path("model.onnx"))
    assert path.read_text() == render(SUFFIXES[suffix], second, Path("model.onnx"))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_optimize_and_inspect_offer_json_and_markdown() -> None:
    options = FoldOptions(factor=8)
    for result in (optimize(MODEL, None, options), inspect(MODEL, options)):
        assert json.loads(render(Format.JSON, result, MODEL))["model"] == "refusals.onnx"
        text = render(Format.MARKDOWN, result, MODEL)
        assert text.count("\n| ") == 2 + len(result.sites)
        assert text.count("region of") == len(getattr(result, "regions", []))
