"""Layers that are measured, layers that are not measured again, and the end of measuring."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from tests.tuning.races import OPTIONS, bench, kept, workload
from widthfold_onnx.progress import progress_to
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning import bench as bench_module
from widthfold_onnx.tuning.bench import MORE_TIME, Bench, Budget
from widthfold_onnx.tuning.measurement import AS_IS, NO_TIME, CandidateResult, Measurement
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.successive_halving import Start

# ---------------------------------------------------------------- stored measurements


def test_only_what_is_missing_is_measured(store: Store, inside) -> None:
    bench(store).measure([workload("one", "a"), workload("two", "a")], Budget(60.0))
    used = bench(store)
    used.measure([workload("one", "a", "b"), workload("two", "a"), workload("three")], Budget(60.0))
    assert [workloads for workloads, _ in inside.races[1:]] == [[("one", ["b"]), ("three", [])]]
    assert len(used.new_measurements) == 3
    stored = kept(store)["one", "b"]
    assert (stored.ratio, stored.low, stored.high, stored.pairs) == (1.5, 1.4, 1.6, 4)
    assert (stored.seconds, stored.status, stored.reason) == (1e-3, "ok", "")


def test_another_setting_or_machine_knows_nothing(store: Store, inside) -> None:
    bench(store).measure([workload("one", "a")], Budget(60.0))
    extended = dataclasses.replace(OPTIONS.setting, level=Level.EXTENDED)
    for options, machine, count in (
        (OPTIONS, "machine", 0),
        (dataclasses.replace(OPTIONS, setting=extended), "machine", 2),
        (OPTIONS, "other", 2),
    ):
        used = Bench(options, store, machine)
        used.measure([workload("one", "a")], Budget(60.0))
        assert len(used.new_measurements) == count


def test_what_had_no_time_gets_another_chance_with_more_of_it(
    store: Store, inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(workloads, options, seconds, *, send) -> None:
        for item in workloads:
            send(Start(item.subject, AS_IS))
            send(CandidateResult(item.subject, AS_IS, Measurement.of_ratio(1.0, 1.0, 1.0, 1.0, 4)))
            send(CandidateResult(item.subject, "a", Measurement.lost(NO_TIME)))

    monkeypatch.setattr(bench_module, "race", race)
    for budget, races in ((10.0, 1), (10.0, 1), (10 * MORE_TIME - 1, 1), (10 * MORE_TIME, 2)):
        bench(store).measure([workload("one", "a")], Budget(budget))
        assert len(inside.races) == races
    assert kept(store)["one", "a"].status == "lost"


@pytest.mark.parametrize("what", [AS_IS, "a"])
def test_what_was_lost_is_tried_again_after_a_week(store: Store, inside, what: str) -> None:
    bench(store).measure([workload("one", "a", "b")], Budget(60.0))
    for days, races in ((6, 0), (8, 1)):
        day = datetime.now(UTC) - timedelta(days=days)
        reason = Measurement.lost("out of memory")
        old = replace(reason, timestamp=day.isoformat())
        bench(store).save(CandidateResult("one", what, old))
        inside.races.clear()
        bench(store).measure([workload("one", "a", "b")], Budget(60.0))
        assert len(inside.races) == races
    assert {item.status for item in kept(store).values()} == {"ok"}


# ---------------------------------------------------------------- how it ends


def test_what_a_wide_interval_left_open_is_measured_again_with_more_time(
    store: Store, inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {"open": (1.0, 1.1), "slower": (0.9, 1.0), "faster": (1.04, 1.2)}

    def race(workloads, options, seconds, *, send) -> None:
        for item in workloads:
            send(Start(item.subject, AS_IS))
            send(CandidateResult(item.subject, AS_IS, Measurement.of_ratio(1.0, 1.0, 1.0, 1.0, 4)))
            for form in item.forms:
                low, high = ends[form.spec]
                measurement = Measurement.of_ratio(1.0, low, high, 1.0, 4)
                send(CandidateResult(item.subject, form.spec, measurement))

    monkeypatch.setattr(bench_module, "race", race)
    for seconds in (10.0, 10 * MORE_TIME - 1, 10 * MORE_TIME):
        bench(store).measure([workload("one", *ends)], Budget(seconds))
    assert [forms for ((_, forms),), _ in inside.races] == [list(ends), ["open"]]


def test_an_interrupt_keeps_what_was_measured(store: Store, inside) -> None:
    def interrupt(step: object) -> None:
        if len(kept(store)) >= 4:
            raise KeyboardInterrupt

    workloads = [workload(name, "a") for name in ("one", "two", "three", "four")]
    with progress_to(interrupt), pytest.raises(KeyboardInterrupt):
        bench(store).measure(workloads, Budget(60.0))
    assert {subject for subject, _ in kept(store)} == {"one", "two"}
    bench(store).measure(workloads, Budget(60.0))
    assert [subject for subject, _ in inside.races[1][0]] == ["three", "four"]
