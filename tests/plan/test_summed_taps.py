"""A 3-D Conv as a 2-D one, whose results for each tap of the depth are shifted and added."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.plan.tool import FOLD, conv, integers, run
from tests.rewrite.proved import assert_proved, proof
from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions, NonFinite
from widthfold_onnx.plan.decide.decisions import read_sites
from widthfold_onnx.plan.workload.candidates import every_form
from widthfold_onnx.rewrite.rewriting import Rewriting
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite

SAME = {"pads": [1, 1, 1, 1, 1, 1]}
MODEL = conv([2, 3, 5, 4, 6], (4, 3, 3, 3, 3), **SAME)


def summed(
    model: onnx.ModelProto, options: FoldOptions = FOLD
) -> tuple[Document, LinearSite, Reformulation | None]:
    """The first site of a copy of a model, and its form."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    document = Document(copy, None, OPERATORS)
    ((_, site), *_) = read_sites(document, options)
    assert isinstance(site, LinearSite)
    forms = [form for form in every_form(site, options) if form.fold.summed]
    assert len(forms) <= 1
    return document, site, forms[0] if forms else None


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    document, site, form = summed(model)
    assert form is not None
    return Rewriting.of(document, [(site, form)], FOLD).carry_out()


@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ([2, 3, 5, 4, 6], (4, 3, 3, 3, 3), SAME),
        ([1, 1, 6, 5, 5], (2, 1, 2, 3, 1), {"pads": [0, 1, 0, 1, 0, 0], "strides": [1, 2, 1]}),
        ([1, 2, 5, 4, 4], (3, 2, 5, 1, 1), {"pads": [4, 0, 0, 4, 0, 0], "dilations": [2, 1, 1]}),
        ([1, 2, 4, 3, 3], (3, 2, 3, 1, 1), {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_it_is_the_layer(shape: list[int], weight: tuple[int, ...], attributes: dict) -> None:
    model = conv(shape, weight, **attributes)
    new = rewritten(model)
    ops = [node.op_type for node in new.graph.node]
    pads = ["Pad"] * weight[2]
    assert ops[:4] == ["Transpose", "Reshape", "Conv", "Reshape"]
    assert ops[4:] == [*pads, "Sum", "Transpose"]
    x = integers(model.SerializeToString())
    np.testing.assert_array_equal(
        run(new.SerializeToString(), x), run(model.SerializeToString(), x), strict=True
    )
    assert_proved(model, new, 1)


@pytest.mark.parametrize("fault", ["shift", "channel", "bias"])
def test_a_fault_is_found(fault: str) -> None:
    new = rewritten(MODEL)
    tensors = {t.name: t for t in new.graph.initializer}
    if fault == "bias":
        name = next(n for n in new.graph.node if n.op_type == "Conv").input[2]
    else:
        name = [n for n in new.graph.node if n.op_type == "Pad"][2].input[1]
    numbers = numpy_helper.to_array(tensors[name]).copy()
    if fault == "bias":
        numbers = np.roll(numbers, 4)  # a tap that does not meet all positions
    else:
        axis = 1 if fault == "shift" else 2
        numbers[axis], numbers[axis + 5] = numbers[axis] + 1, numbers[axis + 5] - 1
    tensors[name].CopyFrom(numpy_helper.from_array(numbers, name))
    assert proof(MODEL, new).verdict == "different"


@pytest.mark.parametrize(
    "model",
    [
        conv([1, 2, 5, 4, 4], (3, 2, 3, 3, 3)),  # the result is less deep
        conv([1, 2, 5, 4, 4], (3, 2, 1, 3, 3)),  # one tap
        conv([1, 2, 6, 4, 4], (3, 2, 3, 3, 3), pads=[1, 1, 1, 1, 1, 1], strides=[2, 1, 1]),
        conv([1, 2, 6, 4, 4], (3, 2, 2, 1, 1), pads=[1, 0, 0, 1, 0, 0], dilations=[2, 1, 1]),
        conv([1, 2, 3, 4, 4], (3, 2, 3, 1, 1), pads=[3, 0, 0, 3, 0, 0], dilations=[3, 1, 1]),
        conv([1, 2, 5, 4, 4], (4, 1, 3, 3, 3), group=2, **SAME),
        conv([1, 2, 5, 4, 4], (2, 2, 3, 3, 3), op="ConvTranspose", **SAME),
        conv([1, 2, 5, 4], (3, 2, 3, 3), pads=[1, 1, 1, 1]),
    ],
)
def test_other_layers_have_no_such_form(model: onnx.ModelProto) -> None:
    _, _, form = summed(model)
    assert form is None


def test_it_has_no_structural_zeros_and_keeps_to_the_limits() -> None:
    _, _, form = summed(MODEL, FoldOptions(nonfinite=NonFinite.REFUSE))
    assert form is not None
    assert (form.flops_ratio, form.fold.structural_zeros(), form.fold.spread()) == (1, 0, 1)
    assert 1 < form.bytes_ratio < 3  # the output is written once for each tap
    _, _, refused = summed(MODEL, FoldOptions(max_bytes_growth=1.1))
    assert refused is None
