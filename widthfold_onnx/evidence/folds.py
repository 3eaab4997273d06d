"""Reads the records of folded nodes (`rewrite.record`) for reports; no verdict depends on them."""

from __future__ import annotations

import msgspec
import onnx

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.graph.document import Document, Node
from widthfold_onnx.model.graph.names import shown_name
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.results import FoldedNode
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY, read_record
from widthfold_onnx.rewrite.rewriting import RUNTIME_KEY

UNREADABLE = "unreadable"
"""Form of a folded node whose record cannot be read."""


def recorded_folds(document: Document) -> list[FoldedNode]:
    """Return the records of a model's folded nodes, in running order."""
    return [read_fold(n) for _, n in document.nodes(OPERATORS) if FOLD_KEY in n.metadata_props]


def recorded_runtime(proto: onnx.ModelProto) -> str:
    """Return the version of ONNX Runtime that a model's forms were measured with; "" if unknown."""
    return "".join(entry.value for entry in proto.metadata_props if entry.key == RUNTIME_KEY)


def read_fold(node: Node) -> FoldedNode:
    """Return the record of a folded node."""
    name = shown_name(node, node.metadata_props.get(ORIGIN_KEY))
    try:
        record = read_record(node.metadata_props[FOLD_KEY])
    except InvalidModelError:
        return FoldedNode(node=name, form=UNREADABLE)
    return FoldedNode(node=name, **msgspec.structs.asdict(record))
