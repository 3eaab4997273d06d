"""The pixel shuffle of a sub-pixel form is done where a region ends, not behind its Conv."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.folding import fold_model, rewritten
from tests.rewrite.graphs import Builder, ops
from tests.rewrite.proved import assert_proved
from tests.rewrite.quantized import convs
from tests.rewrite.quantized.convs import Case
from tests.running import LEVELS, run
from widthfold_onnx.options import FoldOptions, FormName
from widthfold_onnx.rules.enumeration import forms_at_factor
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer

LOOSE = FoldOptions(factor=4, max_flops_growth=1e3, max_bytes_growth=1e3)
STRIDES = replace(LOOSE, factor=None, form=FormName.STRIDES)


def upsampling(g: Builder, value: str, out: int, **attributes) -> str:
    """Twice the extents: kernel 4, stride 2, pad 1."""
    weight = g.integers(g.channels[value], out, 4, 4)
    attributes = {"strides": [2, 2], "pads": [1, 1, 1, 1], **attributes}
    return g.op("ConvTranspose", value, weight, g.integers(out), channels=out, **attributes)


def sub_pixel_and_square(layer: Layer) -> Form:
    """A ConvTranspose in its sub-pixel form, a Conv by 2 along both axes: one layout."""
    options = STRIDES if layer.op == "ConvTranspose" else LOOSE
    forms = [r for _, r in forms_at_factor(layer, options)]
    kinds = ("sub-pixel+sub-pixel", "interleaved+interleaved")
    return next(r for r in forms if isinstance(r, Form) and r.spec.kind in kinds)


def folded(model: onnx.ModelProto, count: int) -> onnx.ModelProto:
    result = rewritten(model, LOOSE, sub_pixel_and_square)
    onnx.checker.check_model(result, full_check=True)
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).integers(-3, 4, dims).astype(np.float32)
    for level in LEVELS:
        pairs = zip(run(model, x, level), run(result, x, level), strict=True)
        for expected, actual in pairs:
            np.testing.assert_array_equal(actual, expected)
    assert_proved(model, result, count)
    return result


@pytest.mark.parametrize("op", ["Relu", "PRelu", "Add"])
def test_it_waits_behind_what_a_fold_passes_through(op: str) -> None:
    g = Builder([2, 3, 5, 7], np.random.default_rng(1))
    value = upsampling(g, "x", 2)
    more = [] if op == "Relu" else [g.integers(2, 1, 1)]
    result = folded(g.model([g.op(op, value, *more)]), 1)
    assert ops(result) == ["Conv", op, "DepthToSpace"]


def test_a_conv_that_folds_both_axes_reads_it_unshuffled() -> None:
    g = Builder([1, 3, 5, 7], np.random.default_rng(2))
    value = g.op("Relu", upsampling(g, "x", 2))
    result = folded(g.model([g.conv(value, 3, [3, 3])]), 2)
    assert ops(result) == ["Conv", "Relu", "Conv", "DepthToSpace"]


def test_two_upsamplings_are_shuffled_once_in_between() -> None:
    g = Builder([1, 2, 3, 5], np.random.default_rng(3))
    value = g.op("Relu", upsampling(g, "x", 3))
    result = folded(g.model([upsampling(g, value, 2)]), 2)
    assert ops(result) == ["Conv", "Relu", "DepthToSpace", "Conv", "DepthToSpace"]


def test_a_residual_joins_before_the_shuffle() -> None:
    g = Builder([1, 3, 5, 7], np.random.default_rng(4))
    value = g.op("Add", upsampling(g, "x", 2), upsampling(g, "x", 2), channels=2)
    assert ops(folded(g.model([value]), 2)) == ["Conv", "Conv", "Add", "DepthToSpace"]


def test_odd_extents_are_cut_and_so_shuffled_at_once() -> None:
    ragged = FoldOptions(form=FormName.STRIDES, ragged=True)

    def first(layer: Layer) -> Form:
        return next(r for _, r in forms_at_factor(layer, ragged) if isinstance(r, Form))

    g = Builder([1, 3, 5, 7], np.random.default_rng(5))
    value = upsampling(g, "x", 2, pads=[1, 1, 2, 2])
    result = rewritten(g.model([g.op("Relu", value)]), ragged, first)
    assert ops(result) == ["Conv", "DepthToSpace", "Slice", "Relu"]


def test_sums_of_integers_are_no_pixels() -> None:
    """The runtime has no DepthToSpace of 32-bit integers."""
    attributes = {"pads": [1, 1, 1, 1]}
    case = Case(
        op="ConvInteger",
        per_channel=False,
        shape=(1, 1, 6, 6),
        weight=(2, 1, 3, 3),
        attributes=attributes,
        pads=(1, 1, 1, 1),
    )
    result, (site,) = fold_model(case.model(), FoldOptions(factor=9))
    assert site.form == "move interleaved+interleaved"
    assert ops(result)[-4:] == ["ConvInteger", "Reshape", "Transpose", "Reshape"]
    x = case.data()
    np.testing.assert_array_equal(convs.run(result, x), case.expected(x))


def test_what_became_an_integer_on_the_way_is_no_pixel() -> None:
    g = Builder([1, 3, 5, 7], np.random.default_rng(5))
    value = g.op("Cast", upsampling(g, "x", 2), to=onnx.TensorProto.INT32)
    result = folded(g.model([g.op("Cast", value, to=onnx.TensorProto.FLOAT)]), 1)
    assert ops(result) == ["Conv", "Cast", "Cast", "DepthToSpace"]
    model = g.model([value])
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    del model.graph.node[2:]
    assert ops(folded(model, 1)) == ["Conv", "Cast", "Reshape", "Transpose", "Reshape"]
