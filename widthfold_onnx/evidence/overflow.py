"""Inputs on which the original itself leaves the range of its numbers.

A structural zero times Inf is NaN, so a fold spreads a non-finite value to its neighbours, by
design and within one sample. Inputs that nobody stored may be larger than the model was made for;
where they make the original overflow at a folded site, a difference shows nothing about the fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.inline import inlined
from widthfold_onnx.evidence.rows import Outputs
from widthfold_onnx.evidence.sites import (
    MAX_BYTES,
    FoldedSite,
    folded_sites,
    run_with,
    values_at,
)
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.runtime.stored import InputSet


def overflowing_sets(
    original: Path,
    rewritten: Path,
    sets: Mapping[int, InputSet],
    options: VerifyOptions,
    report: Callable[[str], None],
) -> dict[int, str]:
    """Find the input sets on which the original gives NaN or Inf before or behind a folded site.

    Sites in subgraphs are not looked at, so there a difference counts.

    Args:
        original: model file.
        rewritten: model file; it says which sites are folded.
        sets: input sets by number.
        options: where the original runs, without the runtime's optimizations.
        report: gets a line of text before the runs.

    Returns:
        For each such set a sentence that says where and how much.
    """
    if not sets:
        return {}
    try:
        before, after = inlined(original, MAX_BYTES), inlined(rewritten, MAX_BYTES)
        sites = folded_sites(before.graph, after.graph)
        wanted = values_at(before.graph, sites)
        report(f"looking for NaN and Inf at {len(sites)} folded sites")
        runs = run_with(before, wanted, sets.values(), options)
    except UnverifiedError:
        return {}
    found = ((number, _first(sites, run)) for number, run in zip(sets, runs, strict=True))
    return {number: sentence for number, sentence in found if sentence}


def _first(sites: list[FoldedSite], values: Outputs) -> str:
    """The first site with a value that is not finite, "" if there is none."""
    for site in sites:
        for name in (*site.inputs, site.output):
            side = "gives" if name == site.output else "reads"
            value = values.get(name)
            if value is None or value.dtype.kind != "f":
                continue
            count = int(value.size - np.count_nonzero(np.isfinite(value)))
            if count:
                return (
                    f"{site.name} of the original {side} NaN or Inf there "
                    f"({count} of {value.size} values), which a fold may spread"
                )
    return ""
