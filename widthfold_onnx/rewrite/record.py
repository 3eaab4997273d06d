"""Define the metadata of new nodes, as text.

Each names the output of the original that it computes (`ORIGIN_KEY`). A folded node records its
fold (`FOLD_KEY`): reports show the record, and a model with such a node is not folded again. A node
whose outputs are packed tensors is marked (`PACKED`). No proof reads any of this.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated

import msgspec
import onnx

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.walk import all_nodes
from widthfold_onnx.results import AxisPattern
from widthfold_onnx.rules.match.conv_site import axis_names

FOLD_KEY = "widthfold.fold"
ORIGIN_KEY = "widthfold.origin"
LAYOUT_KEY = "widthfold.state"
PACKED = {LAYOUT_KEY: "packed"}

MOST_TAPS = 128
"""Taps of an axis that are recorded: they are 4 numbers each, and a kernel of 39 folded by 64 has
2,496 of them. A model would grow by kilobytes per node to draw what no reader can make out."""
MOST = 1 << 30
"""Largest number of a record that is read: whoever edits a model can write any number."""

AXES = (*axis_names(3), "rows", "columns")
Text = Annotated[str, msgspec.Meta(max_length=2000)]


class FoldRecord(msgspec.Struct, frozen=True):
    """The description of a folded node that reports show.

    Attributes:
        form: axes, factor and kind, e.g. "width by 8, move blocked".
        channels: of the original and of the folded node.
        axes: the folded axes: the batch and three others at most.
    """

    form: Text
    channels: Text
    axes: Annotated[list[AxisPattern], msgspec.Meta(max_length=4)]


def carries_folds(model: onnx.ModelProto) -> bool:
    """Check whether a node of a model, its bodies or its functions is a fold of an earlier run."""
    graphs = (model.graph, *model.functions)
    nodes = (node for graph in graphs for node in all_nodes(graph.node))
    return any(entry.key == FOLD_KEY for node in nodes for entry in node.metadata_props)


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
        if min(counts) < 1 or min(places) < 0 or max(*counts, *places) > MOST:
            raise InvalidModelError("a number is out of range")
        if len(axis.taps) > MOST_TAPS:
            raise InvalidModelError(f"an axis has more than {MOST_TAPS} taps")
    return record
