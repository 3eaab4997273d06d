"""Measurements that were put are there, and the path of the store."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import msgspec
import platformdirs
import pytest

from tests.tuning.store.measurements import LOST, key, measured
from widthfold_onnx.errors import UsageError
from widthfold_onnx.tuning.store import Key, Store, default_path


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_was_put_is_found_and_nothing_else(path: Path, in_memory: bool) -> None:
    with Store(None if in_memory else path) as store:
        store.put(key(1), measured())
        store.put(key(2), LOST)
        assert store.get(key(1)) == measured()
        assert store.get(key(2)) == LOST
        assert len(list(store.items())) == 2
        for field in Key.__struct_fields__:
            other = msgspec.structs.replace(key(1), **{field: "other"})
            assert store.get(other) is None
    assert path.exists() != in_memory


def test_it_is_there_after_it_was_closed_and_the_last_put_counts(path: Path) -> None:
    exact = measured(ratio=0.1 + 0.2, low=5e-324, high=1.7976931348623157e308)
    with Store(path) as store:
        store.put(key(), measured())
        store.put(key(), exact)
    with Store(path) as store:
        assert store.get(key()) == exact
        assert len(list(store.items())) == 1


def test_items_are_sorted_by_key_whatever_the_order_of_puts() -> None:
    texts = [
        "",
        "a",
        "B",
        "b",
        "é",
        "ﬀ",
        "\U0001f600",
        "\x00",
        "a\x00b",
        "'; DROP TABLE x",
        "10",
        "9",
    ]
    keys = [key(subject, machine=machine) for subject in texts for machine in texts]
    random.Random(5).shuffle(keys)
    with Store(None) as store:
        for number, item in enumerate(keys):
            store.put(item, measured(pairs=number))
        assert [item for item, _ in store.items()] == sorted(keys)
        assert dict(store.items()) == {item: measured(pairs=n) for n, item in enumerate(keys)}


@pytest.mark.parametrize(
    "changes",
    [
        *({field: bad} for field in ("ratio", "low", "high", "seconds") for bad in ("nan", "inf")),
        *({field: "-1"} for field in ("ratio", "low", "seconds", "pairs")),
        {"low": "1.8"},
        {"ratio": "0"},
        {"reason": "why"},
        {"status": "lost"},
        {"status": "lost", "ratio": "0"},
        *({"timestamp": bad} for bad in ("", "now", "2026-03-01", "2026-03-01T12:00:00")),
        {"timestamp": "2026-03-01T12:00:00+01:00"},
    ],
)
def test_no_senseless_measurement_can_be_made(changes: dict[str, str]) -> None:
    numbers = {"ratio", "low", "high", "seconds", "pairs"}
    with pytest.raises(ValueError, match=r"finite|above|lost|UTC|isoformat"):
        measured(**{k: float(v) if k in numbers else v for k, v in changes.items()})


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WIDTHFOLD_STORE", "some/where")
    assert default_path() == Path("some/where")
    monkeypatch.setenv("WIDTHFOLD_STORE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert default_path() == tmp_path / "widthfold" / "measurements.sqlite"


@pytest.mark.skipif(sys.platform != "linux", reason="where caches lie differs")
def test_without_a_home_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WIDTHFOLD_STORE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(UsageError, match="set WIDTHFOLD_STORE"):
        default_path()
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: Path("~/.cache"))
    with pytest.raises(UsageError, match="set WIDTHFOLD_STORE"):
        default_path()
