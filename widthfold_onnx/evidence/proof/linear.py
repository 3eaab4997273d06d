"""Computes Conv, ConvTranspose and pooling, modulo one prime or with real numbers."""

from __future__ import annotations

import math

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.field import TERMS, Modulus, added, dot, number_type, reduced
from widthfold_onnx.evidence.proof.geometry import Windows
from widthfold_onnx.evidence.proof.values import UnevaluableError

SLICE_BYTES = 1 << 21
"""Most memory for the columns or the products of one slice of a layer."""

_BYTES = 8


def conv(data: Array, weight: Array, group: int, at: Windows, prime: Modulus) -> Array:
    """Convolve [N, C, *extents] with [O, C / group, *kernel] to [N, O, *counts].

    The data is laid out as columns (im2col), some positions and `TERMS` taps at a time, and
    multiplied by the weight.

    Raises:
        UnevaluableError: the channels do not fit.
    """
    outputs, channels = weight.shape[:2]
    check_groups(data.shape[1], outputs, group, channels)
    padded = at.padded(data)
    rows = weight.reshape(group, outputs // group, channels, *at.kernel)
    used = rows.any(axis=(0, 1))  # [C / G, *kernel]: columns that meet only zeros are left out
    rows = rows.reshape(*rows.shape[:2], -1) if used.all() else rows[:, :, used]
    taps = np.nonzero(used)
    # To [N, G, C / G, *kernel, *counts], where runs along the last axis stay runs.
    rank = len(at.counts)
    seen = np.moveaxis(at.of(padded), range(2, 2 + rank), range(-rank, 0))
    seen = seen.reshape(len(data), group, channels, *seen.shape[2:])
    result = np.empty((len(data), group, outputs // group, *at.counts), number_type(prime))
    tallest = max(min(rows.shape[2], TERMS), outputs // group)
    per_line = group * tallest * math.prod(at.counts[1:]) * _BYTES
    step = max(1, SLICE_BYTES // max(per_line, 1))
    for sample in range(len(data)):
        for start in range(0, at.counts[0], step):
            part = slice(start, min(start + step, at.counts[0]))
            lines = seen[sample][..., part, *[slice(None)] * (rank - 1)]
            places = lines.shape[2 + rank :]
            product = None
            for first in range(0, max(rows.shape[2], 1), TERMS):
                terms = slice(first, first + TERMS)
                columns = lines[:, *(axis[terms] for axis in taps)]
                columns = columns.reshape(*columns.shape[:2], math.prod(places))
                product = added(product, rows[..., terms], columns, prime)
            assert product is not None
            result[sample, :, :, part] = product.reshape(group, outputs // group, *places)
    return result.reshape(len(data), outputs, *at.counts)


def conv_transpose(data: Array, weight: Array, group: int, at: Windows, prime: Modulus) -> Array:
    """Convolve [N, C, *extents] with [C, O / group, *kernel], transposed, to [N, O, *extents'].

    Raises:
        UnevaluableError: the channels do not fit.
    """
    outputs, positions = weight.shape[1] * group, math.prod(at.counts)
    check_groups(data.shape[1], outputs, group, weight.shape[0] // max(group, 1))
    result = np.zeros((len(data), group, weight.shape[1], *at.reach))
    columns = data.reshape(len(data), group, data.shape[1] // group, positions)
    rows = weight.reshape(group, weight.shape[0] // group, weight.shape[1], -1)
    step = max(1, SLICE_BYTES // max(len(data) * outputs * positions * _BYTES, 1))
    for start in range(0, rows.shape[3], step):
        taps = rows[..., start : start + step]
        flat = taps.reshape(group, taps.shape[1], -1).swapaxes(1, 2)
        product = dot(flat, columns, prime)
        product = product.reshape(len(data), group, weight.shape[1], taps.shape[3], *at.counts)
        for i in range(product.shape[3]):
            tap = np.unravel_index(start + i, at.kernel)
            result[:, :, :, *at.tap([int(k) for k in tap])] += product[:, :, :, i]
            if (start + i + 1) % TERMS == 0:
                reduced(result, prime)
    result = at.cut(reduced(result, prime))
    return result.reshape(len(data), outputs, *result.shape[3:])


def check_groups(given: int, outputs: int, group: int, channels: int) -> None:
    """Check that a weight [O, C / group, ...] fits data of `given` channels.

    Raises:
        UnevaluableError: it does not.
    """
    if group < 1 or given != group * channels or outputs % group:
        raise UnevaluableError(
            f"{given} channels do not fit a weight of {channels} in {group} groups"
        )
