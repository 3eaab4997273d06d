"""Refuse forms that would give wrong results at extents that the model leaves open.

Without a guard the Reshapes state every assumed extent that is folded, so that they fail at any
other. Under `--guard-shapes` an If tests every extent that the model leaves open before it runs the
folded nodes: it must be the planned one, or if none was planned a multiple of the tiles.
"""

from __future__ import annotations

from typing import NamedTuple

from widthfold_onnx.algebra.packing import Reshape
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms.form import Proposal, Reformulation
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
    axes, extents = site.stored_axes, zip(site.static, plan.stated, plan.rests, strict=True)
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
            "ONNX Runtime aborts while it loads an If that captures it",
        )
    return None


def open_extents_problem(proposal: Proposal, form: Reformulation) -> Refusal | None:
    """Refuse a form that constant Reshapes cannot express, or whose Reshapes miss another extent.

    A Reshape copies dimensions and infers one. If an assumed extent is folded without a guard, the
    first Reshape must fail when the real extent differs, and so may not infer.
    """
    site, guarded = proposal.site, proposal.options.guard_shapes
    if not guarded and any(not form.fold.axes[i].folded for i in site.sized_pads):
        return Refusal(
            Code.UNGUARDED_EXTENT,
            "SAME padding at a stride depends on an assumed extent that is not folded",
        )
    inferred = [s.inferred for s in (*form.folding, *form.unfolding) if isinstance(s, Reshape)]
    if max(inferred, default=0) > 1:
        return Refusal(
            Code.SEVERAL_UNKNOWN_EXTENTS,
            "more than one extent beside the folded axis is not known; a Reshape infers one",
        )
    assumed = {i for i in form.binds if site.static[i] is None and form.stated[i] is not None}
    if guarded or not assumed:
        return None
    if len(assumed) > 1 or inferred[0] or proposal.misses_extent(form, assumed):
        return Refusal(
            Code.UNGUARDED_EXTENT,
            "at other extents than the assumed ones the fold would give wrong results without an "
            "error",
        )
    return None
