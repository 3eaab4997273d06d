"""Steps of a quantizer that rounding tips: a right fold passes, and no other one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.evidence.compared import compare_models
from tests.folding import fold_model
from tests.rewrite.quantized.models import FOLD, rounding
from widthfold_onnx.options import Provider, VerifyOptions


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("seed", [85, 186])
def test_a_right_fold_passes_where_only_its_sums_are_next_to_half_a_step(
    seed: int, integers: bool, tmp_path: Path
) -> None:
    """On the CPU where these seeds were found, the original returns the same at both levels."""
    model = rounding(seed)
    if integers:
        del model.graph.node[-1]
        port = onnx.helper.make_tensor_value_info("q", onnx.TensorProto.UINT8, [None] * 4)
        model.graph.output[0].CopyFrom(port)
    assert verdict(model, tmp_path) == "pass"


def test_a_bias_of_another_scale_fails_though_the_runtime_does_not_look_at_it(
    tmp_path: Path,
) -> None:
    """Both return the same bits as they are deployed."""
    assert verdict(rounding(85), tmp_path, scale=1.01) == "fail"


@pytest.mark.parametrize("scales", [(0.02, 0.003, 0.04), (0.05, 0.01, 0.2), (0.1, 0.01, 0.5)])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_right_fold_passes_where_round_decimals_put_sums_on_half_a_step(
    op: str, scales: tuple[float, ...], tmp_path: Path
) -> None:
    """In tenths many sums are exactly half a step; in binary rounding decides each of them."""
    model = rounding(2, op, scales)
    assert verdict(model, tmp_path) == "pass"
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    wrong = onnx.numpy_helper.to_array(weight).copy()
    wrong.flat[np.abs(wrong).argmax()] //= 2
    fault = onnx.ModelProto.FromString(model.SerializeToString())
    next(t for t in fault.graph.initializer if t.name == "w").CopyFrom(
        onnx.numpy_helper.from_array(wrong, "w")
    )
    assert verdict(model, tmp_path, other=fault) == "fail"


def verdict(
    model: onnx.ModelProto,
    folder: Path,
    scale: float = 1.0,
    other: onnx.ModelProto | None = None,
) -> str:
    """Compare a model with the fold of it, or of another one.

    The scale of the bias of that fold is changed by a factor.
    """
    folded, _ = fold_model(other or model, FOLD)
    (held,) = (tensor for tensor in folded.graph.initializer if tensor.name == "bs")
    changed = onnx.numpy_helper.to_array(held) * np.float32(scale)
    held.CopyFrom(onnx.numpy_helper.from_array(changed, "bs"))
    files = folder / "a.onnx", folder / "b.onnx"
    for path, item in zip(files, (model, folded), strict=True):
        onnx.save(item, path)
    options = VerifyOptions(provider=Provider.CPU, exact=False, timing=False, truth_budget=0.0)
    return compare_models(*files, options, is_proved=True).verdict
