"""Represent channels with zeros behind or between them: a padded layout is an injection.

The channels form runs. A run of n channels takes m >= n positions, its channels the first n of
them. Channel c of a run that starts at channel c0 and at position p0 lies at

    kept[c] = p0 + (c - c0)

All other positions are padding. `kept` is strictly increasing, so channels keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from widthfold_onnx.arrays import Array


@dataclass(frozen=True)
class PaddedLayout:
    """The places of channels among padding.

    Attributes:
        runs: channels and positions of each run.
    """

    runs: tuple[tuple[int, int], ...]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return sum(count for count, _ in self.runs)

    @property
    def width(self) -> int:
        """Number of positions: channels and padding."""
        return sum(width for _, width in self.runs)

    @property
    def is_padded(self) -> bool:
        """Check whether there is padding."""
        return self.width > self.channels

    @cached_property
    def kept(self) -> npt.NDArray[np.intp]:
        """The position of every channel."""
        counts, widths = (np.array(column, np.intp) for column in zip(*self.runs, strict=True))
        gaps = np.cumsum(widths) - widths - (np.cumsum(counts) - counts)
        kept: npt.NDArray[np.intp] = np.arange(self.channels) + np.repeat(gaps, counts)
        return kept

    def expanded(self, array: Array, axis: int, fill: float = 0) -> Array:
        """Return an array with `fill` at the padding of an axis; it has an element per channel.

        Numbers are copied bit for bit.
        """
        shape = list(array.shape)
        shape[axis] = self.width
        result = np.full(shape, fill, array.dtype)
        result[(slice(None),) * axis + (self.kept,)] = array
        return result

    def of_each(self, groups: int) -> PaddedLayout | None:
        """Return the layout of one of equal groups of channels; None if the groups differ."""
        if self.channels % groups or self.width % groups:
            return None
        parts = self.kept.reshape(groups, -1)
        starts = np.arange(groups)[:, None] * (self.width // groups)
        places = parts - starts
        if (places != places[0]).any() or places.max() >= self.width // groups:
            return None
        ends = [*places[0][1:].tolist(), self.width // groups]
        return PaddedLayout(
            tuple((1, after - at) for at, after in zip(places[0], ends, strict=True))
        )
