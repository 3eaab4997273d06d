"""Steps of a quantizer that rounding tips: what is forgiven, and what never is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.folding import fold_model
from tests.rewrite.quantized_models import FOLD, rounding
from widthfold_onnx.evidence.parity.comparison import Cells, Judge, Outputs
from widthfold_onnx.evidence.parity.models import compare_models
from widthfold_onnx.evidence.parity.optimized_level import TIPPED, Float64, stepped
from widthfold_onnx.options import Provider, Tolerance, VerifyOptions

PLAIN = [{"y": np.array([10.0, 2.0, 3.0], np.float32)}]
STEPPED = [{"y": np.array([10.0, 2.1, 3.0], np.float32)}]
TRUE = [{"y": np.array([10.0, 2.0, 3.0])}]
OTHER = [{"y": np.array([10.0, 2.0, 3.0 + 1e-9])}]


def judged(
    deployed: list[Outputs],
    exactly: list[list[Outputs]],
    tolerance: Tolerance | None = None,
) -> Cells:
    """The cells of a candidate that is a step off without the optimizations."""
    judge = Judge(tolerance or Tolerance(), set(), [{}])
    cells = judge.cells("disabled", PLAIN, STEPPED) | judge.cells("all", PLAIN, deployed)

    def run(numbers: Sequence[int]) -> Float64:
        assert numbers == [0]
        return exactly, []

    return stepped(cells, judge, run)[0]


def passed(*given: list[Outputs], tolerance: Tolerance | None = None) -> bool:
    deployed, *exactly = given
    return judged(deployed, exactly, tolerance)["disabled", "y", 0].passed


def test_a_step_that_float64_does_not_take_passes_and_says_why() -> None:
    cell = judged(PLAIN, [TRUE, TRUE])["disabled", "y", 0]
    assert cell.passed
    assert cell.note == TIPPED


def test_a_difference_as_deployed_is_never_forgiven() -> None:
    assert not passed(STEPPED, TRUE, TRUE)


def test_models_that_differ_in_float64_are_no_step() -> None:
    assert not passed(PLAIN, TRUE, OTHER)


def test_without_float64_nothing_is_forgiven() -> None:
    assert not passed(PLAIN, TRUE, [{}])
    assert not passed(PLAIN, [{}], TRUE)


def test_a_tolerance_that_was_chosen_is_never_exceeded() -> None:
    assert not passed(PLAIN, TRUE, TRUE, tolerance=Tolerance(rtol=1e-4))
    assert not passed(PLAIN, TRUE, TRUE, tolerance=Tolerance(per_output={"y": 1e-4}))


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
    """As deployed both return the same bits."""
    assert verdict(rounding(85), tmp_path, scale=1.01) == "fail"


def verdict(model: onnx.ModelProto, folder: Path, scale: float = 1.0) -> str:
    """Of its fold, in which the scale of the bias was changed by a factor."""
    folded, _ = fold_model(model, FOLD)
    (held,) = (tensor for tensor in folded.graph.initializer if tensor.name == "bs")
    changed = onnx.numpy_helper.to_array(held) * np.float32(scale)
    held.CopyFrom(onnx.numpy_helper.from_array(changed, "bs"))
    files = folder / "a.onnx", folder / "b.onnx"
    for path, item in zip(files, (model, folded), strict=True):
        onnx.save(item, path)
    options = VerifyOptions(provider=Provider.CPU, exact=False, timing=False, truth_budget=0.0)
    found = compare_models(*files, options)
    assert all(row.passed for row in found.outputs if row.level == "all")
    return found.verdict
