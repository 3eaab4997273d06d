"""Searches that run at once on one store find what one alone finds."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.small_models import build, save
from tests.tuning.search.nets import THREE, found, status
from tests.tuning.store.measurements import TAKEN
from tests.tuning.world import World, doubled, enter, folded
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.store import Key, Store

GAINS = {"first": 1.0, "second": -1.0, "third": 2.0}
SEARCHES = 2


def searched(folder: Path, store: Path) -> frozenset[str]:
    """Search in a folder; return the layers that were folded."""
    folder.mkdir()
    model = save(build(THREE), folder / "model.onnx")
    report = found(model, store=store)
    names = folded(model.with_name("out.onnx"))
    assert names == {name for name, code in status(report).items() if code == "folded"}
    return names


def entries(store: Path) -> dict[Key, Measurement]:
    """The entries without the times at which they were taken."""
    with Store(store) as opened:
        return {key: replace(value, timestamp=TAKEN) for key, value in opened.items()}


def waiting(wait: Callable[[], object]) -> World:
    """A world whose first race waits: no search begins after another one has stored anything."""
    seen = threading.local()

    def alone(layer: dict[str, Any], form: dict[str, Any]) -> tuple[float, float]:
        if not hasattr(seen, "first"):
            seen.first = form
            wait()
        return doubled(layer, form)

    return World(alone, GAINS)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Key, Measurement]:
    """What one search stores."""
    enter(monkeypatch, World(doubled, GAINS))
    assert searched(tmp_path / "alone", tmp_path / "alone.sqlite") == {"first", "third"}
    return entries(tmp_path / "alone.sqlite")


def test_searches_in_threads(
    tmp_path: Path, alone: dict[Key, Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, waiting(threading.Barrier(SEARCHES, timeout=60).wait))
    store = tmp_path / "both.sqlite"
    with ThreadPoolExecutor(SEARCHES) as pool:
        tasks = [pool.submit(searched, tmp_path / str(n), store) for n in range(SEARCHES)]
        assert [task.result() for task in tasks] == [{"first", "third"}] * SEARCHES
    assert entries(store) == alone


def _search(folder: Path, store: Path, barrier: Any) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        enter(monkeypatch, waiting(barrier.wait))
        assert searched(folder, store) == {"first", "third"}


def test_searches_in_processes(tmp_path: Path, alone: dict[Key, Measurement]) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(SEARCHES, timeout=60)
    store = tmp_path / "both.sqlite"
    searches = [
        context.Process(target=_search, args=(tmp_path / str(n), store, barrier))
        for n in range(SEARCHES)
    ]
    for search in searches:
        search.start()
    for search in searches:
        search.join(120)
    assert [search.exitcode for search in searches] == [0] * SEARCHES
    assert entries(store) == alone
