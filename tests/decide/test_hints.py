"""Hints of a refusal for an open extent: a run that follows one folds the site."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import onnx
import pytest

from tests.folding import fold_model
from tests.rewrite.guards.guarded import parsed
from widthfold_onnx.decide.decisions import Decision
from widthfold_onnx.decide.hints import Hints
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import Reading

SAME = "pads = [1, 1, 1, 1]"
SHAPE = re.compile(r"--input-shape (\S+):([\d,]+)")


def model(dims: str, body: str, **weights: tuple) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    return parsed(f"{head} main (float[{dims}] x) => (float[{dims}] y) {{ {body} }}", **weights)


def following(way: str) -> dict[str, Any]:
    """The options that one of the suggested ways gives."""
    shapes = {name: tuple(map(int, dims.split(","))) for name, dims in SHAPE.findall(way)}
    return {"input_shapes": shapes} if shapes else {}


CASES = {
    "SAME at a stride": (
        model(
            "1, 3, H, W",
            'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)',
            w=(3, 3, 3, 3),
        ),
        4,
        "--input-shape x:1,3,128,128 folds it",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_following_a_hint_folds_the_site(case: str) -> None:
    before, factor, hint = CASES[case]
    options = FoldOptions(factor=factor)
    _, refused = fold_model(before, options)
    (site, *_) = refused
    assert site.status == "refused"
    assert site.reason.endswith(hint), site.reason
    for way in hint.split(" or "):
        _, (again, *_) = fold_model(before, replace(options, **following(way)))
        assert again.status == "folded", way


def test_a_hint_is_quoted_for_a_shell() -> None:
    before = model(
        "1, 3, H, W", 'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)', w=(3, 3, 3, 3)
    )
    before.graph.input[0].name = before.graph.node[0].input[0] = "the image:0"
    _, (site,) = fold_model(before, FoldOptions(factor=4))
    assert site.reason.endswith("--input-shape 'the image:0:1,3,128,128' folds it"), site.reason


def test_what_nothing_unlocks_gets_no_hint() -> None:
    before = model("1, 3, H, 7", f"y = Conv <{SAME}> (x, w)", w=(3, 3, 3, 3))
    for options in (
        FoldOptions(factor=4096),
        FoldOptions(factor=4, axis=4),
        FoldOptions(factor=4, max_channels=2),
    ):
        _, (site,) = fold_model(before, options)
        assert site.status == "refused"
        assert "folds it" not in site.reason


def test_fixed_extents_are_extended_or_nothing() -> None:
    before = model("1, 3, 9, 7", f"y = Conv <{SAME}> (x, w)", w=(3, 3, 3, 3))
    _, (site,) = fold_model(before, FoldOptions(factor=4))
    assert site.code == "factor-does-not-divide"
    assert site.reason.endswith("; --ragged folds it")
    assert "--input-shape" not in site.reason
    _, (site,) = fold_model(before, FoldOptions(factor=4, ragged=True))
    assert site.status == "folded"
    _, (site,) = fold_model(before, FoldOptions(factor=4, max_flops_growth=0.5))
    assert (site.status, "folds it" in site.reason) == ("refused", False)


def test_a_product_of_matrices_is_never_extended() -> None:
    before = model("9, 3", "y = MatMul (x, w)", w=(3, 3))
    _, (site,) = fold_model(before, FoldOptions(factor=4))
    assert site.code == "factor-does-not-divide"
    assert "folds it" not in site.reason


@pytest.mark.parametrize(
    ("rows", "widths", "hint"),
    [
        ("16", (2, 5), "; --mix-samples folds it"),
        ("N", (5, 1), "; --mix-samples folds it"),
        ("N", (2, 20), "; --input-shape x:8,2 --mix-samples folds it"),
        ("N", (20, 20), "; --input-shape x:256,20 --mix-samples folds it"),
    ],
    ids=["fixed", "open", "open, grows too much at one row", "open, grows too much at few rows"],
)
def test_rows_that_may_be_samples_name_the_option_that_lets_them_mix(
    rows: str, widths: tuple[int, int], hint: str
) -> None:
    interface = f"(float[{rows}, {widths[0]}] x) => (float[{rows}, {widths[1]}] y)"
    text = f'<ir_version: 8, opset_import: ["" : 17]> main {interface} {{ y = MatMul (x, w) }}'
    before = parsed(text, w=widths)
    options = FoldOptions(factor=8)
    _, (site,) = fold_model(before, options)
    assert (site.status, site.code) == ("refused", "mixes-samples")
    assert site.reason.endswith(hint), site.reason
    _, (site,) = fold_model(before, replace(options, mix_samples=True, **following(hint)))
    assert site.status == "folded"


def test_where_forms_are_measured_a_size_that_no_factor_divides_is_a_hint() -> None:
    before = model("1, 3, H, W", f'y = Conv <{SAME}, auto_pad = "NOTSET"> (x, w)', w=(3, 3, 3, 3))
    reading = Reading.of(Model(before, None), Draft())
    (site,) = reading.sites
    refused = Decision(site, None, Refusal(Code.UNKNOWN_EXTENT, "the extents are open"))
    hints = Hints(reading, FoldOptions(), lambda suggested: ({"x": (1, 3, 7, 5)},))
    assert hints.of(refused) == "--input-shape x:1,3,7,5 folds it"
    hints = Hints(reading, FoldOptions(factor=4), lambda suggested: ({"x": (1, 3, 7, 5)},))
    assert hints.of(refused) == ""


def test_extents_that_no_size_tells_name_the_operator_that_loses_them() -> None:
    conv = 'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (b, w)'
    text = f"""<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
    main (float[1, 3, H, W] x) => (float[a, b, c, d] y) {{
        [warp] a = acme.Warp (x)
        b = Relu (a)
        {conv}
    }}"""
    _, (site,) = fold_model(parsed(text, w=(3, 3, 3, 3)), FoldOptions(factor=4))
    assert site.status == "refused"
    assert "; nothing tells the extents of what Warp warp returns; if they are" in site.reason


def test_strides_are_folded_at_the_smallest_round_size() -> None:
    before = model(
        "1, 3, H, W", 'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)', w=(3, 3, 3, 3)
    )
    _, (site,) = fold_model(before, FoldOptions(form="strides"))
    assert site.reason.endswith("--input-shape x:1,3,32,32 folds it"), site.reason


@pytest.mark.parametrize("shapes", [{}, {"x": (1, 3, 16, 16)}])
def test_fixed_shapes_fold_what_a_reshape_cannot_infer(shapes: dict[str, tuple[int, ...]]) -> None:
    """A ConvTranspose at stride 2 doubles two open extents."""
    body = "y = ConvTranspose <strides = [2, 2]> (x, w)"
    before = model("1, 3, H, W", body, w=(3, 3, 2, 2))
    before.graph.output[0].type.tensor_type.ClearField("shape")
    options = FoldOptions(factor=4, input_shapes=shapes)
    _, (refused,) = fold_model(before, options)
    assert refused.code == "several-unknown-extents"
    given = "" if shapes else "--input-shape x:1,3,128,128 "
    assert refused.reason.endswith(f"; {given}--fixed-shapes folds it")
    followed = following(refused.reason) if not shapes else {}
    _, (again,) = fold_model(before, replace(options, **followed, fixed_shapes=True))
    assert again.status == "folded"
