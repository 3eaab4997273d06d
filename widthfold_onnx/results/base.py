"""The base of all results: frozen structs that are also the JSON reports."""

from __future__ import annotations

from typing import Literal

import msgspec

Verdict = Literal["pass", "fail", "unverified"]
"""What a check says: it holds, it does not, or that is not known."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results: frozen, keywords only."""
