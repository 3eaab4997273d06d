from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs  # noqa: TID251 - made here, handed to the package
import onnxruntime as ort  # noqa: TID251 - runs what came back
import pytest

from widthfold_onnx import FoldOptions, UsageError, fold_graph

MODELS = Path(__file__).parents[1] / "models"


def run(graph: gs.Graph, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(gs.export_onnx(graph).SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def test_a_graphsurgeon_graph_goes_in_and_out() -> None:
    graph = gs.import_onnx(onnx.load(MODELS / "paper_conv.onnx"))
    folded, sites = fold_graph(graph, FoldOptions(factor=8))
    assert [site.status for site in sites] == ["folded"]
    assert isinstance(folded, gs.Graph)
    x = np.random.default_rng(0).standard_normal((1, 1, 32, 64)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x), run(graph, x), rtol=0, atol=1e-6)
    assert len(graph.nodes) < len(folded.nodes)


def test_a_second_time_folds_again_as_graphsurgeon_drops_the_metadata() -> None:
    graph = gs.import_onnx(onnx.load(MODELS / "paper_conv.onnx"))
    once, _ = fold_graph(graph, FoldOptions(factor=2))
    twice, sites = fold_graph(once, FoldOptions(factor=2))
    assert [site.status for site in sites] == ["folded"]
    x = np.random.default_rng(0).standard_normal((1, 1, 32, 64)).astype(np.float32)
    np.testing.assert_allclose(run(twice, x), run(graph, x), rtol=0, atol=1e-6)


def test_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="onnx_graphsurgeon"):
        fold_graph(onnx.ModelProto(), FoldOptions(factor=8))
