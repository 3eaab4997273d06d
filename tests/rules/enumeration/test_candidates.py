"""Every form of a layer that is worth a try is tried, each once."""

from __future__ import annotations

from tests.folding import fold_model
from tests.small_models import conv
from tests.tuning.workloads.forms import LAYERS, check_forms, only_layer
from tests.tuning.workloads.tool import FOLD, layers_of, workload_of
from widthfold_onnx.options import FoldOptions, NonFinite
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.enumeration import every_form, form_of
from widthfold_onnx.rules.form import Form


def test_the_kinds_that_exist_are_tried() -> None:
    def kinds(name: str) -> set[str]:
        return {form.spec.kind for form in workload_of(LAYERS[name]).forms}

    assert {"interleaved", "whole", "lifted", "interleaved+lifted"} <= kinds("same")
    assert {"sub-pixel", "sub-pixel+lifted", "sub-pixel+sub-pixel"} <= kinds("same")
    assert {"space-to-depth", "space-to-depth+space-to-depth"} <= kinds("strided")
    assert {"batch", "batch+lifted"} <= kinds("batch")
    assert "summed taps" in kinds("3-D") & kinds("3-D dilated")
    assert "summed taps" in kinds("STFT") & kinds("inverse STFT")
    assert "blocked" in kinds("pointwise")
    assert {"sub-pixel", "sub-pixel+lifted", "interleaved+sub-pixel"} <= kinds("transposed")
    assert {"batch+sub-pixel", "whole"} <= kinds("transposed 1-D")
    assert {"mirrored", "interleaved", "padded"} <= kinds("mirrored")
    assert {"dense", "grouped", "dense+padded"} <= kinds("depthwise")
    assert {"grouped", "padded"} <= kinds("block-diagonal")
    assert "grouped" not in kinds("same")
    assert {"sub-pixel+dense", "sub-pixel+dense+padded"} <= kinds("transposed 1-D")
    assert {"lifted", "sub-pixel+lifted", "batch+lifted"} <= kinds("1-D")
    assert not any("lifted" in kind for kind in kinds("3-D"))


def test_a_wide_layer_of_one_axis_is_lifted_only() -> None:
    """No kernel for two axes runs it yet, however wide it is; a fixed factor still leaves it."""
    signal = conv([1, 33, 14], (37, 33, 5), pads=[2, 2], strides=[2])
    workload = workload_of(signal)
    assert [form.spec.kind for form in workload.forms] == ["lifted"]
    check_forms(workload)
    assert fold_model(signal, FoldOptions(factor=7))[1][0].code == "already-wide"
    for other in (conv([1, 33, 8, 7], (37, 33, 5, 1)), conv([1, 33, 4, 4, 7], (37, 33, 1, 1, 5))):
        assert layers_of(other, FOLD).workloads == {}
    narrow = {form.spec.kind for form in workload_of(signal, FoldOptions(max_channels=34)).forms}
    assert {"lifted", "interleaved", "sub-pixel+lifted"} <= narrow


def test_the_dilation_is_removed_where_no_usual_factor_does_it() -> None:
    layer = only_layer(conv([1, 2, 3, 24], (3, 2, 1, 3), dilations=[1, 3], pads=[0, 3, 0, 3]))
    forms = [
        f
        for f in every_form(layer, FOLD)
        if (f.spec.factor, f.spec.axis, f.fold.lift) == (3, "width", 0)
    ]
    assert [axis.dilation for axis in forms[0].fold.axes] == [1, 1]
    assert forms[0].fold.weight_shape(layer.weight_shape) == (9, 6, 1, 3)
    assert forms[0].flops_ratio == 3  # the same taps, on three times as many input channels


def test_channels_are_padded_to_what_kernels_ask_for() -> None:
    def channels(inputs: int, outputs: int) -> set[tuple[int, int]]:
        workload = workload_of(conv([1, inputs, 5, 6], (outputs, inputs, 3, 3)))
        pairs = (tuple(form.spec.channels) for form in workload.forms)
        return set(pairs) - {(inputs, outputs)}

    assert channels(3, 12) == {
        *((4, 12), (8, 12), (3, 16), (8, 16), (16, 12), (16, 16)),
    }
    assert channels(16, 16) == set()


def test_no_form_breaks_the_limits() -> None:
    model, loose = LAYERS["same"], workload_of(LAYERS["same"])
    strict = workload_of(model, FoldOptions(nonfinite=NonFinite.REFUSE))
    assert {f.spec for f in strict.forms} < {f.spec for f in loose.forms}
    layer = only_layer(model)
    for spec in (form.spec for form in strict.forms):
        form = form_of(layer, spec, FOLD)
        assert isinstance(form, Form)
        assert form.fold.structural_zeros() == 0
    small = workload_of(model, FoldOptions(max_flops_growth=2.0))
    assert {f.spec for f in small.forms} < {f.spec for f in loose.forms}
    assert all(form.macs <= 2 * small.macs for form in small.forms)
    refusal = form_of(layer, loose.forms[-1].spec, FoldOptions(max_flops_growth=0.5))
    assert isinstance(refusal, Refusal)
    wide = {f.spec.axis for f in workload_of(model, FoldOptions(axis="width")).forms}
    assert wide == {"width", "rank"}


def test_a_fold_does_not_add_more_than_there_is() -> None:
    for form in workload_of(LAYERS["ragged"]).forms:
        for axis, extent in zip(form.spec.axes, (7, 13), strict=True):
            assert axis.out_tile <= extent
        assert form.spec.batch == 1
