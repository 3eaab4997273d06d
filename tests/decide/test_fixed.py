"""`--layout auto` at a fixed factor takes the form that suits the provider."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.cli.tool import build
from tests.folding import optimize
from widthfold_onnx.decide.fixed import decide_layout
from widthfold_onnx.options import FoldOptions, Layout, Provider, RuntimeOptions, SearchOptions
from widthfold_onnx.rewrite.record import FOLD_KEY

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 3, 8, 16] x) => (float[4, 2, 8, 16] y) <float[2, 3, 1, 5] w>
{ y = Conv <pads = [0, 2, 0, 2]> (x, w) }"""
LAST = {"prefer_nhwc": "1"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(build(MODEL).SerializeToString())
    return path


@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC])
@pytest.mark.parametrize("factor", [None, 8])
def test_what_the_caller_chose_stays(layout: Layout, factor: int | None) -> None:
    for options in ({}, LAST):
        asked = FoldOptions(factor=factor, layout=layout)
        runtime_options = RuntimeOptions(provider=Provider.CUDA, provider_options=options)
        assert decide_layout(asked, runtime_options).layout is layout


@pytest.mark.parametrize(("value", "layout"), [("1", "nhwc"), ("True", "nhwc"), ("0", "nchw")])
def test_a_fixed_factor_takes_the_form_of_the_provider(
    model: Path, value: str, layout: str
) -> None:
    chosen = SearchOptions(provider_options={"prefer_nhwc": value})
    options = FoldOptions(factor=4, axis=3)
    out = model.with_name("out.onnx")
    report = optimize(model, out, options, None, chosen)
    assert [site.status for site in report.sites] == ["folded"]
    assert (" in NHWC" in _record(out)) == (layout == "nhwc")


def _record(path: Path) -> str:
    nodes = onnx.load(path).graph.node
    (record,) = (i.value for n in nodes for i in n.metadata_props if i.key == FOLD_KEY)
    return record
