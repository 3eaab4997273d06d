"""Draw how near the layers come to the bandwidth floor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu.results import Row
from gpu.tables import KINDS, bandwidth, fastest, floor_share

COLORS = dict(zip(KINDS, ("0.75", "0.55", "0.35", "tab:orange"), strict=True))


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Write floor-<type>.svg for every type with a measured bandwidth."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "widthfold"
    best = fastest(rows)
    for dtype in sorted({dtype for _, dtype in best if bandwidth(rows, dtype)}):
        own = {layer: kinds for (layer, other), kinds in best.items() if other == dtype}
        _draw(own, rows, folder / f"floor-{dtype}.svg", dtype)


def _draw(layers: dict[str, dict[str, Row]], rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw a bar per layer and kind: the fastest of the kind."""
    from matplotlib import pyplot as plt

    kinds = [kind for kind in KINDS if any(kind in own for own in layers.values())]
    size = (9, 1.5 + 0.4 * len(layers))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    height = 0.8 / len(kinds)
    for index, kind in enumerate(kinds):
        places = [place - 0.4 + height * (index + 0.5) for place in range(len(layers))]
        shares = [
            100 * (floor_share(own[kind], rows) or 0) if kind in own else 0
            for own in layers.values()
        ]
        axes.barh(places, shares, height=height, color=COLORS[kind], label=kind)
    axes.set_xlabel(f"{title}: percent of the bandwidth floor, each in its faster layout")
    axes.set_yticks(range(len(layers)), list(layers))
    axes.set_ylim(len(layers) - 0.5, -0.5)
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
