"""The form of a tensor between two folded Convs: which digits of which axes lie in its channels.

A tensor [N, C, L1, ...] in a state has the channels (b, c, a1, a2, ...): batch digit, channel,
spatial digits; or, digit-major, (b, a1, a2, ..., c). Channel-major, groups and their channels are
neighbours, so that the state does not depend on the groups of the Conv that reads or returns the
tensor; digit-major it stands for one group. The map of elements is `fold.layout.pack`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.fold.layout import Reshape, Step, pack

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class State:
    """How a tensor is packed, without extension.

    Attributes:
        batch: samples moved into channels.
        digits: per spatial axis the number of digits and whether they are blocked.
        lift: axes of extent 1 before the spatial ones.
        digit_major: order of the channels, see the module.
    """

    batch: int
    digits: tuple[tuple[int, bool], ...]
    lift: int = 0
    digit_major: bool = False

    @property
    def is_natural(self) -> bool:
        """Whether nothing is packed."""
        return self.channel_factor == 1 and not self.lift

    @property
    def spatial_factor(self) -> int:
        """Positions per sample and channel that became channels."""
        return math.prod(count for count, _ in self.digits)

    @property
    def channel_factor(self) -> int:
        """Channels after / before."""
        return self.batch * self.spatial_factor

    @property
    def factors(self) -> tuple[int, ...]:
        """Per axis of [N, C, *spatial] how many positions became channels; 1 for C."""
        return (self.batch, 1, *(count for count, _ in self.digits))

    def steps(self, shape: Sequence[int | None], *, inverse: bool = False) -> tuple[Step, ...]:
        """What packs a tensor of natural extents `shape`, or with `inverse` unpacks it."""
        packing = pack(shape, self.digits, batch=self.batch, lift=self.lift)
        return packing.steps(digit_major=self.digit_major, inverse=inverse)

    def is_view(self, shape: Sequence[int | None]) -> bool:
        """Whether packing a tensor of natural extents `shape` moves no element in memory."""
        return all(isinstance(step, Reshape) for step in self.steps(shape))

    def packed(self, array: Array) -> Array:
        """A natural array in this state; its extents must be divisible."""
        return _applied(array, self.steps(array.shape))

    def unpacked(self, array: Array) -> Array:
        """The natural array of one in this state."""
        kept = (*array.shape[:2], *array.shape[2 + self.lift :])
        extents = zip(kept, self.factors, strict=True)
        n, _, *spatial = (extent * factor for extent, factor in extents)
        shape = (n, array.shape[1] // self.channel_factor, *spatial)
        return _applied(array, self.steps(shape, inverse=True))

    def channels(self, count: int) -> npt.NDArray[np.int64]:
        """The original channel of every packed channel of a tensor with `count` channels."""
        shape = tuple(factor * (count if i == 1 else 1) for i, factor in enumerate(self.factors))
        which = np.arange(count).reshape([-1 if i == 1 else 1 for i in range(len(shape))])
        return self.packed(np.broadcast_to(which, shape)).ravel()


def _applied(array: Array, steps: Sequence[Step]) -> Array:
    for step in steps:
        if isinstance(step, Reshape):
            array = array.reshape([e for e in step.extents if e is not None])
        else:
            array = array.transpose(step.order)
    return array
