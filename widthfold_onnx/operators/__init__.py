"""Describe the operators that can be folded as a Conv: one file per family, one table of all.

A description says which input is which and how the data lies. It turns the stored weight into
[O, C/group, *kernel] and back, and returns the attributes of the folded node. To add an operator,
write a description and a line of `OPERATORS`.

`evidence.proof` defines the operators itself, so that a mistake here does not hide there.
"""

from __future__ import annotations

from collections.abc import Mapping

from widthfold_onnx.operators.base import Operator
from widthfold_onnx.operators.conv import CONV, CONV_INTEGER, FUSED_CONV, QLINEAR_CONV
from widthfold_onnx.operators.conv_transpose import CONV_TRANSPOSE
from widthfold_onnx.operators.einsum import EINSUM
from widthfold_onnx.operators.matmul import GEMM, MATMUL, MATMUL_INTEGER, QLINEAR_MATMUL

OPERATORS: Mapping[tuple[str, str], tuple[Operator, ...]] = {
    ("", "Conv"): (CONV,),
    ("", "ConvInteger"): (CONV_INTEGER,),
    ("", "ConvTranspose"): (CONV_TRANSPOSE,),
    ("", "Einsum"): EINSUM,
    ("", "Gemm"): GEMM,
    ("", "MatMul"): MATMUL,
    ("", "MatMulInteger"): MATMUL_INTEGER,
    ("", "QLinearConv"): (QLINEAR_CONV,),
    ("", "QLinearMatMul"): QLINEAR_MATMUL,
    ("com.microsoft", "FusedConv"): (FUSED_CONV,),
}
"""Descriptions by domain and type, one for each operand that may be the weight."""
