"""Plans at a fixed factor: the layout that suits the provider, and what stops `--pad-channels`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.cli.tool import widthfold
from tests.folding import optimize
from tests.small_models import MODELS, build
from widthfold_onnx.decide.fixed import decide_layout
from widthfold_onnx.options import (
    FoldOptions,
    Layout,
    NonFinite,
    Provider,
    RuntimeOptions,
    SearchOptions,
)
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
        fold_options = FoldOptions(factor=factor, layout=layout)
        runtime_options = RuntimeOptions(provider=Provider.CUDA, provider_options=options)
        assert decide_layout(fold_options, runtime_options).layout is layout


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


UNPADDABLE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 3, 8, 16] x) => (float[1, 5, 8, 16] y, float[1, 16, 8, 5] t)
<float[5, 3, 1, 1] v, float[5, 5, 1, 1] w>
{
    [first] a = Conv (x, v)
    [moved] t = Transpose <perm = [0, 3, 2, 1]> (a)
    [second] y = Conv (a, w)
}"""


def test_zeros_of_padding_are_refused_where_an_inf_must_stay(tmp_path: Path) -> None:
    path = MODELS / "chain.onnx"
    plain = FoldOptions(factor=4, pad_channels=16)
    padded = optimize(path, tmp_path / "padded.onnx", plain, None).padding
    strict = replace(plain, nonfinite=NonFinite.REFUSE)
    unpadded = optimize(path, tmp_path / "kept.onnx", strict, None).padding
    assert padded is not None
    assert (padded.status, padded.reason) == ("padded", "")
    assert unpadded is not None
    assert (unpadded.status, unpadded.layers) == ("kept", [])
    assert unpadded.reason == "zeros of the padding make NaN of an Inf (--nonfinite refuse)"


def test_a_model_that_contains_folds_reports_no_padding(tmp_path: Path) -> None:
    path, folded = tmp_path / "model.onnx", tmp_path / "folded.onnx"
    path.write_bytes(build(UNPADDABLE).SerializeToString())
    report = optimize(path, folded, FoldOptions(factor=4), None)
    assert report.summary.folded
    padded = FoldOptions(factor=4, pad_channels=8)
    assert optimize(folded, tmp_path / "out.onnx", padded, None).padding is None


def test_channels_of_which_none_can_be_padded_say_why(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(build(UNPADDABLE).SerializeToString())
    run = widthfold("optimize", path, "--factor", 4, "--pad-channels", 8, "--details")
    assert run.code == 0
    assert (
        "channels not padded to multiples of 8: channels of selected layers are multiples already, "
        "or cannot be padded; channels end at Transpose moved (no rule pads Transpose)"
    ) in " ".join(run.out.split())
    report = optimize(path, tmp_path / "out.onnx", FoldOptions(factor=4, pad_channels=8), None)
    assert report.padding is not None
    assert (report.padding.status, report.padding.multiple) == ("kept", 8)
    assert report.padding.layers == []
    stops = [(stop.node, stop.reason) for stop in report.padding.stops]
    assert stops == [
        ("moved", "no rule pads Transpose"),
        ("second", "the graph returns its output"),
    ]
