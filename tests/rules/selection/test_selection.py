"""The form that is chosen for a Conv, every reason to choose none, and the forms that race."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.folding import fold_model
from tests.rules.one_conv import conv_model, folded_conv, ops, site, transposed_model
from tests.small_models import conv
from tests.tuning.workloads.forms import only_layer
from widthfold_onnx.options import AxisName, FoldOptions, Layout
from widthfold_onnx.rules.enumeration import every_form
from widthfold_onnx.rules.legality import guard_conditions
from widthfold_onnx.rules.selection import forms_to_race


class TestChoice:
    def test_a_view_comes_before_a_move(self) -> None:
        report = site(conv_model([1, 2, 24, 40], (3, 2, 1, 5)))
        assert (report.axis, report.form) == ("height", "view blocked")

    def test_then_the_fewest_multiply_adds(self) -> None:
        report = site(conv_model([1, 1, 24, 40], (1, 1, 3, 31), pads=[1, 15, 1, 15]))
        assert (report.axis, report.form) == ("width", "move interleaved")
        assert report.flops_ratio == pytest.approx(8 * 5 / 31, abs=1e-3)

    def test_a_batch_fold_is_grouped_and_free(self) -> None:
        model = conv_model([16, 1, 7, 11], (3, 1, 3, 3))
        assert (site(model).axis, site(model).form) == ("batch", "view batch")
        assert site(model).flops_ratio == 1
        assert ops(model) == ["Reshape", "Conv", "Reshape"]
        group = next(a.i for a in folded_conv(model).attribute if a.name == "group")
        assert group == 8

    def test_the_whole_first_spatial_axis_is_a_view(self) -> None:
        report = site(conv_model([1, 1, 8, 9], (2, 1, 3, 3), pads=[1, 0, 1, 0]))
        assert (report.axis, report.form) == ("height", "view whole")

    def test_several_axes_share_the_factor_where_none_takes_it_alone(self) -> None:
        report = site(conv_model([1, 1, 12, 20], (1, 1, 3, 3), pads=[1, 1, 1, 1]))
        assert report.axis == "height+width"
        assert report.factor == 8

    @pytest.mark.parametrize(
        ("axis", "name"),
        [("height", "height"), ("width", "width"), (2, "height"), (3, "width"), (0, "batch")],
    )
    def test_the_axis_can_be_named_or_counted(self, axis: str | int, name: str) -> None:
        axis = AxisName(axis) if isinstance(axis, str) else axis
        assert site(conv_model([8, 1, 16, 24], (1, 1, 3, 3)), 2, axis=axis).axis == name

    def test_1d_and_3d_axes(self) -> None:
        signal = conv_model([1, 2, 64], (2, 2, 5), pads=[2, 2])
        assert site(signal).axis == "width"
        volume = conv_model([1, 1, 8, 6, 5], (1, 1, 3, 3, 3), pads=[1] * 6)
        assert site(volume, axis=AxisName.DEPTH).axis == "depth"
        assert site(signal, axis=AxisName.HEIGHT).code == "no-such-axis"

    def test_nhwc_needs_one_reshape_between_the_transposes(self) -> None:
        model = conv_model([1, 3, 8, 32], (5, 3, 3, 1))
        model.graph.node[0].attribute.extend([helper.make_attribute("pads", [1, 0, 1, 0])])
        expected = [
            "Transpose",
            "Reshape",
            "Transpose",
            "Conv",
            "Transpose",
            "Reshape",
            "Transpose",
        ]
        assert ops(model, axis=AxisName.WIDTH, layout=Layout.NHWC) == expected

    def test_a_view_stays_a_view_in_nhwc(self) -> None:
        model = conv_model([1, 2, 24, 40], (3, 2, 1, 5))
        assert ops(model, layout=Layout.NHWC) == ["Reshape", "Conv", "Reshape"]


class TestRefusal:
    @pytest.mark.parametrize(
        ("model", "options", "code", "words"),
        [
            (conv_model([1, 32, 8, 8], (32, 32, 1, 1)), {}, "already-wide", "32 -> 32 channels; "),
            (
                conv_model([1, 99, 8], (105, 33, 1), group=3),
                {},
                "already-wide",
                "33 -> 35 channels per group; both sides have at least 32 (--max-channels)",
            ),
            (
                conv_model([1, 1, 16, 16], (1, 1, 3, 3), dtype=TensorProto.INT32),
                {},
                "dtype-unsupported",
                "INT32",
            ),
            (conv_model([1, 1, 16, 16], (1, 1, 3, 3)), {"axis": 4}, "no-such-axis", "axis 4"),
            (
                conv_model([1, 1, "h", 16], (1, 1, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
                {},
                "unknown-extent",
                "SAME_UPPER",
            ),
            (conv_model([1, 1, 0, 16], (1, 1, 1, 1)), {}, "empty-tensor", "empty"),
        ],
    )
    def test_codes_and_words(
        self, model: onnx.ModelProto, options: dict[str, object], code: str, words: str
    ) -> None:
        report = site(model, **options)
        assert (report.status, report.code) == ("refused", code)
        assert words in report.reason

    def test_overridable_and_computed_weights(self) -> None:
        model = conv_model([1, 1, 16, 16], (1, 1, 3, 3), bias=True)
        extra = helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, 1, 3, 3])
        model.graph.input.append(extra)
        assert site(model).code == "weight-overridable"
        del model.graph.initializer[:]
        model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "b"))
        assert site(model).code == "weight-not-constant"

    def test_computed_bias(self) -> None:
        model = conv_model([1, 1, 16, 16], (1, 1, 3, 3), bias=True)
        bias = model.graph.initializer.pop()
        assert bias.name == "b"
        model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [1]))
        assert site(model).code == "bias-not-constant"

    def test_old_opsets(self) -> None:
        assert site(conv_model([1, 1, 16, 16], (1, 1, 3, 3), opset=1)).code == "opset-too-old"


class TestOpenExtents:
    def test_one_open_extent_beside_the_folded_one_is_inferred(self) -> None:
        model = conv_model(["n", 2, 24, "w"], (3, 2, 1, 5), auto_pad="SAME_LOWER")
        result, (report,) = fold_model(model, FoldOptions(factor=8))
        assert report.form == "view blocked"
        shapes = [numpy_helper.to_array(t).tolist() for t in result.graph.initializer]
        assert [0, 16, 3, 0] in shapes

    def test_of_two_open_extents_the_last_one_is_folded_channels_last(self) -> None:
        model = conv_model(["n", 2, "h", "w"], (3, 2, 3, 3), pads=[1, 1, 1, 1])
        shapes = {"x": (1, 2, 24, 16)}
        width = site(model, axis=AxisName.WIDTH, input_shapes=shapes)
        assert (width.status, width.form) == ("folded", "move interleaved in NHWC")
        height = site(model, axis=AxisName.HEIGHT, input_shapes=shapes)
        assert height.code == "several-unknown-extents"


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        (  # a frame of speech: 33 bands
            conv_model([1, 5, 3, 33], (7, 5, 1, 1)),
            [
                "width: input width 33 would have to be 40",
                "batch: it has 1 of the 8 positions that would be folded",
                "height: it has 3 of the 8 positions that would be folded",
            ],
        ),
        (  # 22 electrodes at 1125 times
            conv_model([1, 1, 22, 1125], (3, 1, 1, 5), pads=[0, 2, 0, 2]),
            [
                "width: input width 1125 would have to be 1128",
                "height: input height 22 would have to be 24",
                "batch: it has 1 of the 8 positions that would be folded",
            ],
        ),
        (  # samples may be folded but for the odd width, whose tiles are of two positions
            transposed_model([8, 2, 23], (2, 3, 1), strides=[2]),
            [
                "batch: output width 45 would have to be 46",
                "width: input width 23 would have to be 24",
            ],
        ),
        (
            conv_model([1, 2, 5, 5], (3, 2, 1, 1)),
            [
                "batch: it has 1 of the 8 positions that would be folded",
                "height: it has 5 of the 8 positions that would be folded",
                "width: it has 5 of the 8 positions that would be folded",
            ],
        ),
    ],
)
def test_the_axis_that_is_nearest_to_dividing_is_named_first(
    model: onnx.ModelProto, reasons: list[str]
) -> None:
    assert site(model).reason.split("; ") == [*reasons, "--ragged folds it"]


@pytest.mark.parametrize(
    ("channels", "weight", "group"),
    [(256, (256, 1, 31), 256), (68, (136, 2, 3), 34), (74, (6, 37, 3), 2), (6, (74, 3, 3), 2)],
)
def test_a_group_of_few_channels_is_narrow_however_many_groups_there_are(
    channels: int, weight: tuple[int, ...], group: int
) -> None:
    model = conv_model([1, channels, 40], weight, group=group, pads=[weight[2] // 2] * 2)
    assert site(model).status == "folded"
    assert site(model, max_channels=min(weight[0] // group, weight[1])).code == "already-wide"


def test_ragged_adds_no_more_than_there_is() -> None:
    """One sample is no batch to fold by 8, however few the multiply-adds: seven would be zeros."""
    model = conv_model([1, 2, 5, 31], (2, 2, 1, 3), pads=[0, 1, 0, 1])
    assert site(model, 8, ragged=True).axis == "width"
    short = site(model, 32, ragged=True)
    assert short.code == "too-short"
    assert "width: it has 31 of the 32 positions that would be folded" in short.reason


@pytest.mark.parametrize(
    "model",
    [
        conv(["n", 2, 12, 16], (3, 2, 3, 3), pads=[1, 1, 1, 1]),
        conv(["n", 2, 12, "w"], (3, 2, 3, 3), strides=[1, 2], pads=[1, 1, 1, 1]),
        conv([1, 2, "h", "w"], (3, 2, 1, 1)),
        conv([1, 2, 12, "w"], (2, 3, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1], op="ConvTranspose"),
        conv([1, 2, "l"], (2, 3, 4), strides=[4], op="ConvTranspose"),
        conv([1, 2, 12, 16], (3, 2, 3, 3)),
    ],
)
def test_forms_to_race_are_the_unguarded_ones_of_all_forms(model: onnx.ModelProto) -> None:
    layer, options = only_layer(model), FoldOptions()
    forms = list(every_form(layer, options))
    unguarded = [form for form in forms if not guard_conditions(layer, form)]
    expected = unguarded if any(form.folded_axes for form in unguarded) else forms
    raced = forms_to_race(layer, options)
    assert [form.spec for form in raced] == [form.spec for form in expected]
    assert raced
