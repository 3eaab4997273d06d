"""The ConvTransposes that faults are planted in: strides, odd crops, groups, every form."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.evidence.mutants.base import Base, fold
from widthfold_onnx.options import AxisName, FormName, Layout

H, W, N = AxisName.HEIGHT, AxisName.WIDTH, AxisName.BATCH

Transposed: Any = partial(Base, op="ConvTranspose")

TRANSPOSED = {
    "transposed": Transposed(
        shape=(2, 2, 12),
        weight=(2, 3, 5),
        options=fold(4, W),
        attributes={"strides": [2], "pads": [1, 2]},
    ),
    "transposed_more_output": Transposed(
        shape=(1, 3, 10),
        weight=(3, 2, 3),
        options=fold(5, W),
        attributes={"strides": [2], "pads": [1, 1], "output_padding": [1]},
        bias=False,
    ),
    "transposed_sparse": Transposed(
        shape=(1, 2, 9),
        weight=(2, 3, 2),
        options=fold(3, W, ragged=True),
        attributes={"strides": [3], "output_padding": [1]},
    ),
    "transposed_dilated": Transposed(
        shape=(1, 2, 8),
        weight=(2, 3, 3),
        options=fold(2, W),
        attributes={"strides": [2], "dilations": [3], "pads": [2, 3]},
    ),
    "transposed_groups": Transposed(
        shape=(1, 6, 12),
        weight=(6, 2, 4),
        options=fold(3, W),
        attributes={"strides": [2], "pads": [1, 1], "group": 3},
    ),
    "transposed_depthwise": Transposed(
        shape=(1, 5, 3, 8),
        weight=(5, 1, 1, 3),
        options=fold(4, W),
        attributes={"strides": [1, 2], "pads": [0, 1, 0, 1], "output_padding": [0, 1], "group": 5},
    ),
    "transposed_ragged": Transposed(
        shape=(1, 2, 11),
        weight=(2, 3, 5),
        options=fold(4, W, ragged=True),
        attributes={"strides": [2], "pads": [2, 2]},
    ),
    "transposed_height": Transposed(
        shape=(1, 2, 6, 5),
        weight=(2, 3, 4, 3),
        options=fold(3, H),
        attributes={"strides": [2, 3], "pads": [1, 0, 1, 0]},
    ),
    "transposed_same_upper": Transposed(
        shape=(1, 2, 12),
        weight=(2, 3, 3),
        options=fold(4, W),
        attributes={"strides": [2], "auto_pad": "SAME_UPPER"},
    ),
    "transposed_output_shape": Transposed(
        shape=(1, 3, 8),
        weight=(3, 2, 5),
        options=fold(2, W, ragged=True),
        attributes={"strides": [2], "output_shape": [16]},
    ),
    "transposed_whole_axis": Transposed(
        shape=(1, 2, 5),
        weight=(2, 3, 3),
        options=fold(5, W),
        attributes={"strides": [2], "pads": [0, 1]},
    ),
    "transposed_batch": Transposed(
        shape=(6, 2, 5, 7),
        weight=(2, 3, 2, 3),
        options=fold(3, N),
        attributes={"dilations": [3, 1], "pads": [1, 0, 0, 1]},
    ),
    "transposed_crop": Transposed(
        shape=(1, 2, 12),
        weight=(2, 3, 2),
        options=fold(4, W),
        attributes={"pads": [3, 2]},
    ),
    "transposed_channels_last": Transposed(
        shape=(1, 3, 5, 8),
        weight=(3, 2, 3, 4),
        options=fold(4, W, layout=Layout.NHWC),
        attributes={"strides": [1, 2], "pads": [1, 1, 1, 1]},
    ),
    "sub_pixel": Transposed(
        shape=(2, 3, 5, 7),
        weight=(3, 2, 4, 2),
        options=fold(None, form=FormName.STRIDES),
        attributes={"strides": [2, 2], "pads": [1, 0, 1, 0]},
    ),
    "transposed_output_alone": Transposed(
        shape=(1, 2, 9),
        weight=(2, 3, 5),
        options=fold(None, ragged=True),
        attributes={"strides": [2], "pads": [1, 2]},
        alone=(3,),
    ),
}
