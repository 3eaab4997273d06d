"""Runs per second of several streams at once; the clocks here are of our own."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, RuntimeOptions, VerifyOptions
from widthfold_onnx.runtime import paired_benchmark, streams
from widthfold_onnx.runtime.inputs.rotation import Rotation
from widthfold_onnx.runtime.intervals import MIN_PROCESSES
from widthfold_onnx.runtime.sessions.session import Level
from widthfold_onnx.runtime.settings import Setting
from widthfold_onnx.runtime.streams import throughput, time_streams

MODELS = Path("a.onnx"), Path("b.onnx")
CPU = RuntimeOptions(provider=Provider.CPU)
SETTINGS = Setting(Level.ALL, CPU), Setting(Level.EXTENDED, CPU)
WAIT = 20


def rate(runs, seconds):
    with ThreadPoolExecutor(len(runs)) as pool:
        return streams._rate(pool, runs, seconds)


@pytest.fixture
def own_clocks(monkeypatch):
    """A clock of each thread, which only `passes` moves."""
    local = threading.local()

    def now():
        return getattr(local, "now", 0.0)

    def passes(seconds):
        local.now = now() + seconds

    for module in (streams, paired_benchmark):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=now))
    return passes


def test_all_streams_run_at_once():
    """Every run waits for one of each other stream, so that they end only if they overlap."""
    meeting = threading.Barrier(4)
    rate([lambda count: meeting.wait(WAIT)] * 4, 0)
    with pytest.raises(threading.BrokenBarrierError):
        rate([lambda count: threading.Barrier(2).wait(0.01)], 0)


def test_no_stream_counts_while_it_waits_for_others(own_clocks):
    costs = (0.01, 0.04, 0.3)
    runs = [lambda count, cost=cost: own_clocks(cost) for cost in costs]
    assert rate(runs, 0.1) == pytest.approx(sum(1 / cost for cost in costs))


def test_a_stream_that_starts_late_does_not_run_as_fast_as_the_machine(monkeypatch):
    """On one core the second of two streams starts when the first has ended."""
    now, core = [0.0], threading.Semaphore(1)

    class OneCore(threading.Barrier):
        def wait(self, timeout=None):
            super().wait(WAIT)
            assert core.acquire(timeout=WAIT)

    def run(count):
        now[0] += 0.5

    def clock():
        passed = now[0]
        if passed and threading.current_thread() is not threading.main_thread():
            core.release()
        return passed

    monkeypatch.setattr(streams.threading, "Barrier", OneCore)
    monkeypatch.setattr(streams, "time", SimpleNamespace(perf_counter=clock))
    assert rate([run, run], 0.1) == pytest.approx(1 / 0.5 + 1 / 1.0)


def test_a_stream_that_stops_is_an_error():
    def stops(count):
        raise UnverifiedError("m.onnx does not run")

    with pytest.raises(UnverifiedError, match="does not run"):
        rate([lambda count: None, stops], 0)


def test_a_stream_that_gets_no_thread_is_an_error_and_nobody_waits(monkeypatch):
    start, started = threading.Thread.start, []

    def limited(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    class Barrier(threading.Barrier):
        def abort(self):
            aborted.append(self)
            super().abort()

    aborted = []
    monkeypatch.setattr(threading.Thread, "start", limited)
    monkeypatch.setattr(streams.threading, "Barrier", partial(Barrier, timeout=WAIT))
    with pytest.raises(UnverifiedError, match="3 streams do not run at once: can't start"):
        rate([lambda count: None] * 3, 0)
    assert aborted


@pytest.mark.parametrize(("turn", "order"), [(0, "aabb bbaa"), (1, "bbaa aabb")])
def test_each_stream_has_a_session_and_the_models_alternate(monkeypatch, own_clocks, turn, order):
    opened, ran = [], []

    def open_at(model, setting):
        opened.append((model.stem, setting.level))
        return model.stem

    def rounds_of(session, feeds):
        return lambda count: (ran.append(session), own_clocks(2.0 if session == "a" else 0.5))

    calls = iter([0.0, 9.0])
    monkeypatch.setattr(streams, "open_at", open_at)
    monkeypatch.setattr(streams, "rounds_of", rounds_of)
    clock = streams.time.perf_counter
    at_main = threading.main_thread()
    monkeypatch.setattr(
        streams.time,
        "perf_counter",
        lambda: next(calls) if threading.current_thread() is at_main else clock(),
    )
    rates = time_streams(MODELS, SETTINGS, 2, [], 1.0, turn)
    assert opened == [("a", Level.ALL)] * 2 + [("b", Level.EXTENDED)] * 2
    assert "".join(ran) == "aabb" + order.replace(" ", "")
    np.testing.assert_allclose(rates, [[1.0, 1.0], [4.0, 4.0]])


@pytest.mark.parametrize(("cost", "processes"), [(1.0, MIN_PROCESSES), (3.0, 3), (9.0, 1), (99, 1)])
def test_processes_begin_while_the_time_lasts(monkeypatch, own_clocks, cost, processes):
    asked = []

    def isolated(function, models, settings, count, inputs, seconds, turn):
        assert function is time_streams
        asked.append((turn, count, len(inputs), seconds))
        own_clocks(cost)
        return np.array([[100.0, 110.0, 90.0], [200.0, 220.0, 180.0]]) * (1 + turn % 2)

    monkeypatch.setattr(paired_benchmark, "isolated", isolated)
    found = SimpleNamespace(
        models=MODELS,
        options=VerifyOptions(provider=Provider.CPU, streams=4),
        inputs=Rotation([{}] * 64, random=True),
        choice=SimpleNamespace(settings=SETTINGS),
    )
    made = throughput(found, 10.0)
    assert asked == [(turn, 4, 16, 2.1) for turn in range(processes)]
    assert (made.streams, made.processes, made.blocks) == (4, processes, 3 * processes)
    assert made.ratio == pytest.approx(2)
    assert made.low < 2 < made.high
    assert made.rewritten == pytest.approx(2 * made.original)
    assert made.low < 1.93 if processes == 1 else made.low > 1.93


def test_the_interval_is_no_narrower_than_the_scatter_of_blocks():
    """Medians of the processes agree by chance here; Student's t at three pairs is 4.30."""
    logs = [np.array([0.0, 0.3, -0.3])] * 4
    assert streams._ratio(logs[:1]) == pytest.approx((0, -4.3027 * 0.3 / 3**0.5, 0.7452), abs=1e-3)
    middle, low, high = streams._ratio(logs)
    assert (middle, low) == (0, -high)
    assert high == pytest.approx(2.2010 * np.concatenate(logs).std(ddof=1) / 12**0.5, rel=1e-3)
