"""Conv and MatMul as loops over the output: find the operands, multiply, add.

ConvTranspose is a loop over input positions: multiply, add to the window. It shares no code with
the package. Integers are summed in int64, everything else in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def conv(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    group: int = 1,
) -> Array:
    """The ONNX Conv of x [N, C, *extents] and w [O, C / group, *kernel], in any rank.

    Pads are ONNX's, all begins and then all ends; a negative one crops.
    """
    arrays = [np.asarray(value) for value in (x, w, 0 if bias is None else bias)]
    wide = np.int64 if all(value.dtype.kind in "iu" for value in arrays) else np.float64
    x, w, b = (value.astype(wide) for value in arrays)
    (samples, channels, *extents), (outputs, group_channels, *kernel) = x.shape, w.shape
    axes = range(len(extents))
    strides = strides or [1] * len(axes)
    dilations = dilations or [1] * len(axes)
    pads = pads or [0] * 2 * len(axes)
    if channels != group * group_channels or outputs % group or len(kernel) != len(axes):
        raise ValueError(f"x {x.shape} and w {w.shape} do not fit together in {group} groups")
    group_outputs = outputs // group

    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        x = extend(x, axis + 2, begin, end)
    reach = [dilations[a] * (kernel[a] - 1) + 1 for a in axes]
    positions = [(x.shape[a + 2] - reach[a]) // strides[a] + 1 for a in axes]
    y = np.zeros((samples, outputs, *positions), wide)
    for position in np.ndindex(*positions):
        first = [strides[a] * position[a] for a in axes]
        window = [slice(first[a], first[a] + reach[a], dilations[a]) for a in axes]
        for g in range(group):
            c = slice(g * group_channels, (g + 1) * group_channels)
            o = slice(g * group_outputs, (g + 1) * group_outputs)
            seen = x[:, c, *window].reshape(samples, -1)
            y[:, o, *position] = seen @ w[o].reshape(group_outputs, -1).T
    return y if bias is None else y + b.reshape(outputs, *[1] * len(axes))


def conv_transpose(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    group: int = 1,
) -> Array:
    """The ONNX ConvTranspose of x [N, C, *extents] and w [C, O / group, *kernel], in any rank.

    Pads are cut off the output, all begins and then all ends; a negative one adds, and so does
    output_padding to the ends.
    """
    arrays = [np.asarray(value) for value in (x, w, 0 if bias is None else bias)]
    wide = np.int64 if all(value.dtype.kind in "iu" for value in arrays) else np.float64
    x, w, b = (value.astype(wide) for value in arrays)
    (samples, channels, *extents), (_, group_outputs, *kernel) = x.shape, w.shape
    axes = range(len(extents))
    strides = strides or [1] * len(axes)
    dilations = dilations or [1] * len(axes)
    pads = pads or [0] * 2 * len(axes)
    more = output_padding or [0] * len(axes)
    if channels != w.shape[0] or channels % group or len(kernel) != len(axes):
        raise ValueError(f"x {x.shape} and w {w.shape} do not fit together in {group} groups")
    reach = [dilations[a] * (kernel[a] - 1) + 1 for a in axes]
    full = [strides[a] * (extents[a] - 1) + reach[a] + more[a] for a in axes]
    y = np.zeros((samples, group * group_outputs, *full), wide)
    for position in np.ndindex(*extents):
        first = [strides[a] * position[a] for a in axes]
        window = tuple(slice(first[a], first[a] + reach[a], dilations[a]) for a in axes)
        for c in range(channels):
            g = c // (channels // group)
            o = slice(g * group_outputs, (g + 1) * group_outputs)
            for n in range(samples):
                y[n, o][:, *window] += x[n, c, *position] * w[c]
    for a in axes:
        y = extend(y, a + 2, -pads[a], -pads[len(axes) + a])
    return y if bias is None else y + b.reshape(-1, *[1] * len(axes))


def extend(x: Array, axis: int, begin: int, end: int) -> Array:
    """Add zeros at both ends of an axis, then cut where a pad is negative."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (max(begin, 0), max(end, 0))
    x = np.pad(x, widths)
    inside = slice(max(-begin, 0), max(x.shape[axis] - max(-end, 0), 0))
    return x[(slice(None),) * axis + (inside,)]


def resolve_auto_pad(
    auto_pad: str,
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """The explicit pads, begins and then ends, that ONNX's auto_pad stands for."""
    if auto_pad == "VALID":
        return [0] * 2 * len(extents)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {auto_pad!r} stands for no pads")
    smaller, larger = [], []
    for extent, taps, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        positions = -(-extent // stride)  # rounded up
        read = (positions - 1) * stride + (taps - 1) * dilation + 1
        total = max(0, read - extent)
        smaller.append(total // 2)
        larger.append(total - total // 2)
    return smaller + larger if auto_pad == "SAME_UPPER" else larger + smaller


def resolve_transposed_pads(
    auto_pad: str,
    extents: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_padding: Sequence[int],
    output_shape: Sequence[int] | None = None,
) -> list[int]:
    """The explicit pads that auto_pad and output_shape of a ConvTranspose stand for.

    Without an output_shape, SAME wants stride times the extent, but no position that the kernel
    does not reach. The odd one is cut off the end for SAME_UPPER, else off the begin. What an
    output_shape wants more than there is is a negative pad at the end.
    """
    expected = output_shape
    if expected is None:
        expected = [extent * stride for extent, stride in zip(extents, strides, strict=True)]
    begins, ends = [], []
    for i, positions in enumerate(expected):
        taps = dilations[i] * (kernel[i] - 1) + 1
        total = strides[i] * (extents[i] - 1) + taps + output_padding[i] - positions
        if output_shape is None:
            total = max(total, 0)
        half = max(total, 0) // 2
        odd = max(total, 0) - half
        first, last = (half, odd) if auto_pad == "SAME_UPPER" else (odd, half)
        begins.append(first)
        ends.append(last + min(total, 0))
    return begins + ends


def matmul(a: npt.ArrayLike, b: npt.ArrayLike) -> Array:
    """The ONNX MatMul of a [.., M, K] and b [.., K, N]; either may be a vector."""
    arrays = [np.asarray(value) for value in (a, b)]
    wide = np.int64 if all(value.dtype.kind in "iu" for value in arrays) else np.float64
    a, b = (value.astype(wide) for value in arrays)
    vector = [a.ndim == 1, b.ndim == 1]
    a, b = a[None] if vector[0] else a, b[:, None] if vector[1] else b
    batches = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    y = np.zeros((*batches, a.shape[-2], b.shape[-1]), wide)
    for at in np.ndindex(*y.shape):
        *batch, m, n = at
        first, other = (_matrix(value, batch) for value in (a, b))
        for k in range(a.shape[-1]):
            y[at] += first[m, k] * other[k, n]
    if vector[0]:
        y = y[..., 0, :]
    return y[..., 0] if vector[1] else y


def _matrix(value: Array, batch: Sequence[int]) -> Array:
    """The matrix of a batch; missing axes and axes of extent 1 stand for any index."""
    used = batch[len(batch) - (value.ndim - 2) :]
    extents = value.shape[:-2]
    return value[tuple(i if extent > 1 else 0 for i, extent in zip(used, extents, strict=True))]


def gemm(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    c: npt.ArrayLike | None = None,
    *,
    alpha: float = 1,
    beta: float = 1,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Array:
    """The ONNX Gemm: alpha * a' * b' + beta * c, where ' transposes if asked to."""
    a, b = np.asarray(a), np.asarray(b)
    y = alpha * matmul(a.T if trans_a else a, b.T if trans_b else b)
    return y if c is None else y + beta * np.asarray(c)
