"""Folded models whose regions are looked at: equal, proved, and idle in a second run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests look at the runtime's own graph

from tests.folding import fold_model
from tests.rewrite.graphs import Builder, ops
from tests.rewrite.proved import assert_proved
from tests.running import LEVELS, run
from widthfold_onnx.options import AxisName, FoldOptions

MOVES = {"Reshape", "Transpose"}
REVERSED = ("Transpose", "Reshape")
WIDTH = FoldOptions(factor=4, axis=AxisName.WIDTH)


def builder(*shape: int | str) -> Builder:
    return Builder(list(shape or (2, 3, 7, 12)), np.random.default_rng(1))


def folded(model: onnx.ModelProto, options: FoldOptions = WIDTH, count: int = 1):
    """Fold; the result equals the original on integers, bit for bit, and a second run is idle."""
    before = model.SerializeToString()
    result, sites = fold_model(model, options)
    assert model.SerializeToString() == before
    assert sum(site.status == "folded" for site in sites) == count, sites
    onnx.checker.check_model(result, full_check=True)
    dims = [d.dim_value or 2 for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).integers(-3, 4, dims).astype(np.float32)
    for level in LEVELS:
        pairs = zip(run(model, x, level), run(result, x, level), strict=True)
        for expected, actual in pairs:
            np.testing.assert_array_equal(actual, expected)
    again, _ = fold_model(result, options)
    assert again.SerializeToString() == result.SerializeToString()
    assert_proved(model, result, count, options.input_shapes)
    return result


def conversions(model: onnx.ModelProto) -> int:
    """Count how often a tensor is packed or unpacked: runs of moves."""
    kinds = [kind in MOVES for kind in ops(model)]
    return sum(here and not before for before, here in zip([False, *kinds], kinds, strict=False))


def optimized(model: onnx.ModelProto, level: str, folder: Path) -> list[str]:
    """Operators of a model after the runtime's optimizer."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    ort.InferenceSession(model.SerializeToString(), options)
    return ops(onnx.load(folder / "optimized.onnx"))
