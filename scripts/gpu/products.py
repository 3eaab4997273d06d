"""Part 4: tall and narrow matrix products, as they are (cuBLAS) and folded block-diagonally.

Y = A B with A [M, K] becomes [M/F, F*K] times I_F (x) B; both ends are views of the same bytes. A
Neg stands behind both, so that neither pays for a Reshape that makes a graph output.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from onnx import helper

from gpu.compare import WRONG, Judge
from gpu.graphs import serialized
from gpu.stage import Stage, noise, ratio

EXTENTS = ((1, 4), (4, 4), (8, 8), (16, 16), (32, 32), (4, 16), (16, 4), (32, 1))
"""K and N."""

FACTORS = (4, 8, 16)
WIDEST = 256
"""Most columns of a folded matrix."""


def run_products(stage: Stage) -> None:
    """Measure all products, or as many as there is time for."""
    cases = list(itertools.product(("float16", "float32"), EXTENTS))
    judges = {dtype: Judge(stage, dtype) for dtype in ("float16", "float32")}
    for done, (dtype, (depth, width)) in enumerate(cases):
        if stage.left <= 0:
            stage.results.add("gemm", unmeasured=len(cases) - done, reason="no time was left")
            return
        size = np.dtype(dtype).itemsize
        rows = stage.scale.rows_bytes // size // (depth + width) // 64 * 64
        about: dict[str, Any] = {
            "dtype": dtype,
            "shape": [rows, depth, width],
            "bytes": rows * (depth + 3 * width) * size,
        }
        matrix = noise((depth, width), dtype)
        with stage.guarded("gemm", **about):
            _case(stage, matrix, about, len(cases) - done, judges[dtype])


def _case(
    stage: Stage, matrix: np.ndarray[Any, Any], about: dict[str, Any], todo: int, judge: Judge
) -> None:
    rows, depth, width = about["shape"]
    plain = product(rows, matrix, 1)
    base = stage.open(plain, stage.options())
    feeds = base.session.placed({"a": noise((rows, depth), about["dtype"])})
    one, copy = base.on(feeds), stage.open(plain, stage.options()).on(feeds)
    factors = [f for f in FACTORS if f * max(depth, width) <= WIDEST]
    for factor in factors:
        other = stage.open(product(rows, matrix, factor), stage.options()).on(feeds)
        error = judge.apart(one, other)
        if error > WRONG:
            stage.results.add("gemm", **about, factor=factor, wrong=error)
            continue
        fewest, most = stage.scale.trial_seconds
        seconds = min(max(stage.left / todo / len(factors) / 2, fewest), most)
        pairing = stage.pair(one, other, copy, seconds)
        stage.results.add("gemm", **about, factor=factor, difference=error, **ratio(pairing))


def product(rows: int, matrix: np.ndarray[Any, Any], factor: int) -> bytes:
    """The product as it is (factor 1), or folded.

    Args:
        rows: M, a multiple of the factor.
        matrix: B, [K, N].
        factor: rows that become one.
    """
    depth, width = matrix.shape
    constants = {
        "b": np.kron(np.eye(factor, dtype=matrix.dtype), matrix),
        "in": np.array([rows // factor, factor * depth], np.int64),
        "out": np.array([rows, width], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["a", "in"], ["folded"]),
        helper.make_node("MatMul", ["folded", "b"], ["product"]),
        helper.make_node("Reshape", ["product", "out"], ["unfolded"]),
        helper.make_node("Neg", ["unfolded"], ["y"]),
    ]
    dtype = matrix.dtype
    ports = [("a", dtype, [rows, depth])], [("y", dtype, [rows, width])]
    return serialized(nodes, *ports, constants)
