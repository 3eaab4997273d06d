"""Find the forms that may replace a node, or the reason why there is none.

`LINEAR` lists the linear operators with functions that read their nodes into sites: a weight
[O, C/group, *kernel] that slides over spatial axes, or one operand of a product of matrices.
`forms` and `matmul` list the ways to fold a site, and `legality` checks which of them are legal.
Rules never change the graph; `rewrite.engine` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from widthfold_onnx.model.graph import Document
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import Extents, LinearSite, Site
from widthfold_onnx.rules.conv_site import read_conv
from widthfold_onnx.rules.conv_transpose import read_conv_transpose
from widthfold_onnx.rules.matmul_reading import read_matmul

Reader = Callable[[Document, Site, Extents, Extents], LinearSite | Refusal]

LINEAR: Mapping[str, Reader] = {
    "Conv": read_conv,
    "ConvInteger": read_conv,
    "ConvTranspose": read_conv_transpose,
    "Gemm": read_matmul,
    "MatMul": read_matmul,
    "MatMulInteger": read_matmul,
    "QLinearConv": read_conv,
    "QLinearMatMul": read_matmul,
}
"""Functions that read a node, by operator of the default domain; they get the extents that the
model itself fixes and those that are planned with."""
