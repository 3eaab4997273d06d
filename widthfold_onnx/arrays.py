"""Define types of arrays and extents, and small functions on numbers, groups and integers."""

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
    """Return the number of elements of a tensor; None if one of its extents is open.

    >>> size_of([2, 3]), size_of([2, None]), size_of([])
    (6, None, 1)
    """
    size = 1
    for extent in extents:
        if extent is None:
            return None
        size *= extent
    return size


def round_up(count: int, multiple: int) -> int:
    """Round a count up to a multiple.

    >>> round_up(9, multiple=8)
    16
    """
    return -(-count // multiple) * multiple


def connected(links: Iterable[Sequence[T]]) -> Iterator[list[T]]:
    """Yield the connected components of a graph.

    >>> list(connected([("a", "b"), ("c",), ("b", "d")]))
    [['a', 'b', 'd'], ['c']]

    Args:
        links: each connects all of its items.
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
    """Draw integers that the type holds: log2 of the magnitude is uniform, the sign random."""
    limits = np.iinfo(dtype)
    exponents = generator.uniform(0, int(limits.max).bit_length() - 1e-6, tuple(shape))
    signs = generator.choice([-1, 1] if limits.min else [1], tuple(shape))
    return np.asarray(np.floor(2.0**exponents).astype(dtype) * signs.astype(dtype))
