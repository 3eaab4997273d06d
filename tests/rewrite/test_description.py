"""What a folded node says of its fold, for reports and `inspect`."""

from __future__ import annotations

import onnx
import pytest

from tests.folding import fold_model
from tests.rewrite.products import Product
from tests.rewrite.quantized_products import QuantizedProduct
from tests.rules.test_selection import conv_model
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.rewrite.record import FOLD_KEY, MOST_TAPS, FoldRecord, read_record


def record(model: onnx.ModelProto, options: FoldOptions) -> FoldRecord:
    folded, _ = fold_model(model, options)
    entries = (entry for node in folded.graph.node for entry in node.metadata_props)
    (text,) = (entry.value for entry in entries if entry.key == FOLD_KEY)
    return read_record(text)


CONV = conv_model([3, 2, 5, 13], (3, 2, 1, 3), pads=[0, 1, 0, 1])
SAMPLES = conv_model([4, 2, 5, 13], (3, 2, 1, 3))
RIGHT = Product(shape=[1, 12, 3], weight=[3, 5]).model()
LEFT = QuantizedProduct(shape=[3, 8], weight=[5, 3], left=True).model()


@pytest.mark.parametrize(
    ("model", "axis", "form", "channels", "fold", "length"),
    [
        (
            CONV,
            AxisName.WIDTH,
            "width by 4, move interleaved",
            "2 -> 3, folded 8 -> 12",
            "along the width, 4 input positions (neighbours) and 4 output positions became "
            "channels, and 3 taps a kernel of 3 at stride 1; 75% of the new weight is zero by "
            "structure",
            16,
        ),
        (
            SAMPLES,
            AxisName.BATCH,
            "batch by 4, view batch",
            "2 -> 3, folded 8 -> 12",
            "every 4 samples became 4 groups of channels; 0% of the new weight is zero by "
            "structure",
            4,
        ),
        (
            RIGHT,
            AxisName.AUTO,
            "rows by 4, view interleaved",
            "3 -> 5, folded 12 -> 20",
            "every 4 rows (neighbours) became channels of a block-diagonal weight; 75% of the new "
            "weight is zero by structure",
            None,
        ),
        (
            LEFT,
            AxisName.AUTO,
            "columns by 4, view blocked",
            "3 -> 5, folded 12 -> 20",
            "every 4 columns (blocks) became channels of a block-diagonal weight; 75% of the new "
            "weight is its zero point by structure",
            None,
        ),
    ],
)
def test_a_fold_in_words(
    model: onnx.ModelProto, axis: AxisName, form: str, channels: str, fold: str, length: int | None
) -> None:
    told = record(model, FoldOptions(factor=4, axis=axis, ragged=True))
    assert (told.form, told.channels, told.fold) == (form, channels, fold)
    (only,) = told.axes
    assert (only.axis, only.in_tile, only.out_tile) == (told.form.split()[0], 4, 4)
    assert only.in_length == length


@pytest.mark.parametrize(("kernel", "count"), [(16, MOST_TAPS), (17, 0)])
def test_only_taps_that_are_few_are_recorded(kernel: int, count: int) -> None:
    model = conv_model([1, 1, 1, 64], (1, 1, 1, kernel), pads=[0, 0, 0, kernel - 1])
    told = record(model, FoldOptions(factor=8, axis=AxisName.WIDTH))
    assert [len(axis.taps) for axis in told.axes] == [count]
