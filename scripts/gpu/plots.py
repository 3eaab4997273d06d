"""Pictures of a run: what each form gains, and how near the layers are to the bandwidth floor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.figures import best_as_is, floor_share
from gpu.results import Row, of


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Write ratios-<type>-<layout>.svg and floor.svg; nothing where there are no figures."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "widthfold"
    found = [row for row in of(list(rows), "grid") if "us" in row]
    for dtype, layout in sorted({(row["dtype"], row["layout"]) for row in found}):
        chosen = [r for r in found if (r["dtype"], r["layout"]) == (dtype, layout)]
        timed = [row for row in chosen if "ratio" in row]
        if timed:
            _ratios(timed, folder / f"ratios-{dtype}-{layout}.svg", f"{dtype}, {layout}")
    if found:
        _floor(found, rows, folder / "floor.svg")


def _ratios(timed: Sequence[Row], path: Path, title: str) -> None:
    """As-is / form by layer, with intervals."""
    layers = list(dict.fromkeys(row["layer"] for row in timed))
    kinds = list(dict.fromkeys(row["form"] for row in timed))

    def plot(axes: Any) -> None:
        for index, kind in enumerate(kinds):
            own = [row for row in timed if row["form"] == kind]
            axes.errorbar(
                [row["ratio"] for row in own],
                [layers.index(row["layer"]) + index / len(kinds) * 0.7 - 0.35 for row in own],
                xerr=[
                    [row["ratio"] - row["low"] for row in own],
                    [row["high"] - row["ratio"] for row in own],
                ],
                fmt="o",
                markersize=3,
                label=kind,
            )
        axes.axvline(1, color="gray", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xlabel(f"{title}: as it is / form (right of 1 is faster)")

    _save(layers, plot, path)


def _floor(found: Sequence[Row], rows: Sequence[Row], path: Path) -> None:
    """Share of the bandwidth floor: the fastest as-is and the fastest form of each layer."""
    best = best_as_is(found)
    labels = [f"{layer} {dtype}" for layer, dtype in best]

    def share(key: tuple[str, str], folded: bool) -> float:
        own = [r for r in found if (r["layer"], r["dtype"]) == key]
        own = [r for r in own if (r["form"] != "none") == folded]
        row = min(own, key=lambda r: float(r["us"]), default=None)
        return 0.0 if row is None else 100 * (floor_share(row, rows) or 0.0)

    def plot(axes: Any) -> None:
        for folded, label in ((False, "as it is"), (True, "best form")):
            places = [i + (0.2 if folded else -0.2) for i in range(len(best))]
            axes.barh(places, [share(key, folded) for key in best], height=0.4, label=label)
        axes.set_xlabel("percent of the bandwidth floor")

    _save(labels, plot, path)


def _save(labels: Sequence[str], plot: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    height = 1.5 + 0.4 * len(labels)
    figure, axes = plt.subplots(figsize=(8, height), layout="constrained")
    plot(axes)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
