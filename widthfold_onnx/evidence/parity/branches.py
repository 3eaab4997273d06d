"""Name the branches of a model that no input set reaches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx

from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.proto import walk
from widthfold_onnx.model.proto.functions import without_functions
from widthfold_onnx.options import RuntimeOptions
from widthfold_onnx.runtime.inputs.feeds import InputSet
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session
from widthfold_onnx.text import printable

SHAPE_OPERATORS = ("Shape", "Size")
"""Operators that return extents, whatever the elements are."""


def unreached_branches(
    model: LoadedModel, options: RuntimeOptions, sets: Sequence[InputSet]
) -> list[str]:
    """Return the branches, chosen by elements of inputs, that no input set reaches.

    Args:
        model: the model.
        options: where it runs.
        sets: input sets on which it runs.

    Raises:
        UnverifiedError: it does not run.
    """
    copy, names = _marked_copy(model.proto)
    if not names:
        return []
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(
            copy, options, Level.DISABLED, source=model.path, profile=Path(folder, "profile")
        )
        for item in sets:
            session.run(item.feeds)
        events = json.loads(session.end_profile().read_bytes(), strict=False)
    marks = {event["name"].rpartition("/")[0] for event in events}
    return [branch for mark, branch in names.items() if mark not in marks]


def _marked_copy(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Rename the nodes of each branch that elements of inputs choose.

    Returns:
        A copy of the model, and the name of each branch by the mark that begins its node names.
    """
    copy = walk.copy_of(without_functions(model))
    values = {value.name for value in walk.inputs(copy)}
    _add_dependents(copy.graph, values)
    names: dict[str, str] = {}
    for node in walk.all_nodes(copy.graph.node):
        if node.op_type == "If" and node.input[0] in values:
            for branch, body in walk.subgraphs(node.attribute):
                mark = f"widthfold/branch {len(names)}"
                names[mark] = f"{branch} of {printable(node.name or node.output[0])}"
                for number, inner in enumerate(body.node):
                    inner.name = f"{mark}/{number}"
    return copy, names


def _add_dependents(graph: onnx.GraphProto, values: set[str]) -> None:
    """Add the values that depend on elements of `values`, not on their extents alone."""
    for node in graph.node:
        depends = node.op_type not in SHAPE_OPERATORS and any(name in values for name in node.input)
        for _, body in walk.subgraphs(node.attribute):
            if depends:
                values.update(value.name for value in body.input)
            _add_dependents(body, values)
            depends = depends or any(value.name in values for value in body.output)
        if depends:
            values.update(name for name in node.output if name)
