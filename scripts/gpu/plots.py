"""Pictures of a run: what each form gains, and how near the layers are to the bandwidth floor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.figures import FOLDED, RIVALS, fastest, floor_share
from gpu.results import Row, of

COLORS = dict(zip((*RIVALS, FOLDED), ("0.75", "0.55", "0.35", "tab:orange"), strict=True))


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Write ratios-<type>-<layout>.svg and floor-<type>.svg, of what there are figures for."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "widthfold"
    found = [row for row in of(list(rows), "grid") if "us" in row]
    for dtype, layout in sorted({(row["dtype"], row["layout"]) for row in found}):
        chosen = [r for r in found if (r["dtype"], r["layout"]) == (dtype, layout)]
        timed = [row for row in chosen if "ratio" in row]
        if timed:
            _ratios(timed, folder / f"ratios-{dtype}-{layout}.svg", f"{dtype}, {layout}")
    best = fastest(rows)
    for dtype in sorted({dtype for _, dtype in best}):
        own = {layer: kinds for (layer, other), kinds in best.items() if other == dtype}
        _floor(own, rows, folder / f"floor-{dtype}.svg", dtype)


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
        axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}x")
        axes.set_xlabel(f"{title}: as it is / form (right of 1 is faster)")

    _save(layers, plot, path)


def _floor(found: dict[str, dict[str, Row]], rows: Sequence[Row], path: Path, title: str) -> None:
    """Share of the bandwidth floor: the fastest of each kind, by layer."""
    kinds = [kind for kind in (*RIVALS, FOLDED) if any(kind in own for own in found.values())]

    def plot(axes: Any) -> None:
        height = 0.8 / len(kinds)
        for index, kind in enumerate(kinds):
            places = [i - 0.4 + height * (index + 0.5) for i in range(len(found))]
            shares = [
                100 * (floor_share(own[kind], rows) or 0.0) if kind in own else 0.0
                for own in found.values()
            ]
            axes.barh(places, shares, height=height, color=COLORS[kind], label=kind)
        axes.set_xlabel(f"{title}: percent of the bandwidth floor, each in its faster layout")

    _save(list(found), plot, path)


def _save(labels: Sequence[str], plot: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    height = 1.5 + 0.4 * len(labels)
    figure, axes = plt.subplots(figsize=(9, height), layout="constrained")
    for border in range(len(labels) + 1):
        axes.axhline(border - 0.5, color="0.85", linewidth=0.8)
    plot(axes)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
