"""Strides alone: what `--form strides` folds, and every reason for which it leaves a layer alone.

Weights and inputs are small integers, so folded and original model are compared bitwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.folding import fold_model
from tests.running import run
from tests.small_models import conv
from widthfold_onnx import UsageError
from widthfold_onnx.options import AxisName, Companion, FoldOptions, FormName, Layout, NonFinite
from widthfold_onnx.results import SiteReport

STRIDES = FoldOptions(form=FormName.STRIDES)
RAGGED = FoldOptions(form=FormName.STRIDES, ragged=True)


def up(shape: list[int], weight: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    return conv(shape, weight, op="ConvTranspose", **attributes)


def reported(model: onnx.ModelProto, options: FoldOptions = STRIDES) -> SiteReport:
    (site,) = fold_model(model, options)[1]
    return site


# The model, axes, channels after the fold, and the kernel of the new Conv.
FOLDS = {
    "STFT": (conv([1, 1, 77], (6, 1, 28), strides=[7]), "width", "7 -> 6", [4]),
    "STFT, hop not in the window": (
        conv([2, 1, 77], (6, 1, 17), strides=[7]),
        "width",
        "7 -> 6",
        [3],
    ),
    "STFT of 100, hop 10": (conv([1, 1, 500], (102, 1, 100), strides=[10]), "width", "10", [10]),
    "STFT of 400, hop 160": (conv([1, 1, 1600], (26, 1, 400), strides=[160]), "width", "160", [3]),
    "ISTFT": (up([2, 34, 11], (34, 1, 28), strides=[7]), "width", "34 -> 7", [4]),
    "super-resolution": (
        up([1, 5, 7, 11], (5, 1, 9, 9), strides=[2, 2], pads=[4] * 4, output_padding=[1, 1]),
        "height+width",
        "5 -> 4",
        [5, 5],
    ),
    "up, one axis, dilated": (
        up([1, 5, 7, 11], (5, 3, 3, 2), strides=[1, 3], pads=[1, 1, 1, 1], dilations=[1, 4]),
        "width",
        "5 -> 9",
        [3, 2],
    ),
    "up in groups": (
        up([1, 6, 7, 11], (6, 2, 4, 4), strides=[2, 2], pads=[1] * 4, group=3),
        "height+width",
        "6 -> 24",
        [3, 3],
    ),
    "up, auto_pad": (
        up([1, 3, 7, 11], (3, 2, 4, 3), strides=[2, 3], auto_pad="SAME_UPPER"),
        "height+width",
        "3 -> 12",
        [3, 1],
    ),
    "stem": (
        conv([1, 3, 22, 26], (37, 3, 7, 7), strides=[2, 2], pads=[3] * 4),
        "height+width",
        "12 -> 37",
        [4, 4],
    ),
    "stem, auto_pad": (
        conv([1, 3, 22, 26], (5, 3, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
        "height+width",
        "12 -> 5",
        [2, 2],
    ),
    "grouped, dilated": (
        conv([1, 6, 22, 26], (9, 2, 3, 3), strides=[2, 2], pads=[1] * 4, group=3, dilations=[1, 3]),
        "height+width",
        "24 -> 9",
        [2, 4],
    ),
    "depth": (conv([1, 1, 6, 7, 11], (2, 1, 3, 1, 3), strides=[3, 1, 1]), "depth", "3 -> 2", None),
}


@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC])
@pytest.mark.parametrize("case", FOLDS)
def test_folds(case: str, layout: Layout) -> None:
    model, axis, channels, kernel = FOLDS[case]
    folded, (site,) = fold_model(model, FoldOptions(form=FormName.STRIDES, layout=layout))
    assert (site.status, site.axis, site.factor) == ("folded", axis, 1), site.reason
    assert f"became {channels}" in site.reason
    (node,) = (node for node in folded.graph.node if node.op_type.startswith("Conv"))
    assert node.op_type == "Conv"
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert set(attributes["strides"]) == {1}
    (weight,) = (t.dims for t in folded.graph.initializer if t.name == node.input[1])
    assert kernel is None or list(weight[2:]) == kernel
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
    (expected,) = run(model, x)
    assert np.abs(expected).max() > 1
    np.testing.assert_array_equal(run(folded, x)[0], expected, strict=True)


RAGGED_CASES = {
    "input": (
        conv([1, 1, 79], (6, 1, 17), strides=[7]),
        "strides: input width 79 would have to be 84",
    ),
    "output": (
        up([1, 3, 11], (3, 2, 5), strides=[3], pads=[1, 0]),
        "strides: output width 34 would have to be 36",
    ),
}


@pytest.mark.parametrize("case", RAGGED_CASES)
def test_what_strides_do_not_divide_needs_ragged(case: str) -> None:
    model, reason = RAGGED_CASES[case]
    site = reported(model)
    assert (site.status, site.code) == ("refused", "factor-does-not-divide")
    assert site.reason == f"{reason}; --ragged folds it"
    folded, (site,) = fold_model(model, RAGGED)
    assert site.status == "folded"
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
    np.testing.assert_array_equal(run(folded, x)[0], run(model, x)[0], strict=True)


def test_as_many_strides_as_can_be_are_folded() -> None:
    """The height does not divide, the width does; at an open height nothing is known of it."""
    odd = conv([1, 3, 23, 26], (5, 3, 3, 3), strides=[2, 2], pads=[1] * 4)
    assert reported(odd).axis == "width"
    assert reported(odd, RAGGED).axis == "height+width"
    unknown = conv([1, 3, "h", 26], (5, 3, 3, 3), strides=[2, 2], pads=[1] * 4)
    assert reported(unknown).axis == "width"


KEPT = {
    "no stride": conv([1, 3, 8, 8], (5, 3, 3, 3)),
    "mirrored": up([1, 3, 8, 8], (3, 5, 3, 3)),
    "dilated": conv([1, 3, 8, 8], (5, 3, 3, 3), dilations=[2, 2]),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_layer_without_strides_is_kept(case: str) -> None:
    folded, (site,) = fold_model(KEPT[case], STRIDES)
    assert (site.status, site.code) == ("kept", "no-strides")
    assert site.reason == "it has no stride to fold (--form strides)"
    assert folded.SerializeToString() == KEPT[case].SerializeToString()


def test_other_refusals_are_those_of_every_fold() -> None:
    wide = conv([1, 37, 8, 8], (41, 37, 3, 3), strides=[2, 2], pads=[1] * 4)
    assert reported(wide).code == "already-wide"
    uneven = conv([1, 1, 77], (6, 1, 17), strides=[7])
    strict = FoldOptions(form=FormName.STRIDES, nonfinite=NonFinite.REFUSE)
    assert reported(uneven, strict).code == "structural-zeros"
    even = conv([1, 1, 77], (6, 1, 28), strides=[7])
    assert reported(even, strict).status == "folded"  # every tap of the new kernel holds a weight


@pytest.mark.parametrize("more", [{"factor": 8}, {"axis": AxisName.WIDTH}, {"axis": 0}])
def test_strides_go_with_no_factor_and_no_axis(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="give no factor, no axis"):
        FoldOptions(form=FormName.STRIDES, **more)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UsageError, match="form is 'stride', none of fold, strides"):
        FoldOptions(form="stride")  # type: ignore[arg-type]


def test_options_that_are_plain_strings_count() -> None:
    words = {"nonfinite": "refuse", "layout": "nhwc", "axis": "auto", "companions": ("prelu",)}
    options = FoldOptions(factor=2, **words)
    assert options.nonfinite is NonFinite.REFUSE
    assert options.layout is Layout.NHWC
    assert options.axis is AxisName.AUTO
    assert options.companions[0] is Companion.PRELU
    assert FoldOptions(form="strides").form is FormName.STRIDES
