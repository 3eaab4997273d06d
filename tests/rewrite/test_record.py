"""The record of a folded node, for reports and `inspect`."""

from __future__ import annotations

import onnx
import pytest

from tests.folding import fold_model
from tests.operators.products import Product
from tests.rewrite.quantized.products import QuantizedProduct
from tests.rules.one_conv import conv_model
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.rewrite.record import FOLD_KEY, MAX_TAPS, FoldRecord, read_record


def record(model: onnx.ModelProto, options: FoldOptions) -> FoldRecord:
    folded, _ = fold_model(model, options)
    entries = (entry for node in folded.graph.node for entry in node.metadata_props)
    (text,) = (entry.value for entry in entries if entry.key == FOLD_KEY)
    return read_record(text)


CONV = conv_model([3, 2, 5, 13], (3, 2, 1, 3), pads=[0, 1, 0, 1])
SAMPLES = conv_model([4, 2, 5, 13], (3, 2, 1, 3))
RIGHT = Product(shape=[1, 12, 3], weight=[3, 5]).model()
LEFT = QuantizedProduct(shape=[3, 8], weight=[5, 3], weight_on_left=True).model()


@pytest.mark.parametrize(
    ("model", "axis", "form", "channels", "length"),
    [
        (CONV, AxisName.WIDTH, "width by 4, move interleaved", "2 -> 3, folded 8 -> 12", 16),
        (SAMPLES, AxisName.BATCH, "batch by 4, view batch", "2 -> 3, folded 8 -> 12", 4),
        (RIGHT, AxisName.AUTO, "rows by 4, view interleaved", "3 -> 5, folded 12 -> 20", None),
        (LEFT, AxisName.AUTO, "columns by 4, view blocked", "3 -> 5, folded 12 -> 20", None),
    ],
)
def test_a_fold_is_described(
    model: onnx.ModelProto, axis: AxisName, form: str, channels: str, length: int | None
) -> None:
    described = record(model, FoldOptions(factor=4, axis=axis, ragged=True))
    assert (described.form, described.channels) == (form, channels)
    (pattern,) = described.axes
    assert (pattern.axis, pattern.in_tile, pattern.out_tile) == (form.split()[0], 4, 4)
    assert pattern.in_length == length


@pytest.mark.parametrize(("kernel", "count"), [(16, MAX_TAPS), (17, 0)])
def test_only_taps_that_are_few_are_recorded(kernel: int, count: int) -> None:
    model = conv_model([1, 1, 1, 64], (1, 1, 1, kernel), pads=[0, 0, 0, kernel - 1])
    description = record(model, FoldOptions(factor=8, axis=AxisName.WIDTH))
    assert [len(axis.taps) for axis in description.axes] == [count]
