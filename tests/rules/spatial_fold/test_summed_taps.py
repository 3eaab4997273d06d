"""A Conv without its first axis, whose results for each tap of the axis are shifted and added."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.folding import read
from tests.rewrite.proved import assert_proved, proof
from tests.small_models import conv
from tests.tuning.workloads.tool import FOLD, integers, run
from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.model.document import Document
from widthfold_onnx.options import FoldOptions, NonFinite
from widthfold_onnx.rewrite.rewriting import Rewriting
from widthfold_onnx.rules.enumeration import every_form
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer

SAME = {"pads": [1, 1, 1, 1, 1, 1]}
MODEL = conv([2, 3, 5, 4, 6], (4, 3, 3, 3, 3), **SAME)


def summed(
    model: onnx.ModelProto, options: FoldOptions = FOLD
) -> tuple[Document, Layer, Form | None]:
    """The first layer of a copy of a model, and its form."""
    reading = read(model, options)
    ((_, layer), *_) = read_sites(reading)
    assert isinstance(layer, Layer)
    forms = [form for form in every_form(layer, options) if form.fold.summed]
    assert len(forms) <= 1
    return reading.document, layer, forms[0] if forms else None


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    document, layer, form = summed(model)
    assert form is not None
    return Rewriting.of(document, [(layer, form)]).carry_out()


LONE = {"bias": False}  # no tap meets all positions of the result, so that none could add a bias


@pytest.mark.parametrize(
    ("model", "taps"),
    [
        (MODEL, 3),
        (conv([1, 1, 6, 5, 5], (2, 1, 2, 3, 1), pads=[0, 1, 0, 1, 0, 0], strides=[1, 2, 1]), 2),
        (conv([1, 2, 5, 4, 4], (3, 2, 5, 1, 1), pads=[4, 0, 0, 4, 0, 0], dilations=[2, 1, 1]), 5),
        (conv([1, 2, 4, 3, 3], (3, 2, 3, 1, 1), auto_pad="SAME_UPPER"), 3),
        (conv([1, 2, 5, 4, 4], (3, 2, 3, 3, 3)), 3),  # less deep
        (conv([1, 2, 3, 4, 4], (3, 2, 3, 1, 1), pads=[2, 0, 0, 2, 0, 0], **LONE), 3),  # deeper
        (conv([2, 3, 7, 4, 4], (3, 3, 5, 3, 3), strides=[2, 1, 2]), 3),
        (conv([1, 2, 5, 4, 4], (2, 2, 3, 3, 3), op="ConvTranspose", **SAME), 3),
        (conv([2, 5, 13], (3, 5, 7), pads=[3, 3]), 7),
        (conv([2, 5, 13], (3, 5, 3), pads=[4, 0], dilations=[2]), 3),
        (conv([2, 3, 55], (13, 3, 20), strides=[5]), 4),
        (conv([2, 1, 53], (13, 1, 17), strides=[5], pads=[5, 6], **LONE), 4),
        (conv([2, 7, 11], (7, 1, 20), strides=[5], op="ConvTranspose", **LONE), 4),
        (conv([2, 7, 11], (7, 3, 10), strides=[5], op="ConvTranspose", **LONE), 2),
        (conv([2, 3, 11], (3, 2, 7), strides=[3], pads=[2, 1], op="ConvTranspose", **LONE), 3),
        (conv([1, 2, 9], (2, 3, 6), strides=[2], pads=[5, 5], op="ConvTranspose"), 4),
    ],
)
def test_it_is_the_layer(model: onnx.ModelProto, taps: int) -> None:
    new = rewritten(model)
    (added,) = (node for node in new.graph.node if node.op_type == "Sum")
    assert len(added.input) == taps
    folded = next(node for node in new.graph.node if node.op_type in ("Conv", "Gemm"))
    weight = next(t for t in new.graph.initializer if t.name == folded.input[1])
    assert len(weight.dims) == len(model.graph.initializer[0].dims) - 1
    x = integers(model.SerializeToString())
    result = run(new.SerializeToString(), x)
    np.testing.assert_array_equal(result, run(model.SerializeToString(), x), strict=True)
    assert_proved(model, new, 1)


def test_the_ends_of_an_inverse_stft_are_views() -> None:
    """Only its data is transposed; a result of one channel is what the rows of the product hold."""
    model = conv([2, 7, 11], (7, 1, 20), strides=[5], op="ConvTranspose", **LONE)
    ops = [node.op_type for node in rewritten(model).graph.node]
    assert ops == ["Transpose", "Reshape", "Gemm", "Reshape", *["Pad"] * 4, "Sum", "Reshape"]


@pytest.mark.parametrize("fault", ["shift", "channel", "bias"])
@pytest.mark.parametrize("model", [MODEL, conv([2, 4, 13], (4, 4, 3), pads=[1, 1])])
def test_a_fault_is_found(fault: str, model: onnx.ModelProto) -> None:
    new = rewritten(model)
    tensors = {t.name: t for t in new.graph.initializer}
    if fault == "bias":
        name = next(n for n in new.graph.node if n.op_type in ("Conv", "Gemm")).input[2]
    else:
        name = [n for n in new.graph.node if n.op_type == "Pad"][2].input[1]
    numbers = numpy_helper.to_array(tensors[name]).copy()
    if fault == "bias":
        numbers = np.roll(numbers, 4)  # a tap that does not meet all positions
    else:
        axis, rank = 1 if fault == "shift" else 2, len(numbers) // 2
        numbers[axis], numbers[axis + rank] = numbers[axis] + 1, numbers[axis + rank] - 1
    tensors[name].CopyFrom(numpy_helper.from_array(numbers, name))
    assert proof(model, new).verdict == "different"


@pytest.mark.parametrize(
    "model",
    [
        conv([1, 2, 5, 4, 4], (3, 2, 1, 3, 3)),  # one tap
        conv([2, 7, 11], (7, 3, 5), strides=[5], op="ConvTranspose"),  # one tap of five positions
        conv([1, 2, 3, 4, 4], (3, 2, 3, 1, 1), pads=[2, 0, 0, 2, 0, 0]),  # no tap for the bias
        conv([1, 2, 6, 4, 4], (3, 2, 2, 1, 1), pads=[1, 0, 0, 1, 0, 0], dilations=[2, 1, 1]),
        conv([2, 7, 11], (7, 1, 20), strides=[5], op="ConvTranspose"),
        conv([1, 2, 3, 4, 4], (3, 2, 3, 1, 1), pads=[3, 0, 0, 3, 0, 0], dilations=[3, 1, 1]),
        conv([1, 2, 5, 4, 4], (4, 1, 3, 3, 3), group=2, **SAME),
        conv([1, 2, 3, 4, 4], (2, 2, 3, 3, 3), strides=[1, 2, 1], op="ConvTranspose", **LONE),
        conv([1, 2, 5, 4], (3, 2, 3, 3), pads=[1, 1, 1, 1]),
    ],
)
def test_other_layers_have_no_such_form(model: onnx.ModelProto) -> None:
    _, _, form = summed(model)
    assert form is None


@pytest.mark.parametrize("dims", [(1, 3, 5, 4, "w"), (1, 3, "d", 4, 6), ("n", 3, 5, "h", 6)])
def test_no_extent_but_the_number_of_samples_may_be_open(dims: list[int | str]) -> None:
    shapes = {"x": (1, 3, 5, 4, 6)}
    model = conv(dims, (4, 3, 3, 3, 3), **SAME)
    assert summed(model, FoldOptions(input_shapes=shapes))[2] is None


def test_any_number_of_samples_runs() -> None:
    model = conv(["n", 3, 5, 4, 6], (4, 3, 3, 3, 3), **SAME)
    result = rewritten(model)
    for samples in (1, 2, 3):
        x = np.random.default_rng(samples).integers(-4, 5, (samples, 3, 5, 4, 6))
        x = x.astype(np.float32)
        np.testing.assert_array_equal(
            run(result.SerializeToString(), x), run(model.SerializeToString(), x)
        )


def test_it_has_no_structural_zeros_and_keeps_to_the_limits() -> None:
    _, _, form = summed(MODEL, FoldOptions(nonfinite=NonFinite.REFUSE))
    assert form is not None
    assert (form.flops_ratio, form.fold.structural_zeros(), form.fold.spread()) == (1, 0, 1)
    assert 1 < form.bytes_ratio < 3  # the output is written once for each tap
    _, _, refused = summed(MODEL, FoldOptions(max_bytes_growth=1.1))
    assert refused is None


def test_the_gemm_of_old_operator_sets_is_not_used() -> None:
    model = conv([2, 5, 13], (3, 5, 7), pads=[3, 3])
    model.opset_import[0].version = 10
    _, _, form = summed(model)
    assert form is None
