"""Compute how far folds may spread Inf and NaN, and write it into the model.

A structural zero times Inf is NaN, so a non-finite input reaches every output that shares its
reduction, within its sample. The mean number of outputs reached grows by the ratio of all elements
of the folded weight to those that are no structural zeros.
"""

from __future__ import annotations

import onnx

from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite

NONFINITE_KEY = "widthfold.nonfinite"
"""Metadata of a model: ``spread:F`` if folds may spread Inf and NaN, F times at most."""


def spread_of(site: LinearSite, form: Reformulation) -> float:
    """Return how many outputs Inf or NaN in one input may reach, after / before the fold."""
    return 1.0 if site.is_finite else round(form.fold.spread(), 2)


def note_spread(model: onnx.ModelProto, largest: float) -> None:
    """Write into a model how far its folds may spread at most, in place of any other such note."""
    others = [entry for entry in model.metadata_props if entry.key != NONFINITE_KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    if largest > 1.0:
        model.metadata_props.add(key=NONFINITE_KEY, value=f"spread:{largest:g}")
