"""Describes the result of `inspect`: each layer with its forms, or the reasons for none."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from widthfold_onnx.reports.described import inputs
from widthfold_onnx.reports.described.optimization import (
    already_folded,
    companion,
    located,
    padding,
)
from widthfold_onnx.reports.description import Column, Description, Detail, Line, tabulated
from widthfold_onnx.reports.words import kinds
from widthfold_onnx.results import FormChoice, InspectReport, InspectSite


def _shape(dims: Sequence[int | str] | None) -> str:
    return "" if dims is None else "x".join(map(str, dims))


def _form(form: FormChoice) -> str:
    return (
        f"{form.axis} by {form.factor}: {form.channels}, {form.flops_ratio:.2f}x MACs, {form.form}"
    )


def _cheapest(site: InspectSite) -> list[str]:
    """Return the cheapest fold, or the first reason why there is none, and the hint."""
    if site.folded_as is not None:
        return [f"folded: {site.folded_as}"]
    if site.choices:
        return [_form(site.choices[0])]
    refusals = [f"none: {reason}" for reason in site.refusals.values()]
    return [line for line in (*refusals[:1], site.hint) if line]


def _forms(site: InspectSite) -> list[str]:
    """Return geometry, folds, refusals and hint, one line each."""
    folds = list(map(_form, site.choices))
    if site.folded_as is not None:
        folds = [f"folded: {site.folded_as}"]
    refusals = [f"no fold of {axis}: {reason}" for axis, reason in site.refusals.items()]
    return [line for line in (site.attributes, *folds, *refusals, site.hint) if line]


SITES: tuple[Column[InspectSite], ...] = (
    Column("node", located),
    Column("input", lambda site: _shape(site.input_shape)),
    Column("weight", lambda site: _shape(site.weight_shape)),
    Column("channels", lambda site: site.channels),
    Column("of 8-wide tiles", lambda site: site.alignment),
    Column("MACs", lambda site: "" if site.flops is None else f"{site.flops:,}"),
    Column("geometry, then folds, cheapest first", _forms, sentences=True),
)

BRIEF_SITES = (*SITES[:-1], Column("cheapest fold", _cheapest, sentences=True))


def describe(report: InspectReport, detail: Detail) -> Description:
    """Describe the result of `inspect`; briefly, with the cheapest fold of each layer."""
    full = detail >= Detail.FULL
    sites = f"{len(report.sites)} {kinds(report.sites)}"
    remarks = list(map(companion, report.companions))
    if report.padding is not None:
        remarks.append(padding(report.padding if full else replace(report.padding, stops=[])))
    if any(site.folded_as is not None for site in report.sites):
        remarks.append(already_folded(report.model))
    return Description(
        head=Line("", f"{report.model}: {report.nodes} nodes, {sites}, opset {report.opset}"),
        assumptions=inputs.assumptions(report.assumed, report.values),
        tables=tabulated("sites", SITES if full else BRIEF_SITES, report.sites),
        remarks=remarks,
    )
