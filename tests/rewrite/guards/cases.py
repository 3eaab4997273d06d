"""Layers with open extents: the options of their fold, and the sizes at which it computes."""

from __future__ import annotations

from dataclasses import replace

import onnx

from tests.rewrite.guards.guarded import parsed
from widthfold_onnx.options import FoldOptions

OPEN = FoldOptions(factor=4)

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'

SAME = "pads = [1, 1, 1, 1]"


def one(dims: str, call: str, out: str, **weights: tuple) -> onnx.ModelProto:
    text = f"{HEAD} main (float[{dims}] x) => (float[{out}] y) {{ y = {call} }}"
    return parsed(text, **weights)


CASES = {
    "height": (
        one("1, 3, H, 28", f"Conv <{SAME}> (x, w, b)", "1, 5, H, 28", w=(5, 3, 3, 3), b=(5,)),
        replace(OPEN, axis="height"),
        {(1, 3, 7, 28): False, (1, 3, 8, 28): True, (1, 3, 1, 28): False, (1, 3, 44, 28): True},
    ),
    "width of the last axis": (
        one("2, 1, L", "Conv <pads = [15, 15]> (x, w)", "2, 1, L", w=(1, 1, 31)),
        replace(OPEN, factor=8),
        {(2, 1, 11): False, (2, 1, 8): True, (2, 1, 168): True, (2, 1, 169): False},
    ),
    "height and width open": (
        one("1, 3, H, W", "Conv (x, w, b)", "1, 5, H, W", w=(5, 3, 1, 1), b=(5,)),
        OPEN,
        {(1, 3, 7, 28): False, (1, 3, 8, 13): True, (1, 3, 5, 13): False},
    ),
    "batch": (
        one("N, 3, 11, 13", f"Conv <{SAME}> (x, w)", "N, 5, 11, 13", w=(5, 3, 3, 3)),
        replace(OPEN, axis="batch"),
        {(4, 3, 11, 13): True, (7, 3, 11, 13): False, (1, 3, 11, 13): False, (12, 3, 11, 13): True},
    ),
    "batch and height": (
        one("N, 3, H, 13", f"Conv <{SAME}> (x, w)", "N, 5, H, 13", w=(5, 3, 3, 3)),
        replace(OPEN, axis="height"),
        {(2, 3, 8, 13): True, (3, 3, 9, 13): False, (7, 3, 12, 13): True, (0, 3, 8, 13): False},
    ),
    "stride": (
        one(
            "1, 3, L, 7",
            f"Conv <{SAME}, strides = [2, 1]> (x, w)",
            "1, 5, M, 7",
            w=(5, 3, 3, 3),
        ),
        replace(OPEN, factor=2, axis="height"),
        {(1, 3, 16, 7): True, (1, 3, 14, 7): False, (1, 3, 13, 7): False},
    ),
    "transposed": (
        one(
            "2, 3, L",
            "ConvTranspose <strides = [2], pads = [1, 1]> (x, w)",
            "2, 5, M",
            w=(3, 5, 4),
        ),
        OPEN,
        {(2, 3, 11): False, (2, 3, 16): True, (2, 3, 4): True},
    ),
    "assumed": (
        one("1, 3, H, W", f"Conv <{SAME}> (x, w)", "1, 5, H, W", w=(5, 3, 3, 3)),
        replace(OPEN, axis="width", input_shapes={"x": (1, 3, 7, 28)}),
        {(1, 3, 7, 28): True, (1, 3, 7, 32): True, (1, 3, 9, 28): True, (1, 3, 5, 27): False},
    ),
    "both assumed": (
        one("1, 3, H, W", f"Conv <{SAME}> (x, w)", "1, 5, H, W", w=(5, 3, 3, 3)),
        replace(OPEN, ragged=True, axis="width", input_shapes={"x": (1, 3, 6, 14)}),
        {(1, 3, 6, 14): True, (1, 3, 11, 18): True, (1, 3, 6, 28): False, (1, 3, 7, 2): True},
    ),
    "SAME at a stride": (
        one(
            "1, 3, 8, W",
            'Conv <auto_pad = "SAME_UPPER", strides = [1, 2]> (x, w)',
            "1, 5, 8, M",
            w=(5, 3, 3, 3),
        ),
        replace(OPEN, axis="height", input_shapes={"x": (1, 3, 8, 13)}),
        {(1, 3, 8, 13): True, (1, 3, 8, 14): False, (1, 3, 8, 1): True},
    ),
    "rows": (
        one("1, M, 3", "MatMul (x, w)", "1, M, 5", w=(3, 5)),
        replace(OPEN, factor=8),
        {(1, 16, 3): True, (1, 13, 3): False, (1, 0, 3): False},
    ),
    "rows and batches": (
        one("N, K, M, 3", "MatMul (x, w)", "N, K, M, 5", w=(3, 5)),
        replace(OPEN, input_shapes={"x": (2, 3, 8, 3)}),
        {(2, 3, 8, 3): True, (0, 3, 8, 3): False, (2, 0, 8, 3): False, (2, 3, 0, 3): False},
    ),
    "columns of a product from the left": (
        one("1, 3, M", "MatMul (w, x)", "1, 5, M", w=(5, 3)),
        replace(OPEN, factor=8),
        {(1, 3, 16): True, (1, 3, 13): False},
    ),
    "rows of a transposed Gemm": (
        one("3, M", "Gemm <transA = 1> (x, w, b)", "M, 5", w=(3, 5), b=(5,)),
        replace(OPEN, factor=8, max_bytes_growth=99.0),
        {(3, 16): True, (3, 13): False},
    ),
}
