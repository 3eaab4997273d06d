"""A Conv folded on its output alone: a stride, a little more kernel, then a pixel shuffle."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
import pytest

from tests.folding import read, rewritten
from tests.oracle import conv
from tests.rewrite.graphs import Builder, ops
from tests.rewrite.proved import assert_proved, proof
from tests.rules.one_conv import conv_model, site, transposed_model
from tests.running import LEVELS, opened, run
from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.decide.decisions import decisions_of
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.record import FoldRecord, describe
from widthfold_onnx.rules.enumeration import every_form
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.legality import guard_conditions

OPTIONS = FoldOptions()
SMALLEST = 14
"""Of the sub-pixel forms of a layer; there are up to a hundred."""

FAILURES = (
    ort.capi.onnxruntime_pybind11_state.Fail,
    ort.capi.onnxruntime_pybind11_state.RuntimeException,  # of older releases
)


def sub_pixels(layer: Layer, options: FoldOptions = OPTIONS) -> list[Form]:
    return [form for form in every_form(layer, options) if "sub-pixel" in form.spec.kind]


def in_sub_pixels(model: onnx.ModelProto, options: FoldOptions) -> list[onnx.ModelProto]:
    """The model of one Conv in its smallest sub-pixel forms."""
    forms: list[Form] = []

    def first(layer: Layer) -> Form:
        forms.extend(sub_pixels(layer, options))
        return forms[0]

    decisions_of(read(model, options), options.selection, first)
    return [rewritten(model, options, lambda layer, form=form: form) for form in forms[:SMALLEST]]


@pytest.mark.parametrize(
    ("tiles", "kernel", "stride"), [((4, 1), 8, 4), ((1, 2), 3, 1), ((4, 4), 3, 1)]
)
def test_a_description_tells_the_tiles_of_both_sides(
    tiles: tuple[int, int], kernel: int, stride: int
) -> None:
    records: list[FoldRecord] = []

    def first(layer: Layer) -> Form:
        forms = [form for form in every_form(layer, OPTIONS) if form.spec.axis == "width"]
        tiled = [f for f in forms if (f.fold.axes[1].out_tile, f.fold.axes[1].in_tile) == tiles]
        records.append(describe(layer, tiled[0]))
        return tiled[0]

    steps = 2 if tiles[0] == 1 else 1
    model = conv_model([1, 2, 1, 32], (3, 2, 1, 5), strides=[1, steps], pads=[0, 2, 0, 2])
    decisions_of(read(model, OPTIONS), OPTIONS.selection, first)
    (pattern,) = records[0].axes
    assert (pattern.axis, pattern.out_tile, pattern.in_tile) == ("width", *tiles)
    assert (pattern.original_kernel, pattern.kernel, pattern.stride) == (5, kernel, stride)


def test_the_kernel_grows_by_the_strides_of_the_other_tiles() -> None:
    """Kernel 5 by 4: 5 + 3 taps at stride 4, 5 of them for each digit; both sides folded: 12."""
    axis = ConvAxis(length=32, kernel=5, pad_begin=2, pad_end=2)
    alone, both = fold_axis(axis, 4, 1), fold_axis(axis, 4, 4)
    assert isinstance(alone, FoldedAxis)
    assert isinstance(both, FoldedAxis)
    assert (alone.kernel, alone.stride, alone.pad_begin) == (8, 4, 2)
    assert (alone.in_tile, alone.extended_length, alone.extended_out_length) == (1, 32, 32)
    assert ConvFold(axes=(alone,)).structural_zeros() == 3 / 8
    assert ConvFold(axes=(alone,)).flops_growth() == 8 / 5
    assert ConvFold(axes=(both,)).flops_growth() == 4 * both.kernel / 5 == 12 / 5


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [1, 2, 1, 0]},
        {"strides": [2, 3], "pads": [0, 1, 2, 1]},
        {"dilations": [2, 1], "pads": [2, 1, 2, 1]},
        {"group": 3, "pads": [1, 1, 1, 1]},
    ],
)
def test_every_one_is_the_conv_and_proved(attributes: dict[str, object]) -> None:
    group = attributes.get("group", 1)
    model = conv_model([2, 3, 11, 13], (6, 3 // group, 3, 3), bias=True, **attributes)
    rng = np.random.default_rng(5)
    weight, bias = (
        rng.integers(-3, 4, shape).astype(np.float32) for shape in ((6, 3 // group, 3, 3), (6,))
    )
    for initializer, array in zip(model.graph.initializer, (weight, bias), strict=True):
        initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    x = rng.integers(-3, 4, (2, 3, 11, 13)).astype(np.float32)
    expected = conv(x, weight, bias, **attributes)
    results = in_sub_pixels(model, OPTIONS)
    assert len(results) == SMALLEST
    for number, result in enumerate(results):
        for level in LEVELS:
            (actual,) = run(result, x, level)
            np.testing.assert_array_equal(actual, expected)
        if number % 5 == 0:
            assert_proved(model, result, 1)


def test_what_folds_both_sides_reads_it_packed() -> None:
    """No shuffle lies between: the second Conv reads the digits that the first one returns."""
    g = Builder([1, 3, 5, 16], np.random.default_rng(1))
    first = g.op("Relu", g.conv("x", 2, [3, 5]))
    model = g.model([g.op("Relu", g.conv(first, 2, [1, 3]))])

    def by_4(layer: Layer) -> Form:
        kind = "sub-pixel" if layer.name == "conv0" else "interleaved"
        expected = (kind, "width", 4)
        forms = every_form(layer, OPTIONS)
        return next(f for f in forms if (f.spec.kind, f.spec.axis, f.spec.factor) == expected)

    result = rewritten(model, OPTIONS, by_4)
    assert ops(result)[:4] == ["Conv", "Relu", "Conv", "Relu"]
    x = np.random.default_rng(0).integers(-3, 4, (1, 3, 5, 16)).astype(np.float32)
    for level in LEVELS:
        np.testing.assert_array_equal(run(result, x, level), run(model, x, level))
    assert_proved(model, result, 2)


def test_a_factor_never_means_it() -> None:
    """A fixed factor widens both sides of a layer: it says nothing of this machine's kernels."""
    model = conv_model([1, 1, 16, 16], (1, 1, 5, 5), pads=[2, 2, 2, 2])
    for factor in (2, 4, 8, 16):
        report = site(model, factor)
        assert report.status == "folded"
        assert "sub-pixel" not in report.form


@pytest.mark.parametrize("dims", [["n", 1, 6, "w"], [2, 1, "h", 16]])
@pytest.mark.parametrize("strides", [[1, 1], [2, 1], [1, 2]])
def test_at_other_extents_than_the_assumed_it_is_right_or_fails(
    dims: list[int | str], strides: list[int]
) -> None:
    """At a stride several extents of the input give as many outputs, and no Reshape sees it."""
    model = conv_model(dims, (2, 1, 3, 3), pads=[1, 1, 1, 1], strides=strides)
    results = in_sub_pixels(model, FoldOptions(input_shapes={"x": (2, 1, 6, 16)}))
    assert results
    original, *sessions = (opened(m, LEVELS[1]) for m in (model, *results))
    ran = 0
    for height, width in ((6, 14), (6, 15), (6, 16), (6, 17), (6, 19), (4, 16), (7, 16), (8, 16)):
        x = np.random.default_rng(2).integers(-3, 4, (2, 1, height, width)).astype(np.float32)
        try:
            (expected,) = original.run(None, {"x": x})
        except ort.capi.onnxruntime_pybind11_state.InvalidArgument:
            continue  # the model fixes this extent
        for session in sessions:
            try:
                (actual,) = session.run(None, {"x": x})
            except FAILURES:
                continue
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
            ran += 1
    assert ran >= len(sessions)


def test_the_proof_misses_the_test_of_an_extent_that_was_open() -> None:
    """Folded where the width is fixed, then held against a model that leaves it open."""
    closed = conv_model([1, 1, 6, 16], (2, 1, 3, 3), pads=[1, 1, 1, 1])
    opened = onnx.ModelProto.FromString(closed.SerializeToString())
    opened.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "w"

    def by_4(layer: Layer) -> Form:
        return next(
            f for f in sub_pixels(layer) if (f.spec.kind, f.spec.axis) == ("sub-pixel", "width")
        )

    result = rewritten(closed, OPTIONS, by_4)
    assert_proved(closed, result, 1)
    result.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "w"
    assert proof(opened, result).verdict == "different"


@pytest.mark.parametrize("stride", [2, 3, 5])
@pytest.mark.parametrize("axis", [AxisName.AUTO, AxisName.WIDTH])
def test_an_open_extent_is_guarded(stride: int, axis: AxisName) -> None:
    """Two neighbouring extents may give as many outputs, both divisible; not all do."""
    model = conv_model([1, 1, 6, "w"], (2, 1, 3, 2), pads=[1, 2, 1, 2], strides=[1, stride])
    options = FoldOptions(axis=axis)
    guarded: list[tuple[str, bool]] = []

    def none(layer: Layer) -> Refusal:
        forms = sub_pixels(layer, options)
        guarded.extend((form.spec.axis, bool(guard_conditions(layer, form))) for form in forms)
        return Refusal(Code.NOT_SELECTED, "only counted")

    decisions_of(read(model, options), options.selection, none)
    assert all(has_guard for axis, has_guard in guarded if "width" in axis)
    assert guarded or axis is not AxisName.AUTO


def upsampling(width: int | str) -> onnx.ModelProto:
    """Twice the height and width, less one."""
    return transposed_model([1, 2, 6, width], (2, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])


def shuffled(model: onnx.ModelProto, options: FoldOptions = OPTIONS) -> list[onnx.ModelProto]:
    """The model in those sub-pixel forms that end with a pixel shuffle."""
    return [m for m in in_sub_pixels(model, options) if "DepthToSpace" in ops(m)]


def test_a_pixel_shuffle_of_any_width_cuts_the_last_column() -> None:
    model, assumed = upsampling("w"), FoldOptions(input_shapes={"x": (1, 2, 6, 16)})
    results = shuffled(model, assumed)
    assert results
    for result in results:
        assert "If" not in ops(result)
        for width in (16, 7, 1):
            x = np.random.default_rng(width).integers(-4, 5, (1, 2, 6, width)).astype(np.float32)
            np.testing.assert_allclose(run(result, x)[0], run(model, x)[0], rtol=1e-4, atol=1e-5)


def test_the_proof_misses_the_test_of_a_pixel_shuffle() -> None:
    result = shuffled(upsampling(16))[0]
    assert_proved(upsampling(16), result, 1)
    result.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "w"
    assert proof(upsampling("w"), result).verdict == "different"


@pytest.mark.parametrize(
    ("dims", "assumed", "kernel", "others"),
    [
        ([4, 2, "h", "w"], (4, 2, 5, 8), 1, [(4, 2, 4, 4), (4, 2, 9, 16), (4, 2, 5, 16)]),
        (["n", 1, 6, "w"], (2, 1, 6, 8), 3, [(4, 1, 6, 8), (6, 1, 6, 4), (4, 1, 6, 4)]),
        (["n", 1, "h", 8], (2, 1, 6, 8), 3, [(4, 1, 6, 8), (4, 1, 8, 8), (6, 1, 4, 8)]),
    ],
)
def test_what_is_carried_opens_with_the_conv_or_not_at_all(dims, assumed, kernel, others) -> None:
    """One end inferred a size and the other end stated another: the tensor had another shape."""
    pad = kernel // 2
    model = conv_model(dims, (2, assumed[1], kernel, kernel), pads=[pad] * 4)
    model.graph.node[0].output[0] = "c"
    model.graph.node.append(onnx.helper.make_node("Relu", ["c"], ["y"], "relu"))
    options = FoldOptions(input_shapes={"x": assumed})
    forms: list[Form] = []

    def first(layer: Layer) -> Form:
        forms.extend(every_form(layer, options))
        return forms[0]

    decisions_of(read(model, options), options.selection, first)
    assert len(forms) >= 30
    cases = []
    for shape in (assumed, *others):
        x = np.random.default_rng(4).integers(-3, 4, shape).astype(np.float32)
        cases.append((shape, x, run(model, x, LEVELS[0])[0]))
    for form in forms:
        result = rewritten(model, options, lambda layer, form=form: form)
        session = opened(result, LEVELS[1])
        for shape, x, expected in cases:
            try:
                (actual,) = session.run(None, {"x": x})
            except (
                ort.capi.onnxruntime_pybind11_state.Fail,
                ort.capi.onnxruntime_pybind11_state.RuntimeException,
                ort.capi.onnxruntime_pybind11_state.InvalidArgument,
            ):
                assert shape != assumed
                continue
            assert actual.shape == expected.shape, (form.spec, shape)
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
