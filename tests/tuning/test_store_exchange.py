"""Stores as lines of JSON: exported, taken in, refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.tuning.measurements import LOST, key, measured
from widthfold_onnx.errors import UsageError
from widthfold_onnx.results import Key
from widthfold_onnx.tuning.store.store import LONGEST_LINE, Store, export_lines, import_lines


def test_an_export_is_ascii_lines_and_comes_back_whole() -> None:
    nasty = '\x1b[2J\u202e\n"\\\x00é\U0001f600'
    with Store(None) as store, Store(None) as other:
        store.put(key(nasty, machine=nasty), measured())
        store.put(key("z"), msgspec.structs.replace(LOST, reason=nasty))
        lines = list(export_lines(store))
        for line in lines:
            assert line.isascii()
            assert line[:-1].isprintable()
            assert line.endswith("\n")
            assert json.loads(line)["schema"] == "widthfold.measurement/1"
        assert import_lines(other, lines) == (2, 0)
        assert list(other.items()) == list(store.items())
        assert import_lines(other, [line.encode() for line in lines]) == (0, 2)


@pytest.mark.parametrize(
    ("here", "there", "stays"),
    [
        ("2026-03-01T12:00:00+00:00", "2026-03-01T12:00:01Z", 2),
        ("2026-03-01T12:00:01Z", "2026-03-01T12:00:00+00:00", 1),
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00.5+00:00", 2),  # not as texts compare
        ("2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00Z", 1),
    ],
)
def test_of_two_measurements_the_later_one_stays(here: str, there: str, stays: int) -> None:
    with Store(None) as store, Store(None) as other:
        store.put(key(), measured(taken=here, rounds=1))
        other.put(key(), measured(taken=there, rounds=2))
        assert import_lines(store, export_lines(other)) == ((1, 0) if stays == 2 else (0, 1))
        assert [value.rounds for _, value in store.items()] == [stays]


def test_lines_with_the_same_key_count_one_by_one() -> None:
    lines = []
    for second in (3, 1, 5):
        with Store(None) as store:
            store.put(key(), measured(taken=f"2026-03-01T12:00:0{second}Z", rounds=second))
            lines += export_lines(store)
    with Store(None) as store:
        assert import_lines(store, lines) == (2, 1)
        assert [value.rounds for _, value in store.items()] == [5]


def _line(**changes: object) -> str:
    entry = {
        "schema": "widthfold.measurement/1",
        "key": msgspec.to_builtins(key("new")),
        "measurement": msgspec.to_builtins(measured()),
    }
    for name, value in changes.items():
        part = entry["key"] if name in Key.__struct_fields__ else entry["measurement"]
        (part if name != "schema" and name != "extra" else entry)[name] = value
    return json.dumps(entry)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "\n",
        "{}",
        "[]",
        "null",
        "\ud800",
        b"\xff\xfe",
        "{" * 100_000,
        '{"a":' * 100_000,
        _line() + _line(),
        _line()[:-1],
        _line(schema="widthfold.measurement/2"),
        _line(extra=1),
        _line(subject=1),
        _line(subject=None),
        _line(status="fine"),
        _line(ratio="1.5"),
        _line(ratio=True),
        _line(ratio=-1.0),
        _line(ratio=float("nan")),
        _line(ratio=float("inf")),
        _line().replace("1.5", "1e999"),
        _line().replace("1.5", "9" * 5000),
        _line(rounds=1.5),
        _line(rounds=-1),
        _line(rounds=10**4000),
        _line(taken="yesterday"),
        _line(taken="\x1b[2J\n"),
        _line(low=2.0),
        _line(low=0.0),
        _line() + " " * LONGEST_LINE,
        b"x" * (LONGEST_LINE + 1),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_taken_in(path: Path, bad: str | bytes) -> None:
    with Store(path) as store:
        store.put(key(), measured())
        with pytest.raises(UsageError) as caught:
            import_lines(store, [_line(), bad, _line(subject="later")])
        assert str(caught.value).startswith("line 2 ")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400
        assert [item for item, _ in store.items()] == [key()]


def test_an_import_that_is_cut_short_takes_in_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, count = Store.put, iter(range(100))

    def stops(self: Store, *args: object) -> None:
        if next(count) == 2:
            raise KeyboardInterrupt
        put(self, *args)

    with Store(path) as store:
        monkeypatch.setattr(Store, "put", stops)
        with pytest.raises(KeyboardInterrupt):
            import_lines(store, [_line(subject=str(n)) for n in range(5)])
        assert len(store) == 0
        monkeypatch.undo()
        assert import_lines(store, [_line()]) == (1, 0)
