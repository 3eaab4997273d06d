"""Defines the values that the names of a graph have while it is evaluated."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.field import (
    KEY_BYTES,
    PRIMES,
    Draws,
    blocks,
    canonical,
    of_numbers,
)

Shape = tuple[int, ...]
Described = tuple[Shape, int]
"""Extents and element type."""


ROUNDED = 2
"""Count of a constant that was computed from others: that of a product of two."""


class UnevaluableError(Exception):
    """A node that cannot be computed on what it is given, as no runtime could."""


@dataclass(frozen=True, eq=False)
class Known:
    """Numbers or strings that do not depend on the inputs.

    Attributes:
        array: the numbers or strings.
        rounded: whether they were computed in floats, so that another order of computing may
            give other last digits.
    """

    array: Array
    rounded: bool = False

    degree = 1
    """Of the polynomial: a number that is not whole is a variable."""

    @property
    def shape(self) -> Shape:
        """The extents."""
        return self.array.shape

    @property
    def kind(self) -> int:
        """The element type."""
        return helper.np_dtype_to_tensor_dtype(self.array.dtype)

    @cached_property
    def draws(self) -> Draws:
        """The numbers as elements.

        Raises:
            UnevaluableError: they are no numbers.
        """
        if self.array.dtype.kind in "OSUT":
            raise UnevaluableError("strings are no numbers")
        if self.array.dtype.kind == "c":
            raise UnevaluableError("complex numbers are no elements")
        return of_numbers(self.array)

    @property
    def constants(self) -> int:
        """See `Elements.constants`."""
        return ROUNDED if self.rounded else 1

    def digest(self) -> bytes:
        """Return a digest that is equal for equal numbers, whatever their element type."""
        if self.array.dtype.kind in "OSUTc":
            content = repr((self.array.shape, self.array.tolist())).encode()
            return hashlib.blake2b(content, digest_size=16).digest()
        return _digest(self.draws)


@dataclass(frozen=True, eq=False)
class Elements:
    """A tensor of field elements.

    Attributes:
        draws: the elements, one array per prime.
        degree: of the polynomial that each element is, at most.
        constants: how many constants are multiplied in one product, at most.
        grid: scale and zero point, digested, of the integers from which all elements were
            dequantized; empty where there are none.
        kind: element type of the tensor, 0 where it is not known.
        factor: numbers that it may be the product with, to be checked where that matters.
    """

    draws: Draws
    degree: int = 1
    constants: int = 0
    grid: bytes = b""
    kind: int = 0
    factor: Known | None = None

    @property
    def shape(self) -> Shape:
        """The extents."""
        return self.draws[0].shape

    def digest(self) -> bytes:
        """Return a digest that is equal for equal elements."""
        return _digest(self.draws)


@dataclass(frozen=True, eq=False)
class Opaque:
    """A value of which only equality is known: its extents are not, or it is no tensor."""

    key: int

    def digest(self) -> bytes:
        """Return a digest that is equal for equal values."""
        return self.key.to_bytes(KEY_BYTES, "little")


Tensor = Known | Elements
Value = Known | Elements | Opaque


def _digest(draws: Draws) -> bytes:
    state = hashlib.blake2b(repr(draws[0].shape).encode(), digest_size=16)
    for draw, prime in zip(draws, PRIMES, strict=True):
        flat = draw.reshape(-1)
        for part in blocks(flat.size):
            state.update(canonical(flat[part], prime).astype(np.uint32).data)
    return state.digest()
