"""Weights between groups may be left out if they are zero, and only then."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.evidence.mutants import right_fold
from tests.evidence.mutants.base import original
from tests.evidence.mutants.bases import CONVS
from tests.evidence.mutants.proof import difference

BASE = "block_diagonal"


def with_number(value: float, at: tuple[int, ...]) -> onnx.ModelProto:
    """The original, with another number between its groups."""
    model = original(CONVS[BASE])
    tensor = next(t for t in model.graph.initializer if t.name == "w0")
    weight = numpy_helper.to_array(tensor).copy()
    assert weight[at] == 0
    weight[at] = value
    tensor.CopyFrom(numpy_helper.from_array(weight, "w0"))
    return model


@pytest.mark.parametrize("at", [(0, 2, 0), (8, 3, 2), (4, 0, 1)])
@pytest.mark.parametrize("value", [1.0, -1e-30, 1e-45, np.nan, np.inf])
def test_a_number_between_groups_is_missed(value: float, at) -> None:
    assert difference(with_number(value, at), right_fold(BASE)).startswith("different: ")


def test_a_negative_zero_is_zero() -> None:
    assert difference(with_number(-0.0, (0, 2, 0)), right_fold(BASE)) == ""
