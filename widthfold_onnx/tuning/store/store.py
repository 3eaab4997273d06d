"""Keep measurements in a file, so that the next run need not repeat them.

Several processes may read and write one store at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
import platformdirs

from widthfold_onnx.errors import UsageError
from widthfold_onnx.results import Key, Measurement
from widthfold_onnx.tuning.store.database import open_database, unusable, using

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
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    try:
        folder = platformdirs.user_cache_path("widthfold", appauthor=False)
    except RuntimeError:  # older releases do not raise this: they return "~" unexpanded
        folder = Path()
    if not folder.is_absolute():
        raise UsageError(f"no home directory for the store: set {VARIABLE} to a file")
    return folder / "measurements.sqlite"
