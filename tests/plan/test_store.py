from __future__ import annotations

import contextlib
import json
import multiprocessing
import pwd
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import platformdirs
import pytest

from widthfold_onnx.errors import UsageError
from widthfold_onnx.plan import database
from widthfold_onnx.plan.store import (
    LONGEST_LINE,
    Key,
    Measurement,
    Store,
    default_path,
    export_lines,
    import_lines,
)

TAKEN = "2026-03-01T12:00:00+00:00"


def key(subject: object = "model:0", **changes: str) -> Key:
    names = {"candidate": "as-is", "setting": "{}", "machine": "m", **changes}
    return Key(subject=str(subject), **names)


def measured(**changes: object) -> Measurement:
    given = {"ratio": 1.5, "low": 1.4, "high": 1.7, "seconds": 1e-3, "rounds": 40, "reason": ""}
    return Measurement(**{"status": "ok", **given, "taken": TAKEN, **changes})


LOST = measured(status="lost", ratio=0.0, low=0.0, high=0.0, seconds=0.0, reason="out of memory")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store.sqlite"


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


# --- what is put is found


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_was_put_is_found_and_nothing_else(path: Path, in_memory: bool) -> None:
    with Store(None if in_memory else path) as store:
        store.put(key(1), measured())
        store.put(key(2), LOST)
        assert store.get(key(1)) == measured()
        assert store.get(key(2)) == LOST
        assert len(store) == 2
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
        assert len(store) == 1


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
            store.put(item, measured(rounds=number))
        assert [item for item, _ in store.items()] == sorted(keys)
        assert dict(store.items()) == {item: measured(rounds=n) for n, item in enumerate(keys)}


def test_clear_removes_all_or_one_machine(path: Path) -> None:
    with Store(path) as store:
        for number in range(3):
            for machine in ("here", "there"):
                store.put(key(number, machine=machine), measured())
        assert store.clear(machine="nowhere") == 0
        assert store.clear(machine="there") == 3
        assert {item.machine for item, _ in store.items()} == {"here"}
        assert store.clear() == 3
    with Store(path) as store:
        assert len(store) == 0


@pytest.mark.parametrize(
    "changes",
    [
        *({field: bad} for field in ("ratio", "low", "high", "seconds") for bad in ("nan", "inf")),
        *({field: "-1"} for field in ("ratio", "low", "seconds", "rounds")),
        {"low": "1.8"},
        {"ratio": "0"},
        {"reason": "why"},
        {"status": "lost"},
        {"status": "lost", "ratio": "0"},
        *({"taken": bad} for bad in ("", "now", "2026-03-01", "2026-03-01T12:00:00")),
        {"taken": "2026-03-01T12:00:00+01:00"},
    ],
)
def test_no_senseless_measurement_can_be_made(changes: dict[str, str]) -> None:
    numbers = {"ratio", "low", "high", "seconds", "rounds"}
    with pytest.raises(ValueError, match=r"finite|above|lost|UTC|isoformat"):
        measured(**{k: float(v) if k in numbers else v for k, v in changes.items()})


# --- files that are no store


@pytest.mark.parametrize(
    "content", [b"x", b"x" * 511, b"not a database\n" * 400, b"SQLite format 3\x00" * 99]
)
def test_a_file_that_is_no_database_stays(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    refused(path)


def test_a_database_of_another_program_stays(path: Path) -> None:
    path.parent.mkdir()
    for pragma in ("user_version = 0", f"user_version = {database.FORMAT}"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS measurements (mine)")
            connection.execute(f"PRAGMA {pragma}")
        assert "another program" in refused(path)


@pytest.mark.parametrize("version", [0, database.FORMAT + 1])
def test_a_store_of_another_version_stays(path: Path, version: int) -> None:
    with Store(path) as store:
        store.put(key(), measured())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    assert f"format {version}, this version of widthfold has 1" in refused(path)


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
        assert len(store) == 1


def test_a_store_that_others_keep_busy_is_one_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    with Store(path) as store, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match="locked"):
            store.put(key(), measured())
        other.rollback()
        store.put(key(), measured())


# --- where it lies


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

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UsageError, match="set WIDTHFOLD_STORE"):
        default_path()
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: Path("~/.cache"))
    with pytest.raises(UsageError, match="set WIDTHFOLD_STORE"):
        default_path()


# --- several processes


def _fill(path: Path, worker: int, count: int) -> None:
    for number in range(count):
        with Store(path) as store:
            store.put(key(f"{worker} {number}"), measured(rounds=number))
            store.put(key("shared"), measured(rounds=worker))


def test_processes_may_write_at_once(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(path, n, 25)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    with Store(path) as store:
        found = dict(store.items())
    assert found.pop(key("shared")).rounds in range(4)
    wanted = {key(f"{w} {n}"): measured(rounds=n) for w in range(4) for n in range(25)}
    assert found == wanted


def test_making_the_store_is_no_race(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.plan.test_store import _fill\n"
        "sys.stdin.read(1)\n"
        "for n in range(20): _fill(Path(sys.argv[1]) / str(n), int(sys.argv[2]), 1)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    children = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(4)
    ]
    time.sleep(2)  # all of them have imported and wait for the start
    errors = []
    for child in children:
        child.stdin.close()
    for child in children:
        errors.append(child.stderr.read().decode())
        child.stderr.close()
        child.wait(60)
    assert errors == [""] * 4
    for n in range(20):
        with Store(tmp_path / str(n)) as store:
            assert len(store) == 5


def test_a_put_is_brought_to_the_disk_itself(path: Path) -> None:
    with contextlib.closing(database.open_database(path).connection) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # full
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_kill_loses_no_put_that_returned(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from tests.plan.test_store import Store, key, measured\n"
        "start = int(sys.argv[2])\n"
        "with Store(Path(sys.argv[1])) as store:\n"
        "    for n in range(start, start + 100_000):\n"
        "        store.put(key(n), measured(rounds=n)); print(n, flush=True)\n"
    )
    rng = random.Random(11)
    returned: set[int] = set()
    for start in range(0, 600_000, 100_000):
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(start)], stdout=subprocess.PIPE
        )
        first = child.stdout.readline()
        time.sleep(rng.uniform(0, 0.2))
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        *whole, _ = (first + rest).split(b"\n")
        returned |= {int(line) for line in whole}
        with Store(path) as store:
            found = {int(item.subject): value.rounds for item, value in store.items()}
        assert returned <= found.keys()
        assert len(found.keys() - returned) <= start // 100_000 + 1
        assert all(subject == rounds for subject, rounds in found.items())
    assert len(returned) > 60


# --- export and import


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
