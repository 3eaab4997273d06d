"""Models written channel by channel, without what chooses the Convs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import checker

from tests.rewrite.graphs import Builder, run
from widthfold_onnx.model.graph import Document, Graph
from widthfold_onnx.rewrite.by_channel import write_by_channel
from widthfold_onnx.rules.by_channel import is_single


def builder(*shape: int | str, seed: int = 1) -> Builder:
    return Builder(list(shape or (2, 3, 7, 11)), np.random.default_rng(seed))


def by_channel(
    model: onnx.ModelProto, outputs: Sequence[str] | None = None, folder: Path | None = None
) -> onnx.ModelProto:
    """The model with the Convs that return `outputs` written channel by channel; None: all.

    It is valid, and the model stays as it is.
    """
    before = model.SerializeToString()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    document = Document(copy, folder)
    graph = document.scopes[0].graph
    assert isinstance(graph, Graph)
    convs = [
        node
        for node in graph
        if is_single(document, node) and (outputs is None or node.outputs[0].name in outputs)
    ]
    assert convs
    write_by_channel(document, graph, convs)
    result = document.finish()
    assert model.SerializeToString() == before
    if folder is None:
        checker.check_model(result, full_check=True)
    names = [node.name for node in result.graph.node if node.name]
    values = [name for node in result.graph.node for name in node.output]
    values += [tensor.name for tensor in result.graph.initializer]
    assert len(names) == len(set(names))
    assert len(values) == len(set(values))
    return result


def integers(shape: Sequence[int], seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def results(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """What the runtime computes as it is written, which is what it computes optimized."""
    plain, best = (run(model, x, f"ORT_{level}_ALL") for level in ("DISABLE", "ENABLE"))
    for one, other in zip(plain, best, strict=True):
        assert one.tobytes() == other.tobytes()
    return plain


def same(model: onnx.ModelProto, other: onnx.ModelProto, shape: Sequence[int]) -> None:
    """Both compute the same, bit for bit, of integers."""
    x = integers(shape)
    pairs = zip(results(model, x), results(other, x), strict=True)
    for one, again in pairs:
        np.testing.assert_array_equal(one, again, strict=True)


def drop_key(node: onnx.NodeProto, key: str) -> None:
    """Take an entry out of the metadata of a node, as another tool might."""
    kept = [entry for entry in node.metadata_props if entry.key != key]
    del node.metadata_props[:]
    node.metadata_props.extend(kept)
