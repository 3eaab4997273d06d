"""The form of a tensor between two folded nodes: which of its positions lie in its channels.

A state is a bijection between the elements of a natural tensor and those of a packed one. Channels
stay on one axis, which has the same number in both, counted from one end. What acts on each
element alone, or differs per channel at most, needs to know no more: the two kinds of states are
those of tensors between Convs (`fold.conv_state`) and between products (`fold.row_state`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.layout import Reshape, Step, can_stand_for

Array = npt.NDArray[Any]
Dims = Sequence[int | None]


class State(ABC):
    """How a tensor is packed, without extension."""

    @property
    @abstractmethod
    def channel_axis(self) -> int:
        """The axis of the channels, of natural and packed tensors."""

    @property
    @abstractmethod
    def channel_major(self) -> bool:
        """Whether all that lies in one channel stays together, so that channels can be joined."""

    @abstractmethod
    def rank(self, natural: int) -> int:
        """Axes of a packed tensor that has so many axes by nature."""

    @abstractmethod
    def involved(self, rank: int) -> frozenset[int]:
        """Axes of a natural tensor that are packed or pack others; the rest stay what they are."""

    @abstractmethod
    def fits(self, shape: Dims) -> bool:
        """Whether this is a state, and one of tensors of natural extents `shape`.

        What it packs must be known, so that no other size is packed otherwise unnoticed.
        """

    @abstractmethod
    def least(self, channels: int) -> tuple[int, ...]:
        """The smallest natural extents that it fits, for so many channels."""

    @abstractmethod
    def folded(self, rank: int) -> frozenset[int]:
        """Axes of a natural tensor whose extents digits must divide."""

    def opened(self, shape: Dims, fixed: Dims) -> tuple[int | None, ...]:
        """Natural extents as Reshapes say them: what is only assumed is None where it can be.

        A Reshape infers one extent, and fails where the digits do not divide that. So what is
        assumed becomes no fact for whoever infers shapes.

        Args:
            shape: natural extents that are planned with.
            fixed: those that the model itself fixes.
        """
        return self._wanted(shape, fixed) if self.opens(shape, fixed) else tuple(shape)

    def opens(self, shape: Dims, fixed: Dims) -> bool:
        """Whether all that is only assumed can be inferred, both ways; see `opened`."""
        wanted = self._wanted(shape, fixed)
        return all(
            can_stand_for(self.steps(wanted, inverse=way), self.steps(shape, inverse=way))
            for way in (False, True)
        )

    def _wanted(self, shape: Dims, fixed: Dims) -> tuple[int | None, ...]:
        folded = self.folded(len(shape))
        pairs = enumerate(zip(shape, fixed, strict=True))
        return tuple(None if i in folded and f is None else e for i, (e, f) in pairs)

    @abstractmethod
    def steps(self, shape: Dims, *, inverse: bool = False) -> tuple[Step, ...]:
        """What packs a tensor of natural extents `shape`, or with `inverse` unpacks it."""

    def is_view(self, shape: Dims) -> bool:
        """Whether packing a tensor of natural extents `shape` moves no element in memory."""
        return all(isinstance(step, Reshape) for step in self.steps(shape))

    def packed(self, array: Array) -> Array:
        """A natural array in this state; its extents must be divisible."""
        return applied(array, self.steps(array.shape))

    def names_channels(self, axis: int, rank: int) -> bool:
        """Whether an axis means the channels in a tensor of `rank` axes, packed or not."""
        return all((axis - self.channel_axis) % r == 0 for r in (rank, self.rank(rank)))

    def channels(self, count: int) -> npt.NDArray[np.int64]:
        """The original channel of every packed channel of a tensor with `count` channels."""
        shape = self.least(count)
        which = np.arange(count).reshape(_column(count, len(shape) - 1 - self._before(len(shape))))
        return self.packed(np.broadcast_to(which, shape)).ravel()

    def constant(self, numbers: Array, rank: int) -> Array:
        """One number per channel, as it is broadcast to packed tensors of natural rank `rank`.

        It has no more axes than that takes: a runtime fuses [C] into a product, not [1, 1, C].
        """
        packed = self.rank(rank)
        return numbers.ravel()[self.channels(numbers.size)].reshape(
            _column(-1, packed - 1 - self._before(packed))
        )

    def _before(self, rank: int) -> int:
        """Axes before that of the channels."""
        return self.channel_axis % rank


def _column(extent: int, behind: int) -> tuple[int, ...]:
    return (extent, *(1,) * behind)


def applied(array: Array, steps: Sequence[Step]) -> Array:
    """Do with an array what the steps do with a tensor."""
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
