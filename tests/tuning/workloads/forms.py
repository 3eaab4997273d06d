"""Layers of all kinds, and the check that every form computes what its layer computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from tests.folding import read
from tests.small_models import conv
from tests.tuning.workloads.tool import FOLD, integers, run
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.tuning.workloads import (
    PredictedForm,
    Workload,
    model_in_form,
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


def only_layer(model: onnx.ModelProto, fold: FoldOptions = FOLD) -> Layer:
    ((_, layer),) = read_sites(read(model, fold))
    assert isinstance(layer, Layer)
    return layer


def check_forms(
    workload: Workload, fold: FoldOptions = FOLD, dtype: type = np.float32
) -> np.ndarray:
    """Compare all forms of a workload with the layer as it is, and return its output."""
    x = integers(workload.model, dtype)
    expected = run(workload.model, x)
    assert np.abs(expected).max() > 1
    for form in workload.forms:
        model = model_in_form(workload, form.form)
        assert model is not None
        last = onnx.ModelProto.FromString(model).graph.node[-1]
        assert (last.op_type, list(last.metadata_props)) == ("Neg", [])  # not on packed tensors
        np.testing.assert_array_equal(run(model, x), expected, err_msg=form.spec.text, strict=True)
        if form.input_layout or form.output_layout:
            check_inside(workload, form, fold, x, expected)
    return expected


def check_inside(
    workload: Workload, form: PredictedForm, fold: FoldOptions, x: np.ndarray, expected
) -> None:
    """A form between packed tensors reads and returns them packed."""
    model = model_in_form(replace(workload, is_inside=True), form.form)
    assert model is not None
    data = x if form.input_layout is None else form.input_layout.pack_array(x)
    result = expected if form.output_layout is None else form.output_layout.pack_array(expected)
    np.testing.assert_array_equal(run(model, data), result, err_msg=form.spec.text, strict=True)
