"""The nets that tests of the search measure, and what a search in a world says of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.folding import optimize
from tests.tuning import world
from tests.tuning.world import Alone, World, doubled, enter, folded
from widthfold_onnx.options import AxisName, Effort, FoldOptions, Provider, SearchOptions
from widthfold_onnx.results import OptimizeReport

THREE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,4,32] x) => (float[1,1,4,32] y)
<float[2,1,1,3] w1, float[2,2,1,3] w2, float[1,2,1,3] w3>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    [second] b = Conv <pads = [0,1,0,1]> (a, w2)
    [third] y = Conv <pads = [0,1,0,1]> (b, w3)
}"""
FLAT = THREE.replace("4,32]", "32]").replace(",1,3]", ",3]").replace("[0,1,0,1]", "[1,1]")
ALL = {"first": 1.0, "second": 1.0, "third": 1.0}

WITH_PRELU = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,4,32] x) => (float[1,1,4,32] y)
<float[2,1,1,3] w1, float[1,2,1,3] w2, float[1] s = {0.25}>
{
    [first] a = Conv <pads = [0,1,0,1]> (x, w1)
    [prelu] b = PRelu (a, s)
    [second] y = Conv <pads = [0,1,0,1]> (b, w2)
}"""

ONE_AXIS = {"pad_channels": 0, "axis": AxisName.WIDTH}
"""Pads no channels (test_padding), and lists the forms of one axis: a fifth of all."""


def found(model: Path, fold: dict[str, object] = ONE_AXIS, **changes: object) -> OptimizeReport:
    """The report of a run that verifies nothing."""
    search = SearchOptions(**{**options(model), **changes})
    return optimize(model, model.with_name("out.onnx"), FoldOptions(**fold), None, search)


def options(model: Path) -> dict[str, object]:
    """Every form races."""
    store = model.with_name("store.sqlite")
    return {"store": store, "provider": Provider.CPU, "effort": Effort.THOROUGH}


def status(report: OptimizeReport) -> dict[str, str]:
    return {site.node: site.code for site in report.sites}


def two_then_four(form, times: float = 1.0) -> tuple[float, float] | str:
    """Folds of the width: by 2 is the best, by 4 the next, all else is slower."""
    if (form["axis"], form["lift"], form["tile_major"]) != ("width", 0, False):
        return "not in this test"
    ratio = times * {2: 2.0, 4: 1.9}.get(form["factor"], 0.5)
    return ratio, ratio


def changed(model: Path) -> frozenset[str]:
    """Names of the nodes that were folded or exchanged."""
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
    search = SearchOptions(**{**options(model), **changes.pop("search", {})})
    here = enter(monkeypatch, World(alone, saved, steady=steady))
    out = model.with_name("out.onnx")
    return optimize(model, out, FoldOptions(**{"pad_channels": 0, **changes}), None, search), here
