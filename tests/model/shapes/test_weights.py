"""Open dimensions that weights fix: at any other extent the runtime stops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import widthfold_onnx as wf
from tests.folding import optimize
from tests.rewrite.guards.guarded import parsed
from tests.running import LEVELS, opened
from widthfold_onnx.model.proto.dims import DimensionKey
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.model.shapes.weights import extents_by_weights
from widthfold_onnx.options import FoldOptions

Extents = dict[DimensionKey, int]


def net(
    inputs: str, body: str, outputs: str = "float[?, ?, ?, ?] y", **shapes: tuple
) -> onnx.ModelProto:
    opsets = '"" : 17, "acme" : 1'
    text = f"<ir_version: 8, opset_import: [{opsets}]> g ({inputs}) => ({outputs}) {{ {body} }}"
    return parsed(text, **shapes)


IMAGES = "float[n, c, h, w] x"
FIXED: dict[str, tuple[onnx.ModelProto, Extents]] = {
    "a Conv": (net(IMAGES, "y = Conv (x, k)", k=(7, 5, 3, 3)), {"c": 5}),
    "a Conv of groups behind ops": (
        net(IMAGES, "r = Relu (x) s = Neg (r) y = Conv <group = 2> (s, k)", k=(6, 5, 3, 3)),
        {"c": 10},
    ),
    "a ConvTranspose": (net(IMAGES, "y = ConvTranspose (x, k)", k=(5, 7, 3, 3)), {"c": 5}),
    "channels last, without names": (
        net(
            "float[?, ?, ?, ?] x",
            "t = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv (t, k)",
            k=(7, 5, 3, 3),
        ),
        {("x", 3): 5},
    ),
    "statistics": (
        net(IMAGES, "y = BatchNormalization (x, a, a, a, a)", a=(5,)),
        {"c": 5},
    ),
    "rows": (net("float[n, t, c] x", "y = MatMul (x, k)", "float[?, ?, ?] y", k=(5, 7)), {"c": 5}),
    "columns": (net("float[c, t] x", "y = MatMul (k, x)", "float[?, ?] y", k=(7, 5)), {"c": 5}),
    "a vector": (net("float[n, c] x", "y = MatMul (x, k)", "float[?] y", k=(5,)), {"c": 5}),
    "both stored transposed": (
        net("float[c, n] x", "y = Gemm <transA = 1, transB = 1> (x, k)", "float[?, ?] y", k=(7, 5)),
        {"c": 5},
    ),
    "one behind the other": (
        net(
            "float[n, c] x",
            "p = MatMul (x, k) y = MatMul (m, p)",
            "float[?, ?] y",
            k=(5, 7),
            m=(3, 11),
        ),
        {"c": 5, "n": 11},
    ),
}

OPEN: dict[str, tuple[onnx.ModelProto, list[Extents]]] = {
    "an addend fits an extent of 1, too": (
        net(IMAGES, "y = Add (x, k)", k=(1, 5, 1, 1)),
        [{"c": 1}, {"c": 5}],
    ),
    "what nothing reads, as a runtime may leave it out": (
        net(IMAGES, "r = Conv (x, k) y = Neg (x)", k=(7, 5, 3, 3)),
        [{"c": 5}],
    ),
    "data on both sides": (
        net("float[n, c] x, float[d, m] z", "y = MatMul (x, z)", "float[?, ?] y"),
        [{"c": 1, "d": 1}, {"c": 9, "d": 9}],
    ),
}


def runs(model: onnx.ModelProto, extents: Extents) -> bool:
    feeds = {
        value.name: np.ones(
            [
                d.dim_value or extents.get(d.dim_param or (value.name, i), 9)
                for i, d in enumerate(value.type.tensor_type.shape.dim)
            ],
            np.float32,
        )
        for value in model.graph.input
    }
    try:
        opened(model, LEVELS[1]).run(None, feeds)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("case", FIXED)
def test_the_runtime_runs_at_these_extents_alone(case: str) -> None:
    model, extents = FIXED[case]
    found = extents_by_weights(model)
    assert found == extents
    assert runs(model, found)
    for dim, extent in found.items():
        assert not runs(model, {**found, dim: extent + 1})
        assert not runs(model, {**found, dim: 1})


@pytest.mark.parametrize("case", OPEN)
def test_what_may_run_at_several_extents_stays_open(case: str) -> None:
    model, several = OPEN[case]
    assert extents_by_weights(model) == {}
    assert all(runs(model, extents) for extents in several)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "BatchNormalization", "MatMul"])
def test_an_operator_of_another_domain_says_nothing_of_its_data(op_type: str) -> None:
    model = net("float[n, c] x", f"y = acme.{op_type} (x, k)", "float[?] y", k=(5, 7))
    assert extents_by_weights(model) == {}
    del model.graph.input[0]
    x = onnx.helper.make_node("Source", [], ["x"], domain="acme")
    model.graph.node.insert(0, x)
    assert ShapeTable(model, {}).get("", "x") is None


def test_a_model_with_channels_left_open_is_folded_and_proved(tmp_path: Path) -> None:
    """Its channels are none of the extents that are tried."""
    body = (
        "a = Conv <pads = [1, 1, 1, 1]> (x, k) r = Relu (a) y = Conv <pads = [1, 1, 1, 1]> (r, m)"
    )
    model = net(IMAGES, body, k=(8, 5, 3, 3), m=(4, 8, 3, 3))
    assert "If" in [node.op_type for node in wf.fold(model, factor=4).graph.node]
    onnx.save(model, tmp_path / "x.onnx")
    report = optimize(tmp_path / "x.onnx", tmp_path / "y.onnx", FoldOptions(factor=4))
    assert [site.status for site in report.sites] == ["folded", "folded"]
    assert report.verification is not None
    assert report.verification.assumed is not None
    assert {shapes["x"][1] for shapes in report.verification.assumed.sizes} == {5}
