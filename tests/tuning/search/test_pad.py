"""Channels that the search pads, by the time of the whole model with them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import onnx
import pytest

from tests.folding import optimize
from tests.small_models import build, save
from tests.tuning import world
from tests.tuning.world import World, enter
from widthfold_onnx.options import (
    AxisName,
    Effort,
    FoldOptions,
    NonFinite,
    Provider,
    SearchOptions,
)
from widthfold_onnx.reports.described.layers import padding
from widthfold_onnx.results import OptimizeReport, PaddedChannels
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search import trials
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession

NET = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,3,4,32] x) => (float[1,2,4,32] y, float[1,3,4,32] z)
<float[5,3,1,1] w1, float[5,5,1,1] w2, float[12,5,1,1] w3, float[6,12,1,1] w4, float[2,6,1,1] w5,
 float[3,3,1,1] w6>
{
    [first] a = Conv (x, w1)
    [relu] b = Relu (a)
    [second] c = Conv (b, w2)
    [third] d = Conv (c, w3)
    [fourth] e = Conv (d, w4)
    [fifth] y = Conv (e, w5)
    [other] f = Conv (x, w6)
    [softmax] z = Softmax (f)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(build(NET), tmp_path / "model.onnx")


def widths(model: Path) -> frozenset[str]:
    """Names of the layers with their output channels, where these differ from `NET`."""
    graph = onnx.load(model).graph
    dims = {weight.name: weight.dims[0] for weight in graph.initializer}
    original = {"first": 5, "second": 5, "third": 12, "fourth": 6, "fifth": 2, "other": 3}
    channels = {node.name: dims[node.input[1]] for node in graph.node if node.op_type == "Conv"}
    return frozenset(f"{n} {w}" for n, w in channels.items() if w != original[n])


def found(
    model: Path, monkeypatch: pytest.MonkeyPatch, saved: dict[str, float], **changes: object
) -> OptimizeReport:
    """The report of a run in which layers of some widths save so many of ten seconds."""
    monkeypatch.setattr(world, "folded", widths)
    every = {f"{n} {w}": 0.0 for n in ("first", "second", "third", "fourth") for w in (8, 16)}
    enter(monkeypatch, World(lambda layer, form: (0.5, 0.4), {**every, **saved}))
    options = SearchOptions(
        store=model.with_name("store.sqlite"), provider=Provider.CPU, effort=Effort.THOROUGH
    )
    return optimize(
        model,
        model.with_name("out.onnx"),
        FoldOptions(axis=AxisName.WIDTH, **changes),
        None,
        options,
    )


def test_the_multiple_that_gains_most_is_taken(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = {"first 8": 1.0, "second 8": 1.0, "first 16": 2.0, "second 16": 2.0, "third 16": 1.0}
    report = found(model, monkeypatch, saved)
    assert widths(model.with_name("out.onnx")) == {
        *("first 16", "second 16", "third 16", "fourth 16")
    }
    assert report.padding is not None
    assert (report.padding.status, report.padding.multiple) == ("padded", 16)
    assert report.padding.layers[0] == PaddedChannels(node="first", channels=5, padded=16)
    assert report.padding.gain.ratio == pytest.approx(10 / 5)
    ends = [(stop.node, stop.code) for stop in report.padding.stops]
    assert ends == [("fifth", "output"), ("softmax", "not-carried")]
    assert report.summary.padded == 4
    assert {s.node: s.code for s in report.sites}["first"] == "padded"
    alone = {site.node for site in report.sites if site.gain is not None}
    assert alone == {"other"}, "padded layers, and what reads them, were not measured alone"
    line = padding(report.padding, is_full=True)
    assert line.label == "channels padded to multiples of 16"
    assert "the whole model ran at 2.00x" in line.text
    assert "Softmax softmax (no rule pads Softmax)" in line.text


def test_a_chain_that_does_not_help_in_its_place_is_dropped(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(model, monkeypatch, {"first 8": 2.0, "second 8": 1.0, "fourth 8": -1.0, "first 16": -5.0})
    assert widths(model.with_name("out.onnx")) == {"first 8", "second 8"}


def test_of_a_chain_without_which_the_model_does_not_run_nothing_is_known(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios_to = trials.ratios_to

    def failing(*args: object) -> list[Measurement | None]:
        return [Measurement.lost("out of memory"), *ratios_to(*args)[1:]]

    monkeypatch.setattr(trials, "ratios_to", failing)
    found(model, monkeypatch, {"first 8": 2.0, "second 8": 1.0, "fourth 8": -1.0, "first 16": -5.0})
    assert widths(model.with_name("out.onnx")) == {"first 8", "second 8"}


def test_what_is_not_surely_faster_is_not_padded(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = found(model, monkeypatch, {"first 8": 0.02})
    assert model.with_name("out.onnx").read_bytes() == model.read_bytes()
    assert report.padding is not None
    assert (report.padding.status, report.padding.reason) == ("kept", "not surely faster")


def test_options_choose_the_multiple_or_none(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {"first 8": 2.0, "first 16": 3.0}
    assert found(model, monkeypatch, saved, pad_channels=8).padding.multiple == 8
    assert found(model, monkeypatch, saved, pad_channels=0).padding is None
    skipped = ("second", "f*")
    assert found(model, monkeypatch, saved, skip=skipped).padding is None
    report = found(model, monkeypatch, saved, skip=skipped, pad_channels=8).padding
    assert (report.status, report.multiple, report.layers) == ("kept", 8, [])
    assert "cannot be padded" in report.reason
    strict = found(model, monkeypatch, saved, pad_channels=8, nonfinite=NonFinite.REFUSE).padding
    assert (strict.status, strict.layers) == ("kept", [])
    assert "NaN of an Inf" in strict.reason


def test_a_multiple_of_the_caller_that_is_not_timed_says_so(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "folded", widths)
    enter(monkeypatch, World(lambda layer, form: (0.5, 0.4), {}))
    options = SearchOptions(
        store=model.with_name("store.sqlite"), provider=Provider.CPU, measure=False
    )
    fold_options = FoldOptions(axis=AxisName.WIDTH, pad_channels=8)
    report = optimize(model, model.with_name("out.onnx"), fold_options, None, options).padding
    assert report is not None
    assert (report.status, report.reason) == ("kept", "not timed")
    padded = {layer.node: layer.padded for layer in report.layers}
    assert padded == {"first": 8, "second": 8, "third": 16, "fourth": 8}


def test_a_sure_gain_is_taken_before_a_larger_one_that_is_not(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gains = {
        4: Measurement.of_ratio(1.01, 0.98, 1.04, 1.0, 9),
        8: Measurement.of_ratio(1.08, 1.05, 1.11, 1.0, 9),
    }
    gains[16] = Measurement.of_ratio(1.20, 0.97, 1.48, 1.0, 9)

    def planted(
        session: SearchSession, base: Draft, draft: SearchDraft, seconds: float
    ) -> Measurement | None:
        return gains[draft.padding.multiple]

    monkeypatch.setattr(import_module("widthfold_onnx.tuning.search.pad"), "compare", planted)
    report = found(model, monkeypatch, {"first 8": 2.0}).padding
    assert report is not None
    assert (report.status, report.multiple, report.gain.low) == ("padded", 8, 1.05)
