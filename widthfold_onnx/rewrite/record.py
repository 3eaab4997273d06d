"""What new nodes say of themselves, as text in their metadata.

Each names the output of the original that it stands for (`ORIGIN_KEY`). A folded Conv says how it
was folded (`FOLD_KEY`): a second run knows by it that there is nothing left to do, and `inspect`
and the reports show it. A node whose outputs are packed tensors says in which state they are
(`STATE_KEY`). What returns a tensor of the original says which of its extents were only assumed
(`model.assumed`), and what is computed channel by channel of which node it is part (`CHANNEL_KEY`).
No proof reads any of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any

import msgspec

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.fold.axis import fold_axis, keep_axis
from widthfold_onnx.fold.channels import Grouping, regroup
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.fold.conv_state import ConvState
from widthfold_onnx.fold.row_state import RowState
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Node
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.matmul import MatMulForm
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.windowed import WindowedSite
from widthfold_onnx.rules.windowed_form import WindowedForm

FOLD_KEY = "widthfold.fold"
ORIGIN_KEY = "widthfold.origin"
STATE_KEY = "widthfold.state"
CHANNEL_KEY = "widthfold.channel"

Count = Annotated[int, msgspec.Meta(ge=1)]
"""Of digits, positions, channels, groups: whoever changes a model can write any number."""
Lift = Annotated[int, msgspec.Meta(ge=0, le=1)]
Extents = list[Count | None]
"""None where any will do."""
Outputs = Annotated[list[Extents], msgspec.Meta(min_length=1)]


class AxisRecord(msgspec.Struct, frozen=True):
    """One spatial axis: digits, and the input extent that was planned with (None: any)."""

    out_digits: Count
    in_digits: Count
    blocked: bool
    length: Count | None


class ProductRecord(msgspec.Struct, frozen=True, tag="product", tag_field="kind"):
    """The fold of one product of matrices.

    `shape` are the extents of the data as it is stored that the plan is good for; None where any
    will do.
    """

    axis: str
    factor: Count
    form: str
    flops_ratio: float
    merged: Count
    shape: Extents


class FoldRecord(msgspec.Struct, frozen=True, tag="conv", tag_field="kind"):
    """The fold of one Conv.

    `samples` is the batch that was planned with (None: any), `channels` and `group` what the Conv
    that is folded has.
    """

    axis: str
    factor: Count
    form: str
    flops_ratio: float
    samples: Count | None
    batch: Count
    dense: bool
    digit_major: bool
    lift: Lift
    channels: tuple[Count, Count]
    group: Count
    axes: list[AxisRecord]


class ConvStateRecord(msgspec.Struct, frozen=True, tag="conv", tag_field="kind"):
    """The state of a node's outputs; `shapes` are their natural extents, None where any will do."""

    batch: Count
    digits: list[tuple[Count, bool]]
    lift: Lift
    digit_major: bool
    shapes: Outputs

    @property
    def state(self) -> State:
        """The state."""
        return ConvState(self.batch, tuple(self.digits), self.lift, self.digit_major)


class RowStateRecord(msgspec.Struct, frozen=True, tag="rows", tag_field="kind"):
    """The same for the state of data or results of products."""

    factor: Count
    left: bool
    merged: Count
    shapes: Outputs

    @property
    def state(self) -> State:
        """The state."""
        return RowState(self.factor, self.left, self.merged)


StateRecord = ConvStateRecord | RowStateRecord


class ChannelRecord(msgspec.Struct, frozen=True):
    """What a node is part of.

    `of` is the output of the original that it helps to compute, `channel` the one of its channels
    that it has to do with; None: all.
    """

    of: str
    channel: int | None


def state_record(state: State, shapes: Sequence[Dims]) -> dict[str, str]:
    """The metadata of a node that returns tensors of natural extents `shapes` in a state."""
    kind = {ConvState: ConvStateRecord, RowState: RowStateRecord}[type(state)]
    return {STATE_KEY: encoded(kind(**vars(state), shapes=[list(shape) for shape in shapes]))}


def product_record(site: MatMulSite, form: MatMulForm) -> ProductRecord:
    """The record of a plan for a product."""
    *leading, rows, columns = form.shape
    return ProductRecord(
        axis=form.axis,
        factor=form.factor,
        form=form.form,
        flops_ratio=round(form.flops_ratio, 6),
        merged=form.fold.merged,
        shape=[*leading, *((columns, rows) if form.transposed else (rows, columns))],
    )


def record_of(
    site: WindowedSite, plan: WindowedForm, free: Collection[int] = frozenset()
) -> FoldRecord:
    """The record of a plan; axes of the data of which nothing new states the extent are `free`."""
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
        channels=plan.fold.regrouping.channels(*site.channels),
        group=plan.fold.group,
        axes=[
            AxisRecord(
                folded.out_digits,
                folded.in_digits,
                folded.blocked,
                None if i in free and folded.in_digits * folded.stride == 1 else axis.length,
            )
            for i, (folded, axis) in enumerate(zip(plan.fold.axes, site.axes, strict=True), start=2)
        ],
    )


def encoded(record: msgspec.Struct) -> str:
    """A record as text."""
    return msgspec.json.encode(record).decode()


def read_record(text: str) -> FoldRecord | ProductRecord:
    """Parse the metadata of a folded node.

    Raises:
        InvalidModelError: it is not a record that this version wrote.
    """
    record: FoldRecord | ProductRecord = _decoded(text, FoldRecord | ProductRecord, FOLD_KEY)
    return record


def read_state(text: str) -> StateRecord:
    """Parse the state of a node's outputs; the errors are those of `read_record`."""
    record: StateRecord = _decoded(text, StateRecord, STATE_KEY)
    return record


def read_channel(node: Node) -> ChannelRecord | None:
    """What a node is part of; None where it does not say. The errors are those of `read_record`."""
    text = node.metadata_props.get(CHANNEL_KEY)
    if text is None:
        return None
    record: ChannelRecord = _decoded(text, ChannelRecord, CHANNEL_KEY)
    return record


def _decoded(text: str, kind: Any, key: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidModelError(f"{key} cannot be read: {error}") from error


def fold_again(
    record: FoldRecord, axes: tuple[ConvAxis, ...], grouping: Grouping
) -> ConvFold | Refusal:
    """The fold that a record describes, for the geometry and the channels of the original Conv."""
    regrouping = regroup(grouping, Grouping(*record.channels, record.group))
    if isinstance(regrouping, Refusal):
        return regrouping
    folded = []
    for axis, entry in zip(axes, record.axes, strict=True):
        kept = entry.out_digits * entry.in_digits * axis.base_dilation == 1
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
        group=record.group,
        batch=record.batch,
        dense=record.dense,
        digit_major=record.digit_major,
        lift=record.lift,
        regrouping=regrouping,
    )
