"""A store that may only be read: it answers, forgets new measurements, and says so."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.folding import optimize
from tests.small_models import MODELS
from tests.tuning.store.measurements import key, measured
from tests.tuning.workloads.tool import search_text
from tests.tuning.world import World, doubled, enter
from widthfold_onnx import UsageError
from widthfold_onnx.options import FoldOptions, Provider, SearchOptions
from widthfold_onnx.tuning import store as store_module
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.tune import tune

NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Not root, who may write everything."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everyone may enter, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)


def locked(store: Path, *, folder_too: bool) -> Path:
    store.chmod(0o444)
    store.parent.chmod(0o555 if folder_too else 0o777)
    return store


@pytest.fixture(params=[True, False], ids=["folder", "file"])
def store(folder: Path, request: pytest.FixtureRequest) -> Path:
    path = folder / "store.sqlite"
    with Store(path) as opened:
        for n in range(3):
            opened.put(key(n), measured(pairs=n + 1))
    return locked(path, folder_too=request.param)


def test_it_answers_and_forgets(store: Path) -> None:
    before = store.read_bytes()
    with unprivileged():
        with Store(store) as opened:
            assert opened.read_only
            assert [opened.get(key(n)).pairs for n in range(3)] == [1, 2, 3]
            opened.put(key(7), measured(pairs=9))
            assert opened.get(key(7)).pairs == 9
        with Store(store) as opened:
            assert len(list(opened.items())) == 3
            assert opened.get(key(7)) is None
    assert store.read_bytes() == before


def test_it_can_be_read_while_another_writes(folder: Path) -> None:
    path = folder / "store.sqlite"
    with Store(path) as writer:
        writer.put(key(0), measured(pairs=5))
        locked(path, folder_too=False)
        with unprivileged(), Store(path) as reader:
            assert reader.read_only
            assert not writer.read_only
            assert reader.get(key(0)).pairs == 5
        writer.put(key(1), measured())


def test_what_is_no_store_stays_none(folder: Path) -> None:
    path = folder / "other.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (a)")
    locked(path, folder_too=True)
    with unprivileged(), pytest.raises(UsageError, match="a database of another program"):
        Store(path)


def test_a_search_says_that_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(monkeypatch, World(doubled, {"head": 1.0, "bands": 0.0, "context": 0.0, "onset": 0.0}))
    usual = store_module.open_database
    # A child process of an unprivileged test could not even start where root's files are private.
    monkeypatch.setattr(
        store_module, "open_database", lambda path: usual(None)._replace(read_only=True)
    )
    model = MODELS / "pitch_cnn.onnx"
    options = SearchOptions(provider=Provider.CPU, store=tmp_path / "store.sqlite")
    report = optimize(model, None, FoldOptions(), None, options).search
    assert report is not None
    assert report.measured > 0
    assert report.store_read_only
    assert "not kept, because the store may only be read" in search_text(report)
    tuned = tune([model], FoldOptions(), options)
    assert tuned.store_read_only
    assert tuned.models[0].measured > 0  # it knew nothing of the first run


def test_a_store_that_may_be_written_says_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as opened, Store(None) as memory:
        assert not opened.read_only
        assert not memory.read_only
