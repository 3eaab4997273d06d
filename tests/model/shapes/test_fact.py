"""Facts of values: what two facts have in common, and which numbers are kept."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.model.shapes.fact import (
    MAX_KEPT,
    Fact,
    common_fact,
    completed,
    of_tensor,
    of_type,
)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
TYPES = [
    Fact(),
    Fact(FLOAT),
    Fact(FLOAT, (2, None)),
    Fact(FLOAT, (2, 3)),
    Fact(FLOAT, (5, 3)),
    Fact(INT64, (2, 3, 1)),
    Fact(other_type=SEQUENCE.SerializeToString()),
]


def admits(fact: Fact, concrete: Fact) -> bool:
    """True if a value of a type without gaps agrees with a fact, by definition."""
    if fact.element_type not in (0, concrete.element_type):
        return False
    if fact.other_type not in (b"", concrete.other_type):
        return False
    if fact.dims is None:
        return True
    return (
        concrete.dims is not None
        and len(fact.dims) == len(concrete.dims)
        and all(a in (None, b) for a, b in zip(fact.dims, concrete.dims, strict=True))
    )


@pytest.mark.parametrize(("first", "second"), [*product(TYPES, TYPES)])
def test_what_either_fact_admits_the_common_fact_admits(first: Fact, second: Fact) -> None:
    common = common_fact(first, second)
    assert common.type == common_fact(second, first).type
    for concrete in TYPES:
        if admits(first, concrete) or admits(second, concrete):
            assert admits(common, concrete), concrete


def test_the_common_fact_keeps_what_both_know() -> None:
    first, second = Fact(FLOAT, (2, 3)), Fact(FLOAT, (5, 3))
    assert common_fact(first, second).type == (FLOAT, (None, 3), b"")
    assert common_fact(first, first).type == first.type
    assert common_fact(first, Fact(INT64, (2, 3))).type == (0, (2, 3), b"")
    assert common_fact(first, Fact(FLOAT, (2, 3, 1))).type == (FLOAT, None, b"")


def test_a_declaration_fills_gaps_and_overrules_nothing() -> None:
    declaration = Fact(FLOAT, (7, 3))
    assert completed(Fact(), declaration).type == declaration.type
    assert completed(Fact(FLOAT, (2, None)), declaration).type == (FLOAT, (2, 3), b"")
    assert completed(Fact(INT64, (2, 3, 5)), declaration).type == (INT64, (2, 3, 5), b"")
    numbers = of_tensor(numpy_helper.from_array(np.arange(3)))
    assert completed(numbers, Fact(INT64, (None,))).numbers is numbers.numbers


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_numbers_are_kept_up_to_a_limit(kind: type) -> None:
    most = MAX_KEPT.get(np.dtype(kind).kind, 0)
    for count in (0, 1, most, most + 1):
        array = np.zeros(count, kind)
        fact = of_tensor(numpy_helper.from_array(array))
        assert fact.dims == (count,)
        assert fact.is_whole == (count <= most)


def test_texts_and_external_data_are_not_read() -> None:
    text = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"b"])
    external = numpy_helper.from_array(np.arange(3))
    external.data_location = TensorProto.EXTERNAL
    assert of_tensor(text).type == (TensorProto.STRING, (2,), b"")
    assert of_tensor(text).numbers is None
    assert of_tensor(external).numbers is None


def test_numbers_that_are_known_in_part() -> None:
    fact = Fact(INT64, (3,))
    part = fact.with_numbers(np.array([2, None, 5], object))
    assert part.numbers is not None
    assert not part.is_whole
    whole = fact.with_numbers(np.array([2, 3, 5], object))
    assert whole.is_whole
    assert whole.numbers is not None
    assert whole.numbers.dtype == np.int64
    assert fact.with_numbers(np.array([None, None, None], object)) is fact
    assert not part.equals(whole)
    assert part.equals(fact.with_numbers(np.array([2, None, 5], object)))
    assert not part.equals(fact.with_numbers(np.array([2, None, 7], object)))


def test_equal_facts_have_the_same_bits() -> None:
    zero = of_tensor(numpy_helper.from_array(np.array([0.0], np.float32)))
    negative = of_tensor(numpy_helper.from_array(np.array([-0.0], np.float32)))
    nan = of_tensor(numpy_helper.from_array(np.array([np.nan], np.float32)))
    assert zero.equals(zero.without_numbers().with_numbers(np.zeros(1, np.float32)))
    assert not zero.equals(negative)
    assert nan.equals(nan.without_numbers().with_numbers(np.array([np.nan], np.float32)))
    assert not zero.equals(zero.without_numbers())
    assert zero.without_numbers().equals(nan.without_numbers())


@pytest.mark.parametrize("fact", TYPES)
def test_a_type_comes_back_from_its_message(fact: Fact) -> None:
    assert of_type(fact.proto()).type == fact.type


def test_a_message_without_a_type_says_nothing() -> None:
    assert of_type(onnx.TypeProto()).type == Fact().type


def test_numbers_fit_a_type_of_their_rank_and_extents() -> None:
    fact = Fact(FLOAT, (2, None))
    assert fact.fits(np.zeros((2, 7), np.float32))
    assert not fact.fits(np.zeros((3, 7), np.float32))
    assert not fact.fits(np.zeros((2, 7, 1), np.float32))
    assert not fact.fits(np.zeros((2, 7), np.float64))
    assert not Fact(FLOAT).fits(np.zeros(2, np.float32))
