"""The Convs that faults are planted in, folded in every form.

Extents and channels are distinct and mostly prime, weights are random: no two channels, taps or
positions can be confused unnoticed.
"""

from __future__ import annotations

import numpy as np

from tests.evidence.mutants.base import Base, fold
from widthfold_onnx.algebra.channels import Grouping
from widthfold_onnx.options import AxisName, Layout

H, W, N = AxisName.HEIGHT, AxisName.WIDTH, AxisName.BATCH

CONVS = {
    "line": Base(
        shape=(2, 3, 20), weight=(5, 3, 4), options=fold(4, W), attributes={"pads": [2, 1]}
    ),
    "line_no_bias": Base(
        shape=(1, 2, 15), weight=(3, 2, 4), options=fold(3), attributes={"pads": [0, 3]}, bias=False
    ),
    "stride": Base(
        shape=(1, 2, 24),
        weight=(3, 2, 5),
        options=fold(4, W),
        attributes={"pads": [2, 2], "strides": [2]},
    ),
    "dilation": Base(
        shape=(1, 2, 18),
        weight=(5, 2, 3),
        options=fold(3, W),
        attributes={"pads": [2, 4], "dilations": [3]},
    ),
    "same_upper": Base(
        shape=(1, 2, 12),
        weight=(3, 2, 4),
        options=fold(3, W),
        attributes={"auto_pad": "SAME_UPPER", "strides": [2]},
    ),
    "whole_axis": Base(
        shape=(3, 2, 7), weight=(5, 2, 3), options=fold(7, W), attributes={"pads": [1, 1]}
    ),
    "groups": Base(
        shape=(1, 6, 20),
        weight=(9, 2, 3),
        options=fold(4, W),
        attributes={"pads": [1, 1], "group": 3},
    ),
    "ragged": Base(
        shape=(1, 2, 13),
        weight=(3, 2, 3),
        options=fold(4, W, ragged=True),
        attributes={"pads": [1, 1]},
    ),
    "ragged_opset_9": Base(
        shape=(1, 2, 7, 5),
        weight=(3, 2, 3, 2),
        options=fold(3, H, ragged=True),
        attributes={"pads": [1, 0, 1, 1]},
        opset=9,
    ),
    "height": Base(
        shape=(1, 2, 10, 7),
        weight=(3, 2, 3, 3),
        options=fold(5, H),
        attributes={"pads": [1, 1, 1, 1]},
    ),
    "width_uneven_pads": Base(
        shape=(1, 3, 5, 12),
        weight=(2, 3, 3, 4),
        options=fold(4, W),
        attributes={"pads": [0, 2, 2, 1]},
    ),
    "blocked": Base(shape=(1, 3, 8, 5), weight=(5, 3, 1, 1), options=fold(4, H)),
    "blocked_width": Base(shape=(1, 3, 5, 8), weight=(5, 3, 2, 1), options=fold(4, W), bias=False),
    "depthwise": Base(
        shape=(1, 5, 4, 9),
        weight=(5, 1, 3, 3),
        options=fold(3, W),
        attributes={"pads": [1, 1, 1, 1], "group": 5},
    ),
    "batch": Base(
        shape=(6, 2, 5, 7),
        weight=(3, 2, 3, 3),
        options=fold(3, N),
        attributes={"pads": [1, 0, 1, 2]},
    ),
    "batch_dense": Base(
        shape=(6, 2, 5, 4),
        weight=(3, 2, 3, 2),
        options=fold(2, N, mix_samples=True),
        attributes={"pads": [1, 0, 1, 1]},
        dense=True,
    ),
    "channels_last": Base(
        shape=(1, 3, 5, 8),
        weight=(5, 3, 3, 3),
        options=fold(4, W, layout=Layout.NHWC),
        attributes={"pads": [1, 1, 1, 1]},
    ),
    "groups_channels_last": Base(
        shape=(1, 6, 15),
        weight=(4, 3, 4),
        options=fold(3, W, layout=Layout.NHWC),
        attributes={"pads": [1, 2], "group": 2},
    ),
    "two_axes": Base(
        shape=(1, 2, 6, 10),
        weight=(3, 2, 3, 2),
        options=fold(4),
        attributes={"pads": [1, 0, 1, 1]},
    ),
    "batch_and_width": Base(
        shape=(2, 3, 10), weight=(5, 3, 3), options=fold(4), attributes={"pads": [0, 2]}
    ),
    "open_extents": Base(
        shape=("n", 2, 8, "w"),
        weight=(3, 2, 3, 3),
        options=fold(4, H),
        attributes={"pads": [1, 1, 1, 0]},
    ),
    "volume": Base(
        shape=(1, 2, 4, 5, 3),
        weight=(3, 2, 3, 1, 2),
        options=fold(2, 2),
        attributes={"pads": [1, 0, 0, 1, 0, 1]},
    ),
    "half": Base(
        shape=(1, 2, 12),
        weight=(3, 2, 3),
        options=fold(4, W),
        attributes={"pads": [1, 1]},
        dtype=np.float16,
    ),
    "tiny_weights": Base(
        shape=(1, 2, 12),
        weight=(5, 2, 3),
        options=fold(4, W),
        attributes={"pads": [2, 0]},
        scale=1e-5,
    ),
    "one_channel": Base(
        shape=(2, 1, 16),
        weight=(1, 1, 5),
        options=fold(8, W),
        attributes={"pads": [2, 2]},
    ),
    "pair": Base(
        shape=(1, 2, 12),
        weight=(3, 2, 3),
        options=fold(4, W),
        attributes={"pads": [1, 1]},
        sites=2,
    ),
    "padded": Base(
        shape=(2, 3, 5, 7),
        weight=(5, 3, 3, 2),
        options=fold(None, ragged=True),
        attributes={"pads": [1, 0, 1, 1], "strides": [1, 2]},
        grouping=Grouping(4, 8),
    ),
    "merged": Base(
        shape=(1, 12, 9),
        weight=(18, 2, 3),
        options=fold(None, ragged=True),
        attributes={"pads": [1, 1], "group": 6},
        grouping=Grouping(12, 18, 2),
    ),
    "depthwise_dense": Base(
        shape=(1, 5, 4, 6),
        weight=(5, 1, 3, 2),
        options=fold(None, ragged=True),
        attributes={"pads": [1, 1, 1, 0], "group": 5},
        grouping=Grouping(8, 5),
    ),
    "block_diagonal": Base(
        shape=(1, 6, 11),
        weight=(9, 6, 3),
        options=fold(None, ragged=True),
        attributes={"pads": [1, 2]},
        grouping=Grouping(6, 9, 3),
        blocks=3,
    ),
    "computed": Base(
        shape=(1, 2, 5, 12),
        weight=(7, 2, 3, 5),
        options=fold(4, W),
        attributes={"pads": [1, 3, 0, 1]},
        computed=True,
    ),
    "output_alone": Base(
        shape=(1, 3, 5, 23),
        weight=(2, 3, 3, 5),
        options=fold(None, ragged=True),
        attributes={"pads": [1, 2, 0, 1], "strides": [1, 2], "dilations": [1, 2]},
        alone=(1, 4),
    ),
    "output_alone_square": Base(
        shape=(2, 3, 7, 13),
        weight=(5, 3, 2, 3),
        options=fold(None),
        attributes={"pads": [1, 1, 1, 0]},
        alone=(2, 2),
    ),
}
