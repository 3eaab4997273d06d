"""Names the type of an array, and counts elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type."""


def size_of(extents: Sequence[int | None]) -> int | None:
    """Return the product of extents, None where one is not known."""
    fixed = [extent for extent in extents if extent is not None]
    return math.prod(fixed) if len(fixed) == len(extents) else None
