"""Writes files atomically: a file appears complete or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from widthfold_onnx.errors import InternalError, UsageError
from widthfold_onnx.text import printable, quoted

TEMPORARY_PREFIX = ".wf-"
"""First characters of every temporary file of ours; each lies in the folder of its target."""

CHUNK_BYTES = 4 << 20
"""Bytes of a file that are in memory while it is copied or hashed."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the system into one that names the file that could not be written.

    Args:
        path: the file that the caller meant to write.

    Raises:
        UsageError: an OSError was raised inside, such as a full disk or a missing permission.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot write {quoted(str(path))}: {printable(reason)}") from error


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn an error of the system into one that names the file that could not be read.

    Args:
        name: the file, as the user or the model names it.

    Raises:
        UsageError: an OSError was raised inside.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot read {quoted(name)}: {printable(reason)}") from error


def pieces(file: BinaryIO, length: int) -> Iterator[memoryview]:
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
        count = file.readinto(buffer[:length])  # type: ignore[attr-defined]
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        yield buffer[:count]
        length -= count


def check_target(out: Path, protected: Sequence[Path]) -> None:
    """Check that a file may be made at `out`, or be put in the place of the one that is there.

    Args:
        out: the path to be written.
        protected: files that must stay as they are, such as the inputs.

    Raises:
        UsageError: `out` is a link, a folder, a device or a protected file, or has no folder.
    """
    shown = quoted(str(out))
    if not out.name:
        raise UsageError(f"output {shown} names no file")
    with writing(out):
        if not out.parent.is_dir():
            raise UsageError(f"output {shown}: its folder does not exist")
        try:
            status = out.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(f"output {shown} is a symbolic link")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"output {shown} is not a regular file")
        for path in protected:
            if path.exists() and path.samefile(out):
                raise UsageError(f"output {shown} is an input; choose another name")


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
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor: int | None = None
        self._descriptor = os.open(self.path, flags | getattr(os, "O_BINARY", 0), 0o666)

    def write(self, data: bytes | memoryview) -> None:
        """Append data without a buffer, so that nothing is left to flush after a failure.

        Raises:
            OSError: the disk does not take all of it.
        """
        if self._descriptor is None:
            raise InternalError(f"{self.path.name} is finished")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def finish(self) -> None:
        """Flush the content to the disk and close the file.

        Raises:
            OSError: the disk did not take all of it; it is not tried again.
        """
        if self._descriptor is not None:
            os.fsync(self._descriptor)
        self._close()

    def publish(self, target: Path | None = None) -> None:
        """Rename the finished file to its target in one step, without a gap.

        Args:
            target: the place, where it was not known before; in the same folder.

        Raises:
            OSError: the file could not be renamed.
        """
        target = target or self.target
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
        self._close()
        self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def temporary(target: Path) -> Iterator[Temporary]:
    """Make a temporary file for `target`, and remove it at the end unless it was published.

    Raises:
        UsageError: the folder does not take a new file.
    """
    with writing(target):
        made = Temporary(target)
    try:
        yield made
    finally:
        with writing(target):
            made.discard()


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, on systems whose folders can be synced."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
