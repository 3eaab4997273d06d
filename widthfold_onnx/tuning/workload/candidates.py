"""List every form that a layer may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from widthfold_onnx.options import FACTORS, AxisName, FoldOptions, Layout
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.forms.enumeration import (
    AxisOutcome,
    forms_at_factor,
    forms_of_split,
    groupings,
    splits,
    summed_taps,
)
from widthfold_onnx.rules.forms.form import NO_AXIS, Form, FormSpec
from widthfold_onnx.rules.forms.legality import legal_form
from widthfold_onnx.rules.forms.rows import RowFold
from widthfold_onnx.rules.match.sites import ConvSite, LinearSite, ProductSite
from widthfold_onnx.rules.selection import (
    is_einsum,
    is_of_one_axis,
    site_problem,
    width_problem,
)

MAX_WHOLE = 64
"""Largest number of positions of an axis that may become channels as a whole."""


ORDERS = {Layout.AUTO: (False, True), Layout.NCHW: (False,), Layout.NHWC: (True,)}
"""Channel orders to try by layout: tile-major or not."""


LIFTED_RANKS = (1, 2)
"""Spatial axes of a Conv that may be lifted. The CPU's blocked kernels exist for two axes only: a
Conv of one axis is lifted to reach them, one of two to avoid them."""


def lift_of(site: LinearSite, options: FoldOptions) -> Form | Refusal:
    """Return the form that lifts a layer of one axis, and changes nothing else."""
    problem = site_problem(site, options)
    if problem is None and is_of_one_axis(site):
        for form in _legal(forms_of_split(site, options, (1,) * len(site.positions), lift=1)):
            if form.spec.axis == NO_AXIS:
                return form
    return problem or Refusal(Code.NO_GAIN, "it has no axis to add")


def every_form(site: LinearSite, options: FoldOptions) -> Iterator[Form]:
    """Yield every legal form of a site, each once.

    Extents need not be divisible: the cost of extending and cutting is measured with the form. If
    the options name an axis, channels and groups stay as they are. A wide site, which is of one
    axis, is lifted only.
    """
    if isinstance(site, ProductSite):
        yield from _of_product(site, options)
        return
    assert isinstance(site, ConvSite)
    options = replace(options, ragged=True)
    unfolded = (1,) * len(site.positions)
    if width_problem(site, options) is not None:
        yield from _legal(forms_of_split(site, options, unfolded, lift=1))
        return
    full_extents = [n for n in site.positions[1:] if n is not None and n <= MAX_WHOLE]
    # A lifted Conv is not computed by the channels-last kernels, so that order is not tried.
    ways = [(0, order) for order in ORDERS[options.layout]]
    ways += [(1, False)] if len(site.axes) in LIFTED_RANKS else []
    # A factor equal to the dilation removes it: every tile reads positions of its own tile only.
    dilations = [axis.dilation for axis in site.axes if axis.dilation <= FACTORS[-1]]
    specs: set[FormSpec] = set()
    for factor in sorted({1, *FACTORS, *full_extents, *dilations}):
        for split in splits(options.axis, factor, len(site.axes)):
            for lift, order in ways:
                forms = forms_of_split(
                    site, options, split, lift=lift, tile_major=order, one_sided=True
                )
                for form in _legal(forms):
                    spec = form.spec
                    if spec not in specs:
                        specs.add(spec)
                        yield form
    if options.axis is AxisName.AUTO:
        yield from summed_taps(site, options)
        for grouping in groupings(site):
            yield from _legal(forms_of_split(site, options, unfolded, grouping=grouping))


def _of_product(site: ProductSite, options: FoldOptions) -> Iterator[Form]:
    """Yield the legal forms at the usual factors, or if there are none at any factor up to them.

    An Einsum is also tried as a MatMul, and nothing else if it is wide.
    """
    if is_einsum(site):
        product = legal_form(RowFold.smallest(site, options, 1))
        yield from _legal([(site.position_names[0], product)])
        if width_problem(site, options) is not None:
            return
    for factors in (FACTORS, range(2, FACTORS[-1] + 1)):
        legal = [f for factor in factors for f in _legal(forms_at_factor(site, options, factor))]
        if legal:
            yield from legal
            return


def _legal(outcomes: Iterable[AxisOutcome]) -> Iterator[Form]:
    """Yield the forms among outcomes."""
    for _, form in outcomes:
        if isinstance(form, Form):
            yield form
