"""Whether kernels of 8 bits saturate here is what they show, whatever the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.quantized import Case, run
from widthfold_onnx.runtime.kernels import u8s8_error

LINE = {"shape": (2, 8, 20), "weight": (5, 8, 4), "attributes": {"pads": [2, 1]}, "pads": (2, 1)}


def extreme(case: Case) -> np.ndarray:
    """The largest data."""
    return np.full(case.shape, np.iinfo(case.kinds[0]).max, case.kinds[0])


def test_unsigned_data_and_signed_weights_are_off_where_it_says_so() -> None:
    case = Case(op="QLinearConv", saturates=True, **LINE)
    off = np.abs(run(case.model(), extreme(case)).astype(int) - case.expected(extreme(case)))
    assert bool(off.max()) == bool(u8s8_error())


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_operands_of_one_type_are_exact(kind: type) -> None:
    case = Case(op="QLinearConv", kinds=(kind, kind), **LINE)
    np.testing.assert_array_equal(run(case.model(), extreme(case)), case.expected(extreme(case)))


def test_weights_of_seven_bits_are_exact() -> None:
    case = Case(op="QLinearConv", **LINE)
    np.testing.assert_array_equal(run(case.model(), extreme(case)), case.expected(extreme(case)))


def test_it_is_known_in_steps_of_a_byte() -> None:
    assert 0 <= u8s8_error() <= 200
