"""The base of all results: frozen structs that are also the JSON reports."""

from __future__ import annotations

import msgspec


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results: frozen, keywords only."""
