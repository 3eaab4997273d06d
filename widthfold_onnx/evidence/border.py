"""Where the taps of a Conv lie in its input, once the zeros that it reads are written out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from widthfold_onnx.evidence.chain import Labels
from widthfold_onnx.fold.conv_axis import ConvAxis


def border(
    image: Labels, axes: Sequence[ConvAxis], sample: Labels, places: Sequence[Labels]
) -> tuple[Labels, Labels, Labels]:
    """Put zeros into images (base dilation) and around them, and index them flat.

    Args:
        image: [classes, N, *spatial].
        axes: geometry of the Conv that reads them.
        sample: sample of every output element.
        places: per axis the position of every output element.

    Returns:
        The images; per output element the flat index of its first tap in the first class; per tap
        how far it lies behind the first.
    """
    for i, axis in enumerate(axes, 2):
        image = _spread(image, i, axis.base_dilation)
    leads = [max(0, axis.pad_begin) for axis in axes]
    widths = [(0, 0), (0, 0)]
    for axis, lead, extent in zip(axes, leads, image.shape[2:], strict=True):
        last = axis.stride * ((axis.out_length or 1) - 1) + axis.dilation * (axis.kernel - 1)
        widths.append((lead, max(0, last - axis.pad_begin + 1 - extent)))
    padded = np.pad(image, widths)
    strides = np.array(padded.strides[1:]) // padded.itemsize
    first = sample * strides[0]
    for axis, lead, stride, place in zip(axes, leads, strides[1:], places, strict=True):
        first = first + (axis.stride * place - axis.pad_begin + lead) * stride
    taps = np.indices([axis.kernel for axis in axes]).reshape(len(axes), -1)
    reach = np.array([axis.dilation for axis in axes]) * strides[1:]
    return padded, first, reach @ taps


def _spread(image: Labels, axis: int, step: int) -> Labels:
    """Put step - 1 zeros between two positions along an axis."""
    extents = list(image.shape)
    extents[axis] = (extents[axis] - 1) * step + 1
    spread = np.zeros(extents, image.dtype)
    spread[(slice(None),) * axis + (slice(None, None, step),)] = image
    return spread
