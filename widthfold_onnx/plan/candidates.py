"""List every form that a layer may take, each with a key that describes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from widthfold_onnx.options import FACTORS, AxisName, FoldOptions, Layout
from widthfold_onnx.plan.identity import canonical
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.record import ProductRecord, fold_again, read_record, record_of
from widthfold_onnx.rules import rows
from widthfold_onnx.rules.form import Reformulation
from widthfold_onnx.rules.forms import candidates, forms, splits
from widthfold_onnx.rules.legality import judge
from widthfold_onnx.rules.regrouped import groupings
from widthfold_onnx.rules.site import LinearSite

MAX_WHOLE = 64
"""Largest number of positions of an axis that may become channels as a whole."""


ORDERS = {Layout.AUTO: (False, True), Layout.NCHW: (False,), Layout.NHWC: (True,)}
"""Channel orders to try by layout: digit-major or not."""


LIFTED_RANK = 2
"""Spatial axes of a Conv that may be lifted: the CPU's NCHWc kernels exist for two only."""


KEYED = {
    *("kind", "axis", "factor", "form", "merged", "batch", "dense", "digit_major", "lift"),
    *("channels", "group", "axes", "out_digits", "in_digits", "blocked"),
}
"""Fields of a record that tell the forms of one layer apart, and so are in the key."""

UNKEYED: dict[str, object] = {"samples": None, "length": None, "shape": [], "flops_ratio": 0.0}
"""What stands in a key for fields that the layer decides: its extents, and what follows of them."""


def form_key(site: LinearSite, form: Reformulation) -> str:
    """Return a form as canonical JSON: a record, of which any new field is left out."""
    record = msgspec.to_builtins(record_of(site, form))
    return canonical(_keyed(record | {"form": form.kind}))


def _keyed(told: object) -> object:
    if isinstance(told, list | tuple):
        return [_keyed(item) for item in told]
    if not isinstance(told, dict):
        return told
    kept = {name: _keyed(value) for name, value in told.items() if name in KEYED}
    return kept | {name: blank for name, blank in UNKEYED.items() if name in told}


def form_of(site: LinearSite, key: str, options: FoldOptions) -> Reformulation | Refusal:
    """Return the form that a key describes, at the extents of a site.

    Args:
        site: the Conv.
        key: see `form_key`.
        options: the limits are used.
    """
    record = read_record(key)
    if isinstance(record, ProductRecord):
        again, factor = rows.fold_of(site, record.factor), record.factor
        return judge(site, options, again, record.axis, factor, record.form, record.merged)
    fold = fold_again(record, site.axes, site.grouping)
    if isinstance(fold, Refusal):
        return fold
    return judge(site, replace(options, ragged=True), fold, record.axis, record.factor, record.form)


def every_form(site: LinearSite, options: FoldOptions) -> Iterator[Reformulation]:
    """Yield every legal form of a site, each once.

    Extents need not be divisible: the cost of extending and cutting is measured with the form. If
    the options name an axis, channels and groups stay as they are.
    """
    if site.is_product:
        yield from _of_product(site, options)
        return
    options = replace(options, ragged=True)
    extents = site.positions
    whole = [n for n in extents[1:] if n is not None and n <= MAX_WHOLE]
    # A lifted Conv is not computed by the channels-last kernels, so that order is not tried.
    ways = [(0, order) for order in ORDERS[options.layout]]
    ways += [(1, False)] if len(site.axes) == LIFTED_RANK else []
    # A factor equal to the dilation removes it: every digit reads positions of its own digit only.
    dilations = [axis.dilation for axis in site.axes if axis.dilation <= FACTORS[-1]]
    seen = set()
    for factor in sorted({1, *FACTORS, *whole, *dilations}):
        for split in splits(options.axis, factor, len(site.axes)):
            for lift, order in ways:
                every = forms(site, options, split, lift=lift, digit_major=order, one_sided=True)
                for _, form in every:
                    key = form_key(site, form) if isinstance(form, Reformulation) else None
                    if isinstance(form, Reformulation) and key not in seen:
                        seen.add(key)
                        yield form
    for grouping in groupings(site) if options.axis is AxisName.AUTO else ():
        for _, form in forms(site, options, (1,) * len(extents), grouping=grouping):
            if isinstance(form, Reformulation):
                yield form


def _of_product(site: LinearSite, options: FoldOptions) -> Iterator[Reformulation]:
    """Yield the legal forms at the usual factors, or if there are none at any factor up to them."""
    for factors in (FACTORS, range(2, FACTORS[-1] + 1)):
        outcomes = (form for factor in factors for _, form in candidates(site, options, factor))
        legal = [form for form in outcomes if isinstance(form, Reformulation)]
        if legal:
            yield from legal
            return
