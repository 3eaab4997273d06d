"""Define one spatial axis of a Conv, unfolded and folded: input and result of `algebra.axis`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


class Extent(NamedTuple):
    """A condition on an extent: (extent - offset) mod modulus = 0."""

    offset: int
    modulus: int


ANY = Extent(0, 1)
"""The condition that every extent meets."""


@dataclass(frozen=True, kw_only=True)
class ConvAxis:
    """Geometry of one spatial axis. `length` is None if the input's extent is not known.

    Pads count positions of the input with the zeros of its base dilation; a negative pad crops.

    Attributes:
        is_open: the model leaves the extent open, so that `length` is one of many.
        pad_period: pads of an open axis are the same where its extent differs by a multiple of it.
    """

    length: int | None
    kernel: int
    stride: int = 1
    dilation: int = 1
    pad_begin: int = 0
    pad_end: int = 0
    base_dilation: int = 1
    is_open: bool = False
    pad_period: int = 1

    @property
    def out_length(self) -> int | None:
        """Output extent J; can be <= 0 if the kernel is larger than the padded input."""
        if self.length is None:
            return None
        span = self.dilation * (self.kernel - 1) + 1
        extent = self.base_dilation * (self.length - 1) + 1
        return (extent + self.pad_begin + self.pad_end - span) // self.stride + 1

    @property
    def positions(self) -> int | None:
        """Times that every tap is multiplied, padding included.

        Once per output position, or with a base dilation once per input position.
        """
        return self.out_length if self.base_dilation == 1 else self.length


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldedAxis:
    """The folded axis: a Conv axis again, with tiles that become channels.

    Tap n moves the original weight at `k[n]` to output tile `g[n]`, input tile `f[n]`, kernel
    position `q[n]`. `in_length` and `out_length` are the extents that the fold needs: the input
    is zero-extended to `in_length` before it, the output cut back from `out_length` after it
    (None: the axis is kept, so that its extent does not matter, or the extent is not known).
    `extent` is the condition under which the fold is right if the axis is open; the input is
    extended and the output cut by the same numbers of positions then.
    """

    original_kernel: int
    out_tile: int
    in_tile: int
    blocked: bool
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int
    in_length: int | None
    out_length: int | None
    g: Index
    f: Index
    q: Index
    k: Index
    extent: Extent = ANY

    @property
    def folded(self) -> bool:
        """True if any position moves into channels."""
        return self.out_tile * self.in_tile > 1

    @property
    def geometry(self) -> tuple[object, ...]:
        """Kernel, stride, dilation, pads and taps, without the extents."""
        numbers = (self.kernel, self.stride, self.dilation, self.pad_begin, self.pad_end)
        return (*numbers, *(taps.tobytes() for taps in (self.g, self.f, self.q, self.k)))
