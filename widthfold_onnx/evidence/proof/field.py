"""Compute modulo primes, and evaluate random functions of the elements.

A tensor is evaluated in several draws at once, each modulo a prime of its own. An element is a
whole number between about -p/2 and p/2, which float32 holds exactly, in half of the memory.
Products are taken in float64, which holds every integer below 2^53, so that BLAS adds `MAX_TERMS`
of them without rounding.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
from threadpoolctl import ThreadpoolController

from widthfold_onnx.arrays import Array
from widthfold_onnx.system import cores

Draws = tuple[Array, ...]
"""One array of equal extents per prime."""

Modulus = int | None
"""A prime; None for numbers that are computed with as they are."""

PRIME_COUNT = 5
"""Primes of a draw."""

MIN_PRIME, MAX_PRIME = 1 << 23, 11_863_000
"""The range of the primes: 215,453 of them. Five that differ have a product above 2^115."""

MAX_TERMS = 256
"""Products that are added before a reduction: so many of (11,863,000 / 2)^2 stay below 2^53."""

MAX_WHOLE_NUMBER = 2.0**51
"""Floats of this magnitude and above are no longer taken for whole numbers."""

MIXED_ELEMENTS = 1 << 15
"""Elements that are mixed at once, so that they stay in the cache."""

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_SHIFTS = tuple(np.uint64(n) for n in (30, 27, 31))
_LOW, _HALF, _PACK = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(24)
_LAST = (1 << 64) - 1

KEY_BYTES = 16
"""Bytes of the key of a function. All random numbers are drawn from two halves of 64 bits."""


@dataclass(frozen=True)
class Draw:
    """The primes and the seed of all random elements and functions.

    Attributes:
        primes: elements are drawn modulo each, side by side; all differ.
        seed: for all random numbers.
    """

    primes: tuple[int, ...]
    seed: np.uint64

    @classmethod
    def of(cls, *parts: object) -> Self:
        """Return the draw that follows from some parts; equal parts give equal draws.

        With the digests of two models as parts, the primes are unknown until both models are
        written: nobody can put multiples of them into the constants.
        """
        chosen = list[int]()
        size = MAX_PRIME - MIN_PRIME
        attempts = (MIN_PRIME + key_of("prime", *parts, n) % size for n in itertools.count())
        while len(chosen) < PRIME_COUNT:
            number = next(attempts)
            if number not in chosen and is_prime(number):
                chosen.append(number)
        return cls(tuple(chosen), np.uint64(key_of("seed", *parts) & _LAST))


def is_prime(number: int) -> bool:
    """Check a number above 2."""
    return number % 2 == 1 and all(number % n for n in range(3, math.isqrt(number) + 1, 2))


_draw: ContextVar[Draw] = ContextVar("draw")


@contextmanager
def drawing(draw: Draw) -> Iterator[None]:
    """Use a draw for all random elements and functions of this thread, inside the context."""
    token = _draw.set(draw)
    try:
        yield
    finally:
        _draw.reset(token)


def primes() -> tuple[int, ...]:
    """Return the primes of the enclosing `drawing`."""
    return _draw.get().primes


@cache
def _libraries() -> ThreadpoolController:
    """Return numpy's BLAS among the loaded libraries; to look for it takes milliseconds."""
    return ThreadpoolController()


_threads: ContextVar[ThreadPoolExecutor | None] = ContextVar("threads", default=None)


@contextmanager
def side_by_side() -> Iterator[None]:
    """Compute modulo several primes at once inside the context, on `threads`.

    There are no more threads than cores, and BLAS uses one, as more wait for the interpreter's lock
    (a proof took 3.6 s on five threads and 2.7 s on two, on two cores). The threads end with the
    context: a pool that a forked process inherits has none, and never runs what it is given.
    """
    one_thread = _libraries().limit(limits=1, user_api="blas")
    with one_thread, ThreadPoolExecutor(min(PRIME_COUNT, cores())) as pool:
        token = _threads.set(pool)
        try:
            yield
        finally:
            _threads.reset(token)


def threads() -> ThreadPoolExecutor | None:
    """Return the threads of the enclosing `side_by_side`, None outside of one."""
    return _threads.get()


def remainder(array: Array, prime: Modulus) -> Array:
    """Return whole numbers below 2^52 modulo a prime, near zero; the array is overwritten."""
    array = np.asarray(array)  # numpy returns scalars instead of arrays without axes
    if prime is None:
        return array
    quotient = np.asarray(array * (1.0 / prime))
    np.rint(quotient, out=quotient)
    quotient *= prime
    array -= quotient
    return array


def residues(array: Array, prime: int) -> Array:
    """Return elements as integers in [0, prime)."""
    integers = array.astype(np.int64)
    integers += (integers < 0) * prime
    return integers.view(np.uint64)


def unequal(old: Draws, new: Draws) -> Array:
    """Return where elements of equal extents differ in any draw."""
    mask = np.zeros(old[0].shape, bool)
    for a, b, prime in zip(old, new, primes(), strict=True):
        mask |= residues(a, prime) != residues(b, prime)
    return mask


def dot(a: Array, b: Array, prime: Modulus) -> Array:
    """Multiply matrices modulo a prime: [..., m, k] and [..., k, n] give [..., m, n]."""
    total: Array | float = 0.0
    for start in range(0, max(a.shape[-1], 1), MAX_TERMS):
        part = slice(start, start + MAX_TERMS)
        product = widened(a[..., part]) @ widened(b[..., part, :])
        product += total
        total = remainder(product, prime)
    return np.asarray(total)


def number_type(prime: Modulus) -> type[np.floating[Any]]:
    """Return the type in which results are stored: float32 holds every element."""
    return np.float64 if prime is None else np.float32


def widened(array: Array) -> Array:
    """Return elements as float64, in which products and sums of them are exact."""
    return array.astype(np.float64, copy=False)


def inverse(number: int, prime: int) -> int:
    """Return 1 / number modulo a prime."""
    return pow(number % prime, -1, prime)


def key_of(*parts: object) -> int:
    """Hash the parts that name a function to 128 bits; equal parts give equal keys everywhere."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=KEY_BYTES).digest()
    return int.from_bytes(digest, "little")


def mix(state: Array) -> Array:
    """Mix 64-bit integers in place: splitmix64, by Steele, Lea and Flood (OOPSLA 2014)."""
    state += _GOLDEN
    state ^= state >> _SHIFTS[0]
    state *= _FIRST
    state ^= state >> _SHIFTS[1]
    state *= _SECOND
    state ^= state >> _SHIFTS[2]
    return state


def _packed(draws: Sequence[Array]) -> list[Array]:
    """Pack the draws of elements into words of 64 bits, two into each."""
    words = [residues(draw, prime) for draw, prime in zip(draws, primes(), strict=True)]
    for first in range(0, len(words) - 1, 2):
        words[first] |= words[first + 1] << _PACK
    return words[::2]


def fingerprints(key: int, operands: Sequence[Draws], shape: Sequence[int]) -> Array:
    """Hash operands element by element, all draws of an element together.

    Args:
        key: names the function.
        operands: are broadcast to the extents.
        shape: the extents of the result.

    Returns:
        Fingerprints [2, *shape] of two halves, uint64. Two elements that differ in any draw have
        different ones but for a probability of 2^-128.
    """
    state = np.empty((2, *shape), np.uint64)
    for part, block in _hashed(key, operands, shape):
        state.reshape(2, -1)[:, part] = block
    return state


def _hashed(
    key: int, operands: Sequence[Draws], shape: Sequence[int]
) -> Iterator[tuple[slice, Array]]:
    """Yield fingerprints block by block, each with the slice of elements that it covers."""
    spread = [[np.broadcast_to(a, shape).reshape(-1) for a in draws] for draws in operands]
    for part in blocks(math.prod(shape)):
        words = [word for draws in spread for word in _packed([array[part] for array in draws])]
        block = np.empty((2, part.stop - part.start), np.uint64)
        for half, first in zip(block, _halves(key), strict=True):
            half[:] = first
            for word in words:
                half ^= word
                mix(half)
        yield part, block


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of at most `MIXED_ELEMENTS` elements."""
    for start in range(0, count, MIXED_ELEMENTS):
        yield slice(start, min(start + MIXED_ELEMENTS, count))


def _halves(key: int) -> tuple[np.uint64, np.uint64]:
    """Return the start values of the two halves of a fingerprint; they always differ."""
    seed = _draw.get().seed
    return np.uint64(key & _LAST) ^ seed, np.uint64(key >> 64) ^ _GOLDEN ^ seed


def elements(state: Array) -> Draws:
    """Draw one element per prime from each fingerprint [2, *shape]."""
    flat = state.reshape(2, -1)
    return _drawn(((part, flat[:, part]) for part in blocks(flat.shape[1])), state.shape[1:])


def _drawn(fingerprints: Iterable[tuple[slice, Array]], shape: Sequence[int]) -> Draws:
    """Draw one element per prime from each fingerprint, block by block."""
    results = [np.empty(shape, np.float32) for _ in primes()]
    for part, (first, second) in fingerprints:
        parts = [half for word in (first, second, mix(first + second))
                 for half in (word & _LOW, word >> _HALF)]  # fmt: skip
        for result, number, prime in zip(results, parts, primes(), strict=False):
            result.reshape(-1)[part] = remainder(number.astype(np.float64), prime)
    return tuple(results)


def function(key: int, operands: Sequence[Draws], shape: Sequence[int]) -> Draws:
    """Apply a random function to operands, element by element."""
    return _drawn(_hashed(key, operands, shape), shape)


def variables(key: int, shape: Sequence[int]) -> Draws:
    """Draw independent elements; equal keys and extents give the same ones."""
    halves = np.array(_halves(key))[:, None]
    fingerprints = (
        (part, mix(np.arange(part.start, part.stop, dtype=np.uint64) ^ halves))
        for part in blocks(math.prod(shape))
    )
    return _drawn(fingerprints, shape)


def draws_of(array: Array) -> Draws:
    """Map each number to an element.

    A whole number is itself. Any other float is an element that is drawn from its magnitude and has
    its sign: so -w is minus w, w * 1 is w, and a float16 that is widened stays the same.
    """
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return tuple(
            remainder(np.mod(array, array.dtype.type(prime)).astype(np.float64), prime)
            for prime in primes()
        )
    results = [np.empty(array.shape, np.float32) for _ in primes()]
    flat = array.reshape(-1)
    for part in blocks(flat.size):
        block = flat[part].astype(np.float64)
        magnitude = np.abs(block)
        is_whole = (magnitude < MAX_WHOLE_NUMBER) & (magnitude == np.floor(magnitude))
        bits = magnitude.view(np.uint64)
        draws = elements(mix(np.stack([bits, ~bits]) ^ _draw.get().seed))
        for result, variable, prime in zip(results, draws, primes(), strict=True):
            integers = remainder(np.where(is_whole, block, 0.0), prime)
            signed = np.where(block < 0, -variable, variable)
            result.reshape(-1)[part] = np.where(is_whole, integers, signed)
    return tuple(results)
