"""Describe new nodes in their metadata, as text.

Each names the output of the original that it computes (`ORIGIN_KEY`). A folded node records its
fold (`FOLD_KEY`): reports show the record, and a model with such a node is not folded again. A node
whose outputs are packed tensors is marked (`PACKED`). No proof reads any of this.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import onnx

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.fold.axis import fold_axis, keep_axis
from widthfold_onnx.fold.channels import Grouping, regroup
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.model.proto.walk import all_nodes
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite

FOLD_KEY = "widthfold.fold"
ORIGIN_KEY = "widthfold.origin"
LAYOUT_KEY = "widthfold.state"
PACKED = {LAYOUT_KEY: "packed"}

Count = Annotated[int, msgspec.Meta(ge=1)]
"""A count of tiles, positions, channels or groups; checked, as others may edit the metadata."""
Lift = Annotated[int, msgspec.Meta(ge=0, le=1)]
Extents = list[Count | None]
"""Extents of a tensor; None for any extent."""


class AxisRecord(msgspec.Struct, frozen=True):
    """One spatial axis: tiles, and the planned input extent (None: any)."""

    out_tile: Count
    in_tile: Count
    blocked: bool
    length: Count | None


class ProductRecord(msgspec.Struct, frozen=True, tag="product", tag_field="kind"):
    """The fold of one product of matrices.

    `shape` holds the extents of the stored data for which the plan is right; None for any extent.
    """

    axis: str
    factor: Count
    form: str
    flops_ratio: float
    merged: Count
    shape: Extents


class FoldRecord(msgspec.Struct, frozen=True, tag="conv", tag_field="kind"):
    """The fold of one Conv.

    `samples` is the planned batch (None: any); `channels` and `group` are those of the Conv before
    the fold, after regrouping.
    """

    axis: str
    factor: Count
    form: str
    flops_ratio: float
    samples: Count | None
    batch: Count
    dense: bool
    tile_major: bool
    lift: Lift
    channels: tuple[Count, Count]
    group: Count
    axes: list[AxisRecord]


def record_of(site: LinearSite, plan: Reformulation) -> FoldRecord | ProductRecord:
    """Return the record of a plan."""
    if site.is_product:
        *leading, rows, columns = plan.stated
        return ProductRecord(
            axis=plan.axis,
            factor=plan.factor,
            form=plan.form,
            flops_ratio=round(plan.flops_ratio, 6),
            merged=plan.merged,
            shape=[*leading, *((columns, rows) if site.transposed else (rows, columns))],
        )
    return FoldRecord(
        axis=plan.axis,
        factor=plan.factor,
        form=plan.form,
        flops_ratio=round(plan.flops_ratio, 6),
        samples=site.planned[0],
        batch=plan.fold.batch,
        dense=plan.fold.dense,
        tile_major=plan.fold.tile_major,
        lift=plan.fold.lift,
        channels=plan.fold.regrouping.channels(*site.channels),
        group=plan.fold.group,
        axes=[
            AxisRecord(folded.out_tile, folded.in_tile, folded.blocked, axis.length)
            for folded, axis in zip(plan.fold.axes, site.axes, strict=True)
        ],
    )


def carries_folds(model: onnx.ModelProto) -> bool:
    """Check whether a node of a model, its bodies or its functions is a fold of an earlier run."""
    graphs = (model.graph, *model.functions)
    nodes = (node for graph in graphs for node in all_nodes(graph.node))
    return any(entry.key == FOLD_KEY for node in nodes for entry in node.metadata_props)


def encoded(record: msgspec.Struct) -> str:
    """Return a record as text."""
    return msgspec.json.encode(record).decode()


def read_record(text: str) -> FoldRecord | ProductRecord:
    """Parse the metadata of a folded node.

    Raises:
        InvalidModelError: the text is no record of this version.
    """
    try:
        return msgspec.json.decode(text, type=FoldRecord | ProductRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidModelError(f"{FOLD_KEY} cannot be read: {error}") from error


def fold_again(
    record: FoldRecord, axes: tuple[ConvAxis, ...], grouping: Grouping
) -> ConvFold | Refusal:
    """Return the fold that a record describes, for axes and channels of the original Conv."""
    regrouping = regroup(grouping, Grouping(*record.channels, record.group))
    if isinstance(regrouping, Refusal):
        return regrouping
    folded = []
    for axis, entry in zip(axes, record.axes, strict=True):
        kept = entry.out_tile * entry.in_tile * axis.base_dilation == 1
        result = (
            keep_axis(axis)
            if kept
            else fold_axis(axis, entry.out_tile, entry.in_tile, blocked=entry.blocked)
        )
        if isinstance(result, Refusal):
            return result
        folded.append(result)
    return ConvFold(
        axes=tuple(folded),
        group=record.group,
        batch=record.batch,
        dense=record.dense,
        tile_major=record.tile_major,
        lift=record.lift,
        regrouping=regrouping,
    )
