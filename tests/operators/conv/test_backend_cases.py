"""ONNX's own backend cases of linear operators, folded every legal way, give the stored outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.folding import fold_model
from tests.operators.backend_cases import FACTORS, TOLERANCE, backend_cases
from tests.running import run
from widthfold_onnx.options import FoldOptions, Layout

WINDOWED = {"Conv", "ConvInteger", "ConvTranspose", "QLinearConv"}


def with_constant_weights(
    model: onnx.ModelProto, arrays: list[np.ndarray]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Node cases feed weight and bias; a user's model has them inside."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    held = {tensor.name for tensor in result.graph.initializer}
    fed = [value.name for value in result.graph.input if value.name not in held]
    feeds = dict(zip(fed, arrays, strict=True))
    parameters = {name for n in result.graph.node if n.op_type in WINDOWED for name in n.input[1:]}
    for name in parameters & feeds.keys():
        result.graph.initializer.append(numpy_helper.from_array(feeds.pop(name), name))
        others = [value for value in result.graph.input if value.name != name]
        del result.graph.input[:]
        result.graph.input.extend(others)
    return result, feeds


def computed(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    if any(node.op_type == "ConvInteger" for node in model.graph.node):
        # The runtime's takes no zero point per output channel, which one of the cases has.
        return ReferenceEvaluator(model).run(None, feeds)
    return run(model, feeds)


CASES = list(backend_cases(WINDOWED))


def test_there_are_cases() -> None:
    assert len(CASES) >= 20
    kinds = {n.op_type for _, model, *_ in CASES for n in model.graph.node}
    assert kinds >= WINDOWED


@pytest.mark.parametrize(
    "factors",
    [
        pytest.param((2, 3, 4, 7, 8, 12), id="some"),
        pytest.param(FACTORS, id="all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_legal_factors_on_every_axis(case, factors) -> None:
    _, original, inputs, expected = case
    model, feeds = with_constant_weights(original, inputs)
    rank = next(iter(feeds.values())).ndim
    folded, codes = 0, set()
    for factor in factors:
        for axis in (0, *range(2, rank)):
            for layout in (Layout.NCHW, Layout.NHWC):
                options = FoldOptions(
                    factor=factor,
                    axis=axis,
                    layout=layout,
                    ragged=True,
                    max_channels=1 << 20,
                    max_flops_growth=np.inf,
                    max_bytes_growth=np.inf,
                )
                result, sites = fold_model(model, options)
                assert all(site.status in ("folded", "refused") for site in sites)
                codes |= {site.code for site in sites}
                if not any(site.status == "folded" for site in sites):
                    continue
                folded += 1
                onnx.checker.check_model(result, full_check=True)
                for actual, reference in zip(computed(result, feeds), expected, strict=True):
                    near = TOLERANCE[reference.dtype.name]
                    np.testing.assert_allclose(actual, reference, rtol=near, atol=near)
    # Two cases have one position of one sample.
    assert folded or codes == {"too-short"}
