"""The form that is chosen for a ConvTranspose, and every reason to choose none."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto

from tests.folding import fold_model
from tests.rules.one_conv import ops, site, transposed_model
from widthfold_onnx.options import FoldOptions, Layout, NonFinite

UP = {"strides": [2, 2], "pads": [1, 1, 1, 1]}


def test_strides_of_an_axis_of_any_extent_are_folded_along() -> None:
    """Every extent becomes a multiple of the stride here, so nothing has to be known of it."""
    report = site(transposed_model([4, 3, 8, "w"], (3, 2, 2, 2), strides=[1, 2]), 4)
    assert (report.status, report.guard) == ("folded", "")
    odd = site(transposed_model([4, 3, 8, "w"], (3, 2, 2, 3), strides=[1, 2]), 4)
    assert odd.code == "unknown-extent"
    reason = "along width, the extent is not known, and multiples of 1 are extended by 0 positions"
    assert odd.reason.startswith(f"batch: {reason} and cut by 1; height: {reason}")


class TestChoice:
    def test_strides_are_folded_along_with_the_axis(self) -> None:
        report = site(transposed_model([1, 2, 16, 5], (2, 3, 4, 4), **UP), 4)
        assert (report.op, report.axis, report.factor) == ("ConvTranspose", "height", 4)
        assert report.form == "move interleaved+sub-pixel"
        assert report.reason == "2 -> 3 channels became 8 -> 48"
        # 8 x 2 output tiles of 3 x 3 x 4 taps per 4 input positions, instead of 4 x 4 taps.
        assert report.flops_ratio == pytest.approx(8 * 2 * 3 * 3 * 4 / (4 * 4 * 4))

    def test_a_factor_never_means_the_sub_pixel_form_alone(self) -> None:
        """It is a candidate of auto: on its own it was slower more often than faster."""
        model = transposed_model([1, 2, 7, 5], (2, 3, 4, 4), **UP)
        assert site(model, 2).code == "factor-does-not-divide"
        assert site(model, 4).code == "factor-does-not-divide"

    def test_square_blocks_unfold_by_depth_to_space(self) -> None:
        both = transposed_model([1, 2, 6, 10], (2, 3, 4, 4), **UP)
        assert ops(both, 4, max_flops_growth=99)[-2:] == ["Conv", "DepthToSpace"]

    def test_an_old_opset_has_no_such_order(self) -> None:
        both = transposed_model([1, 2, 6, 10], (2, 3, 4, 4), opset=10, **UP)
        moves = ["Conv", "Reshape", "Transpose", "Reshape"]
        assert ops(both, 4, max_flops_growth=99)[-4:] == moves

    def test_channels_last_keeps_its_transposes(self) -> None:
        both = transposed_model([1, 2, 6, 10], (2, 3, 4, 4), **UP)
        assert "DepthToSpace" not in ops(both, 4, max_flops_growth=99, layout=Layout.NHWC)

    def test_without_a_stride_it_is_a_conv(self) -> None:
        model = transposed_model([1, 2, 24, 5], (2, 3, 1, 3), pads=[0, 1, 0, 1])
        assert (site(model).axis, site(model).form) == ("height", "view blocked")
        assert ops(model) == ["Reshape", "Conv", "Reshape"]

    def test_a_crop_is_no_negative_pad(self) -> None:
        """Pads of 2 cut off more than a kernel of 1 adds."""
        model = transposed_model([8, 1, 9], (1, 1, 1), pads=[2, 1])
        folded, (report,) = fold_model(model, FoldOptions(factor=8))
        assert report.axis == "batch"
        conv = next(n for n in folded.graph.node if n.op_type == "Conv")
        pads = next(list(a.ints) for a in conv.attribute if a.name == "pads")
        assert min(pads) >= 0

    def test_an_open_batch_beside_known_extents(self) -> None:
        model = transposed_model(["n", 2, 16, 5], (2, 3, 4, 4), **UP)
        assert site(model, 4).status == "folded"


class TestRefusal:
    @pytest.mark.parametrize(
        ("model", "options", "code", "words"),
        [
            (transposed_model([1, 32, 8, 8], (32, 32, 2, 2), **UP), {}, "already-wide", "32 -> 32"),
            (
                transposed_model([1, 2, 15], (2, 3, 4), strides=[2], pads=[1, 1]),
                {},
                "factor-does-not-divide",
                "input width 15 would have to be 16",
            ),
            (
                transposed_model([1, 2, 16], (2, 3, 5), strides=[2], pads=[2, 2]),
                {},
                "factor-does-not-divide",
                "output width 31 would have to be 32",
            ),
            (
                transposed_model([1, 2, "w"], (2, 3, 4), strides=[2], output_shape=[32]),
                {},
                "unknown-extent",
                "output_shape pads by the input's extent",
            ),
            (
                transposed_model([1, 2, 16], (2, 3, 3), strides=[2], output_shape=[35]),
                {},
                "output-too-large",
                "an output of 35 positions is a stride or more beyond the kernel's reach",
            ),
            (
                transposed_model([1, 2, 16], (2, 3, 3), strides=[2], kernel_shape=[4]),
                {},
                "inconsistent-attributes",
                "kernel [4], strides [2]",
            ),
            (
                transposed_model([1, 3, 16], (4, 3, 3)),
                {},
                "inconsistent-shapes",
                "input [1, 3, 16], weight [4, 3, 3] and group 1 do not fit",
            ),
            (
                transposed_model([1, 4, 16], (4, 3, 3), bias=4, group=2),
                {},
                "inconsistent-shapes",
                "group 2",
            ),
            (
                transposed_model([1, 4, 16], (4, 3, 3), group=3),
                {},
                "inconsistent-shapes",
                "group 3",
            ),
            (
                transposed_model([1, 2, 16], (2, 3, 3), dtype=TensorProto.INT32),
                {},
                "dtype-unsupported",
                "elements are INT32; FLOAT, FLOAT16, DOUBLE, BFLOAT16 fold",
            ),
            (
                transposed_model([1, 2, 16], (2, 3, 4), strides=[2], pads=[1, 1]),
                {"nonfinite": NonFinite.REFUSE},
                "structural-zeros",
                "zeros",
            ),
            (
                transposed_model([1, 2, 3], (2, 3, 2), pads=[2, 2]),
                {},
                "empty-tensor",
                "extents [0]",
            ),
        ],
    )
    def test_codes_and_words(
        self, model: onnx.ModelProto, options: dict[str, object], code: str, words: str
    ) -> None:
        report = site(model, **options)
        assert (report.op, report.status, report.code) == ("ConvTranspose", "refused", code)
        assert words in report.reason
