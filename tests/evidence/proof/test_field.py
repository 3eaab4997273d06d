"""Arithmetic modulo primes, compared with Python's integers, which have no limit."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from widthfold_onnx.evidence.proof.field import (
    MAX_PRIME,
    MAX_TERMS,
    MIN_PRIME,
    PRIME_COUNT,
    Draw,
    Draws,
    dot,
    drawing,
    draws_of,
    function,
    inverse,
    primes,
    remainder,
    residues,
    unequal,
    variables,
)

PRIME = 11_862_989


def residue_list(array: np.ndarray, prime: int) -> list[int]:
    """Return elements in [0, prime) as Python's integers."""
    assert np.abs(array).max(initial=0.0) <= (prime + 1) // 2
    return [int(number) for number in residues(array, prime).ravel()]


def is_prime(number: int) -> bool:
    return all(number % n for n in range(2, 3500))


def test_a_draw_has_primes_of_its_own() -> None:
    assert MAX_PRIME < 3500**2, "every divisor was tried"
    assert MAX_TERMS * Fraction(MAX_PRIME, 2) ** 2 < 2**53
    seen = list[int]()
    for n in range(20):
        draw = Draw.of(b"first", b"second", n)
        assert draw == Draw.of(b"first", b"second", n), "equal parts, equal draws"
        assert len({*draw.primes}) == PRIME_COUNT
        assert all(is_prime(prime) and MIN_PRIME < prime < MAX_PRIME for prime in draw.primes)
        assert draw.seed != Draw.of(b"second", b"first", n).seed
        seen += draw.primes
    assert len({*seen}) > 90, "spread over the range"


def test_threads_draw_by_themselves() -> None:
    """A draw that another thread began meanwhile changes nothing."""
    begun, ended = threading.Event(), threading.Event()

    def other() -> Draws:
        with drawing(Draw.of("other")):
            begun.set()
            assert ended.wait(60)
            return variables(9, (50,))

    with ThreadPoolExecutor(1) as pool, drawing(Draw.of("this")):
        before = variables(9, (50,))
        future = pool.submit(other)
        assert begun.wait(60)
        assert all(map(np.array_equal, before, variables(9, (50,))))
        ended.set()
        assert not all(map(np.array_equal, before, future.result()))


@pytest.mark.parametrize("terms", [1, 7, MAX_TERMS, MAX_TERMS + 1, 2 * MAX_TERMS + 11])
@pytest.mark.parametrize("largest", [False, True])
def test_products_of_matrices(terms: int, largest: bool) -> None:
    draw = np.random.default_rng(terms)
    half = PRIME // 2
    a, b = draw.integers(-half, half, (2, 3, terms)), draw.integers(-half, half, (2, terms, 5))
    if largest:  # every sum is as large as a sum can be
        a[:], b[:] = half, -half
    exact = a.astype(object) @ b.astype(object)
    result = dot(a.astype(np.float32), b.astype(np.float32), PRIME)
    assert result.shape == (2, 3, 5)
    assert residue_list(result, PRIME) == [number % PRIME for number in exact.ravel()]


def test_a_product_without_terms_is_zero() -> None:
    result = dot(np.zeros((3, 0), np.float32), np.zeros((0, 2), np.float32), PRIME)
    assert np.array_equal(result, np.zeros((3, 2)))


def test_numbers_below_two_to_the_52() -> None:
    draw = np.random.default_rng(3)
    numbers = np.r_[draw.integers(-(2**52), 2**52, 1009), 2**52 - 1, 1 - 2**52, 0, PRIME, -PRIME]
    result = remainder(numbers.astype(np.float64), PRIME)
    assert residue_list(result, PRIME) == [int(number) % PRIME for number in numbers]


@pytest.mark.parametrize("number", [1, 2, -3, 10_000_019, -(2**40)])
def test_an_inverse_times_its_number_is_one(number: int) -> None:
    assert all(number * inverse(number, prime) % prime == 1 for prime in primes())


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("int64", [0, -1, 2**53 + 1, -(2**63), 2**63 - 1]),
        ("uint64", [0, 2**64 - 1, 2**63 + 5]),
        ("int8", [-128, 127]),
        ("float32", [0.0, -0.0, 5.0, -(2.0**24), 16777217.0]),
        ("float64", [2.0**50 + 1, -(2.0**51) + 1]),
    ],
)
def test_whole_numbers_are_themselves(dtype: str, numbers: list[float]) -> None:
    array = np.array(numbers, dtype)
    for draw, prime in zip(draws_of(array), primes(), strict=True):
        assert residue_list(draw, prime) == [int(number) % prime for number in array]


def test_other_numbers_are_random_and_have_their_sign() -> None:
    numbers = np.array([0.1, 0.3, 1.5, 2.0**52, 1e300, np.nextafter(0.1, 1)])
    positive, negative = draws_of(numbers), draws_of(-numbers)
    narrow = np.array([0.25, 1.5, 0.1], np.float16)
    for index, (draw, minus, prime) in enumerate(zip(positive, negative, primes(), strict=True)):
        assert len(set(residue_list(draw, prime))) == len(numbers)
        assert residue_list(minus, prime) == [-n % prime for n in residue_list(draw, prime)]
        wide = draws_of(narrow.astype(np.float64))[index]
        assert np.array_equal(draws_of(narrow)[index], wide)


def test_a_difference_in_one_draw_is_a_difference() -> None:
    old = variables(5, (2, 3))
    new = [draw.copy() for draw in old]
    new[3][1, 2] += 1
    assert not unequal(old, old).any()
    assert unequal(old, tuple(new)).tolist() == [[False] * 3, [False, False, True]]
    pairs = zip(old, primes(), strict=True)
    apart = tuple(np.where(draw > 0, draw - prime, draw) for draw, prime in pairs)
    assert not unequal(old, apart).any(), "p apart is the same element"


def test_a_function_depends_on_its_key_and_on_every_operand() -> None:
    first, second = variables(1, (3, 1)), variables(2, (1, 4))
    result = function(7, [first, second], (3, 4))
    spread = [tuple(np.broadcast_to(d, (3, 4)) for d in draws) for draws in (first, second)]
    assert not unequal(result, function(7, spread, (3, 4))).any()
    assert unequal(result, function(8, [first, second], (3, 4))).all()
    assert unequal(result, function(7, spread[::-1], (3, 4))).all(), "the order counts"
    changed = [draw.copy() for draw in spread[1]]
    changed[-1][2, 1] += 1
    where = unequal(result, function(7, [first, tuple(changed)], (3, 4)))
    assert np.argwhere(where).tolist() == [[2, 1]]


def test_other_draws_give_other_elements_and_end() -> None:
    first, second = (replace(Draw.of("one"), seed=np.uint64(seed)) for seed in (1, 2))
    outside, parts = variables(9, (50,)), draws_of(np.arange(4) + 0.5)
    with pytest.raises(ZeroDivisionError), drawing(first):
        elements, whole = variables(9, (50,)), draws_of(np.arange(4))
        assert not unequal(elements, variables(9, (50,))).any()
        with drawing(second):
            assert unequal(elements, variables(9, (50,))).all()
            assert unequal(parts, draws_of(np.arange(4) + 0.5)).all()
            assert not unequal(whole, draws_of(np.arange(4.0))).any(), "no number is drawn"
        assert not unequal(elements, variables(9, (50,))).any()
        raise ZeroDivisionError
    assert not unequal(outside, variables(9, (50,))).any()


def test_elements_are_spread_evenly() -> None:
    """Each sixteenth of the field gets its share within six standard deviations."""
    count = 40_009
    for draw, prime in zip(variables(11, (count,)), primes(), strict=True):
        shares = np.histogram(residues(draw, prime).astype(np.int64), 16, (0, prime))[0]
        assert np.abs(shares - count / 16).max() < 6 * math.sqrt(count / 16)
