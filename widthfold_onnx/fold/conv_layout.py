"""Define the state of a tensor between folded Convs: batch and spatial digits are channels.

A tensor [N, C, L1, ...] in a state has the channels (b, c, a1, a2, ...): batch digit, channel,
spatial digits; or, digit-major, (b, a1, a2, ..., c). In a channel-major state groups and their
channels are neighbours, so that it does not depend on the groups of the Conv that reads or returns
the tensor; a digit-major state is for one group. `fold.packing.pack` maps the elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from widthfold_onnx.fold.packed_layout import Dims, State
from widthfold_onnx.fold.packing import Step, pack


@dataclass(frozen=True)
class ConvState(State):
    """The packing of a tensor, without extension.

    Attributes:
        batch: samples moved into channels.
        digits: per spatial axis the number of digits and whether they are blocked.
        lift: axes of extent 1 before the spatial ones.
        digit_major: order of the channels, see the module docstring.
    """

    batch: int
    digits: tuple[tuple[int, bool], ...]
    lift: int = 0
    digit_major: bool = False

    @property
    def is_natural(self) -> bool:
        """True if nothing is packed."""
        return math.prod(self.factors) == 1 and not self.lift

    @property
    def factors(self) -> tuple[int, ...]:
        """Number of positions that became channels, per axis of [N, C, *spatial]; 1 for C."""
        return (self.batch, 1, *(count for count, _ in self.digits))

    @property
    def channel_axis(self) -> int:
        """The second axis."""
        return 1

    @property
    def channel_major(self) -> bool:
        """True if neither samples nor digits lie between the channels."""
        return self.batch == 1 and not self.digit_major

    def rank(self, natural: int) -> int:
        """Return the rank of the packed tensor: larger by the lift."""
        return natural + self.lift

    def involved(self, rank: int) -> frozenset[int]:
        """Return the folded axes and the channels; all axes if a lift renumbers them."""
        folded = {i for i, factor in enumerate(self.factors) if factor > 1}
        return frozenset(range(rank)) if self.lift else frozenset(folded | {1})

    def fits(self, shape: Dims) -> bool:
        """Check whether all folded extents are known and divisible, and something is packed."""
        if len(shape) != len(self.factors) or shape[1] is None:
            return False
        if min(self.factors) < 1 or self.lift not in (0, 1) or self.is_natural:
            return False
        pairs = zip(shape, self.factors, strict=True)
        return all(f == 1 or (e is not None and e % f == 0) for e, f in pairs)

    def least(self, channels: int) -> tuple[int, ...]:
        """Return the extents with one position per digit."""
        return (self.batch, channels, *self.factors[2:])

    def steps(self, shape: Dims, *, inverse: bool = False) -> tuple[Step, ...]:
        """Return the moves that pack, or with `inverse` unpack, natural extents `shape`."""
        packing = pack(shape, self.digits, batch=self.batch, lift=self.lift)
        return packing.steps(digit_major=self.digit_major, inverse=inverse)
