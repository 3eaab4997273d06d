"""Every form of a cut-out layer computes, bit for bit, what the layer computes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import onnx
import pytest

from tests import oracle
from tests.folding import fold_model, read
from tests.shared import ROOT
from tests.tuning.workload.tool import FOLD, conv, integers, layers, run, workload
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.options import FoldOptions, Layout, NonFinite
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.folded_node import folded_weight
from widthfold_onnx.rules.forms.enumeration import form_of
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.sites import LinearSite
from widthfold_onnx.tuning.workload.candidates import every_form
from widthfold_onnx.tuning.workload.workloads import (
    ALIKE,
    PredictedForm,
    Workload,
    in_order,
    reformed,
)

LAYERS = {
    "same": conv([1, 2, 6, 16], (3, 2, 3, 3), pads=[1, 1, 1, 1]),
    "strided": conv([1, 1, 8, 16], (2, 1, 3, 5), pads=[1, 2, 1, 2], strides=[2, 4]),
    "ragged": conv([1, 3, 7, 13], (2, 3, 2, 3), pads=[0, 1, 1, 0], bias=False),
    "dilated": conv([1, 1, 5, 24], (1, 1, 1, 5), pads=[0, 4, 0, 4], dilations=[1, 2]),
    "grouped": conv([2, 4, 4, 8], (6, 2, 3, 3), pads=[1, 1, 1, 1], group=2),
    "batch": conv([8, 1, 4, 4], (1, 1, 3, 3), pads=[1, 1, 1, 1]),
    "pointwise": conv([1, 2, 4, 8], (3, 2, 1, 1)),
    "same-upper": conv([1, 1, 7, 9], (2, 1, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    "1-D": conv([2, 2, 36], (3, 2, 5), pads=[2, 2], strides=[3]),
    "3-D": conv([1, 1, 4, 4, 8], (2, 1, 3, 1, 3), pads=[1, 0, 1, 1, 0, 1]),
    "3-D dilated": conv(
        [2, 3, 7, 4, 5], (4, 3, 3, 2, 1), pads=[2, 1, 0, 2, 0, 0], dilations=[2, 1, 1]
    ),
    "transposed": conv(
        [1, 2, 5, 8], (2, 3, 3, 4), strides=[1, 2], pads=[1, 1, 1, 1], op="ConvTranspose"
    ),
    "transposed 1-D": conv(
        [2, 4, 9],
        (4, 3, 5),
        strides=[3],
        dilations=[2],
        output_padding=[1],
        group=2,
        op="ConvTranspose",
    ),
    "STFT": conv([1, 1, 52], (13, 1, 20), strides=[5]),
    "inverse STFT": conv([2, 7, 11], (7, 1, 20), strides=[5], bias=False, op="ConvTranspose"),
    "mirrored": conv([1, 2, 6, 8], (2, 3, 3, 3), pads=[1, 1, 1, 1], op="ConvTranspose"),
    "depthwise": conv([1, 6, 5, 7], (6, 1, 3, 2), pads=[1, 0, 1, 1], group=6),
    "block-diagonal": conv([1, 6, 5, 8], (4, 6, 3, 3), pads=[1, 1, 1, 1], blocks=2),
    "fp16": conv([1, 1, 4, 16], (4, 1, 3, 3), pads=[1, 1, 1, 1], dtype=np.float16),
}


def site_of(model: onnx.ModelProto, fold: FoldOptions = FOLD) -> LinearSite:
    ((_, unit),) = read_sites(read(model, fold), fold)
    assert isinstance(unit, LinearSite)
    return unit


def check_forms(found: Workload, fold: FoldOptions = FOLD, dtype: type = np.float32) -> np.ndarray:
    """All forms of a unit against the unit; what it computes."""
    x = integers(found.model, dtype)
    expected = run(found.model, x)
    assert np.abs(expected).max() > 1
    for form in found.forms:
        model = reformed(found, form.spec, fold)
        assert model is not None
        last = onnx.ModelProto.FromString(model).graph.node[-1]
        assert (last.op_type, list(last.metadata_props)) == ("Neg", [])  # not on packed tensors
        np.testing.assert_array_equal(run(model, x), expected, err_msg=form.spec.text, strict=True)
        if form.input_layout or form.output_layout:
            check_inside(found, form, fold, x, expected)
    return expected


def check_inside(
    unit: Workload, form: PredictedForm, fold: FoldOptions, x: np.ndarray, expected
) -> None:
    """A form between packed tensors reads and returns them packed."""
    model = reformed(replace(unit, inside=True), form.spec, fold)
    assert model is not None
    data = x if form.input_layout is None else form.input_layout.packed(x)
    result = expected if form.output_layout is None else form.output_layout.packed(expected)
    np.testing.assert_array_equal(run(model, data), result, err_msg=form.spec.text, strict=True)


@pytest.mark.parametrize("name", LAYERS)
def test_every_form_is_the_layer_bit_for_bit(name: str) -> None:
    model = LAYERS[name]
    unit = workload(model)
    assert len(unit.forms) >= 8
    specs = [form.spec for form in unit.forms]
    assert len(set(specs)) == len(specs)
    dtype = np.float16 if name == "fp16" else np.float32
    result = check_forms(unit, dtype=dtype)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    x = integers(unit.model)
    if mode := attributes.pop("auto_pad", b"").decode():
        kernel = weights["w"].shape[2:]
        attributes["pads"] = oracle.resolve_auto_pad(mode, x.shape[2:], kernel, [2, 2], [1, 1])
    op = {"Conv": oracle.conv, "ConvTranspose": oracle.conv_transpose}[model.graph.node[0].op_type]
    expected = op(x, weights["w"], weights.get("b"), **attributes)
    np.testing.assert_array_equal(-result.astype(expected.dtype), expected)
    # A ConvTranspose multiplies every weight at every input position.
    assert unit.macs == (expected if op is oracle.conv else x).size * weights["w"][0].size


@pytest.mark.parametrize("name", ["same", "strided", "1-D"])
def test_so_it_is_channels_last(name: str) -> None:
    fold = FoldOptions(layout=Layout.NHWC)
    unit = workload(LAYERS[name], fold)
    assert any(form.spec.tile_major for form in unit.forms)
    check_forms(unit, fold)


def test_the_kinds_that_exist_are_tried() -> None:
    def kinds(name: str) -> set[str]:
        return {form.spec.kind for form in workload(LAYERS[name]).forms}

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
    unit = workload(signal)
    assert [form.spec.kind for form in unit.forms] == ["lifted"]
    check_forms(unit)
    assert fold_model(signal, FoldOptions(factor=7))[1][0].code == "already-wide"
    for other in (conv([1, 33, 8, 7], (37, 33, 5, 1)), conv([1, 33, 4, 4, 7], (37, 33, 1, 1, 5))):
        assert layers(other, FOLD).workloads == {}
    narrow = {form.spec.kind for form in workload(signal, FoldOptions(max_channels=34)).forms}
    assert {"lifted", "interleaved", "sub-pixel+lifted"} <= narrow


def test_the_dilation_is_removed_where_no_usual_factor_does_it() -> None:
    site = site_of(conv([1, 2, 3, 24], (3, 2, 1, 3), dilations=[1, 3], pads=[0, 3, 0, 3]))
    forms = [
        f
        for f in every_form(site, FOLD)
        if (f.spec.factor, f.spec.axis, f.fold.lift) == (3, "width", 0)
    ]
    assert [axis.dilation for axis in forms[0].fold.axes] == [1, 1]
    assert forms[0].fold.weight_shape(site.weight_shape) == (9, 6, 1, 3)
    assert forms[0].flops_ratio == 3  # the same taps, on three times as many input channels


@pytest.mark.parametrize("name", LAYERS)
def test_a_form_is_made_again_from_its_spec(name: str) -> None:
    site = site_of(LAYERS[name])
    forms = list(every_form(site, FOLD))
    for form in forms:
        spec = form.spec
        again = form_of(site, spec, FOLD)
        assert isinstance(again, Reformulation)
        assert again.spec == spec
        folded = (folded_weight(site, site.stored(), f.fold) for f in (form, again))
        np.testing.assert_array_equal(*folded)
        for field in ("in_shape", "out_shape", "is_view", "flops_ratio"):
            assert getattr(again, field) == getattr(form, field)
    assert {form.spec for form in forms} == {f.spec for f in workload(LAYERS[name]).forms}


def test_channels_are_padded_to_what_kernels_ask_for() -> None:
    def channels(inputs: int, outputs: int) -> set[tuple[int, int]]:
        unit = workload(conv([1, inputs, 5, 6], (outputs, inputs, 3, 3)))
        pairs = (tuple(form.spec.channels) for form in unit.forms)
        return set(pairs) - {(inputs, outputs)}

    assert channels(3, 12) == {
        *((4, 12), (8, 12), (3, 16), (8, 16), (16, 12), (16, 16)),
    }
    assert channels(16, 16) == set()


def test_layers_of_one_shape_differ_where_their_weights_fall_into_groups() -> None:
    shape, weight = [1, 6, 5, 8], (6, 6, 1, 1)
    unit = {workload(conv(shape, weight, blocks=n)).subject for n in (1, 2, 3, 6)}
    assert len(unit) == 4
    assert {json.loads(subject).get("groups") for subject in unit} == {None, 2, 3, 6}
    dense = site_of(conv(shape, weight))
    for form in every_form(site_of(conv(shape, weight, blocks=2)), FOLD):
        if form.spec.kind == "grouped":
            refusal = form_of(dense, form.spec, FOLD)
            assert isinstance(refusal, Refusal)
            assert refusal.code == "joined-channels"


def test_no_form_breaks_the_limits() -> None:
    model, loose = LAYERS["same"], workload(LAYERS["same"])
    strict = workload(model, FoldOptions(nonfinite=NonFinite.REFUSE))
    assert {f.spec for f in strict.forms} < {f.spec for f in loose.forms}
    site = site_of(model)
    for spec in (form.spec for form in strict.forms):
        form = form_of(site, spec, FOLD)
        assert isinstance(form, Reformulation)
        assert form.fold.structural_zeros() == 0
    small = workload(model, FoldOptions(max_flops_growth=2.0))
    assert {f.spec for f in small.forms} < {f.spec for f in loose.forms}
    assert all(form.macs <= 2 * small.macs for form in small.forms)
    refusal = form_of(site, loose.forms[-1].spec, FoldOptions(max_flops_growth=0.5))
    assert isinstance(refusal, Refusal)
    wide = {f.spec.axis for f in workload(model, FoldOptions(axis="width")).forms}
    assert wide == {"width", "rank"}


def test_a_fold_does_not_add_more_than_there_is() -> None:
    for form in workload(LAYERS["ragged"]).forms:
        for axis, extent in zip(form.spec.axes, (7, 13), strict=True):
            assert axis.out_tile <= extent
        assert form.spec.batch == 1


def test_the_most_promising_come_first() -> None:
    predicted = [form.predicted for form in workload(LAYERS["same"]).forms]
    assert all(first <= ALIKE * second for first, second in pairwise(predicted))
    assert predicted[0] < predicted[-1]


def test_a_form_of_other_extents_does_not_exist_here() -> None:
    blocked = next(
        f.spec
        for f in workload(LAYERS["pointwise"]).forms
        if any(axis.blocked for axis in f.spec.axes)
    )
    assert reformed(workload(LAYERS["same"]), blocked, FOLD) is None


def test_an_open_extent_takes_the_measured_one_or_none_at_all() -> None:
    model = conv(["n", 1, 4, "w"], (2, 1, 3, 3), pads=[1, 1, 1, 1])
    (refusal,) = layers(model, FOLD, {}).subjects.values()
    assert isinstance(refusal, Refusal)
    assert refusal.code == "unknown-extent"
    unit = workload(model, FOLD, {"x": (3, 1, 4, 10)})
    assert json.loads(unit.subject)["input"] == [3, 1, 4, 10]
    check_forms(unit)


def test_specs_are_the_same_in_every_process() -> None:
    names = "same", "1-D", "batch", "fp16"
    script = (
        "from tests.tuning.workload.test_workloads import *\n"
        f"for name in {names}:\n"
        "    found = workload(LAYERS[name])\n"
        "    print(found.subject, *(form.spec.text for form in found.forms), sep='\\n')\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (output,) = outputs
    lines = output.decode().splitlines()
    here = [workload(LAYERS[name]) for name in names]
    assert lines == [t for u in here for t in (u.subject, *(form.spec.text for form in u.forms))]


def test_of_forms_that_are_predicted_alike_the_simpler_come_first() -> None:
    spec = workload(LAYERS["same"]).forms[0].spec

    def named(kind: str, seconds: float) -> PredictedForm:
        return PredictedForm(msgspec.structs.replace(spec, kind=kind), 1.0, seconds)

    alike = [named("two+axes", 1.0), named("one axis", 0.9 * ALIKE)]
    others = [named("slow", 1.1 * ALIKE), named("slower", 9.0)]
    kinds = [form.spec.kind for form in in_order([*others, *alike])]
    assert kinds == ["one axis", "two+axes", "slow", "slower"]
