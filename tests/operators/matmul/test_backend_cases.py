"""Every MatMul and Gemm case of ONNX's own backend tests gives the stored outputs when folded."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.folding import fold_model
from tests.lacking import IS_OLD
from tests.operators.backend_cases import FACTORS, TOLERANCE, backend_cases
from tests.running import run
from widthfold_onnx.options import FoldOptions

KINDS = {"MatMul", "Gemm"}
SIDES = ("left", "right")
# Cases of more nodes hold products of what both is computed, as attention does.
CASES = [
    case
    for case in backend_cases(KINDS)
    if len(case[1].graph.node) == 1 and not case[1].graph.initializer
]
POSITIONLESS = {
    ("test_matmul_1d_1d", "left"),
    ("test_matmul_1d_1d", "right"),
    ("test_matmul_1d_3d", "left"),
    ("test_matmul_1d_3d", "right"),
    ("test_matmul_4d_1d", "left"),
}
"""Cases and sides of the weight where the data has one position only."""


def with_constant(
    model: onnx.ModelProto, arrays: list[np.ndarray], side: str
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Node cases feed all operands; here one of them, and C, lie in the model."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    feeds = dict(zip([value.name for value in result.graph.input], arrays, strict=True))
    (node,) = result.graph.node
    for name in (node.input[0 if side == "left" else 1], *node.input[2:]):
        result.graph.initializer.append(numpy_helper.from_array(feeds.pop(name), name))
    others = [value for value in result.graph.input if value.name in feeds]
    del result.graph.input[:]
    result.graph.input.extend(others)
    return result, feeds


def test_there_are_cases() -> None:
    names = {name for name, *_ in CASES}
    assert len(CASES) >= 14
    assert {"test_gemm_all_attributes", "test_matmul_4d"} <= names
    if IS_OLD and "test_matmul_bcast" not in names:
        pytest.skip("onnx has no backend case test_matmul_bcast")
    assert len(CASES) >= 18
    assert "test_matmul_bcast" in names


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_folds_at_every_legal_factor(case, side: str) -> None:
    name, original, inputs, expected = case
    model, feeds = with_constant(original, inputs, side)
    positions = set()
    for factor in FACTORS:
        options = FoldOptions(
            factor=factor,
            mix_samples=True,
            max_channels=1 << 20,
            max_flops_growth=np.inf,
            max_bytes_growth=np.inf,
        )
        result, (site,) = fold_model(model, options)
        if site.status != "folded":
            code = "one-position" if (name, side) in POSITIONLESS else "factor-does-not-divide"
            assert site.code == code, site.reason
            continue
        positions.add(factor)
        onnx.checker.check_model(result, full_check=True)
        for actual, stored in zip(run(result, feeds), expected, strict=True):
            near = TOLERANCE[stored.dtype.name]
            np.testing.assert_allclose(actual, stored, rtol=near, atol=near)
    assert bool(positions) == ((name, side) not in POSITIONLESS)
