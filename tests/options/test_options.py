"""Options that are refused where they are made."""

from __future__ import annotations

import pytest

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import FoldOptions


@pytest.mark.parametrize(
    "options",
    [
        {"factor": 1},
        {"factor": 0},
        {"factor": -8},
        {"factor": 4097},
        {"factor": 2.5},
        {"factor": "8"},
        {"axis": 1},
        {"axis": "sideways"},
        {"layout": "xyz"},
        {"nodes": "conv*"},
        {"max_flops_growth": float("nan")},
        {"max_bytes_growth": -1.0},
    ],
)
def test_options_of_a_fold_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        FoldOptions(**{"factor": 8, **options})


def test_a_size_that_is_named_twice_counts_once() -> None:
    small, large = {"x": (1, 3)}, {"x": (2, 3)}
    assert FoldOptions(input_shapes=(small, large, dict(small))).input_shapes == (small, large)
    assert FoldOptions(input_shapes=[small] * 9, fixed_shapes=True).input_shapes == (small,)
