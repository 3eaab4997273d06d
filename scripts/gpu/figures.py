"""What tables and pictures make of rows: bandwidth, its floor, the fastest of each kind."""

from __future__ import annotations

from collections.abc import Iterable

from gpu.results import Row

AS_IS, PADDED, PYTORCH, FOLDED = "as it is", "padded", "PyTorch", "folded"
RIVALS = (AS_IS, PADDED, PYTORCH)
"""What folding must beat: the layer as it is, of which cuDNN pads the channels itself where it
wants tensor cores, the layer with channels padded before, and what PyTorch's tuning finds."""


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


def fastest(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """The fastest row of each kind, of both layouts, by layer and type."""
    best: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row["part"] in ("grid", "torch") and "us" in row and "layer" in row:
            found, kind = best.setdefault((row["layer"], row["dtype"]), {}), _kind(row)
            if kind not in found or row["us"] < found[kind]["us"]:
                found[kind] = row
    return best


def rival(found: dict[str, Row]) -> Row | None:
    """The fastest of what does not fold, None where nothing of it was measured."""
    rivals = (found[kind] for kind in RIVALS if kind in found)
    return min(rivals, key=lambda row: float(row["us"]), default=None)


def _kind(row: Row) -> str:
    if row["part"] == "torch":
        return PYTORCH
    if row["form"] == "none":
        return AS_IS
    return PADDED if row["form"].startswith("pad ") else FOLDED
