"""Folding against the fastest of its rivals: what a claim must be judged by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu.figures import FOLDED, PYTORCH, RIVALS, fastest, rival
from gpu.results import Row, of
from gpu.tables import Section, floor_of, us_of

CLAIM = 3.0
"""What the paper on width folding says of float16 layers with one input channel."""


def verdict(rows: Sequence[Row]) -> list[Section]:
    """A table of the layers of which a fold and a rival were measured.

    With it goes a sentence on the claim, unless nothing was measured that bears on it: it is about
    tensor cores.
    """
    (run,) = of(list(rows), "run")
    body = []
    claimed: list[tuple[float, bool]] = []
    for (layer, dtype), own in fastest(rows).items():
        other = rival(own)
        if other is None or FOLDED not in own:
            continue
        fold = own[FOLDED]
        gain = other["us"] / fold["us"]
        if dtype == "float16" and layer.startswith("1->"):
            claimed.append((gain, PYTORCH in own))
        found = [own.get(kind) for kind in RIVALS]
        times = ["" if row is None else f"{us_of(row)} {row['layout']}" for row in found]
        name = f"{fold['form']}, {fold['layout']}"
        floor = floor_of(fold, rows)
        body.append([layer, dtype, *times, us_of(fold), name, f"{gain:.2f}x", floor])
    notes = [
        "Medians in us, each of the layout that is the faster one. PyTorch is timed apart from the "
        "others, so these ratios have no interval; those of ONNX Runtime are under Layers."
    ]
    if claimed and not run["quick"] and run["provider"] != "cpu":
        gains, tuned = np.array(claimed).T
        notes.append(
            f"The claim, at least {CLAIM:g}x in float16 from one input channel: "
            f"{(gains >= CLAIM).sum()} of {len(gains)} layers reach it against the fastest rival; "
            f"{(gains > 1).sum()} are faster at all; the median is {np.median(gains):.2f}x. "
            f"PyTorch was measured on {tuned.sum():.0f} of them."
        )
    head = ["layer", "type", *(f"{kind} us" for kind in RIVALS), "folded us", "fold", "gain"]
    return [Section("Against the fastest rival", notes, [*head, "floor"], body)] if body else []
