"""What was measured, kept so that the next run need not measure it again.

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
from widthfold_onnx.plan.database import open_database, unusable, using
from widthfold_onnx.results import Entry, Key, Measurement
from widthfold_onnx.text import printable

__all__ = ["Key", "Measurement", "Store", "default_path", "export_lines", "import_lines"]

LONGEST_LINE = 1 << 20
"""Most characters of a line to import; those of an export have a few thousand."""

VARIABLE = "WIDTHFOLD_STORE"

_ONE = "WHERE subject = ? AND candidate = ? AND setting = ? AND machine = ?"
_PUT = "INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?, ?)"
_ORDER = "ORDER BY subject, candidate, setting, machine"


class Store:
    """Measurements by key; a context manager, which closes the file at its end.

    Every method raises UsageError where the file cannot be read or written.

    Attributes:
        read_only: whether the file may only be read, so that what is put is forgotten.
    """

    def __init__(self, path: Path | None) -> None:
        """Open the store, or make it.

        Args:
            path: the file; None keeps everything in memory.

        Raises:
            UsageError: no file can be made or read there, or it is no store of ours.
        """
        self._path = path
        self._database, self.read_only = open_database(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._database.close()

    def check_writable(self) -> None:
        """Refuse to change a file that may only be read.

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
        """What was measured, None where nothing was."""
        with using(self._path):
            row = self._database.execute(
                f"SELECT measurement FROM measurements {_ONE}", msgspec.structs.astuple(key)
            ).fetchone()
        return None if row is None else self._decode(row[0])

    def put(self, key: Key, measurement: Measurement) -> None:
        """Keep a measurement, in the place of an older one; it is on the disk on return."""
        row = (*msgspec.structs.astuple(key), msgspec.json.encode(measurement).decode())
        with using(self._path):
            self._database.execute(_PUT, row)

    def items(self) -> Iterator[tuple[Key, Measurement]]:
        """Everything, sorted by key, as it was when the first was asked for."""
        with using(self._path):
            rows = self._database.execute(f"SELECT * FROM measurements {_ORDER}").fetchall()
        for *key, measurement in rows:
            yield Key(*key), self._decode(measurement)

    def machines(self, setting: str) -> list[str]:
        """Every machine of which there are measurements at a setting, sorted."""
        with using(self._path):
            rows = self._database.execute(
                "SELECT DISTINCT machine FROM measurements WHERE setting = ? ORDER BY machine",
                (setting,),
            ).fetchall()
        return [machine for (machine,) in rows]

    def merge(self, entries: Iterable[tuple[Key, Measurement]]) -> tuple[int, int]:
        """Put every entry that was taken later than what is there: all of them, or none.

        Returns:
            How many were put, and how many were not.
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
        """Remove everything, or what was measured on one machine; returns how many that were."""
        where, values = ("", ()) if machine is None else (" WHERE machine = ?", (machine,))
        with using(self._path):
            return self._database.execute(f"DELETE FROM measurements{where}", values).rowcount

    def _decode(self, text: str) -> Measurement:
        try:
            return msgspec.json.decode(text, type=Measurement)
        except msgspec.MsgspecError as error:
            raise unusable(self._path, f"it is damaged: {error}") from error


def default_path() -> Path:
    """Where the store lies unless the caller says: ``WIDTHFOLD_STORE``, else the user's cache.

    Raises:
        UsageError: nothing is chosen, and the user has no home.
    """
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    try:
        folder = platformdirs.user_cache_path("widthfold", appauthor=False)
    except RuntimeError:  # which older releases do not raise: they return "~" as it is
        folder = Path()
    if not folder.is_absolute():
        raise UsageError(f"no home directory for the store: set {VARIABLE} to a file")
    return folder / "measurements.sqlite"


def export_lines(store: Store) -> Iterator[str]:
    """Every measurement as a line of ASCII JSON with its line end, sorted by key."""
    for key, measurement in store.items():
        entry = msgspec.to_builtins(Entry(key=key, measurement=measurement))
        yield json.dumps(entry, allow_nan=False) + "\n"


def import_lines(store: Store, lines: Iterable[str | bytes]) -> tuple[int, int]:
    """Take in the lines of an export; of two measurements of one key, the later one stays.

    Returns:
        How many lines were taken in, and how many were not.

    Raises:
        UsageError: a line is not of an export; nothing was taken in.
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
