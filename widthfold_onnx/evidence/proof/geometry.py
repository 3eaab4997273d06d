"""Compute the windows of Conv, ConvTranspose and pooling, and the sums over them.

Windows follow the ONNX operator text. Sums are taken modulo one prime, or with real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.field import Modulus, dot, number_type, remainder
from widthfold_onnx.evidence.proof.values import UnevaluableError, check_size
from widthfold_onnx.model.shapes.inference import RawAttributes


def padded(
    array: Array, begins: Sequence[int], ends: Sequence[int], mode: Any = "constant", **fill: Any
) -> Array:
    """Pad an array at both ends of its axes, and cut it where a number is negative.

    Raises:
        UnevaluableError: more is cut than there is, or the result is too large.
    """
    extents = [sum(parts) for parts in zip(array.shape, begins, ends, strict=True)]
    if min(extents, default=0) < 0:
        raise UnevaluableError(f"its result would have the extents {extents}")
    sides = [(max(b, 0), max(e, 0)) for b, e in zip(begins, ends, strict=True)]
    check_size([n + sum(pair) for n, pair in zip(array.shape, sides, strict=True)])
    wide = np.pad(array, sides, mode, **fill)
    cuts = zip(begins, ends, wide.shape, strict=True)
    return np.asarray(wide[*(slice(max(-b, 0), n - max(-e, 0)) for b, e, n in cuts)])


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

    @property
    def reach(self) -> tuple[int, ...]:
        """Positions from the first tap of the first window to the last tap of the last one."""
        steps = zip(self.kernel, self.strides, self.dilations, self.counts, strict=True)
        return tuple((n - 1) * s + (k - 1) * d + 1 for k, s, d, n in steps)

    def padded(self, array: Array, fill: Any = 0) -> Array:
        """Pad, or cut, the spatial axes of [..., *spatial]."""
        lead = (0,) * (array.ndim - len(self.kernel))
        return padded(array, lead + self.begins, lead + self.ends, constant_values=fill)

    def cut(self, array: Array) -> Array:
        """Undo `padded`: of a ConvTranspose this gives the result."""
        begins, ends = (tuple(-n for n in pads) for pads in (self.begins, self.ends))
        return replace(self, begins=begins, ends=ends).padded(array)

    def of(self, array: Array) -> Array:
        """View padded data [..., *spatial] as [..., *counts, *kernel]."""
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        views = sliding_window_view(array, reach, tuple(range(-len(reach), 0)))
        steps = [slice(None, None, n) for n in (*self.strides, *self.dilations)]
        return np.asarray(views[*[slice(None)] * (array.ndim - len(reach)), *steps])

    def sums(self, array: Array) -> Array:
        """Return the sums [..., *counts] of the elements in each window of [..., *spatial]."""
        data = self.padded(array)
        lead = [slice(None)] * (data.ndim - len(self.kernel))
        taps = (data[*lead, *self.tap(index)] for index in np.ndindex(*self.kernel))
        return np.asarray(sum(taps, np.zeros((), data.dtype)))

    def tap(self, index: Sequence[int]) -> tuple[slice, ...]:
        """Return the positions of one tap of every window in padded data."""
        return tuple(
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, s, n in zip(index, self.dilations, self.strides, self.counts, strict=True)
        )


def read_windows(
    attributes: RawAttributes, kernel: Sequence[int], extents: Sequence[int]
) -> Windows:
    """Read strides, dilations, pads, auto_pad and ceil_mode of Conv or a pooling operator.

    Args:
        attributes: of the node.
        kernel: extents of the kernel.
        extents: of the data, along the spatial axes.

    Raises:
        UnevaluableError: attributes that do not fit, or no window fits into the data.
    """
    strides, dilations, begins, ends = _steps(attributes, kernel, extents)
    auto_pad = attributes.get("auto_pad", "NOTSET")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    counts = []
    for i, extent in enumerate(extents):
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = max((-(-extent // strides[i]) - 1) * strides[i] + reach[i] - extent, 0)
            begins[i] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            ends[i] = total - begins[i]
        room = extent + begins[i] + ends[i] - reach[i]
        if room < 0:
            raise UnevaluableError(f"a window of {reach[i]} does not fit into {extent} positions")
        count = room // strides[i] + 1
        if attributes.get("ceil_mode"):
            ceil_count = -(-room // strides[i]) + 1
            # A window must begin in the data or in the pad before it.
            count = ceil_count if (ceil_count - 1) * strides[i] < extent + begins[i] else count
            ends[i] += max(0, (count - 1) * strides[i] + reach[i] - (extent + begins[i] + ends[i]))
        counts.append(count)
    return Windows(tuple(kernel), strides, dilations, tuple(begins), tuple(ends), tuple(counts))


def _steps(
    attributes: RawAttributes, kernel: Sequence[int], extents: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], list[int], list[int]]:
    """Return strides, dilations, and the pads before and behind the data.

    Raises:
        UnevaluableError: attributes that do not fit.
    """
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    is_padded = attributes.get("auto_pad", "NOTSET") == "NOTSET" and attributes.get("pads")
    pads = list(attributes["pads"] if is_padded else (0,) * (2 * rank))
    declared = tuple(attributes.get("kernel_shape") or kernel)
    if (len(extents), len(strides), len(dilations), len(pads)) != (rank, rank, rank, 2 * rank):
        raise UnevaluableError(f"its attributes do not fit {len(extents)} spatial axes")
    if declared != tuple(kernel) or min((*strides, *dilations, *kernel), default=1) < 1:
        raise UnevaluableError("its kernel, strides or dilations make no sense")
    return strides, dilations, pads[:rank], pads[rank:]


def read_transposed_windows(
    attributes: RawAttributes, kernel: Sequence[int], extents: Sequence[int]
) -> Windows:
    """Read the attributes of a ConvTranspose: its data lies in windows of its result.

    Args:
        attributes: of the node.
        kernel: extents of the kernel.
        extents: of the data, along the spatial axes.

    Raises:
        UnevaluableError: attributes that do not fit.
    """
    strides, dilations, begins, ends = _steps(attributes, kernel, extents)
    rank = len(kernel)
    output_padding = tuple(attributes.get("output_padding") or (0,) * rank)
    output_shape = attributes.get("output_shape")
    if len(output_padding) != rank or (output_shape and len(output_shape) < rank):
        raise UnevaluableError(f"its attributes do not fit {rank} spatial axes")
    auto_pad = attributes.get("auto_pad", "NOTSET")
    windows = Windows(tuple(kernel), strides, dilations, (), (), tuple(extents))
    check_size(windows.reach)
    if not output_shape and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        # Both the runtime and onnx's inference append no positions that no tap reaches.
        reached = [sum(pair) for pair in zip(windows.reach, output_padding, strict=True)]
        output_shape = [min(n * s, m) for n, s, m in zip(extents, strides, reached, strict=True)]
    for i, full in enumerate(windows.reach):
        if output_shape:
            result = output_shape[len(output_shape) - rank + i]
            if result - full >= strides[i]:
                raise UnevaluableError(f"{extents[i]} positions do not become {result}")
            total = max(full + output_padding[i] - result, 0)
            begins[i] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        else:
            result = full + output_padding[i] - begins[i] - ends[i]
        if result < 1:
            raise UnevaluableError(f"its result would have {result} positions")
        ends[i] = full - begins[i] - result
    return replace(windows, begins=tuple(begins), ends=tuple(ends))


SLICE_BYTES = 1 << 21
"""Most memory for the columns or the products of one slice of a layer."""

_BYTES = 8


def conv(data: Array, weight: Array, group: int, windows: Windows, prime: Modulus) -> Array:
    """Convolve [N, C, *extents] with [O, C / group, *kernel] to [N, O, *counts].

    The data is laid out as columns (im2col), some positions at a time, and multiplied by the
    weight.

    Raises:
        UnevaluableError: the channels do not fit.
    """
    outputs, channels = weight.shape[:2]
    check_groups(data.shape[1], outputs, group, channels)
    rows = weight.reshape(group, outputs // group, channels, *windows.kernel)
    mask = rows.any(axis=(0, 1))  # [C / G, *kernel]: columns that meet only zeros are left out
    rows = rows[:, :, mask]
    # To [N, G, C / G, *kernel, *counts]: what is contiguous along the last axis stays so.
    rank = len(windows.counts)
    views = np.moveaxis(windows.of(windows.padded(data)), range(2, 2 + rank), range(-rank, 0))
    views = views.reshape(len(data), group, channels, *views.shape[2:])
    result = np.empty((len(data), group, outputs // group, *windows.counts), number_type(prime))
    tallest = max(rows.shape[2], outputs // group)
    per_line = group * tallest * math.prod(windows.counts[1:]) * _BYTES
    step = max(1, SLICE_BYTES // max(per_line, 1))
    for sample in range(len(data)):
        for start in range(0, windows.counts[0], step):
            part = result[sample, :, :, start : start + step]
            lines = views[sample][..., start : start + step, *[slice(None)] * (rank - 1)]
            columns = lines[:, mask].reshape(group, rows.shape[2], math.prod(part.shape[2:]))
            part[...] = dot(rows, columns, prime).reshape(part.shape)
    return result.reshape(len(data), outputs, *windows.counts)


def conv_transpose(
    data: Array, weight: Array, group: int, windows: Windows, prime: Modulus
) -> Array:
    """Convolve [N, C, *extents] with [C, O / group, *kernel], transposed, to [N, O, *extents'].

    Raises:
        UnevaluableError: the channels do not fit.
    """
    outputs, count = weight.shape[1] * group, math.prod(windows.counts)
    # The first axis of the weight has the inputs of all groups, the second the outputs of one.
    check_groups(data.shape[1], weight.shape[0], group, weight.shape[0] // max(group, 1))
    columns = data.reshape(len(data), group, data.shape[1] // group, count)
    rows = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:]).swapaxes(1, 2)
    result = np.zeros((len(data), group, weight.shape[1], *windows.reach))
    for index in np.ndindex(*windows.kernel):  # each adds less than 2^23: fewer than 2^29 are exact
        part = result[:, :, :, *windows.tap(index)]
        part += dot(rows[:, :, :, *index], columns, prime).reshape(part.shape)
    result = windows.cut(remainder(result, prime))
    return result.reshape(len(data), outputs, *result.shape[3:])


def check_groups(inputs: int, outputs: int, group: int, channels: int) -> None:
    """Check that a weight [O, C / group, ...] fits data of `inputs` channels.

    Raises:
        UnevaluableError: it does not.
    """
    if group < 1 or inputs != group * channels or outputs % group:
        raise UnevaluableError(
            f"{inputs} channels do not fit a weight of {channels} in {group} groups"
        )
