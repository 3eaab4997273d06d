"""Define the metadata of new nodes and models, as text, and read it for reports.

A new node names the output of the original that it computes (`ORIGIN_KEY`). A folded node records
its fold (`FOLD_KEY`): reports show the record, and a model with such a node is not folded again. A
node whose outputs are packed tensors is marked (`PACKED`), and so are the nodes of a guard
(`GUARD_KEY`). No proof or verdict reads any of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated

import msgspec
import onnx

from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.document import Document, Node
from widthfold_onnx.model.linking import shown_name
from widthfold_onnx.model.proto.walk import model_nodes
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.results import AxisPattern, FoldReport
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer, axis_names

FOLD_KEY = "widthfold.fold"
NONFINITE_KEY = "widthfold.nonfinite"
"""Metadata of a model: ``spread:F`` if folds may spread Inf and NaN: in the layer that spreads them
most, to F times as many outputs on average (`ConvFold.spread`)."""

RUNTIME_KEY = "widthfold.runtime"
"""Metadata of a model: the version of ONNX Runtime that its forms were measured with."""

ORIGIN_KEY = "widthfold.origin"
STATE_KEY = "widthfold.state"
PACKED = {STATE_KEY: "packed"}
GUARD_KEY = "widthfold.guard"
"""Metadata of the nodes of a guard; for its If, the value names what the guard tests."""

MAX_TAPS = 128
"""Taps of an axis that are recorded: they are 4 numbers each, and a kernel of 39 folded by 64 has
2,496 of them. A model would grow by kilobytes per node to draw what no reader can make out."""
MAX_NUMBER = 1 << 30
"""Largest number of a record that is read: whoever edits a model can write any number."""

AXES = (*axis_names(3), "rows", "columns")
Text = Annotated[str, msgspec.Meta(max_length=2000)]


class FoldRecord(msgspec.Struct, frozen=True):
    """The description of a folded node that reports show.

    Attributes:
        form: axes, factor and kind of the form as text, e.g. "width by 8, move blocked".
        channels: of the original and of the folded node.
        axes: the folded axes: the batch and three others at most.
    """

    form: Text
    channels: Text
    axes: Annotated[list[AxisPattern], msgspec.Meta(max_length=4)]


def contains_folds(model: onnx.ModelProto) -> bool:
    """Check whether a node of a model, its bodies or its functions is a fold of an earlier run."""
    entries = (entry for node in model_nodes(model) for entry in node.metadata_props)
    return any(entry.key == FOLD_KEY for entry in entries)


def read_record(text: str) -> FoldRecord:
    """Parse the metadata of a folded node.

    Raises:
        InvalidModelError: the text is no record of this version, or holds what none can hold.
    """
    try:
        record = msgspec.json.decode(text, type=FoldRecord)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidModelError(str(error)) from error
    for axis in record.axes:
        if axis.axis not in AXES:
            raise InvalidModelError("there is no such axis")
        counts = (axis.in_tile, axis.out_tile, axis.original_kernel, axis.kernel, axis.stride)
        places = (axis.in_length or 0, *chain.from_iterable(axis.taps))
        if min(counts) < 1 or min(places) < 0 or max(*counts, *places) > MAX_NUMBER:
            raise InvalidModelError("a number is out of range")
        if len(axis.taps) > MAX_TAPS:
            raise InvalidModelError(f"an axis has more than {MAX_TAPS} taps")
    return record


def describe(layer: Layer, form: Form) -> FoldRecord:
    """Describe the fold of a layer."""
    names = layer.position_names
    times = f" by {form.spec.factor}" if form.spec.factor > 1 else ""
    channels = (*layer.channels, *form.fold.channels(*layer.channels))
    return FoldRecord(
        form=f"{form.spec.axis}{times}, {form.label}",
        channels="{} -> {}, folded {} -> {}".format(*channels),
        axes=_patterns(form.fold, names, form.extended_in_shape[0]),
    )


def _patterns(fold: ConvFold, names: Sequence[str], samples: int | None) -> list[AxisPattern]:
    """Return the folded axes of a layer, the batch first.

    Args:
        fold: how the layer is folded.
        names: of the other axes.
        samples: extent of the batch; None for any.
    """
    batch = fold_axis(ConvAxis(length=samples, kernel=1), fold.batch, fold.batch)
    assert isinstance(batch, FoldedAxis)
    pairs = [("batch", batch), *zip(names, fold.axes, strict=True)]
    return [_pattern(name, axis) for name, axis in pairs if axis.is_folded]


def _pattern(name: str, axis: FoldedAxis) -> AxisPattern:
    columns = (vector.tolist() for vector in axis.taps)
    return AxisPattern(
        axis=name,
        in_tile=axis.in_tile,
        out_tile=axis.out_tile,
        blocked=axis.blocked,
        in_length=axis.extended_length,
        original_kernel=axis.original_kernel,
        kernel=axis.kernel,
        stride=axis.stride,
        taps=list(zip(*columns, strict=True)) if axis.taps.k.size <= MAX_TAPS else [],
    )


UNREADABLE = "unreadable"
"""Form of a folded node whose record cannot be read."""


def recorded_folds(document: Document) -> list[FoldReport]:
    """Return the folds that the nodes of a model record, in running order."""
    return [read_fold(n) for _, n in document.nodes(OPERATORS) if FOLD_KEY in n.metadata_props]


def recorded_runtime(proto: onnx.ModelProto) -> str:
    """Return the version of ONNX Runtime that a model's forms were measured with; "" if unknown."""
    return "".join(entry.value for entry in proto.metadata_props if entry.key == RUNTIME_KEY)


def read_fold(node: Node) -> FoldReport:
    """Return the fold that a node records."""
    name = shown_name(node, node.metadata_props.get(ORIGIN_KEY))
    try:
        record = read_record(node.metadata_props[FOLD_KEY])
    except InvalidModelError:
        return FoldReport(node=name, form=UNREADABLE)
    return FoldReport(node=name, **msgspec.structs.asdict(record))
