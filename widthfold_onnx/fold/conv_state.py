"""The state of a tensor between two folded Convs: digits of batch and spatial axes are channels.

A tensor [N, C, L1, ...] in a state has the channels (b, c, a1, a2, ...): batch digit, channel,
spatial digits; or, digit-major, (b, a1, a2, ..., c). Channel-major, groups and their channels are
neighbours, so that the state does not depend on the groups of the Conv that reads or returns the
tensor; digit-major it stands for one group. The map of elements is `fold.layout.pack`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from widthfold_onnx.fold.layout import Step, pack
from widthfold_onnx.fold.state import Dims, State


@dataclass(frozen=True)
class ConvState(State):
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
        return math.prod(self.factors) == 1 and not self.lift

    @property
    def factors(self) -> tuple[int, ...]:
        """Per axis of [N, C, *spatial] how many positions became channels; 1 for C."""
        return (self.batch, 1, *(count for count, _ in self.digits))

    @property
    def channel_axis(self) -> int:
        """The second."""
        return 1

    @property
    def channel_major(self) -> bool:
        """Whether neither samples nor digits lie between the channels."""
        return self.batch == 1 and not self.digit_major

    def rank(self, natural: int) -> int:
        """One more where it is lifted."""
        return natural + self.lift

    def involved(self, rank: int) -> frozenset[int]:
        """The folded axes and the channels; all of them where axes are counted otherwise."""
        return frozenset(range(rank)) if self.lift else self.folded(rank) | {1}

    def fits(self, shape: Dims) -> bool:
        """Whether all folded extents are known and divisible, and something is packed."""
        if len(shape) != len(self.factors) or shape[1] is None:
            return False
        if min(self.factors) < 1 or self.lift not in (0, 1) or self.is_natural:
            return False
        pairs = zip(shape, self.factors, strict=True)
        return all(f == 1 or (e is not None and e % f == 0) for e, f in pairs)

    def least(self, channels: int) -> tuple[int, ...]:
        """One position per digit."""
        return (self.batch, channels, *self.factors[2:])

    def folded(self, rank: int) -> frozenset[int]:
        """Those with more than one digit."""
        return frozenset(i for i, factor in enumerate(self.factors) if factor > 1)

    def steps(self, shape: Dims, *, inverse: bool = False) -> tuple[Step, ...]:
        """What packs a tensor of natural extents `shape`, or with `inverse` unpacks it."""
        packing = pack(shape, self.digits, batch=self.batch, lift=self.lift)
        return packing.steps(digit_major=self.digit_major, inverse=inverse)
