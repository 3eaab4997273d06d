"""A model of three layers, and what a search in a world says of a model."""

from __future__ import annotations

from pathlib import Path

from tests.folding import optimize
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
ALL = {"first": 1.0, "second": 1.0, "third": 1.0}

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


FLAT = THREE.replace("4,32]", "32]").replace(",1,3]", ",3]").replace("[0,1,0,1]", "[1,1]")
