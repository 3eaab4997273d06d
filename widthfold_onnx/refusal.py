"""Represents a refusal as a value that says why something was left alone, never a silent False."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """The reason why a fold or a site is not available.

    Attributes:
        code: stable word for programs, e.g. ``factor-does-not-divide``.
        reason: one sentence for people, with the numbers in it.
    """

    code: str
    reason: str
