"""Stores in memory, and races that run in this process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.tuning.races import behaving
from widthfold_onnx.tuning import bench as bench_module
from widthfold_onnx.tuning.store import Store


@pytest.fixture
def store():
    with Store(None) as opened:
        yield opened


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch):
    """Make races run in this process, as `behaving` acts, by the clock that is returned."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(bench_module, "time", clock)
    clock.races = []

    def isolated(race, workloads, options, seconds, *, on_message, **limits) -> None:
        clock.races.append(([(u.subject, [f.spec for f in u.forms]) for u in workloads], seconds))
        race(workloads, options, seconds, send=on_message)

    monkeypatch.setattr(bench_module, "isolated", isolated)
    monkeypatch.setattr(bench_module, "race", behaving)
    return clock
