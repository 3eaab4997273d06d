"""Name the types of arrays and of their extents, and calculate with extents and counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type."""

Dims = tuple[int | None, ...]
"""Extents of a tensor; None where one is open."""


def size_of(extents: Iterable[int | None]) -> int | None:
    """Return the product of extents, None where one is not known."""
    size = 1
    for extent in extents:
        if extent is None:
            return None
        size *= extent
    return size


def round_up(count: int, multiple: int) -> int:
    """Return the smallest multiple that is at least a count."""
    return -(-count // multiple) * multiple
