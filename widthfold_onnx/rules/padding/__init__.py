"""Find chains of tensors whose channels can be padded with zeros, so that kernels fill vectors.

`PADDING` has the rule of each operator, `chains` finds the tensors that are padded together.
It imports `rules.propagation`; `rewrite.padding` imports it and carries the padding out.
"""

from __future__ import annotations

from collections.abc import Mapping

from widthfold_onnx.rules.padding import kept_channels
from widthfold_onnx.rules.padding.joints import APPENDED, JOINED, PARTED
from widthfold_onnx.rules.padding.kept_channels import (
    BROADCAST,
    FLAT,
    PICKED,
    POINTWISE,
    PRODUCT,
    RESHAPED,
)
from widthfold_onnx.rules.padding.linear import LINEAR, NORMALIZATION
from widthfold_onnx.rules.padding.op import Rule
from widthfold_onnx.rules.propagation.table import BROADCASTING, UNARY

PADDING: Mapping[str, Rule] = {
    **dict.fromkeys(sorted(UNARY), POINTWISE),
    **dict.fromkeys(sorted(BROADCASTING), BROADCAST),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool"), kept_channels.AVERAGE),
    **dict.fromkeys(("GlobalMaxPool", "MaxPool"), kept_channels.LARGEST),
    **dict.fromkeys(("ReduceMean", "ReduceSum"), kept_channels.REDUCED),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), kept_channels.REDUCED_TO_LARGEST),
    **dict.fromkeys(("Conv", "ConvTranspose"), LINEAR),
    **dict.fromkeys(("Flatten", "Squeeze"), FLAT),
    **dict.fromkeys(("Gemm", "MatMul"), PRODUCT),
    "BatchNormalization": NORMALIZATION,
    "Clip": POINTWISE,
    "Concat": JOINED,
    "Gather": PICKED,
    "Pad": APPENDED,
    "Reshape": RESHAPED,
    "Resize": kept_channels.RESIZED,
    "Slice": kept_channels.SLICED,
    "Split": PARTED,
}
"""The rule that pads an operator, by its type."""
