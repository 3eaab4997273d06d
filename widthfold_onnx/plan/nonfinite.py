"""How far folds may spread Inf and NaN, and what the model says of it.

A structural zero times Inf is NaN, so a non-finite input reaches every output that shares its
reduction, within its sample: as many times as many outputs, in the mean, as the folded weight has
elements for each that is no structural zero.
"""

from __future__ import annotations

import onnx

from widthfold_onnx.rules.base import LinearSite, Reformulation

NONFINITE_KEY = "widthfold.nonfinite"
"""Metadata of a model: ``spread:F`` where folds may spread Inf and NaN, F times at most."""


def spread_of(site: LinearSite, form: Reformulation) -> float:
    """Outputs that Inf or NaN in one input may reach / those that they reached before."""
    return 1.0 if site.is_finite else round(form.fold.spread(), 2)


def note_spread(model: onnx.ModelProto, largest: float) -> None:
    """Write into a model how far its folds may spread at most, those of earlier runs included."""
    for entry in model.metadata_props:
        if entry.key == NONFINITE_KEY:
            entry.value = _larger(entry.value, largest)
            return
    if largest > 1.0:
        model.metadata_props.add(key=NONFINITE_KEY, value=f"spread:{largest:g}")


def _larger(known: str, factor: float) -> str:
    """The record of the larger factor; what another tool wrote is replaced."""
    word, _, number = known.partition(":")
    try:
        before = float(number) if word == "spread" else 1.0
    except ValueError:
        before = 1.0
    return f"spread:{max(before, factor):g}"
