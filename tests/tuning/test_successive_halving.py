"""Number of runs of each form in a race, on a clock and a runtime of our own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import msgspec
import pytest

from tests.tuning.races import OPTIONS, NamedForm, workload
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime import settings
from widthfold_onnx.runtime.clock import Run, in_turn
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import Port
from widthfold_onnx.runtime.settings import Setting, fixed_feeds
from widthfold_onnx.tuning import successive_halving
from widthfold_onnx.tuning.bench import is_complete
from widthfold_onnx.tuning.measurement import AS_IS, NO_TIME, SKIPPED, CandidateResult, Measurement
from widthfold_onnx.tuning.successive_halving import (
    FIRST_PAIRS,
    FIRST_SHARE,
    FORM_SECONDS,
    HOPELESS_RATIO,
    PEAK_MARGIN,
    WARMUP_RUNS,
    Start,
    _need,
    out_of_reach,
    race,
)
from widthfold_onnx.tuning.workloads import Workload

MILLI = 1e-3
PEAK = 1e9
PAIRS, RUNGS = OPTIONS.spending.pairs, OPTIONS.spending.rungs


class Track:
    """A runtime whose every model takes the milliseconds that were said of it, on the clock."""

    def __init__(self, seconds: Mapping[str, object]) -> None:
        self.now = 0.0
        self.runs: Counter[str] = Counter()
        self.order: list[str] = []
        self.seconds = seconds

    def clock(self) -> int:
        return round(self.now * 1e9)

    def random_run(self, model: bytes, setting: Setting) -> Run:
        name = model.decode()
        if isinstance(self.seconds[name], Exception):
            raise self.seconds[name]

        def once(count: int) -> None:
            self.runs[name] += 1
            self.order.append(name)
            time = self.seconds[name]
            self.now += (time(self.runs[name]) if callable(time) else time) * MILLI

        return once


def model_in_form(workload: Workload, form: NamedForm) -> bytes:
    """Stand in for the cut of a layer in another form."""
    return form.spec.encode()


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch):
    """A function that races forms of given milliseconds, and returns the reports and the track."""

    def start(*layers: Mapping[str, object], budget: float = 1e6, macs: float = 1.0):
        track = Track({name: time for layer in layers for name, time in layer.items()})
        monkeypatch.setattr(
            successive_halving, "time", SimpleNamespace(perf_counter=lambda: track.now)
        )
        monkeypatch.setattr(successive_halving, "clock_of", lambda options: track.clock)
        monkeypatch.setattr(successive_halving, "peak_speed", lambda setting: PEAK)
        monkeypatch.setattr(successive_halving, "random_run", track.random_run)
        monkeypatch.setattr(successive_halving, "model_in_form", model_in_form)
        workloads = [workload(own, *forms, macs=macs) for own, *forms in layers]
        reports: list[Start | CandidateResult] = []
        race(workloads, OPTIONS, budget, send=reports.append)
        return reports, track

    return start


def results(reports: list[object]) -> dict[str, Measurement]:
    """Measurements by form; there must be one of each."""
    outcomes = [item for item in reports if isinstance(item, CandidateResult)]
    assert len({(item.subject, item.candidate) for item in outcomes}) == len(outcomes)
    return {item.candidate: item.measurement for item in outcomes}


def test_all_forms_run_then_the_better_ones_and_the_best_more_often(raced) -> None:
    forms = {f"form{i}": 1 + i / 100 for i in range(9)}
    reports, _ = raced({"own": 1.0, **dict(reversed(forms.items()))})
    measurements = results(reports)
    assert [measurements[key].pairs for key in (AS_IS, *forms)] == [4, 40, 40, *[10] * 4, *[4] * 3]
    for key, seconds in forms.items():
        ran = measurements[key]
        expected = (1 / seconds, seconds * MILLI)
        assert (ran.ratio, ran.seconds) == pytest.approx(expected, abs=1e-6)
        assert ran.low <= ran.ratio <= ran.high
        assert ran.reason == ""
    assert measurements[AS_IS].seconds == pytest.approx(MILLI)


def test_the_order_of_turns_goes_on_behind_the_first_pairs(raced) -> None:
    _, track = raced({"own": 1.0, "form": 1.0})
    rounds = 1 + PAIRS  # one to warm up
    assert PAIRS > FIRST_PAIRS
    order: list[str] = []
    sides = [lambda _, name=name: order.append(name) for name in ("own", "form")]
    list(islice(in_turn(sides, track.clock), rounds))
    before = WARMUP_RUNS - 1
    alone = before + 2 * rounds  # the layer as it is runs first, alone
    assert track.order[:alone] == ["own"] * alone
    assert track.order[alone : alone + before] == ["form"] * before
    assert track.order[alone + before :][: 2 * rounds] == order


def test_every_form_begins_before_it_runs_and_has_one_result_behind_its_layer(raced) -> None:
    reports, _ = raced({"one": 1.0, "a": 0.5, "b": 3.0}, {"two": 1.0, "c": 0.5})
    second = reports.index(Start("two", AS_IS))
    begun = [(item.subject, item.candidate) for item in reports if isinstance(item, Start)]
    assert begun[:4] == [("one", AS_IS), ("one", "a"), ("one", "b"), ("one", "a")]
    assert reports[0] == Start("one", AS_IS)
    assert list(results(reports[:second])) == [AS_IS, "a", "b"]
    assert results(reports[second:]).keys() == {AS_IS, "c"}


def test_what_is_hopeless_is_not_run_again(raced) -> None:
    bad, meh, good = HOPELESS_RATIO * 1.01, HOPELESS_RATIO * 0.99, 0.5
    forms = {"bad": bad, "meh": meh, "good": good, "behind": good * bad, "near": good * meh}
    reports, track = raced({"own": 1.0, **forms})
    for form in ("bad", "behind"):
        ran = results(reports)[form]
        assert (ran.pairs, track.runs[form]) == (FIRST_PAIRS, WARMUP_RUNS + FIRST_PAIRS)
        assert ran.ratio == pytest.approx(1 / forms[form])
        assert ran.is_hopeless
        assert is_complete(ran, 1.0, pairs=2 * FIRST_PAIRS)  # no later search runs it either
    short = msgspec.structs.replace(results(reports)["bad"], is_hopeless=False)
    assert not is_complete(short, 1.0, pairs=2 * FIRST_PAIRS)
    assert results(reports)["meh"].pairs > FIRST_PAIRS
    assert results(reports)["near"].pairs > FIRST_PAIRS


def test_a_form_is_not_hopeless_for_one_slow_run(raced) -> None:
    slow = WARMUP_RUNS + 1  # the first run that is timed
    reports, _ = raced({"own": 1.0, "good": lambda run: 50.0 if run == slow else 0.5, "next": 0.9})
    measurements = results(reports)
    assert measurements["good"].pairs == measurements["next"].pairs == RUNGS[-1].pairs


def test_a_hiccup_later_on_does_not_undo_what_was_measured(raced) -> None:
    hiccup = 2 * WARMUP_RUNS + PAIRS + 1  # the first pair of the second round
    reports, _ = raced({"own": 1.0, "good": lambda run: 50.0 if run == hiccup else 0.5})
    assert results(reports)["good"].pairs == RUNGS[-1].pairs
    assert results(reports)["good"].ratio == pytest.approx(2.0)


def test_what_does_not_run_loses_alone(raced) -> None:
    error = UnverifiedError("no kernel")
    reports, _ = raced({"own": 1.0, "broken": error, "good": 0.5})
    measurements = results(reports)
    assert (measurements["broken"].pairs, measurements["broken"].reason) == (0, "no kernel")
    assert measurements["broken"].reason not in SKIPPED
    assert measurements["good"].pairs == RUNGS[-1].pairs


def test_a_form_that_fails_later_on_loses_with_its_reason(raced) -> None:
    first_round = WARMUP_RUNS + PAIRS

    def milliseconds(run: int) -> float:
        if run > first_round:
            raise UnverifiedError("out of memory")
        return 0.4

    reports, track = raced({"own": 1.0, "failing": milliseconds, "good": 0.5})
    assert track.runs["failing"] == first_round + 1
    measurements = results(reports)
    assert measurements["failing"] == Measurement.lost("out of memory")
    assert measurements["good"].pairs == RUNGS[-1].pairs


def test_a_layer_that_does_not_run_ends_the_race(raced) -> None:
    with pytest.raises(UnverifiedError, match="no kernel"):
        raced({"own": UnverifiedError("no kernel"), "a": 1.0})


def test_what_cannot_win_is_not_run(raced) -> None:
    limit = MILLI * PEAK * PEAK_MARGIN / 2
    for macs, runs in ((limit * 0.99, True), (limit * 1.01, False)):
        reports, track = raced({"own": 1.0, "a": 0.5}, macs=macs)
        assert (track.runs["a"] > 0) == runs
        assert ("multiply-adds" in results(reports)["a"].reason) == (not runs)
        assert (results(reports)["a"].reason in SKIPPED) == (not runs)


@pytest.mark.parametrize("as_is_seconds", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("peak", [1e9, 1e11, 1e14])
def test_nothing_is_ruled_out_that_could_win(as_is_seconds: float, peak: float) -> None:
    for rate in (0.01 * peak, peak, PEAK_MARGIN * peak):
        for share in (0.01, 0.5, 0.999):
            macs = share * as_is_seconds * rate / 2  # of a form that takes that share of the time
            assert not out_of_reach(macs, as_is_seconds, peak)
    assert out_of_reach(1.001 * as_is_seconds * PEAK_MARGIN * peak / 2, as_is_seconds, peak)


def test_the_share_of_time_ends_a_race_and_nothing_is_left_out(raced) -> None:
    forms = {f"form{i}": 1.0 for i in range(30)}
    reports, track = raced({"own": 1.0, **forms}, budget=0.1)
    measurements = results(reports)
    assert measurements.keys() == {AS_IS, *forms}
    ran = [key for key in forms if measurements[key].pairs]
    late = [key for key in forms if not measurements[key].pairs]
    assert ran == list(forms)[: len(ran)]
    assert {measurements[key].reason for key in late} == {NO_TIME}
    warm_up = WARMUP_RUNS + 1  # runs of a form, and one of the layer as it is
    form_seconds = warm_up + 2 * PAIRS
    seconds = (1 + len(ran)) * form_seconds
    assert FIRST_SHARE * 100 <= seconds <= FIRST_SHARE * 100 + form_seconds
    assert track.now <= (100 + warm_up + 2 * RUNGS[-1].pairs) * MILLI


def test_the_first_form_runs_whatever_the_time(raced) -> None:
    reports, _ = raced({"own": 1.0, "first": 0.5, "second": 0.5}, budget=0.0)
    measurements = results(reports)
    assert measurements["first"].pairs == PAIRS
    assert (measurements["second"].pairs, measurements["second"].reason) == (0, NO_TIME)


def test_no_layer_but_the_first_begins_when_the_time_is_over(raced) -> None:
    layers = [{own: 1.0, f"{own}0": 1.0} for own in "abc"]
    for budget, subjects in ((-1.0, {"a"}), (0.01, {"a"}), (9.0, {"a", "b", "c"})):
        reports, _ = raced(*layers, budget=budget)
        assert {report.subject for report in reports} == subjects


def test_inputs_do_not_outlive_a_race(raced) -> None:
    fixed_feeds((Port("x", "float32", (1, 2)),))
    raced({"own": 1.0, "a": 1.0})
    assert fixed_feeds.cache_info().currsize == 0


def test_a_layer_gets_time_by_the_runs_that_it_needs() -> None:
    """The second layer has ten times as many models to run, so the first may not take half."""
    few, many = workload("few", *"ab"), workload("many", *map(str, range(29)))
    assert _need(many) == pytest.approx(10 * _need(few))
    assert _need(replace(few, predicted_seconds=2.0)) == pytest.approx(2 * _need(few), rel=0.01)


def test_time_is_shared_out_and_what_a_layer_leaves_goes_to_the_others(raced) -> None:
    several = [{own: 1.0, **{f"{own}{i}": 1.0 for i in range(40)}} for own in "abcd"]
    reports, track = raced(*several, budget=1.2)
    outcomes = [item for item in reports if isinstance(item, CandidateResult)]
    counts = Counter(entry.subject for entry in outcomes if entry.measurement.pairs)
    assert counts["a"] <= 41  # all of them would take 0.85 s
    assert all(counts[own] > 5 for own in "abcd")
    assert track.now < 1.3
    reports, _ = raced({"x": 1.0, "x0": 1.0}, several[0], budget=1.3)
    assert not any(ran.measurement.reason for ran in reports if isinstance(ran, CandidateResult))


def test_a_slow_form_is_not_silent_for_long(raced) -> None:
    reports, _ = raced({"own": 1000.0, "slow": 900.0})
    measurements = results(reports)["slow"]
    assert PAIRS <= measurements.pairs <= math.ceil(FORM_SECONDS / 1.9)
    reports, _ = raced({"own": 2000 * FORM_SECONDS, "slow": 2000 * FORM_SECONDS})
    assert results(reports)["slow"].pairs == PAIRS


def test_a_real_race_of_a_real_layer() -> None:
    from tests.small_models import conv
    from tests.tuning.workloads.tool import workload_of

    workload = workload_of(conv([1, 1, 4, 16], (1, 1, 3, 3), pads=[1, 1, 1, 1]))
    reports: list[object] = []
    race([replace(workload, forms=workload.forms[:5])], OPTIONS, 60.0, send=reports.append)
    assert results(reports).keys() == {AS_IS, *(form.spec for form in workload.forms[:5])}
    assert all(r.pairs or r.reason for r in results(reports).values())
    assert any(r.pairs for key, r in results(reports).items() if key != AS_IS)


def test_options_of_sessions_reach_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    class OpenedError(Exception):
        pass

    def open_session(model: object, options: RuntimeOptions, *_: object, **others: object) -> None:
        raise OpenedError(options.session_options)

    from tests.small_models import conv
    from tests.tuning.workloads.tool import workload_of

    monkeypatch.setattr(successive_halving, "peak_speed", lambda setting: 1e12)
    monkeypatch.setattr(settings, "open_session", open_session)
    chosen = {"session.disable_prepacking": "1"}
    options = replace(
        OPTIONS,
        setting=Setting(Level.ALL, RuntimeOptions(provider=Provider.CPU, session_options=chosen)),
    )
    with pytest.raises(OpenedError) as caught:
        race([workload_of(conv([1, 1, 4, 16], (1, 1, 3, 3)))], options, 1.0, send=print)
    assert caught.value.args == (chosen,)


def test_without_a_runtime_no_layer_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the layer would be stored as lost, for days."""

    def unusable(options: RuntimeOptions) -> RuntimeOptions:
        raise UnverifiedError("provider cuda cannot be used")

    monkeypatch.setattr(successive_halving, "resolved", unusable)
    reports: list[Start | CandidateResult] = []
    with pytest.raises(UnverifiedError, match="cannot be used"):
        race([workload("own")], OPTIONS, 5.0, send=reports.append)
    assert reports == []
