"""Changes of the numbers of a weight or a bias."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.evidence.mutants.folded import Array

Alter = Callable[[Array], Array | None]
"""What a fault makes of an array; None where it has no place in it."""


def swapped(axis: int, first: int, second: int) -> Alter:
    def alter(array: Array) -> Array | None:
        order = list(range(array.shape[axis]))
        if len(order) < 2:
            return None
        order[first], order[second] = order[second], order[first]
        return np.take(array, order, axis)

    return alter


def rolled(axis: int) -> Alter:
    return lambda array: np.roll(array, 1, axis)


def regrouped(axis: int) -> Alter:
    """Digits before channels instead of channels before digits, or the other way round."""

    def alter(array: Array) -> Array | None:
        count = array.shape[axis]
        tiles = next((n for n in range(2, count) if count % n == 0), None)
        if tiles is None:
            return None
        return np.take(array, np.arange(count).reshape(-1, tiles).T.ravel(), axis)

    return alter


def flipped(axis: int) -> Alter:
    return lambda array: np.flip(array, axis)


def element(which: int, value: Callable[[Array], object], *, structural: bool = False) -> Alter:
    """Change one weight, or one structural zero: the first, the last, ..."""

    def alter(array: Array) -> Array | None:
        places = np.argwhere(array == 0 if structural else array != 0)
        if not places.size:
            return None
        at = tuple(places[which])
        array[at] = value(array[at])
        return array

    return alter


def moved_tap(which: int, step: int) -> Alter:
    """A weight moves to its neighbour along the last kernel axis that has a free one there."""

    def alter(array: Array) -> Array | None:
        for axis in range(array.ndim - 1, 1, -1):
            free = [
                (tuple(at), tuple(to))
                for at in np.argwhere(array != 0)
                for to in [at + step * (np.arange(array.ndim) == axis)]
                if 0 <= to[axis] < array.shape[axis] and array[tuple(to)] == 0
            ]
            if free:
                at, to = free[which]
                array[to], array[at] = array[at], 0
                return array
        return None

    return alter


def moved_digit(array: Array) -> Array | None:
    """A weight meets the next input channel, where a structural zero was."""
    for o, c, *k in np.argwhere(array != 0):
        if c + 1 < array.shape[1] and array[(o, c + 1, *k)] == 0:
            array[(o, c + 1, *k)], array[(o, c, *k)] = array[(o, c, *k)], 0
            return array
    return None


def copied_output(array: Array) -> Array | None:
    """Output channel 1 gets the weights of channel 0: often two tiles of one channel."""
    if len(array) < 2:
        return None
    array[1] = array[0]
    return array


def exchanged(array: Array) -> Array:
    """Two weights of one output channel change places."""
    row = array[0].ravel()
    first, second = np.flatnonzero(row)[[0, -1]]
    row[[first, second]] = row[[second, first]]
    array[0] = row.reshape(array[0].shape)
    return array


def transposed(array: Array) -> Array | None:
    return array.swapaxes(0, 1) if array.shape[0] == array.shape[1] else None


def turned_kernel(array: Array) -> Array | None:
    """The two last kernel axes change places."""
    square = array.ndim > 3 and array.shape[-1] == array.shape[-2]
    return array.swapaxes(-1, -2) if square else None


def next_up(value: Array) -> Array:
    """The next larger number; an integer stays, it stands for a weight's place."""
    if value.dtype.kind != "f":
        return value
    return np.nextafter(value, np.array(np.inf, value.dtype))
