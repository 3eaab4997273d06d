"""A pixel shuffle takes any extent; surplus positions behind it are cut from the end."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.folding import read, rewritten
from tests.rewrite.graphs import Builder, ops
from tests.rewrite.proved import assert_proved, proof
from tests.running import LEVELS, run
from widthfold_onnx.decide.decisions import decisions_of
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.enumeration import conv_forms, every_form
from widthfold_onnx.rules.form import Answer, Form
from widthfold_onnx.rules.layers import Layer

ASSUMED = FoldOptions(ragged=True, input_shapes={"x": (2, 3, 5, 7)})

# Kernel and pads at stride 2; one output row is cut where 2 does not divide their number.
EVEN, ODD = (4, [1, 1, 1, 1]), (3, [1, 1, 1, 1])


def upsampling(dims: list[int | str], kernel: int, pads: list[int]) -> onnx.ModelProto:
    g = Builder(dims, np.random.default_rng(1))
    weight = g.integers(3, 2, kernel, kernel)
    value = g.op("ConvTranspose", "x", weight, channels=2, strides=[2, 2], pads=pads)
    return g.model([g.op("Relu", value)])


def sub_pixel(model: onnx.ModelProto, options: FoldOptions) -> tuple[onnx.ModelProto, list[Answer]]:
    """The model with the sub-pixel form if it is legal, and that form or its refusal."""
    answers: list[Answer] = []

    def choose(layer: Layer) -> Answer:
        answers.extend(answer for _, answer in conv_forms(layer, options, (1, 1, 1)))
        return answers[0]

    return rewritten(model, options, choose), answers


@pytest.mark.parametrize(
    "dims", [[2, 3, "h", 7], [2, 3, 5, "w"], [2, 3, "h", "w"], ["n", 3, "h", "w"]]
)
@pytest.mark.parametrize(("kernel", "pads"), [EVEN, ODD, (2, [0] * 4), (3, [1, 1, 0, 0])])
def test_it_is_right_at_every_extent(dims, kernel, pads) -> None:
    model = upsampling(dims, kernel, pads)
    result, (form,) = sub_pixel(model, ASSUMED)
    assert isinstance(form, Form)
    assert "DepthToSpace" in ops(result)
    assert_proved(model, result, 1)
    for extent in (5, 7, 1, 2, 6, 10, 14):
        shape = [extent if isinstance(dim, str) else dim for dim in dims]
        x = np.random.default_rng(extent).integers(-3, 4, shape).astype(np.float32)
        for level in LEVELS:
            np.testing.assert_array_equal(run(result, x, level)[0], run(model, x, level)[0])


def test_two_open_extents_are_more_than_a_reshape_infers() -> None:
    """Below operator set 11 no DepthToSpace has this order."""
    model = upsampling([2, 3, "h", "w"], *ODD)
    model.opset_import[0].version = 10
    _, (refusal,) = sub_pixel(model, ASSUMED)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "several-unknown-extents"


def test_what_reads_a_shuffle_of_open_extents_is_not_packed() -> None:
    """A DepthToSpace of the runtime takes no int32: the Cast stands behind it."""
    model = upsampling([2, 3, "h", "w"], *EVEN)
    g = model.graph
    g.node.append(onnx.helper.make_node("Cast", [g.output[0].name], ["i"], to=TensorProto.INT32))
    g.node.append(onnx.helper.make_node("Abs", ["i"], ["j"]))
    del g.output[:]
    g.output.append(onnx.helper.make_tensor_value_info("j", TensorProto.INT32, [None] * 4))
    result, (form,) = sub_pixel(model, ASSUMED)
    assert isinstance(form, Form)
    assert form.ends.output_layout is None
    assert form.ends.logical_reason is not None
    assert form.ends.logical_reason.code == Code.SEVERAL_UNKNOWN_EXTENTS
    assert ops(result).index("DepthToSpace") < ops(result).index("Cast")
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 5, 11)).astype(np.float32)
    np.testing.assert_array_equal(run(result, x)[0], run(model, x)[0])


@pytest.mark.parametrize(("layer", "verdict"), [(EVEN, "equal"), (ODD, "different")])
@pytest.mark.parametrize("open_axis", [2, 3])
def test_the_proof_sees_a_cut_at_an_extent_that_is_open(layer, verdict, open_axis) -> None:
    """Planted: an extent that the form was made for is open in both models."""
    model = upsampling([2, 3, 5, 7], *layer)
    result, _ = sub_pixel(model, FoldOptions(ragged=True))
    for proto in (model, result):
        proto.graph.input[0].type.tensor_type.shape.dim[open_axis].dim_param = "open"
        del proto.graph.value_info[:]
    size_proof = proof(model, result)
    assert size_proof.verdict == verdict, size_proof


def test_groups_that_lie_apart_are_no_pixel_shuffle() -> None:
    g = Builder([1, 2, "h", 6], np.random.default_rng(1))
    weight, pads = g.integers(2, 2, 2, 1), [1, 0, 1, 0]
    y = g.op("ConvTranspose", "x", weight, channels=4, strides=[2, 1], pads=pads, group=2)
    model = g.model([y])
    options = FoldOptions(input_shapes={"x": (1, 2, 16, 6)})

    def sub_pixels(layer: Layer) -> list[Form]:
        return [form for form in every_form(layer, options) if form.spec.factor == 1]

    every: list[Form] = []
    decisions_of(
        read(model, options),
        options.selection,
        lambda layer: every.extend(sub_pixels(layer)) or Refusal(Code.NO_GAIN, "later"),
    )
    assert every
    for index in range(len(every)):
        result = rewritten(model, options, lambda layer, i=index: sub_pixels(layer)[i])
        assert_proved(model, result, 1, options.input_shapes)
