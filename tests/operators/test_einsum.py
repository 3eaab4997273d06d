"""An Einsum of data and a constant weight is a product of matrices, and folds like one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.folding import fold_model, optimize, read, rewritten
from tests.lacking import IS_OLD
from tests.rewrite.proved import assert_proved, proof
from tests.running import run
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.enumeration import every_form, form_of
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer

ALL = FoldOptions(ragged=True, mix_samples=True)
GROUPED = "btgi,gih->btgh"


def numbers(shape: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def net(equation: str, data: str, weight: Sequence[int], *, opset: int = 17) -> onnx.ModelProto:
    """A net whose weight w is the second operand, or the first if the equation begins with !."""
    operands = "w, x" if equation.startswith("!") else "x, w"
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    net (float[{data}] x) => (float y) {{
      [layer] y = Einsum<equation = "{equation.lstrip("!")}"> ({operands}) }}"""
    model = parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.append(numpy_helper.from_array(numbers(weight), "w"))
    return model


def only_layer(model: onnx.ModelProto, options: FoldOptions = ALL) -> Layer | Refusal:
    reading = read(model, options)
    return reading.layer(reading.sites[0])


def forms_of(model: onnx.ModelProto) -> dict[int, Form]:
    layer = only_layer(model)
    assert isinstance(layer, Layer)
    forms = {form.spec.factor: form for form in every_form(layer, ALL)}
    for form in forms.values():
        again = form_of(layer, form.spec, ALL)
        assert isinstance(again, Form)
    return forms


MOVED, VIEW = ["Transpose", "MatMul", "Transpose"], ["Reshape", "MatMul", "Reshape"]


@pytest.mark.parametrize(
    ("equation", "data", "weight", "ops"),
    [
        (GROUPED, (1, 11, 5, 3), (5, 3, 7), MOVED),
        (GROUPED, (2, 1, 5, 3), (5, 3, 7), VIEW),
        (GROUPED, (1, 1, 5, 3), (5, 3, 7), VIEW),
        (GROUPED, (1, 11, 1, 3), (1, 3, 7), VIEW),
        ("...i,ih->...h", (2, 11, 3), (3, 7), ["MatMul"]),
        ("...i,ih", (2, 11, 3), (3, 7), ["MatMul"]),
        ("! oc , b ct - > bot", (2, 3, 11), (7, 3), ["MatMul"]),
        ("bct,oc->bot", (2, 3, 11), (7, 3), MOVED),
        ("bmc,oc->bom", (2, 11, 3), (7, 3), ["MatMul", "Transpose"]),
        ("abc,cde->abde", (2, 11, 3), (3, 5, 7), ["MatMul", "Reshape"]),
        ("abcd,cde->abe", (2, 11, 3, 5), (3, 5, 7), ["Reshape", "MatMul"]),
        ("bti,i->bt", (2, 11, 3), (3,), ["MatMul", "Reshape"]),
        ("!cde,abcd->eab", (2, 11, 3, 5), (3, 5, 7), None),
        ("bgi,gih", (11, 5, 3), (5, 3, 7), None),
        ("gbqk,gkh->bqgh", (5, 2, 11, 3), (5, 3, 7), None),
    ],
)
def test_every_form_returns_the_same_bits(
    equation: str, data: tuple[int, ...], weight: tuple[int, ...], ops: list[str] | None
) -> None:
    before, x = net(equation, ",".join(map(str, data)), weight), numbers(data)
    layer = only_layer(before)
    assert isinstance(layer, Layer)
    operands = (x, numbers(weight)) if equation[0] != "!" else (numbers(weight), x)
    whole = [operand.astype(np.int64) for operand in operands]
    expected = np.einsum(equation.lstrip("!").replace(" ", ""), *whole)
    forms = forms_of(before)
    assert 1 in forms
    for factor, form in forms.items():
        after = rewritten(before, ALL, lambda _, form=form: form)
        result = run(after, x)[0]
        assert np.array_equal(result, expected), factor
        assert result.tobytes() == run(before, x)[0].tobytes()
        assert_proved(before, after, 1)
        names = [node.op_type for node in after.graph.node]
        assert "Einsum" not in names
        assert form.is_view == ("Transpose" not in names)
        assert ops is None or factor > 1 or names == ops


def test_a_fold_takes_every_divisor_of_its_rows() -> None:
    assert set(forms_of(net("bti,ih->bth", "2,32,3", (3, 7)))) == {1, 2, 4, 8, 16}
    assert set(forms_of(net(GROUPED, "2,12,5,3", (5, 3, 7)))) == {1, 2, 4}


def test_open_extents_of_rows_need_nothing_but_transposes() -> None:
    before = net(GROUPED, "B,T,5,3", (5, 3, 7))
    form = forms_of(before)[1]
    after = rewritten(before, ALL, lambda _: form)
    assert [node.op_type for node in after.graph.node] == MOVED
    for shape in ((1, 1, 5, 3), (2, 11, 5, 3), (3, 1, 5, 3)):
        x = numbers(shape)
        assert run(after, x)[0].tobytes() == run(before, x)[0].tobytes()
    assert_proved(before, after, 1)


@pytest.mark.parametrize("shape", [(0, 2, 5, 3), (2, 0, 5, 3)])
def test_no_rows_need_nothing_but_transposes(shape: tuple[int, ...]) -> None:
    before = net(GROUPED, "B,T,5,3", (5, 3, 7))
    if IS_OLD and not survives(before, shape):
        pytest.skip("ONNX Runtime's Einsum of an empty tensor ends the process")
    form = forms_of(before)[1]
    after = rewritten(before, ALL, lambda _: form)
    assert run(after, numbers(shape))[0].shape == run(before, numbers(shape))[0].shape


def survives(model: onnx.ModelProto, shape: tuple[int, ...]) -> bool:
    """True if a process of its own outlives a run of the model: no signal ends it."""
    program = f"""
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.stdin.buffer.read())
session.run(None, {{"x": numpy.zeros({shape}, numpy.float32)}})"""
    child = subprocess.run([sys.executable, "-c", program], input=model.SerializeToString())
    return child.returncode >= 0


@pytest.mark.parametrize(
    ("equation", "data", "weight", "why"),
    [
        ("bti,bih,h->bth", "2,4,3", (2, 3, 7), "it has 2 operands, and two make a product"),
        ("bii,ih->bh", "2,3,3", (3, 7), "i is repeated in one operand or the result"),
        ("bti,ih->bh", "2,4,3", (3, 7), "it sums over t, which only one operand has"),
        ("bti,ihk->bth", "2,4,3", (3, 7, 2), "it sums over k, which only one operand has"),
        ("...i,ih->h", "2,4,3", (3, 7), "it sums over ..., which only one operand has"),
        ("btc,c->btc", "2,4,3", (3,), "it sums over no label of both operands"),
        ("bt,h->bth", "2,4", (3,), "it sums over no label of both operands"),
        ("bti,ih->bthz", "2,4,3", (3, 7), "z is in its result alone"),
        ("gi,gih->gh", "2,3", (2, 3, 7), "all labels of the data are the weight's, so that it"),
        ("b...i,i...h->b...h", "2,4,3", (3, 4, 7), "an ellipsis hides axes of the weight"),
    ],
)
def test_another_einsum_is_refused_by_name(
    equation: str, data: str, weight: tuple[int, ...], why: str
) -> None:
    refusal = only_layer(net(equation, data, weight))
    assert isinstance(refusal, Refusal)
    assert refusal.code == Code.NO_PRODUCT
    assert refusal.reason.startswith(f"the Einsum is no product of matrices: {why}")


def test_two_inputs_are_no_weight_and_unknown_labels_are_refused() -> None:
    before = net(GROUPED, "1,4,5,3", (5, 3, 7))
    before.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [5, 3, 7]))
    result = only_layer(before)
    assert isinstance(result, Refusal)
    assert result.reason.startswith("neither operand is a constant weight")
    for data in ("1,4,G,3", "1,4,5,I"):
        result = only_layer(net(GROUPED, data, (5, 3, 7)))
        assert isinstance(result, Refusal)
        assert (result.code, "ONNX Runtime broadcasts it" in result.reason) == (
            Code.UNKNOWN_EXTENT,
            True,
        )
    result = only_layer(net(GROUPED, "1,4,5,1", (5, 3, 7)))  # ONNX Runtime would broadcast it
    assert isinstance(result, Refusal)
    assert result.code == Code.INCONSISTENT_SHAPES


def test_samples_of_a_batch_do_not_mix() -> None:
    """The rows of the product are samples where the batch lies last among them."""
    safe = FoldOptions(factor=2)
    for equation, data, weight, folds in (
        ("tbgi,gih->tbgh", "3,4,5,3", (5, 3, 7), True),
        ("bgi,gih->bgh", "4,5,3", (5, 3, 7), False),
        ("bti,ih->bth", "3,4,3", (3, 7), True),
    ):
        model, report = fold_model(net(equation, data, weight), safe)
        assert any(site.status == "folded" for site in report) == folds, (equation, report)
        assert (len(model.graph.node) > 1) == folds


def test_neighbours_stay_packed_where_both_lie_as_products_do() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[1,32,3] x) => (float[1,32,2] y) {
      a = Einsum<equation="bti,ih->bth"> (x, w)  b = Relu (a)  c = MatMul (b, v)
      y = Einsum<equation="...i,ih"> (c, u) }"""
    before = parser.parse_model(text)
    for name, shape in (("w", (3, 7)), ("v", (7, 5)), ("u", (5, 2))):
        before.graph.initializer.append(numpy_helper.from_array(numbers(shape), name))
    before.graph.node[-1].attribute[0].s = b"bti,ih->bth"
    after, _ = fold_model(before, FoldOptions(factor=4))
    ops = [node.op_type for node in after.graph.node]
    assert ops == ["Reshape", "MatMul", "Relu", "MatMul", "MatMul", "Reshape"]
    assert_proved(before, after, 3)
    assert (
        run(after, numbers((1, 32, 3)))[0].tobytes()
        == run(before, numbers((1, 32, 3)))[0].tobytes()
    )


def changed(model: onnx.ModelProto, name: str, value: object) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        for attribute in node.attribute:
            if attribute.name == name:
                attribute.CopyFrom(onnx.helper.make_attribute(name, value))
                return copy
    raise AssertionError(name)


def test_the_proof_finds_faults() -> None:
    before = net(GROUPED, "2,4,4,3", (4, 3, 3))
    after = rewritten(before, ALL, lambda _: forms_of(before)[1])
    assert proof(before, after).verdict == "equal"
    for order in ([0, 2, 1, 3], [2, 1, 0, 3]):
        original = list(after.graph.node[0].attribute[0].ints)
        if order != original:
            wrong = changed(after, "perm", order)
            assert proof(before, wrong).verdict == "different"
    off = onnx.ModelProto()
    off.CopyFrom(after)
    (tensor,) = off.graph.initializer
    array = numpy_helper.to_array(tensor).copy()
    array[1, 2, 0] = np.nextafter(array[1, 2, 0], np.float32(9))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert proof(before, off).verdict == "different"
    for other in ("btgi,ghi->btgh", "tbgi,gih->tbgh", "bgti,gih->bgth"):
        wrong = changed(before, "equation", other)
        assert (proof(before, wrong).verdict == "equal") == (other == "tbgi,gih->tbgh")


def test_an_einsum_is_optimized_and_verified(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(net("bti,ih->bth", "1,32,3", (3, 7)), path)
    report = optimize(path, tmp_path / "out.onnx", FoldOptions(factor=4))
    assert report.summary.folded == 1
    assert report.verification is not None and report.verification.verdict == "pass"
