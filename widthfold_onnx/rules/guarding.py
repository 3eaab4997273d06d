"""When a fold must not be used: what a guard has to test before it takes the folded nodes.

Under `--guard-shapes` an extent that the model leaves open must be one that the fold is good for:
the planned one, or where none was planned a multiple of the digits.
"""

from __future__ import annotations

from typing import NamedTuple

from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rules.base import LinearSite, Reformulation
from widthfold_onnx.rules.matmul import MatMulForm
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.windowed import WindowedSite
from widthfold_onnx.rules.windowed_form import WindowedForm

EXTENTS = "extents"
"""What a guard is for, as models and reports say it."""

EXACT = 1 << 62
"""A modulus that no extent reaches: only the offset itself is left over."""


class Extent(NamedTuple):
    """An extent must leave no rest: (extent - offset) mod modulus = 0."""

    offset: int
    modulus: int


def needed_extents(
    site: LinearSite, plan: Reformulation, options: FoldOptions
) -> dict[int, Extent]:
    """What the extents of the data must be, by axis of the data as it is stored."""
    if not options.guard_shapes:
        return {}
    if isinstance(site, WindowedSite) and isinstance(plan, WindowedForm):
        written, rest = plan.input.shape, plan.fold.in_state.factors
        tested = {i for i, extent in enumerate(written) if extent is not None}
        planned = site.planned
        tested |= {i + 2 for i in site.sized_pads}
    else:
        assert isinstance(site, MatMulSite)
        assert isinstance(plan, MatMulForm)
        planned, rest = plan.shape, plan.rests
        tested = {i for i, extent in enumerate(planned) if extent is not None}
    needed = {
        i: Extent(planned[i] or 0, EXACT) if i in tested else Extent(0, rest[i])
        for i, fixed in enumerate(site.static)
        if fixed is None
    }
    axes = stored(site)
    return {axes[i]: extent for i, extent in needed.items() if extent.modulus > 1}


def stored(site: LinearSite) -> list[int]:
    """Which axis of the data as it is stored every axis is that the site reads."""
    axes = list(range(len(site.static)))
    if isinstance(site, MatMulSite) and site.transposed:
        axes[-2:] = axes[:-3:-1]
    return axes
