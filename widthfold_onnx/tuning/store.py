"""Keep measurements in a file, so that the next run need not repeat them.

Several processes may read and write one store at a time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import platformdirs

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.atomic import writing
from widthfold_onnx.text import printable, quoted
from widthfold_onnx.tuning.measurement import Measurement

FORMAT = 1
"""Version of the table below, stored in the file as ``PRAGMA user_version``."""

APPLICATION = 0x57464F4C
"""Mark of a store of widthfold: "WFOL", as ``PRAGMA application_id``."""

BUSY_SECONDS = 30.0
"""Seconds that one process waits for the others."""

ADVICE = "choose another with --store or WIDTHFOLD_STORE, or move this one away"

_MIN_BYTES = 512
"""Bytes of the smallest database; SQLite treats a smaller file as empty and would overwrite it."""

_TABLE = """
CREATE TABLE IF NOT EXISTS measurements (
    subject TEXT NOT NULL,
    candidate TEXT NOT NULL,
    setting TEXT NOT NULL,
    machine TEXT NOT NULL,
    measurement TEXT NOT NULL,
    PRIMARY KEY (subject, candidate, setting, machine)
) WITHOUT ROWID
"""


@contextmanager
def using(path: Path | None) -> Iterator[None]:
    """Turn an error of SQLite into an error that names the store and a remedy.

    Args:
        path: the file; None is a store in memory.

    Raises:
        UsageError: SQLite raised inside, such as on a damaged file or a full disk.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise unusable(path, str(error)) from error


def unusable(path: Path | None, reason: str) -> UsageError:
    """Return the error that names the store, the reason why it cannot be used, and a remedy."""
    name = "in memory" if path is None else quoted(str(path))
    return UsageError(f"the store {name} cannot be used: {printable(reason)}; {ADVICE}")


class Database(NamedTuple):
    """An open store; a read-only store loses new measurements when it is closed."""

    connection: sqlite3.Connection
    read_only: bool


def open_database(path: Path | None) -> Database:
    """Open the store; create it, and its folder, if there is none.

    Every statement is a transaction of its own, and on the disk when it returns. A file that may
    be read but not written, as on a read-only mount, is copied into memory.

    Args:
        path: the file; None keeps everything in memory.

    Raises:
        UsageError: no file can be made or read there, the file is no store of this version of
            widthfold, or it is damaged. It stays as it was.
    """
    place = ":memory:"
    if path is not None:
        place = str(path.absolute())  # SQLite gives relative names such as ":memory:" a meaning
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                raise unusable(path, "it is not a regular file")
            if path.exists() and 0 < path.stat().st_size < _MIN_BYTES:
                raise unusable(path, "file is not a database")
    with using(path):
        try:
            return Database(_connected(place, path), read_only=False)
        except sqlite3.OperationalError as error:
            if path is None or not path.is_file() or not _denied(error):
                raise
        return Database(_copied(path), read_only=True)


def _connected(place: str, path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _copied(path: Path) -> sqlite3.Connection:
    """Copy the store into memory.

    Where SQLite cannot create the files that a WAL needs, it must be told that nobody writes.
    """
    memory = sqlite3.connect(":memory:", isolation_level=None)
    for mode in ("mode=ro", "immutable=1"):
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as source:
            try:
                _check(source, path)
                source.backup(memory)
            except sqlite3.OperationalError as error:
                if mode == "immutable=1" or not _denied(error):
                    raise
                continue
        return memory
    raise AssertionError("the last mode returns or raises")


def _denied(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def _prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    application, version, empty = _look(connection)
    if (application, version, empty) == (0, 0, True):
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
    _check(connection, path)
    connection.execute("PRAGMA synchronous = FULL")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Another process is opening it. SQLite does not wait here, as it does everywhere else. A
        # later process makes the switch, which only affects speed.
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
    # Opening an existing store has written nothing so far: find out now whether it can be
    # written, and roll that back.
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    finally:
        connection.execute("ROLLBACK")


def _check(connection: sqlite3.Connection, path: Path | None) -> None:
    """Refuse a file that is no store of this version, or is damaged."""
    application, version, _ = _look(connection)
    if application != APPLICATION:
        raise unusable(path, "it is a database of another program")
    if version != FORMAT:
        raise unusable(path, f"it has format {version}, this version of widthfold has {FORMAT}")
    (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if health != "ok":
        raise unusable(path, f"it is damaged: {health}")


def _look(connection: sqlite3.Connection) -> tuple[int, int, bool]:
    """Return application mark, format and whether no table exists, read in one transaction."""
    connection.execute("BEGIN")
    with connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return application, version, tables == 0


VARIABLE = "WIDTHFOLD_STORE"

_ONE = "WHERE subject = ? AND candidate = ? AND setting = ? AND machine = ?"
_PUT = "INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?, ?)"
_ORDER = "ORDER BY subject, candidate, setting, machine"


class Key(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """The name of a measurement in the store: all that its time depends on.

    Attributes:
        subject: canonical JSON of the measured operator, or of a model with its inputs and shapes.
        candidate: canonical JSON of the form, or of the two plans of a trial; ``as-is`` for a layer
            that takes no other form.
        setting: canonical JSON of provider, its options, level and threads.
        machine: canonical JSON of device, runtime, driver and package versions.
    """

    subject: str
    candidate: str
    setting: str
    machine: str


class Store:
    """Measurements by key; a context manager, which closes the file at its end.

    Every method raises UsageError if the file cannot be read or written.

    Attributes:
        read_only: True if the file may only be read, so that new measurements are lost.
    """

    def __init__(self, path: Path | None) -> None:
        """Open the store, or create it.

        Args:
            path: the file; None keeps everything in memory.

        Raises:
            UsageError: no file can be created or read there, or it is no store of widthfold.
        """
        self._path = path
        self._database, self.read_only = open_database(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._database.close()

    def get(self, key: Key) -> Measurement | None:
        """Return the measurement of a key, None if there is none."""
        with using(self._path):
            row = self._database.execute(
                f"SELECT measurement FROM measurements {_ONE}", msgspec.structs.astuple(key)
            ).fetchone()
        return None if row is None else self._decode(row[0])

    def put(self, key: Key, measurement: Measurement) -> None:
        """Store a measurement, in place of an older one; it is on the disk on return."""
        row = (*msgspec.structs.astuple(key), msgspec.json.encode(measurement).decode())
        with using(self._path):
            self._database.execute(_PUT, row)

    def items(self) -> Iterator[tuple[Key, Measurement]]:
        """Yield all entries, sorted by key, as they were when the first was asked for."""
        with using(self._path):
            rows = self._database.execute(f"SELECT * FROM measurements {_ORDER}").fetchall()
        for *key, measurement in rows:
            yield Key(*key), self._decode(measurement)

    def machines(self, setting: str) -> list[str]:
        """Return every machine that has measurements at a setting, sorted."""
        with using(self._path):
            rows = self._database.execute(
                "SELECT DISTINCT machine FROM measurements WHERE setting = ? ORDER BY machine",
                (setting,),
            ).fetchall()
        return [machine for (machine,) in rows]

    def _decode(self, text: str) -> Measurement:
        try:
            return msgspec.json.decode(text, type=Measurement)
        except msgspec.MsgspecError as error:
            raise unusable(self._path, f"it is damaged: {error}") from error


def default_path() -> Path:
    """Return the path of the store if none is given: ``WIDTHFOLD_STORE``, else the user's cache.

    Raises:
        UsageError: ``WIDTHFOLD_STORE`` is not set, and the user has no home.
    """
    if name := os.environ.get(VARIABLE):
        return Path(name)
    try:
        folder = platformdirs.user_cache_path("widthfold", appauthor=False)
    except RuntimeError:  # older releases do not raise this: they return "~" unexpanded
        folder = Path()
    if not folder.is_absolute():
        raise UsageError(f"no home directory for the store: set {VARIABLE} to a file")
    return folder / "measurements.sqlite"
