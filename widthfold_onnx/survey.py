"""All that is known about every site, for `inspect`: nothing is decided here."""

from __future__ import annotations

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.plan.decisions import read_site, was_folded
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import Choice, InspectSite
from widthfold_onnx.rewrite.record import FOLD_KEY, read_record
from widthfold_onnx.rules.base import LinearSite, Reformulation, Site
from widthfold_onnx.rules.conv import cost, furthest, is_wide
from widthfold_onnx.rules.outcomes import candidates
from widthfold_onnx.rules.windowed import WindowedSite

LANES = 8
"""Channels of one tensor-core tile in half precision (NVIDIA convolution guide)."""


def survey(
    document: Document, sites: list[Site], options: FoldOptions, factor: int
) -> list[InspectSite]:
    """Describe every site; legal and refused forms are those at the factor.

    Raises:
        UsageError: an assumed input shape does not fit.
    """
    static = document.shapes
    planned = ShapeTable(document.proto, options.input_shapes) if options.input_shapes else static
    return [_describe(document, site, static, planned, options, factor) for site in sites]


def _describe(
    document: Document,
    site: Site,
    static: ShapeTable,
    planned: ShapeTable,
    options: FoldOptions,
    factor: int,
) -> InspectSite:
    conv = read_site(document, site, static, planned)
    place = {"node": site.name, "graph": site.scope.path, "op": site.op}
    folded_as = None
    if was_folded(site.node):
        folded_as = _folded_as(site.node)
    if isinstance(conv, Refusal):
        return InspectSite(
            **place,
            input_shape=None,
            weight_shape=None,
            output_shape=None,
            attributes="",
            channels="",
            alignment="",
            flops=None,
            folded_as=folded_as,
            choices=[],
            refusals={"any axis": f"{conv.code}: {conv.reason}"},
        )
    legal: dict[str, Reformulation] = {}
    refused: list[tuple[str, Refusal]] = []
    wide = is_wide(conv, options)
    if wide is None and folded_as is None:
        for axis, outcome in candidates(conv, options, factor):
            if isinstance(outcome, Refusal):
                refused.append((axis, outcome))
            elif axis not in legal or cost(outcome) < cost(legal[axis]):
                legal[axis] = outcome
    refusals = {axis: r for axis, r in furthest(refused).items() if axis not in legal}
    if wide is not None:
        refusals["any axis"] = wide
    inputs, outputs = conv.channels
    return InspectSite(
        **place,
        input_shape=_shown(conv.planned),
        weight_shape=list(conv.weight.shape),
        output_shape=_shown(conv.output),
        attributes=conv.attributes + ("" if wide is not None else _falls(conv)),
        channels=f"{inputs} -> {outputs}",
        alignment=f"{inputs} of {_padded(inputs)} -> {outputs} of {_padded(outputs)}",
        flops=conv.macs,
        folded_as=folded_as,
        choices=[_choice(conv, r) for r in sorted(legal.values(), key=cost)],
        refusals={axis: f"{r.code}: {r.reason}" for axis, r in refusals.items()},
    )


def _falls(conv: LinearSite) -> str:
    """Into how many groups its weight falls, if that is news; a wide layer is not read for this."""
    if not isinstance(conv, WindowedSite) or conv.groups == conv.group:
        return ""
    return f", falls into {conv.groups} groups"


def _folded_as(node: Node) -> str:
    try:
        record = read_record(node.metadata_props.get(FOLD_KEY, ""))
    except InvalidModelError:
        return "how is not known: its record is missing or cannot be read"
    times = f" by {record.factor}" if record.factor > 1 else ""
    return f"{record.axis}{times}, {record.form}"


def _choice(conv: LinearSite, outcome: Reformulation) -> Choice:
    inputs, outputs = conv.channels
    fold = outcome.fold
    return Choice(
        axis=outcome.axis,
        factor=outcome.factor,
        form=outcome.form,
        channels="{} -> {}".format(*fold.channels(inputs, outputs)),
        flops_ratio=round(outcome.flops_ratio, 4),
        bytes_ratio=round(outcome.bytes_ratio, 4),
        structural_zeros=round(fold.structural_zeros(), 4),
    )


def _shown(dims: Dims) -> list[int | str]:
    return ["?" if extent is None else extent for extent in dims]


def _padded(channels: int) -> int:
    return -(-channels // LANES) * LANES
