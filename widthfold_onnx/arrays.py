"""Names the type of an array."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type."""
