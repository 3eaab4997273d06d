"""Name types of arrays and of extents, calculate with these, group linked items, draw integers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=Hashable)

Array = npt.NDArray[Any]
"""An array of any element type."""

Dims = tuple[int | None, ...]
"""Extents of a tensor; None where one is open."""


def size_of(extents: Iterable[int | None]) -> int | None:
    """Return the product of extents, None where one is not known."""
    size = 1
    for extent in extents:
        if extent is None:
            return None
        size *= extent
    return size


def round_up(count: int, multiple: int) -> int:
    """Return the smallest multiple that is at least a count."""
    return -(-count // multiple) * multiple


def connected(links: Iterable[Sequence[T]]) -> Iterator[list[T]]:
    """Yield the groups of items that links join, directly or through other items.

    Args:
        links: each joins some items.
    """
    links_by_item: dict[T, list[Sequence[T]]] = defaultdict(list)
    for items in links:
        for item in items:
            links_by_item[item].append(items)
    visited: set[T] = set()
    for start in links_by_item:
        if start not in visited:
            visited.add(start)
            group = [start]
            for item in group:  # the loop appends to it
                near = dict.fromkeys(chain.from_iterable(links_by_item[item]))
                fresh = [neighbour for neighbour in near if neighbour not in visited]
                visited.update(fresh)
                group += fresh
            yield group


def integers_of_all_sizes(
    generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any]
) -> Array:
    """Draw integers, as many of each binary magnitude that the type holds, of all its signs."""
    limits = np.iinfo(dtype)
    exponents = generator.uniform(0, int(limits.max).bit_length() - 1e-6, tuple(shape))
    signs = generator.choice([-1, 1] if limits.min else [1], tuple(shape))
    return np.asarray(np.floor(2.0**exponents).astype(dtype) * signs.astype(dtype))
