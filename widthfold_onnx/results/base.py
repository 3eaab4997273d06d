"""What all results share: frozen structs that are JSON reports as they stand."""

from __future__ import annotations

import msgspec


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results: frozen, keywords only."""
