"""Refusals of forms that are not legal: divisibility, growth, zeros that spread Inf and NaN."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from tests.rules.one_conv import conv_model, site
from tests.small_models import conv
from tests.tuning.workloads.forms import only_layer
from widthfold_onnx.options import AxisName, FoldOptions, NonFinite
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.enumeration import every_form, form_of


@pytest.mark.parametrize(
    ("model", "options", "code", "words"),
    [
        (
            conv_model([1, 1, 9, 15], (1, 1, 3, 3), pads=[1, 1, 1, 1]),
            {},
            "factor-does-not-divide",
            "input width 15 would have to be 16",
        ),
        (
            conv_model([1, 1, 16, 16], (1, 1, 3, 3), pads=[1] * 4),
            {"max_flops_growth": 7.9},
            "flops-growth",
            "8.0x",
        ),
        (
            conv_model([1, 4, 16, 16], (4, 4, 3, 3), pads=[1] * 4),
            {"max_bytes_growth": 2.0},
            "bytes-growth",
            "--max-bytes-growth is 2",
        ),
        (
            conv_model([1, 1, 16, 16], (1, 1, 3, 3), pads=[1] * 4),
            {"nonfinite": NonFinite.REFUSE},
            "structural-zeros",
            "zeros",
        ),
        (
            conv_model([1, 31, 1, 512], (31, 31, 1, 1)),
            {"factor": 512, "max_flops_growth": 1e9, "max_bytes_growth": 1e9},
            "weight-too-large",
            "the weight would have 961 MiB; the limit is 256 MiB",
        ),
    ],
)
def test_codes_and_words(
    model: onnx.ModelProto, options: dict[str, object], code: str, words: str
) -> None:
    report = site(model, **options)
    assert (report.status, report.code) == ("refused", code)
    assert words in report.reason


def test_a_batch_is_folded_in_groups_even_where_nonfinite_is_refused() -> None:
    model = conv_model([8, 1, 5, 7], (1, 1, 3, 3))
    assert site(model, axis=AxisName.BATCH, nonfinite=NonFinite.REFUSE).status == "folded"
    assert site(model, axis=AxisName.BATCH).flops_ratio == 1


def test_zeros_between_groups_are_not_left_out_where_nonfinite_is_refused() -> None:
    """The weight is of two groups, so that the products with its zeros may be left out."""
    layer, options = only_layer(conv([1, 6, 5, 8], (6, 6, 1, 1), blocks=2)), FoldOptions()
    specs = [form.spec for form in every_form(layer, options) if form.spec.kind == "grouped"]
    assert specs
    for spec in specs:
        refusal = form_of(layer, spec, replace(options, nonfinite=NonFinite.REFUSE))
        assert isinstance(refusal, Refusal)
        assert refusal.code is Code.ZEROS_LEFT_OUT
        assert refusal.reason == "zeros that spread Inf and NaN would be left out"
