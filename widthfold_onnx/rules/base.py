"""Words of the rules: where a fold may happen, what it would be, why it may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from widthfold_onnx.fold.axis import ConvAxis
from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.layout import Packing
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Node, Scope, Value
from widthfold_onnx.model.propagate import Dims

Array = npt.NDArray[Any]

FOLDED_OP = "Conv"
"""What every site becomes."""

Extents = Callable[[Value], Dims | None]
"""Extents of a value; None where not even the rank is known."""


@dataclass(frozen=True, eq=False)
class Site:
    """A node that could be reformulated."""

    node: Node
    scope: Scope
    name: str
    op: str


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearSite(Site):
    """A linear operator, read as a Conv: its weight, bias and geometry are known.

    Attributes:
        static: input extents [N, C, *spatial] that the model itself fixes; None where open.
        planned: the same with the assumed input shapes.
        weight: as the operator stores it.
        weight_shape: [O, C/group, *kernel].
        canonical: makes a weight of that shape of the stored one; elements only move.
        bias: [O], or None.
        group: groups.
        axes: geometry of every spatial axis, lengths as planned.
        sized_pads: spatial axes whose pads depend on an extent that is only assumed.
        itemsize: bytes per element.
    """

    static: Dims
    planned: Dims
    weight: Constant
    weight_shape: tuple[int, ...]
    canonical: Callable[[Array], Array]
    bias: Constant | None
    group: int
    axes: tuple[ConvAxis, ...]
    sized_pads: frozenset[int]
    itemsize: int

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels."""
        out, per_group = self.weight_shape[:2]
        return per_group * self.group, out

    @property
    def out_lengths(self) -> Dims:
        """Spatial extents of the output."""
        return tuple(axis.out_length for axis in self.axes)

    @property
    def positions(self) -> Dims:
        """Samples and, per spatial axis, how often every weight is multiplied in each of them."""
        return (self.planned[0], *(axis.positions for axis in self.axes))

    @property
    def output(self) -> Dims:
        """Shape of the output as planned."""
        return (self.planned[0], self.channels[1], *self.out_lengths)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reformulation:
    """An equivalent replacement for a site, and what it costs on paper.

    Attributes:
        fold: the folded Conv.
        input: how its input is packed, after extension to `in_shape`.
        output: how its output was packed, before cutting to the site's own output.
        in_shape: input extents after zero-extension.
        out_shape: output extents before the cut.
        axis: folded axes by name, joined by "+".
        factor: positions per original channel that became channels: of the output, or of the
            input where that is the coarser one (`ConvAxis.positions`).
        is_view: both ends are pure Reshapes of the tensors as they are: nothing is copied.
        kind: how each axis is folded, joined by "+".
        flops_ratio: multiply-adds after / before.
        bytes_ratio: bytes of input, weight and output after / before.
    """

    fold: ConvFold
    input: Packing
    output: Packing
    in_shape: Dims
    out_shape: Dims
    axis: str
    factor: int
    is_view: bool
    kind: str
    flops_ratio: float
    bytes_ratio: float

    @property
    def form(self) -> str:
        """For reports: view or move, the kind of fold, and the layout if it is not NCHW."""
        layout = " in NHWC" if self.fold.digit_major else ""
        return f"{'view' if self.is_view else 'move'} {self.kind}{layout}"


def axis_names(rank: int) -> tuple[str, ...]:
    """Names of the axes of a Conv input with `rank` spatial axes.

    >>> axis_names(2)
    ('batch', 'channel', 'height', 'width')
    """
    return ("batch", "channel", *("depth", "height", "width")[3 - rank :])
