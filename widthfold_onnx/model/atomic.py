"""Write files atomically: a file appears complete or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from pathlib import Path
from typing import Literal

from widthfold_onnx.errors import UsageError
from widthfold_onnx.system import sync_folder
from widthfold_onnx.text import printable, quoted

TEMPORARY_PREFIX = ".wf-"
"""First characters of every temporary file of ours; each lies in the folder of its target."""

CHUNK_BYTES = 4 << 20
"""Bytes of a file that are in memory while it is copied or hashed."""


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError raised inside into a UsageError that names the file to be written."""
    return _errors_named(f"write {quoted(str(path))}")


def reading(name: str) -> AbstractContextManager[None]:
    """Turn an OSError raised inside into a UsageError that calls the file `name`."""
    return _errors_named(f"read {quoted(name)}")


@contextmanager
def _errors_named(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot {action}: {printable(reason)}") from error


def write_file(path: Path, data: bytes) -> None:
    """Write a file, which appears complete or not at all.

    Raises:
        UsageError: the disk is full, or the file cannot be written.
    """
    with temporary(path) as file:
        with writing(path):
            file.write(data)
            file.finish()
        file.publish()


def pieces(file: FileIO, length: int) -> Iterator[memoryview]:
    """Read a part of a file, from its current position.

    Args:
        file: open for reading.
        length: bytes to read.

    Yields:
        At most `CHUNK_BYTES` at a time, each valid until the next is asked for.

    Raises:
        OSError: the file ends before, or cannot be read.
    """
    buffer = memoryview(bytearray(min(length, CHUNK_BYTES)))
    while length:
        count = file.readinto(buffer[:length])
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        yield buffer[:count]
        length -= count


MARKS = {
    "plan": re.compile(rb'"schema": "widthfold\.plan/'),
    "report": re.compile(rb'("schema": "|<!-- )widthfold\.(inspect|optimize|tune|verify)/'),
}
"""Bytes by which a file of widthfold is known; they are among its first `HEAD_BYTES`."""

HEAD_BYTES = 200


def check_own_target(
    path: Path, protected: Sequence[Path], kind: Literal["plan", "report"]
) -> None:
    """Check, before the work, that a plan or a report may be written.

    Args:
        path: the file. A file that exists there must be empty or of this kind.
        protected: files that it must not replace.
        kind: the key of `MARKS`.

    Raises:
        UsageError: no such file may be written there.
    """
    check_target(path, protected)
    with writing(path):
        if not path.exists():
            return
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    if head and not MARKS[kind].search(head):
        raise UsageError(f"{quoted(str(path))} exists and is no {kind}; choose another name")


def check_target(out: Path, protected: Sequence[Path]) -> None:
    """Check that a file may be made at `out`, or may replace the file that exists there.

    Args:
        out: the path to be written.
        protected: files that must stay as they are, such as the inputs.

    Raises:
        UsageError: `out` is a link, a folder, a device or a protected file, or has no folder.
            A protected file need not exist yet.
    """
    name = quoted(str(out))
    refusal = f"output {name} is an input or another output; choose another name"
    if not out.name:
        raise UsageError(f"output {name} names no file")
    with writing(out):
        if not out.parent.is_dir():
            raise UsageError(f"output {name}: its folder does not exist")
        if any(not path.exists() and place(path) == place(out) for path in protected):
            raise UsageError(refusal)
        try:
            status = out.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(f"output {name} is a symbolic link")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"output {name} is not a regular file")
        for path in protected:
            if path.exists() and path.samefile(out):
                raise UsageError(refusal)


def place(path: Path) -> Path:
    """Return the path of a file with the links to its folder resolved; it need not exist."""
    return path.parent.resolve() / path.name


class Temporary:
    """A new temporary file, to be renamed to `target`.

    Attributes:
        target: its final path.
        path: its present path, in the same folder.
    """

    def __init__(self, target: Path) -> None:
        """Create the file.

        Raises:
            OSError: the folder does not take a new file.
        """
        self.target = target
        self.path = target.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}{target.suffix}"
        self._file = self.path.open("xb", buffering=0)  # nothing is left to flush after a failure

    def write(self, data: bytes | memoryview) -> None:
        """Append data.

        Raises:
            OSError: the disk does not take all of it.
        """
        remainder = memoryview(data)
        while remainder:
            remainder = remainder[self._file.write(remainder) :]

    def finish(self) -> None:
        """Flush the content to the disk and close the file.

        Raises:
            OSError: the disk did not take all of it; it is not tried again.
        """
        os.fsync(self._file.fileno())
        self._file.close()

    def publish(self, target: Path | None = None) -> None:
        """Rename the finished file to its target in one step, without a gap.

        Args:
            target: the final path, if it was not known before; in the same folder.

        Raises:
            UsageError: the file could not be renamed.
        """
        target = target or self.target
        with writing(target):
            self.path.replace(target)
            sync_folder(target.parent)

    def is_published(self) -> bool:
        """Return whether the file was renamed; true as well if an interrupt followed."""
        return not self.path.exists()

    def discard(self) -> None:
        """Remove the file, unless it is published already.

        Raises:
            OSError: the file could not be removed.
        """
        self._file.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def temporary(target: Path) -> Iterator[Temporary]:
    """Make a temporary file for `target`, and remove it at the end unless it was published.

    Raises:
        UsageError: the folder does not take a new file.
    """
    with writing(target):
        file = Temporary(target)
    try:
        yield file
    finally:
        with writing(target):
            file.discard()
