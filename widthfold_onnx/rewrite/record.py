"""What a folded Conv remembers of its fold, as JSON in its metadata.

A second run knows by it that there is nothing left to do, `inspect` shows it, and the exact probe
builds the same fold from it again.
"""

from __future__ import annotations

import msgspec

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.fold.axis import ConvAxis, fold_axis, keep_axis
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import ConvSite, Reformulation

FOLD_KEY = "widthfold.fold"
ORIGIN_KEY = "widthfold.origin"


class AxisRecord(msgspec.Struct, frozen=True):
    """One spatial axis: digits, and the input extent that was planned with (None: any)."""

    out_digits: int
    in_digits: int
    blocked: bool
    length: int | None


class FoldRecord(msgspec.Struct, frozen=True):
    """The fold of one Conv; `samples` is the batch that was planned with (None: any)."""

    axis: str
    factor: int
    form: str
    flops_ratio: float
    samples: int | None
    batch: int
    dense: bool
    digit_major: bool
    lift: int
    axes: list[AxisRecord]


def record_of(site: ConvSite, plan: Reformulation) -> FoldRecord:
    """The record of a plan."""
    return FoldRecord(
        axis=plan.axis,
        factor=plan.factor,
        form=plan.form,
        flops_ratio=round(plan.flops_ratio, 6),
        samples=site.planned[0],
        batch=plan.fold.batch,
        dense=plan.fold.dense,
        digit_major=plan.fold.digit_major,
        lift=plan.fold.lift,
        axes=[
            AxisRecord(folded.out_digits, folded.in_digits, folded.blocked, axis.length)
            for folded, axis in zip(plan.fold.axes, site.axes, strict=True)
        ],
    )


def read_record(text: str) -> FoldRecord:
    """Parse the metadata of a Conv.

    Raises:
        InvalidModelError: it is not a record that this version wrote.
    """
    try:
        return msgspec.json.decode(text, type=FoldRecord)
    except msgspec.DecodeError as error:
        raise InvalidModelError(f"{FOLD_KEY} cannot be read: {error}") from error


def fold_again(record: FoldRecord, axes: tuple[ConvAxis, ...], group: int) -> ConvFold | Refusal:
    """The fold that a record describes, for the geometry of the original Conv."""
    folded = []
    for axis, entry in zip(axes, record.axes, strict=True):
        kept = entry.out_digits * entry.in_digits == 1
        result = (
            keep_axis(axis)
            if kept
            else fold_axis(axis, entry.out_digits, entry.in_digits, blocked=entry.blocked)
        )
        if isinstance(result, Refusal):
            return result
        folded.append(result)
    return ConvFold(
        axes=tuple(folded),
        group=group,
        batch=record.batch,
        dense=record.dense,
        digit_major=record.digit_major,
        lift=record.lift,
    )
