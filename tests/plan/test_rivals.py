"""The model as it is, or channel by channel: what the search takes, and what it says of it."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import pytest

from tests.plan.test_search import found, options
from tests.plan.world import World, enter, folded
from tests.rewrite.channels import builder
from widthfold_onnx import VerifyOptions, optimize, tune, verify
from widthfold_onnx.options import AxisName, FoldOptions, Provider, SearchOptions
from widthfold_onnx.plan.store import Store
from widthfold_onnx.progress import Step
from widthfold_onnx.results import OptimizeReport

FIRST, SECOND = {"first"}, {"second"}
PARTS = 10
"""Convs of one channel in the place of both."""


class Saved(dict[str, float]):
    """Seconds that a layer saves as it is, and those that each of its channels does."""

    def __init__(self, natural: float, channel: float) -> None:
        super().__init__()
        self._saved = natural, channel

    def __missing__(self, name: str) -> float:
        return self._saved["/channel_" in name]


def alone(layer, form) -> tuple[float, float]:
    """Layers as they are gain by folds of the height, single channels by folds of 8 samples."""
    single = layer["weight"][:2] == [1, 1]
    kind = (form["axis"], form["factor"], form["lift"], form["dense"], form["digit_major"])
    good = ("batch", 8) if single else ("height", 2)
    return (2.0, 1.9) if kind == (*good, 0, False, False) else (0.5, 0.4)


def only_three_taps(layer, form) -> tuple[float, float]:
    """A channel of the second layer is better not folded."""
    return (0.5, 0.4) if layer["weight"] == [1, 1, 1, 5] else alone(layer, form)


def world(natural: float = 1.0, channel: float = 0.4, how=alone, **more: float) -> World:
    return World(how, Saved(natural, channel), **more)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers, the first of 6 pairs of channels, the second of 4."""
    g = builder(8, 3, 2, 7)
    value = g.op("Relu", g.conv("x", 2, [3, 3]))
    proto = g.model([g.conv(value, 2, [1, 5])])
    proto.graph.node[0].name, proto.graph.node[2].name = "first", "second"
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return path


def by_channel(report: OptimizeReport) -> set[str]:
    return {site.node for site in report.sites if (site.form or "").endswith(" by channel")}


def written(model: Path) -> bytes:
    return model.with_name("out.onnx").read_bytes()


def steps(model: Path, **fold: object) -> tuple[OptimizeReport, list[str]]:
    """The report of a plan, and the rivals that were tried."""
    said: list[Step] = []
    report = optimize(
        model,
        None,
        FoldOptions(**fold),
        None,
        SearchOptions(provider=Provider.CPU),
        on_progress=said.append,
    )
    return report, [step.text for step in said if "channel by channel" in step.text]


@pytest.mark.parametrize(
    ("channel", "noise", "taken"),
    [
        (0.4, 0.005, True),
        (0.21, 0.005, True),
        (0.205, 0.005, False),  # 1.258 +- 0.5 % against 1.25 +- 0.5 %
        (0.21, 0.02, False),
        (0.2, 0.005, False),
        (0.1, 0.005, False),
        (-0.1, 0.005, False),
        (math.nan, 0.005, False),  # it does not run
    ],
)
def test_only_a_rival_that_is_surely_faster_is_taken(
    model: Path, monkeypatch: pytest.MonkeyPatch, channel: float, noise: float, taken: bool
) -> None:
    here = enter(monkeypatch, world(channel=channel, noise=noise))
    report = found(model, store=None)
    assert by_channel(report) == (FIRST | SECOND if taken else set())
    assert report.summary.folded == len(report.sites) == 2
    names = folded(model.with_name("out.onnx"))
    assert (names == FIRST | SECOND) is not taken
    assert sum("/channel_" in name for name in names) == (PARTS if taken else 0)
    search = report.search
    assert search.accepted
    assert search.whole.ratio == pytest.approx(10 / (10 - (PARTS * channel if taken else 2)))
    assert any(len(other) == PARTS and not base for base, other in here.compared) or not channel > 0


def test_where_nothing_pays_as_it_is_a_rival_must_beat_the_original(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, world(natural=-1.0, channel=0.05))
    assert by_channel(found(model, store=None)) == FIRST | SECOND
    enter(monkeypatch, world(natural=-1.0, channel=-0.05))
    report = found(model, store=None)
    assert not report.search.accepted
    assert written(model) == model.read_bytes()
    assert {(site.status, site.code) for site in report.sites} == {("kept", "no-gain")}


def test_a_layer_of_which_a_channel_does_not_pay_is_left_as_it_is(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, world(how=only_three_taps))
    report, tried = steps(model)
    assert tried == ["trying 2 layers channel by channel", "trying 1 layers channel by channel"]
    assert by_channel(report) == FIRST
    assert report.search.whole.ratio == pytest.approx(10 / (10 - 6 * 0.4 - 1))
    (_, second) = report.sites
    assert (second.node, second.status, second.axis) == ("second", "folded", "height")


def test_where_no_layer_is_left_the_rest_is_as_if_none_had_been_tried(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(layer, form):
        return (0.5, 0.4) if layer["weight"][:2] == [1, 1] else alone(layer, form)

    enter(monkeypatch, world(how=never))
    report, tried = steps(model)
    assert tried == ["trying 2 layers channel by channel"]
    assert {(site.status, site.axis) for site in report.sites} == {("folded", "height")}


def test_a_line_for_every_conv_of_the_original(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = enter(monkeypatch, world())
    report = found(model)
    lines = [(site.node, site.op, site.status, site.factor, site.gain) for site in report.sites]
    assert lines == [("first", "Conv", "folded", 8, None), ("second", "Conv", "folded", 8, None)]
    first, second = (site.reason for site in report.sites)
    assert first.startswith("6 Convs of one channel each: 1 -> 1 channels became 8 -> 8")
    assert second.startswith("4 Convs of one channel each: ")
    (region,) = report.regions
    assert region.folded == ["first", "second"]
    assert region.carried == ["Relu relu1"]
    assert {stop.node for stop in region.stops} == {"second"}
    search = report.search
    with Store(model.with_name("store.sqlite")) as store:
        assert search.measured == len(store)
    assert (search.left, search.interrupted) == (0, False)
    assert search.layers == 2 + len({s for s in here.raced if '"weight":[1,1,' in s}) // 2


@pytest.mark.parametrize(
    "fold",
    [
        {"nodes": ("first", "second")},
        {"skip": ("second",)},
        {"axis": AxisName.HEIGHT},
        {"guard_shapes": True},
    ],
)
def test_no_rival_where_the_options_rule_it_out(
    model: Path, monkeypatch: pytest.MonkeyPatch, fold: dict[str, object]
) -> None:
    here = enter(monkeypatch, world())
    _, tried = steps(model, **fold)
    assert tried == []
    assert not [subject for subject in here.raced if '"weight":[1,1,' in subject]


def test_what_is_known_is_not_measured_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, world())
    first = found(model)
    before = written(model)
    for more in ({}, {"measure": False}, {"time_budget": 1e-6}):
        again = enter(monkeypatch, world(how=lambda layer, form: "measured again"))
        second = found(model, **more)
        assert (again.raced, again.compared, second.search.measured) == ([], [], 0)
        assert written(model) == before
        assert second.sites == first.sites
        assert second.search.whole == first.search.whole


def test_tune_measures_the_layers_of_rivals_too(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, world())
    found(model)
    before = written(model)
    model.with_name("store.sqlite").unlink()
    tuning = enter(monkeypatch, world())
    tune([model], search_options=SearchOptions(**options(model)))
    assert [subject for subject in tuning.raced if '"weight":[1,1,' in subject]
    assert tuning.compared == []
    again = enter(monkeypatch, world())
    found(model)
    assert again.raced == []
    assert written(model) == before


def test_a_second_run_copies_what_the_first_one_wrote(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    enter(monkeypatch, world())
    found(model)
    out, copy = model.with_name("out.onnx"), tmp_path / "copy.onnx"
    here = enter(monkeypatch, world())
    report = optimize(out, copy, FoldOptions(), None, SearchOptions(**options(model)))
    assert copy.read_bytes() == out.read_bytes()
    assert {site.code for site in report.sites} == {"already-folded"}
    assert (here.raced, here.compared) == ([], [])


def test_an_interrupt_of_the_first_search_tries_no_rival(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(layer, form):
        if layer["weight"] == [2, 2, 1, 5]:
            raise KeyboardInterrupt
        return alone(layer, form)

    enter(monkeypatch, world(how=pressed))
    report, tried = steps(model)
    assert tried == []
    assert report.search.interrupted


def test_an_interrupt_of_the_rival_keeps_what_was_found(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(layer, form):
        if layer["weight"][:2] == [1, 1]:
            raise KeyboardInterrupt
        return alone(layer, form)

    enter(monkeypatch, world(how=pressed))
    report, tried = steps(model)
    assert tried == ["trying 2 layers channel by channel"]
    assert {(site.status, site.axis) for site in report.sites} == {("folded", "height")}
    assert report.search.interrupted
    assert report.search.accepted
    assert report.search.left >= 1


def test_without_time_the_rival_is_left_to_measure_as_well(model: Path) -> None:
    report = found(model, time_budget=1e-6)
    assert (report.search.measured, report.summary.folded) == (0, 0)
    assert report.search.left == report.search.layers > 2
    assert written(model) == model.read_bytes()


def test_the_result_is_verified_and_computes_the_same(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, world())
    quick = VerifyOptions(thorough=False, timing=False, seeds=1)
    out = model.with_name("out.onnx")
    report = optimize(model, out, FoldOptions(), quick, SearchOptions(**options(model)))
    assert report.verification.verdict == "pass"
    assert report.written == out.name
    assert report.verification.proof.verdict == "equal"
    assert len(report.verification.folds) == PARTS
    assert verify(model, out, quick).verdict == "pass"
