"""List the extents that a guard must test before it runs the folded nodes.

Under `--guard-shapes` the guard tests every extent that the model leaves open: it must be the
planned one, or if none was planned a multiple of the digits.
"""

from __future__ import annotations

from typing import NamedTuple

from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rules.form import Reformulation
from widthfold_onnx.rules.site import LinearSite

EXTENTS = "extents"
"""Name of the property that a guard tests, in models and reports."""

EXACT = 1 << 62
"""A modulus that no extent reaches, so that only the offset itself passes."""


class Extent(NamedTuple):
    """A condition on an extent: (extent - offset) mod modulus = 0."""

    offset: int
    modulus: int


def needed_extents(
    site: LinearSite, plan: Reformulation, options: FoldOptions
) -> dict[int, Extent]:
    """Return the conditions on the extents of the data, by axis of the data as it is stored."""
    if not options.guard_shapes:
        return {}
    ends = enumerate(zip(site.static, plan.stated, plan.rests, strict=True))
    needed = {
        i: Extent(0, rest) if stated is None else Extent(stated, EXACT)
        for i, (fixed, stated, rest) in ends
        if fixed is None
    }
    axes = stored(site)
    return {axes[i]: extent for i, extent in needed.items() if extent.modulus > 1}


def stored(site: LinearSite) -> list[int]:
    """Return the axis of the stored data for every axis that the site reads."""
    axes = list(range(len(site.static)))
    if site.transposed:
        axes[-2:] = axes[:-3:-1]
    return axes
