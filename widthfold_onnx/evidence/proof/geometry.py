"""Computes the windows of Conv, ConvTranspose and pooling, as the ONNX operator text says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.values import UnevaluableError

Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class Windows:
    """The positions of an operator's windows along its spatial axes.

    Attributes:
        kernel: positions per window.
        strides: positions from one window to the next.
        dilations: positions from one tap to the next.
        begins: pads before the data; a negative one cuts.
        ends: pads behind the data.
        counts: number of windows.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    counts: tuple[int, ...]

    def padded(self, array: Array, fill: Any = 0) -> Array:
        """Pad, or cut, the spatial axes of [..., *spatial]."""
        lead = array.ndim - len(self.kernel)
        sides = [(max(b, 0), max(e, 0)) for b, e in zip(self.begins, self.ends, strict=True)]
        wide = np.pad(array, [(0, 0)] * lead + sides, constant_values=fill)
        cuts = zip(self.begins, self.ends, wide.shape[lead:], strict=True)
        kept = [slice(max(-b, 0), n - max(-e, 0)) for b, e, n in cuts]
        return np.asarray(wide[*[slice(None)] * lead, *kept])

    def of(self, padded: Array) -> Array:
        """View padded data [..., *spatial] as [..., *counts, *kernel]."""
        lead = padded.ndim - len(self.kernel)
        steps = padded.strides[lead:]
        outer = [step * s for step, s in zip(steps, self.strides, strict=True)]
        inner = [step * d for step, d in zip(steps, self.dilations, strict=True)]
        shape = (*padded.shape[:lead], *self.counts, *self.kernel)
        strides = (*padded.strides[:lead], *outer, *inner)
        return as_strided(padded, shape, strides, writeable=False)

    def sums(self, array: Array, reduce: Callable[[Array], Array] = np.asarray) -> Array:
        """Add what lies in each window of [..., *spatial], axis by axis, to [..., *counts].

        Args:
            array: the numbers.
            reduce: is applied to the sums along each axis.
        """
        total = self.padded(array)
        for i, kernel in enumerate(self.kernel):
            axis = total.ndim - len(self.kernel) + i
            reach, stride = (self.counts[i] - 1) * self.strides[i] + 1, self.strides[i]
            starts = [k * self.dilations[i] for k in range(kernel)]
            taps = (total[(slice(None),) * axis + (slice(s, s + reach, stride),)] for s in starts)
            total = reduce(sum(taps, np.zeros((), total.dtype)))
        return total

    def tap(self, at: Sequence[int]) -> tuple[slice, ...]:
        """Return the positions of one tap of every window in padded data."""
        return tuple(
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, s, n in zip(at, self.dilations, self.strides, self.counts, strict=True)
        )


def windows(attributes: Attributes, kernel: Sequence[int], extents: Sequence[int]) -> Windows:
    """Read strides, dilations, pads, auto_pad and ceil_mode of Conv or a pooling operator.

    Args:
        attributes: of the node.
        kernel: extents of the kernel.
        extents: of the data, along the spatial axes.

    Raises:
        UnevaluableError: attributes that do not fit, or no window fits into the data.
    """
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    pads = tuple(attributes.get("pads") or (0,) * (2 * rank))
    stated = tuple(attributes.get("kernel_shape") or kernel)
    if (len(extents), len(strides), len(dilations), len(pads)) != (rank, rank, rank, 2 * rank):
        raise UnevaluableError(f"its attributes do not fit {len(extents)} spatial axes")
    if stated != tuple(kernel) or min((*strides, *dilations, *kernel), default=1) < 1:
        raise UnevaluableError("its kernel, strides or dilations make no sense")
    begins, ends = list(pads[:rank]), list(pads[rank:])
    auto_pad = attributes.get("auto_pad", "NOTSET")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    counts = []
    for i, extent in enumerate(extents):
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = max((-(-extent // strides[i]) - 1) * strides[i] + reach[i] - extent, 0)
            begins[i] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            ends[i] = total - begins[i]
        elif auto_pad == "VALID":
            begins[i] = ends[i] = 0
        room = extent + begins[i] + ends[i] - reach[i]
        if room < 0:
            raise UnevaluableError(f"a window of {reach[i]} does not fit into {extent} positions")
        count = room // strides[i] + 1
        if attributes.get("ceil_mode"):
            more = -(-room // strides[i]) + 1
            # A window must begin in the data or in the pad before it.
            count = more if (more - 1) * strides[i] < extent + begins[i] else count
            ends[i] += max(0, (count - 1) * strides[i] + reach[i] - (extent + begins[i] + ends[i]))
        counts.append(count)
    return Windows(tuple(kernel), strides, dilations, tuple(begins), tuple(ends), tuple(counts))


@dataclass(frozen=True)
class Spread:
    """The positions where a ConvTranspose adds products: tap k of input i at s*i + d*k - begin.

    Attributes:
        strides: per spatial axis.
        dilations: per spatial axis.
        begins: positions that are cut before the result.
        extents: of the result.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    extents: tuple[int, ...]


def spread(attributes: Attributes, kernel: Sequence[int], extents: Sequence[int]) -> Spread:
    """Read the attributes of a ConvTranspose.

    Args:
        attributes: of the node.
        kernel: extents of the kernel.
        extents: of the data, along the spatial axes.

    Raises:
        UnevaluableError: attributes that do not fit.
    """
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    pads = tuple(attributes.get("pads") or (0,) * (2 * rank))
    more = tuple(attributes.get("output_padding") or (0,) * rank)
    stated = tuple(attributes.get("kernel_shape") or kernel)
    wanted = attributes.get("output_shape")
    lengths = (len(extents), len(strides), len(dilations), len(pads), len(more))
    if lengths != (rank, rank, rank, 2 * rank, rank) or stated != tuple(kernel):
        raise UnevaluableError(f"its attributes do not fit {len(extents)} spatial axes")
    auto_pad = attributes.get("auto_pad", "NOTSET")
    if not wanted and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(extents, strides, strict=True)]
    begins, results = [], []
    for i, extent in enumerate(extents):
        full = strides[i] * (extent - 1) + more[i] + (kernel[i] - 1) * dilations[i] + 1
        if wanted:
            result = wanted[len(wanted) - rank + i]
            if result - full + more[i] >= strides[i]:
                raise UnevaluableError(f"{extent} positions do not become {result}")
            total = max(full - result, 0)
            begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        else:
            begin = 0 if auto_pad == "VALID" else pads[i]
            result = full - begin - (0 if auto_pad == "VALID" else pads[rank + i])
        if result < 1:
            raise UnevaluableError(f"its result would have {result} positions")
        begins.append(begin)
        results.append(result)
    return Spread(strides, dilations, tuple(begins), tuple(results))
