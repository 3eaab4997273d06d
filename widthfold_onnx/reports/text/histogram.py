"""Draws both latency distributions over one axis, as rows of bars for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.results import Side, Timing

BINS = 16
BAR = 24
"""Characters of the longest bar."""

_EIGHTHS = " ▏▎▍▌▋▊▉"


def histogram(timing: Timing) -> list[list[str]]:
    """Return rows of a table: ms from which a bin counts, then a bar for each model.

    A bar shows the share of the model's runs in the bin, both on one scale, and which percentiles
    lie there. The last bin holds all slower runs as well.
    """
    sides = (timing.original, timing.rewritten)
    low = min(min(side.runs_ms) for side in sides)
    high = max(side.p99 for side in sides)
    edges = np.linspace(low, max(high, low * 1.001), BINS + 1)[:-1]
    shares = [_counts(side.runs_ms, edges) / len(side.runs_ms) for side in sides]
    scale = max(share.max() for share in shares)
    marks = [_marks(side, edges) for side in sides]
    return [
        [
            f"{edge:.3f}" + ("+" if at == BINS - 1 else ""),
            *(
                f"{bar(float(share[at] / scale))} {mark[at]}".strip()
                for share, mark in zip(shares, marks, strict=True)
            ),
        ]
        for at, edge in enumerate(edges)
    ]


def bar(part: float) -> str:
    """Return a bar of `part` of the full length, to 1/8 of a character; anything above 0 shows.

    >>> bar(1.0) == "█" * BAR, bar(0.5 / BAR), bar(1e-9), bar(0.0)
    (True, '▌', '▏', '')
    """
    eighths = max(round(part * BAR * 8), 1) if part > 0 else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _bin(values: Sequence[float], edges: Array) -> Array:
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)


def _counts(values: Sequence[float], edges: Array) -> Array:
    return np.bincount(_bin(values, edges), minlength=BINS)


def _marks(side: Side, edges: Array) -> list[str]:
    at = _bin([side.median_ms, side.p90, side.p99], edges)
    names = ("p50", "p90", "p99")
    return [" ".join(n for n, i in zip(names, at, strict=True) if i == b) for b in range(BINS)]
