"""Arithmetic modulo primes, and random functions of its elements.

A tensor is evaluated in several draws at once, each modulo a prime of its own. An element is a
whole number between about -p/2 and p/2. In float64, a product is below 2^44, and BLAS adds `TERMS`
of them without rounding, because float64 holds every integer below 2^53.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Draws = tuple[Array, ...]
"""One array of equal extents per prime."""

PRIMES = (8388593, 8388587, 8388581, 8388571, 8388547)
"""The largest primes below 2^23. They are different, so that two integers which agree modulo all of
them differ by a multiple of their product, which is above 2^114."""

TERMS = 256
"""Products that are added before a reduction: 2^8 * 2^44 leaves a factor of two below 2^53."""

LARGEST_WHOLE = 2.0**51
"""Floats of this magnitude and above are no longer taken for whole numbers."""

BLOCK = 1 << 15
"""Elements that are mixed at once, so that they stay in the cache."""

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_SHIFTS = tuple(np.uint64(n) for n in (30, 27, 31))
_LOW, _HALF, _PACK = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(23)


def reduced(array: Array, prime: int) -> Array:
    """Bring whole numbers below 2^52 near zero modulo a prime, in place."""
    array = np.asarray(array)  # numpy makes scalars of what has no axes
    quotient = np.asarray(array * (1.0 / prime))
    np.rint(quotient, out=quotient)
    quotient *= prime
    array -= quotient
    return array


def canonical(array: Array, prime: int) -> Array:
    """Return elements as integers in [0, prime)."""
    whole = array.astype(np.int64)
    whole += (whole < 0) * prime
    return whole.view(np.uint64)


def dot(a: Array, b: Array, prime: int) -> Array:
    """Multiply matrices modulo a prime: [..., m, k] and [..., k, n] give [..., m, n]."""
    total = reduced(widened(a[..., :TERMS]) @ widened(b[..., :TERMS, :]), prime)
    for start in range(TERMS, a.shape[-1], TERMS):
        part = slice(start, start + TERMS)
        product = widened(a[..., part]) @ widened(b[..., part, :])
        product += total
        total = reduced(product, prime)
    return total


def widened(array: Array) -> Array:
    """Return elements as float64, in which products and sums of them are exact."""
    return array.astype(np.float64, copy=False)


def inverse(number: int, prime: int) -> int:
    """Return 1 / number modulo a prime."""
    return pow(number % prime, -1, prime)


def key_of(*parts: object) -> int:
    """Hash what names a function to 64 bits; equal parts give equal keys in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def mixed(state: Array) -> Array:
    """Mix 64-bit integers in place: splitmix64, by Steele, Lea and Flood (OOPSLA 2014)."""
    state += _GOLDEN
    state ^= state >> _SHIFTS[0]
    state *= _FIRST
    state ^= state >> _SHIFTS[1]
    state *= _SECOND
    state ^= state >> _SHIFTS[2]
    return state


def _absorbed(state: Array, draws: Sequence[Array]) -> Array:
    """Mix elements into states: two draws fit into one word of 64 bits."""
    words = [canonical(draw, prime) for draw, prime in zip(draws, PRIMES, strict=True)]
    for first in range(0, len(words), 2):
        word = words[first]
        for second in words[first + 1 : first + 2]:
            word |= second << _PACK
        state ^= word
        state = mixed(state)
    return state


def fingerprints(key: int, operands: Sequence[Draws], shape: Sequence[int]) -> Array:
    """Hash operands element by element to 64 bits, all draws of an element together.

    Two elements that differ in any draw have different fingerprints but for 2^-64.

    Args:
        key: names the function.
        operands: are broadcast to the extents.
        shape: the extents of the result, uint64.
    """
    state = np.full(tuple(shape), key, np.uint64)
    flat = state.reshape(-1)
    spread = [[np.broadcast_to(a, shape).reshape(-1) for a in draws] for draws in operands]
    for start in range(0, flat.size, BLOCK):
        part = slice(start, start + BLOCK)
        block = mixed(flat[part])
        for draws in spread:
            block = _absorbed(block, [array[part] for array in draws])
        flat[part] = block
    return state


def elements(state: Array) -> Draws:
    """Draw one element per prime from each fingerprint."""
    results = [np.empty(state.shape) for _ in PRIMES]
    flat = state.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        part = slice(start, start + BLOCK)
        word = flat[part].copy()
        for first in range(0, len(PRIMES), 2):
            word = mixed(word)
            for draw, half in enumerate((word & _LOW, word >> _HALF)[: len(PRIMES) - first], first):
                number = reduced(half.astype(np.float64), PRIMES[draw])
                results[draw].reshape(-1)[part] = number
    return tuple(results)


def function(key: int, operands: Sequence[Draws], shape: Sequence[int]) -> Draws:
    """Apply a random function to operands, element by element."""
    return elements(fingerprints(key, operands, shape))


def variables(key: int, shape: Sequence[int]) -> Draws:
    """Draw independent elements; equal keys and extents give the same ones."""
    index = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(tuple(shape))
    state = index.reshape(-1)
    state ^= mixed(np.array([key], np.uint64))
    for start in range(0, state.size, BLOCK):
        state[start : start + BLOCK] = mixed(state[start : start + BLOCK].copy())
    return elements(index)


def of_numbers(array: Array) -> Draws:
    """Map numbers to elements, one for one.

    Whole numbers are themselves. Any other float is an element drawn from its magnitude, with its
    sign: so -w is minus w, w * 1 is w, and a float16 that is widened stays what it is.

    Returns:
        Elements as float32, which holds them exactly in half of the memory: weights are large.
        Whatever computes with them widens them first.
    """
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        rests = (np.mod(array, array.dtype.type(prime)).astype(np.float64) for prime in PRIMES)
        return tuple(reduced(rest, prime) for rest, prime in zip(rests, PRIMES, strict=True))
    results = [np.empty(array.shape, np.float32) for _ in PRIMES]
    flat = array.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        part = slice(start, start + BLOCK)
        block = flat[part].astype(np.float64)
        magnitude = np.abs(block)
        is_whole = (magnitude < LARGEST_WHOLE) & (magnitude == np.floor(magnitude))
        drawn = elements(mixed(magnitude.view(np.uint64).copy()))
        for result, one, prime in zip(results, drawn, PRIMES, strict=True):
            whole = reduced(np.where(is_whole, block, 0.0), prime)
            other = np.where(block < 0, -one, one)
            result.reshape(-1)[part] = np.where(is_whole, whole, other)
    return tuple(results)
