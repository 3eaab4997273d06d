"""A notebook shows a report by its `_repr_html_`."""

from __future__ import annotations

import re
import subprocess
import sys

import msgspec
import pytest
from msgspec.structs import replace

from tests.folding import inspect, optimize
from tests.reports.page import Page
from tests.reports.sample import failing, hostile, passing
from tests.small_models import MODELS
from widthfold_onnx import OptimizeReport
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.reports import html
from widthfold_onnx.results import Gain, SearchReport, TunedModel, TuneReport

PITCH = MODELS / "pitch_cnn.onnx"


@pytest.fixture(scope="module")
def plan() -> OptimizeReport:
    return optimize(PITCH, None, FoldOptions(factor=8))


def test_a_verification_shows_verdict_tables_and_times() -> None:
    text = passing()._repr_html_()
    page = Page(text)
    assert not {"html", "head", "body", "script", "link"} & page.tags.keys()
    assert page.tags["table"] == 3
    assert page.tags["svg"] == 2
    assert "the rewritten model computes what the original computes" in page.text
    assert "the rewritten model does not compute" in Page(failing()._repr_html_()).text


def test_a_report_read_from_its_json_is_shown_too() -> None:
    """Nothing but the class was asked of the package in that process."""
    script = (
        "import sys, msgspec, widthfold_onnx as wf\n"
        "report = msgspec.json.decode(sys.stdin.read(), type=wf.VerifyReport)\n"
        "assert 'jinja2' not in sys.modules\n"
        "print(report._repr_html_())"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        input=msgspec.json.encode(passing()),
        capture_output=True,
        check=True,
    )
    assert result.stdout.decode().strip() == passing()._repr_html_().strip()


def test_a_plan_shows_every_layer_and_the_gain_of_the_search(plan: OptimizeReport) -> None:
    page = Page(plan._repr_html_())
    assert (page.tags["table"], page.tags["svg"]) == (1, 0)
    for site in plan.sites:
        assert site.node in page.text
    search = SearchReport(
        provider="cpu",
        threads=1,
        target="",
        sizes=[],
        layers=4,
        forms=9,
        measured=13,
        pending=0,
        predicted=0,
        interrupted=False,
        store_read_only=False,
        whole=Gain(ratio=1.5, low=1.4, high=1.6, pairs=40),
        accepted=True,
    )
    searched = replace(plan, search=search)._repr_html_()
    assert Page(searched).tags["svg"] == 1
    assert "Speed-up 1.500, interval 1.400 to 1.600, a verdict needs" in searched
    verified = replace(plan, search=search, verification=passing())._repr_html_()
    assert "A/A control" in verified, "paired times are drawn instead"


def test_layers_of_a_model_and_counts_of_tune_are_tables() -> None:
    report = inspect(PITCH, FoldOptions(factor=8))
    page = Page(report._repr_html_())
    assert page.tags["table"] == 1
    for site in report.sites:
        assert f"{site.choices[0].axis} by {site.choices[0].factor}" in page.text
    tuned = TuneReport(
        threads=1,
        machines=[],
        models=[TunedModel(model="a.onnx", layers=7)],
        interrupted=False,
        store_read_only=False,
    )
    assert "a.onnx" in Page(tuned._repr_html_()).text


def test_names_are_text() -> None:
    text = hostile()._repr_html_()
    assert Page(text).tags.keys() == Page(failing()._repr_html_()).tags.keys()
    assert not set("\x1b\u202e\uffff") & set(text)


def test_pictures_of_two_reports_share_no_id() -> None:
    other = replace(passing(), input_sets=13)
    first, second = (
        set(re.findall(r' id="([^"]+)"', report._repr_html_())) for report in (passing(), other)
    )
    assert first
    assert not first & second


def test_without_matplotlib_there_are_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "find_spec", lambda name: None)
    page = Page(passing()._repr_html_())
    assert (page.tags["table"], page.tags["svg"]) == (3, 0)
