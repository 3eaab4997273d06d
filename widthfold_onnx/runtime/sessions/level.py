"""Names the levels of the runtime's own optimizations."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """The level of the runtime's own optimizations."""

    DISABLED = "disabled"
    EXTENDED = "extended"
    ALL = "all"
