"""What is said of two models that were timed on a machine of our own."""

from dataclasses import replace

import numpy as np
import pytest

from tests.evidence.machine import NODES, costs
from widthfold_onnx.evidence.timing import speed
from widthfold_onnx.evidence.timing.speed import time_models
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.runtime.clock import paired


@pytest.mark.parametrize(
    ("rewritten", "verdict"), [(8, "faster"), (12.5, "slower"), (10.1, "no difference")]
)
def test_the_verdict_is_that_of_the_pairs(measured, rewritten, verdict):
    timing, _ = measured(costs(10, 90, rewritten, 90), time_budget=100)
    assert timing.verdict == verdict
    assert timing.low == timing.high == pytest.approx(10 / rewritten)
    assert (timing.provider, timing.threads, timing.note) == ("cpu", 1, "")


def test_too_few_pairs_are_inconclusive(measured):
    timing, _ = measured(costs(1000, 9000, 1000, 9000), time_budget=10)
    assert timing.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("load", "threads", "cores", "verdict", "noted"),
    [
        (0.0, 1, 2, "faster", False),
        (1.0, 1, 2, "faster", False),
        (1.1, 1, 2, "faster", True),
        (0.0, 2, 2, "faster", False),
        (0.1, 2, 2, "inconclusive", True),
        (1.9, 2, 4, "faster", False),
        (2.1, 2, 4, "inconclusive", True),
    ],
)
def test_several_threads_on_a_crowded_machine_show_nothing(
    measured, load, threads, cores, verdict, noted
):
    times = costs(10, 90, 8, 90)
    timing, machine = measured(times, load=load, threads=threads, cores=cores, time_budget=100)
    assert timing.verdict == verdict
    assert bool(timing.note) is noted
    assert (f"load {load:.1f} on {cores} cores" in timing.note) is noted
    assert {count for _, _, count in machine.opened} == {threads}


def test_the_copy_of_the_original_is_the_control(measured):
    timing, _ = measured([0, 10, 99, 8, 99, 11], time_budget=100)
    assert timing.control == pytest.approx(0.1)
    assert set(timing.control_ms) == {11.0}
    assert timing.verdict == "faster"
    noisy, _ = measured([0, 10, 99, 9, 99, 11], time_budget=100)
    assert noisy.verdict == "no difference"


def test_the_sides_hold_their_own_figures(measured):
    timing, _ = measured(costs(10, 90, 8, 90), time_budget=100)
    before, after = timing.original, timing.rewritten
    assert (before.median_ms, before.p90, before.p99) == (10.0, 10.0, 10.0)
    assert (after.median_ms, set(after.samples_ms)) == (8.0, {8.0})
    assert (before.file_bytes, after.file_bytes, before.peak_mib) == (5, 6, 12.3)
    assert len(before.nodes) == len(NODES)
    assert sum(before.providers.values()) == len(NODES)
    assert timing.pairs == len(before.samples_ms) == len(timing.control_ms)


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (500, 500), (501, 251), (1201, 401)])
def test_samples_are_thinned_evenly(count, kept):
    samples = speed._thinned(np.arange(1, count + 1) * 1e-3)
    assert len(samples) == kept <= speed.KEPT_SAMPLES
    assert samples[0] == 1.0
    assert len(set(np.diff(samples))) <= 1
    assert samples[-1] > count - count / kept


def test_percentiles_are_those_of_all_samples(measured):
    def pairs(*sides, budget, fewest, clock):
        times = np.tile(np.arange(1, 1002) * 1e-3, (3, 1)).T
        return replace(paired(*sides, budget=0.0, clock=lambda: 1, wall=lambda: 1), samples=times)

    side = measured(costs(10, 90, 8, 90), pairs=pairs)[0].original
    assert (side.median_ms, side.p90, side.p99) == (501.0, 901.0, 991.0)
    assert len(side.samples_ms) == 334


def test_progress_names_both_models(measured, monkeypatch, tmp_path):
    measured(costs(10, 90, 8, 90))
    lines = []
    time_models(
        tmp_path / "a.onnx",
        tmp_path / "b.onnx",
        VerifyOptions(provider=Provider.CPU, time_budget=0.1),
        {"x": (1, 256)},
        report=lines.append,
    )
    assert lines == [
        "timing: choosing settings",
        "timing: alternating runs",
        "profile of a.onnx",
        "profile of b.onnx",
    ]


@pytest.mark.parametrize(("before", "crowded"), [(None, True), (0.0, False), (9.0, True)])
def test_what_the_comparison_of_values_added_to_the_load_is_not_a_busy_machine(
    measured, before, crowded
):
    timing, _ = measured(costs(10, 90, 8, 90), load=1.5, before=before, threads=2, cores=2)
    assert timing.crowded is crowded
    assert (timing.verdict == "inconclusive") is crowded
