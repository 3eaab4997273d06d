"""Folds graphs of onnx-graphsurgeon; no other module uses that library.

graphsurgeon itself drops metadata, documentation and more when it exports a graph, independent of
the fold. So a folded graph carries no sign of its folds, and is folded like any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.planning import fold_model
from widthfold_onnx.results import SiteReport


def fold_graph(
    graph: Any, options: FoldOptions, folder: Path | None = None
) -> tuple[Any, list[SiteReport]]:
    """Fold an `onnx_graphsurgeon.Graph`.

    Args:
        graph: the graph; it stays as it is.
        options: which sites, how far, in which form.
        folder: where its external data lies.

    Returns:
        A new graph and the outcome of every site.

    Raises:
        UsageError: onnx-graphsurgeon is not installed, or `graph` is none of its graphs.
        InvalidModelError: the graph is broken or not supported.
    """
    try:
        import onnx_graphsurgeon as gs  # noqa: TID251 - this module is the door
    except ImportError as error:
        raise UsageError("fold_graph needs onnx-graphsurgeon: pip install it") from error
    if not isinstance(graph, gs.Graph):
        raise UsageError(f"fold_graph takes an onnx_graphsurgeon.Graph, not {type(graph).__name__}")
    folded, sites = fold_model(gs.export_onnx(graph), options, folder)
    return gs.import_onnx(folded), sites
