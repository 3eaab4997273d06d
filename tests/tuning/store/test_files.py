"""Foreign files stay as they are, and a damaged store is one error."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import pytest

from tests.tuning.store.measurements import key, measured
from widthfold_onnx.errors import UsageError
from widthfold_onnx.tuning import store as store_module
from widthfold_onnx.tuning.store import Store


def refused(path: Path) -> str:
    """The message with which a file is not opened; the file is as it was."""
    before = path.read_bytes()
    with pytest.raises(UsageError) as caught:
        Store(path)
    assert path.read_bytes() == before
    message = str(caught.value)
    assert str(path) in message
    assert "WIDTHFOLD_STORE" in message
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    "content", [b"x", b"x" * 511, b"not a database\n" * 400, b"SQLite format 3\x00" * 99]
)
def test_a_file_that_is_no_database_stays(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    refused(path)


def test_a_database_of_another_program_stays(path: Path) -> None:
    path.parent.mkdir()
    for pragma in ("user_version = 0", f"user_version = {store_module.FORMAT}"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS measurements (mine)")
            connection.execute(f"PRAGMA {pragma}")
        assert "another program" in refused(path)


@pytest.mark.parametrize("version", [0, store_module.FORMAT + 1])
def test_a_store_of_another_version_stays(path: Path, version: int) -> None:
    with Store(path) as store:
        store.put(key(), measured())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    assert f"format {version}, this version of widthfold has {store_module.FORMAT}" in refused(path)


def test_damage_anywhere_is_refused_and_nothing_is_written(path: Path) -> None:
    with Store(path) as store:
        for number in range(400):
            store.put(key(number), measured())
    whole = path.read_bytes()
    assert len(whole) > 10 * 4096
    path.write_bytes(whole[: len(whole) // 2])
    refused(path)
    for page in range(1, len(whole) // 4096, 3):
        path.write_bytes(whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :])
        refused(path)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"status":"ok"}', "\x1b[2J"])
def test_a_row_that_is_no_measurement_is_one_error(path: Path, text: str) -> None:
    with Store(path) as store:
        store.put(key(), measured())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE measurements SET measurement = ?", (text,))
    with Store(path) as store:
        for read in (lambda: store.get(key()), lambda: list(store.items())):
            with pytest.raises(UsageError, match="damaged") as caught:
                read()
            assert str(caught.value).isprintable()


def test_places_where_no_file_can_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (
        tmp_path,
        file / "store.sqlite",
        Path("/proc/no/store.sqlite"),
        Path("/dev/null"),
    ):
        with pytest.raises(UsageError, match=re.escape(str(place))):
            Store(place)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory", "a b'c\".sqlite", "é\n"])
def test_odd_names_are_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with Store(Path(name)) as store:
        store.put(key(), measured())
    with Store(tmp_path / name) as store:
        assert len(list(store.items())) == 1


def test_a_store_that_others_keep_busy_is_one_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.1)
    with Store(path) as store, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match="locked"):
            store.put(key(), measured())
        other.rollback()
        store.put(key(), measured())
