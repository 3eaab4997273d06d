"""Verdicts on two models that were timed on a machine of our own."""

import math
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.evidence.timing.machine import NODES, costs, unread
from tests.runtime.fake_nvml import FakeNvml
from widthfold_onnx.evidence.timing import speed
from widthfold_onnx.evidence.timing.speed import time_models
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.progress import progress_to


@pytest.mark.parametrize(
    ("rewritten", "verdict"), [(8, "faster"), (12.5, "slower"), (10.05, "no difference")]
)
def test_the_verdict_is_that_of_the_pairs(measured, rewritten, verdict):
    timing, _ = measured(costs(10, 90, rewritten, 90), time_budget=100)
    assert timing.verdict == verdict
    assert timing.speedup == pytest.approx(10 / rewritten)
    assert timing.low < timing.speedup < timing.high
    assert (timing.provider, timing.threads, timing.note) == ("cpu", 1, "")


def test_one_process_is_not_enough_for_a_small_difference(measured):
    timing, _ = measured(costs(1000, 9000, 1040, 9000), time_budget=10)
    assert timing.processes == 1
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


def test_the_sessions_of_the_original_are_the_control(measured):
    # The first and the second session of each model, which the processes open in turn.
    turns = [10, 9.6, 9.6, 11, 10, 9.6, 9.6, 11, 9.6, 10, 11, 9.6, 9.6, 10, 11, 9.6] * 20
    timing, _ = measured([10, 99, 9.6, 99, *turns], time_budget=100)
    assert timing.control == pytest.approx(0.1)
    assert timing.speedup == pytest.approx((10 * 11) ** 0.5 / 9.6)
    assert timing.verdict == "inconclusive"


def test_the_sides_hold_their_own_figures(measured):
    timing, _ = measured(costs(10, 90, 8, 90), time_budget=100)
    before, after = timing.original, timing.rewritten
    assert (before.median_ms, before.p90, before.p99) == (10.0, 10.0, 10.0)
    assert (after.median_ms, set(np.ravel(after.samples_ms))) == (8.0, {8.0})
    assert (before.load_ms, before.first_ms, after.first_ms) == (0.0, 10.0, 8.0)
    assert (before.outliers, after.outliers) == (0, 0)
    assert (before.file_bytes, after.file_bytes) == (5, 6)
    assert len(before.nodes) == len(NODES)
    assert sum(before.providers.values()) == len(NODES)
    assert timing.pairs == np.size(before.samples_ms) == np.size(after.samples_ms)
    assert len(before.samples_ms) == timing.processes
    assert {len(process) for process in before.samples_ms} == {timing.sessions}


@pytest.mark.parametrize(
    ("count", "expected"), [(1, 1), (62, 62), (63, 32), (500, 56), (10**5, 63)]
)
def test_samples_are_thinned_evenly(count, expected):
    samples = speed.thinned(np.tile(np.arange(1, count + 1) * 1e-3, (4, 2, 1)))
    assert (len(samples), len(samples[0])) == (4, 2)
    runs = samples[0][0]
    assert len(runs) <= speed.KEPT_SAMPLES // 8
    assert runs[0] == 1.0
    assert len(set(np.diff(runs))) <= 1
    assert runs[-1] > count - count / len(runs)
    assert samples[3][1] == runs
    assert len(runs) == pytest.approx(expected, rel=0.02)


def test_runs_beyond_the_fences_of_their_session_are_outliers():
    runs = np.full((2, 2, 40), 1e-3) + np.linspace(0, 1e-5, 40)
    runs[1] *= 3  # another session may be slower as a whole
    assert speed.outliers(runs) == 0
    runs[0, 1, 5] *= 1.5
    runs[1, 0, 7] /= 1.5
    assert speed.outliers(runs) == 2


def test_the_gpu_of_a_timing_is_described(measured, monkeypatch):
    fake = FakeNvml(reasons=4)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    timing, _ = measured(costs(10, 90, 8, 90), provider=Provider.CUDA, time_budget=100)
    assert timing.gpu is not None
    assert (timing.gpu.name, timing.gpu.missing) == ("Fake GPU", "")
    assert timing.gpu.before.sm_mhz > timing.gpu.after.sm_mhz
    assert timing.gpu.throttled == [["SwPowerCap"]] * timing.processes


def test_a_gpu_that_nobody_can_ask_is_said_to_be_unknown(measured, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    timing, _ = measured(costs(10, 90, 8, 90), provider=Provider.CUDA, time_budget=100)
    assert timing.gpu.missing.startswith("nvidia-ml-py is missing")
    assert timing.gpu.before is None
    assert measured(costs(10, 90, 8, 90), time_budget=100)[0].gpu is None


def test_progress_names_both_models(measured, monkeypatch, tmp_path):
    measured(costs(10, 90, 8, 90))
    steps = []
    with progress_to(steps.append):
        time_models(
            unread(tmp_path / "a.onnx"),
            unread(tmp_path / "b.onnx"),
            VerifyOptions(provider=Provider.CPU, time_budget=0.1),
            ({"x": (1, 256)},),
            load=0.0,
        )
    assert [step.text for step in steps] == [
        "timing: choosing settings",
        "timing: alternating runs",
        "profile of a.onnx",
        "profile of b.onnx",
    ]


@pytest.mark.parametrize(("before", "crowded"), [(math.inf, True), (0.0, False), (9.0, True)])
def test_what_the_comparison_of_values_added_to_the_load_is_not_a_busy_machine(
    measured, before, crowded
):
    timing, _ = measured(costs(10, 90, 8, 90), load=1.5, before=before, threads=2, cores=2)
    assert timing.crowded is crowded
    assert (timing.verdict == "inconclusive") is crowded


def test_files_of_external_data_count_once_each(tmp_path):
    weights = [
        numpy_helper.from_array(np.full(size, 1, np.float32), name)
        for name, size in (("a", 1000), ("b", 2000), ("c", 500))
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    nodes = [helper.make_node("Concat", ["x", *"abc"], ["y"], axis=0)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inside, outside = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, inside)
    assert speed.file_bytes(load(inside)) == inside.stat().st_size > 14000
    onnx.save(model, outside, save_as_external_data=True, location="w.data", size_threshold=3000)
    held = (tmp_path / "w.data").stat().st_size
    assert held >= 12000
    assert speed.file_bytes(load(outside)) == outside.stat().st_size + held
