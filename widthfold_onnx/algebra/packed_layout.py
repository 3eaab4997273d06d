"""Define the layout of a tensor between folded nodes: which of its positions lie in its channels.

A layout is a bijection between the elements of a logical tensor and of a packed tensor. Channels
stay on one axis, which has the same number in both, counted from one end. Ops that act on each
element alone, or differ per channel at most, need to know no more. There are two kinds: layouts
of tensors between Convs (`algebra.conv_layout`) and between products (`algebra.row_layout`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from widthfold_onnx.algebra.conv_axis import Extent
from widthfold_onnx.algebra.packing import Reshape, Step
from widthfold_onnx.arrays import Array

Dims = Sequence[int | None]


class PackedLayout(ABC):
    """The packing of a tensor, without extension."""

    @property
    @abstractmethod
    def channel_axis(self) -> int:
        """Axis of the channels, in logical and packed tensors."""

    @property
    @abstractmethod
    def channel_major(self) -> bool:
        """True if the positions in a channel stay together, so that channels can be joined."""

    @abstractmethod
    def rank(self, logical: int) -> int:
        """Return the rank of the packed tensor for a logical rank."""

    @abstractmethod
    def involved(self, rank: int) -> frozenset[int]:
        """Return the logical axes that packing changes: folded axes and channels, at least."""

    @abstractmethod
    def fits(self, shape: Dims) -> bool:
        """Check whether this layout is valid, and fits tensors of logical extents `shape`.

        Of an extent that is open, `conditions` tells which it may be.
        """

    @abstractmethod
    def conditions(self, shape: Dims) -> dict[int, Extent]:
        """Return the conditions on the open ones of the logical extents `shape`, by axis."""

    @abstractmethod
    def least(self, channels: int) -> tuple[int, ...]:
        """Return the smallest logical extents that it fits, for a number of channels."""

    @abstractmethod
    def steps(self, shape: Dims, *, inverse: bool = False) -> tuple[Step, ...]:
        """Return the moves that pack, or with `inverse` unpack, logical extents `shape`."""

    def is_view(self, shape: Dims) -> bool:
        """Check whether packing a tensor of logical extents `shape` moves no element in memory."""
        return all(isinstance(step, Reshape) for step in self.steps(shape))

    def packed(self, array: Array) -> Array:
        """Pack a logical array into this layout; its extents must be divisible."""
        return applied(array, self.steps(array.shape))

    def names_channels(self, axis: int, rank: int) -> bool:
        """Check whether an axis holds the channels, both at logical rank `rank` and packed."""
        return all((axis - self.channel_axis) % r == 0 for r in (rank, self.rank(rank)))

    def channels(self, count: int) -> npt.NDArray[np.int64]:
        """Return the original channel of every packed channel, for `count` channels."""
        return self.packed(np.indices(self.least(count))[self.channel_axis]).ravel()

    def constant(self, numbers: Array, rank: int) -> Array:
        """Return one number per channel so that it broadcasts to packed tensors of a logical rank.

        It has as few axes as possible: a runtime fuses [C] into a product, but not [1, 1, C].
        """
        packed = self.rank(rank)
        behind = packed - 1 - self.channel_axis % packed
        return numbers.ravel()[self.channels(numbers.size)].reshape(-1, *(1,) * behind)


def applied(array: Array, steps: Sequence[Step]) -> Array:
    """Apply the steps to an array."""
    for step in steps:
        if isinstance(step, Reshape):
            pairs = enumerate(zip(step.extents, step.keep, strict=True))
            array = array.reshape(
                [
                    extent if extent is not None else array.shape[i] if keep else -1
                    for i, (extent, keep) in pairs
                ]
            )
        else:
            array = array.transpose(step.order)
    return array
