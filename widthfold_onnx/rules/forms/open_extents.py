"""Find the conditions under which a form is right where the model leaves extents open.

Reshapes state no open extent: they copy it, or infer it. What a form needs of such an extent beside
that, that a tile divides it for instance, an If tests before it runs the folded nodes.
"""

from __future__ import annotations

from widthfold_onnx.algebra.axis import Extent
from widthfold_onnx.algebra.packing import inferred
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.dequantized import is_dequantized_anew
from widthfold_onnx.rules.match.site import LinearSite

EXTENTS = "extents"
"""Name of the property that a guard tests, in models and reports."""

LEAST_OPSET = 10
"""First operator set with a Mod (ONNX changelog)."""


def needed_extents(site: LinearSite, form: Reformulation) -> dict[int, Extent]:
    """Return the conditions on the extents of the data, by axis of the data as it is stored."""
    axes = zip(site.stored_axes, site.static, form.extents, strict=True)
    return {axis: extent for axis, fixed, extent in axes if fixed is None and extent.modulus > 1}


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


def open_extents_problem(site: LinearSite, form: Reformulation) -> Refusal | None:
    """Refuse a form that constant Reshapes cannot express, or that needs a guard where none can be.

    A Reshape copies dimensions at their place and infers one.
    """
    declared = site.data.shape or ()
    for axis, fixed in zip(site.stored_axes, site.static, strict=True):
        if fixed is None and axis < len(declared) and isinstance(declared[axis], int):
            return Refusal(
                Code.UNKNOWN_EXTENT,
                f"its data is declared with an extent of {declared[axis]}, which other turns of a "
                "loop need not have, and the runtime would take it for given",
            )
    if max(inferred(form.folding), inferred(form.unfolding)) > 1:
        return Refusal(
            Code.SEVERAL_UNKNOWN_EXTENTS,
            "more than one extent beside the folded axis is not known; a Reshape infers one",
        )
    return unguardable(site) if needed_extents(site, form) else None
