"""Define the progress messages that a caller receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A step of the work that has begun.

    Attributes:
        text: one line, with names of a model as they are.
        done: how many of `total` are done.
        total: 0 if unknown.
        seconds_left: at most, where there is a limit.
    """

    text: str
    done: int = 0
    total: int = 0
    seconds_left: float | None = None


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """Ignore progress."""
