"""What tables and pictures make of rows: bandwidth, its floor, the best layer as it is."""

from __future__ import annotations

from collections.abc import Iterable

from gpu.results import Row


def bandwidth(rows: Iterable[Row], dtype: str) -> float | None:
    """Bytes per second of the copy of part 2, None where it was not measured."""
    for row in rows:
        if (row["part"], row.get("what"), row.get("dtype")) == ("ceilings", "copy", dtype):
            return float(row["bytes"] / row["us"] * 1e6) if "us" in row else None
    return None


def floor_share(row: Row, rows: Iterable[Row]) -> float | None:
    """Time of the row's bytes at the copy bandwidth / time taken."""
    speed = bandwidth(rows, row["dtype"])
    return None if speed is None else row["bytes"] / speed / (row["us"] * 1e-6)


def best_as_is(rows: Iterable[Row]) -> dict[tuple[str, str], float]:
    """Microseconds of the fastest layer as it is, of both layouts, by layer and type."""
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        if row["part"] == "grid" and row.get("form") == "none" and "us" in row:
            key = row["layer"], row["dtype"]
            best[key] = min(row["us"], best.get(key, row["us"]))
    return best
