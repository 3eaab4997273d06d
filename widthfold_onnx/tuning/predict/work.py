"""Describe the work of a layer, as it is and in another form, from which its time is predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.product_site import ProductSite
from widthfold_onnx.rules.match.site import LinearSite


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a Conv, a ConvTranspose or a product of matrices.

    Attributes:
        dtype: element type, as ONNX names it.
        itemsize: bytes per element.
        channels: input and output channels.
        group: groups.
        taps: elements of the kernel of one channel.
        rank: spatial axes; 0 for a product of matrices.
        inputs: elements of the input.
        outputs: elements of the output.
        transposed: whether it is a ConvTranspose.
        strided: whether it is a Conv that leaves out positions.
        reordered: whether it is an Einsum that moves elements of data or result.
    """

    dtype: str
    itemsize: int
    channels: tuple[int, int]
    group: int
    taps: int
    rank: int
    inputs: int
    outputs: int
    transposed: bool = False
    strided: bool = False
    reordered: bool = False

    @property
    def positions(self) -> int:
        """Times that every weight is multiplied: once per output position, transposed per input."""
        inputs, outputs = self.channels
        return self.inputs // inputs if self.transposed else self.outputs // outputs

    @property
    def columns(self) -> int:
        """Elements of the column matrix that im2col writes, or col2im adds up."""
        return self.positions * self.channels[self.transposed] * self.taps

    @classmethod
    def of(cls, site: LinearSite, shape: Sequence[int], out_shape: Sequence[int]) -> Work:
        """Return the work of a site as it is, at given shapes of input and output."""
        return cls(
            dtype=site.weight.dtype,
            itemsize=site.itemsize,
            channels=site.channels,
            group=site.group,
            taps=math.prod(site.weight_shape[2:]),
            rank=site.rank,
            inputs=math.prod(shape),
            outputs=math.prod(out_shape),
            transposed=site.operator.transposed,
            strided=any(axis.stride > 1 for axis in site.axes),
            reordered=isinstance(site, ProductSite) and site.is_reordered,
        )

    def folded(self, form: Reformulation, shape: Sequence[int], out_shape: Sequence[int]) -> Work:
        """Return the work of a form at given shapes, which the form may extend."""
        channels = form.fold.channels(*self.channels)
        if not self.rank:
            return replace(self, channels=channels, reordered=False)
        fold = form.fold
        return replace(
            self,
            channels=channels,
            group=fold.new_group,
            taps=math.prod(fold.kernel),
            rank=len(fold.kernel),
            inputs=_extended(form.in_shape, shape),
            outputs=_extended(form.out_shape, out_shape) * fold.sums,
            transposed=False,
            strided=any(axis.stride > 1 for axis in fold.window),
        )


def _extended(wanted: Sequence[int | None], shape: Sequence[int]) -> int:
    """Return the elements of a tensor at the extents of the form; unknown ones as in `shape`."""
    return math.prod(n if e is None else e for e, n in zip(wanted, shape, strict=True))
