"""Keep measurements in a file, so that the next run need not repeat them.

Several processes may read and write one store at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec
import platformdirs

from widthfold_onnx.errors import UsageError
from widthfold_onnx.results import Entry, Key, Measurement
from widthfold_onnx.text import printable
from widthfold_onnx.tuning.store.database import open_database, unusable, using

LONGEST_LINE = 1 << 20
"""Most characters of a line to import; exported lines have a few thousand."""

VARIABLE = "WIDTHFOLD_STORE"

_ONE = "WHERE subject = ? AND candidate = ? AND setting = ? AND machine = ?"
_PUT = "INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?, ?)"
_ORDER = "ORDER BY subject, candidate, setting, machine"


class Store:
    """Measurements by key; a context manager, which closes the file at its end.

    Every method raises UsageError if the file cannot be read or written.

    Attributes:
        read_only: whether the file may only be read, so that new measurements are lost.
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

    def check_writable(self) -> None:
        """Refuse to change a read-only store.

        Raises:
            UsageError: it may only be read.
        """
        if self.read_only:
            raise unusable(self._path, "it may only be read")

    def __len__(self) -> int:
        with using(self._path):
            (count,) = self._database.execute("SELECT count(*) FROM measurements").fetchone()
        return int(count)

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

    def merge(self, entries: Iterable[tuple[Key, Measurement]]) -> tuple[int, int]:
        """Put every entry that is newer than the stored one: all of them, or none on an error.

        Returns:
            The numbers of entries that were put and that were not.
        """
        added = skipped = 0
        with using(self._path):
            self._database.execute("BEGIN IMMEDIATE")
            with self._database:
                for key, measurement in entries:
                    known = self.get(key)
                    if known is None or measurement.time > known.time:
                        self.put(key, measurement)
                        added += 1
                    else:
                        skipped += 1
        return added, skipped

    def clear(self, *, machine: str | None = None) -> int:
        """Remove all measurements, or those of one machine; return how many were removed."""
        where, values = ("", ()) if machine is None else (" WHERE machine = ?", (machine,))
        with using(self._path):
            return self._database.execute(f"DELETE FROM measurements{where}", values).rowcount

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
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    try:
        folder = platformdirs.user_cache_path("widthfold", appauthor=False)
    except RuntimeError:  # older releases do not raise this: they return "~" unexpanded
        folder = Path()
    if not folder.is_absolute():
        raise UsageError(f"no home directory for the store: set {VARIABLE} to a file")
    return folder / "measurements.sqlite"


def export_lines(store: Store) -> Iterator[str]:
    """Yield every measurement as a line of ASCII JSON with its line end, sorted by key."""
    for key, measurement in store.items():
        entry = msgspec.to_builtins(Entry(key=key, measurement=measurement))
        yield json.dumps(entry, allow_nan=False) + "\n"


def import_lines(store: Store, lines: Iterable[str | bytes]) -> tuple[int, int]:
    """Import the lines of an export; of two measurements of one key, the later one stays.

    Returns:
        The numbers of lines that were imported and that were not.

    Raises:
        UsageError: a line is not of an export; nothing was imported.
    """
    return store.merge([_parse(number, line) for number, line in enumerate(lines, 1)])


def _parse(number: int, line: str | bytes) -> tuple[Key, Measurement]:
    if len(line) > LONGEST_LINE:
        raise UsageError(f"line {number} is longer than {LONGEST_LINE} characters")
    try:
        entry = msgspec.json.decode(line, type=Entry)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UsageError(f"line {number} is no measurement: {printable(str(error))}") from error
    return entry.key, entry.measurement
