"""A net of two Convs and a PRelu, and a search in it whose times are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.folding import optimize
from tests.tuning.search import world
from tests.tuning.search.world import Alone, World, doubled, enter, folded
from widthfold_onnx.options import Effort, FoldOptions, Provider, SearchOptions
from widthfold_onnx.results import OptimizeReport

NET = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,4,32] x) => (float[1,1,4,32] y)
<float[2,1,1,3] w1, float[1,2,1,3] w2, float[1] s = {0.25}>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    [prelu] b = PRelu (a, s)
    [second] y = Conv <pads = [0,1,0,1]> (b, w2)
}"""


def changed(model: Path) -> frozenset[str]:
    """Names of what was folded or exchanged."""
    graph = onnx.load(model).graph
    matrices = {weight.name for weight in graph.initializer if list(weight.dims) == [1, 1]}
    exchanged = [n for n in graph.node if n.op_type == "LeakyRelu" or matrices & {*n.input}]
    return folded(model) | {node.name for node in exchanged}


def outcome(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved: dict[str, float],
    steady: dict[str, float] | None = None,
    *,
    names: Callable[[Path], frozenset[str]] = changed,
    alone: Alone = doubled,
    **changes: object,
) -> tuple[OptimizeReport, World]:
    """The report of a run in which parts of the model save so many of its ten seconds."""
    monkeypatch.setattr(world, "folded", names)
    store = model.with_name("store.sqlite")
    settings = {"store": store, "provider": Provider.CPU, "effort": Effort.THOROUGH}
    options = SearchOptions(**{**settings, **changes.pop("search", {})})
    here = enter(monkeypatch, World(alone, saved, steady=steady))
    out = model.with_name("out.onnx")
    return optimize(model, out, FoldOptions(**{"pad_channels": 0, **changes}), None, options), here
