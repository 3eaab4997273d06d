"""List the extents that a guard must test before it runs the folded nodes.

Under `--guard-shapes` the guard tests every extent that the model leaves open: it must be the
planned one, or if none was planned a multiple of the tiles.
"""

from __future__ import annotations

from typing import NamedTuple

from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.dequantized import is_dequantized_anew
from widthfold_onnx.rules.match.site import LinearSite

EXTENTS = "extents"
"""Name of the property that a guard tests, in models and reports."""

LEAST_OPSET = 10
"""First operator set with a Mod (ONNX changelog)."""

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
    axes, extents = stored(site), zip(site.static, plan.stated, plan.rests, strict=True)
    needed = {
        axis: Extent(0, rest) if stated is None else Extent(stated, EXACT)
        for axis, (fixed, stated, rest) in zip(axes, extents, strict=True)
        if fixed is None
    }
    return {axis: extent for axis, extent in needed.items() if extent.modulus > 1}


def guard_problem(site: LinearSite, plan: Reformulation, options: FoldOptions) -> Refusal | None:
    """Refuse a form that needs a guard, where none can stand."""
    return unguardable(site) if needed_extents(site, plan, options) else None


def unguardable(site: LinearSite) -> Refusal | None:
    """Return why no guard can stand around a site: its operator set, or data no If can read."""
    if site.opset < LEAST_OPSET:
        return Refusal(
            Code.OPSET_TOO_OLD, f"opset {site.opset} is below {LEAST_OPSET}, which the guard needs"
        )
    if is_dequantized_anew(site.data):
        return Refusal(
            Code.GUARD_NOT_LOADABLE,
            "it needs a guard, and its data comes from a DequantizeLinear through moves: "
            "ONNX Runtime dies while it loads an If that reads that",
        )
    return None


def stored(site: LinearSite) -> list[int]:
    """Return the axis of the stored data for every axis that the site reads."""
    axes = list(range(len(site.static)))
    if site.transposed:
        axes[-2:] = axes[:-3:-1]
    return axes
