"""Opens the extents that an earlier run only assumed: the model itself does not fix them.

The nodes of a fold may state an extent that the original leaves open and that was assumed for
planning. Shape inference takes it for a fact, so a second run would fold what the first one
refused. Therefore a node that returns a tensor of the original lists such axes (`ASSUMED_KEY`). A
mark only removes knowledge: a wrong one cannot make a fold wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Annotated

import msgspec
import onnx

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.walk import all_graphs

ASSUMED_KEY = "widthfold.assumed"

_Axes = frozenset[Annotated[int, msgspec.Meta(ge=0, lt=64)]]  # NumPy has no more axes
_ANYWHERE = "widthfold/anywhere"


def assumed_record(axes: Collection[int]) -> dict[str, str]:
    """Return metadata that marks the extents along `axes` of a node's output as only assumed."""
    return {ASSUMED_KEY: msgspec.json.encode(sorted(axes)).decode()} if axes else {}


def open_assumed(outline: onnx.ModelProto) -> None:
    """Open the marked extents of a skeleton (`model.skeleton`).

    Behind each marked node stands a Gather along every such axis, of an unknown number of
    positions: the other extents, the rank and the element type stay known.

    Raises:
        InvalidModelError: a mark that cannot be read.
    """
    marked = False
    for graph in all_graphs(outline.graph):
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            nodes.append(node)
            axes = _assumed_axes(node)
            if not axes:
                continue
            names = [*(f"{node.output[0]}/{axis}" for axis in axes), node.output[0]]
            node.output[0] = names[0]
            nodes += [
                onnx.helper.make_node("Gather", [before, _ANYWHERE], [after], axis=axis)
                for axis, (before, after) in zip(axes, pairwise(names), strict=True)
            ]
        if len(nodes) > len(graph.node):
            marked = True
            del graph.node[:]
            graph.node.extend(nodes)
    if marked:
        anywhere = onnx.helper.make_tensor_value_info(_ANYWHERE, onnx.TensorProto.INT64, [None])
        outline.graph.input.append(anywhere)


def _assumed_axes(node: onnx.NodeProto) -> list[int]:
    marks = (entry.value for entry in node.metadata_props if entry.key == ASSUMED_KEY)
    text = next(marks, "[]") if node.output else "[]"
    try:
        return sorted(msgspec.json.decode(text, type=_Axes))
    except msgspec.DecodeError as error:
        raise InvalidModelError(f"{ASSUMED_KEY} cannot be read: {error}") from error
