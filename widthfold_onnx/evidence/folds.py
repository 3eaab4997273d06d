"""Reads, for reports, what the folded nodes of a rewritten model record of their folds.

Their records (`rewrite.record`) prove nothing: a wrong one changes the description, and no verdict.
"""

from __future__ import annotations

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.graph.document import Document, Node
from widthfold_onnx.model.graph.names import shown_name
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.results import FoldedNode
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY, read_record


def recorded_folds(document: Document) -> list[FoldedNode]:
    """Return what the nodes of a model record, in running order."""
    return [read_fold(n) for _, n in document.nodes(OPERATORS) if FOLD_KEY in n.metadata_props]


def read_fold(node: Node) -> FoldedNode:
    """Return what a folded node records."""
    name = shown_name(node, node.metadata_props.get(ORIGIN_KEY))
    try:
        record = read_record(node.metadata_props[FOLD_KEY])
    except InvalidModelError as error:
        return FoldedNode(node=name, fold=f"its record cannot be read: {error}")
    return FoldedNode(node=name, channels=record.channels, fold=record.fold, axes=record.axes)
