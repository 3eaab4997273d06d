"""Conv and ConvTranspose for onnx's reference implementation.

Its own Conv takes seconds where a product of matrices per tap takes milliseconds, and its own
ConvTranspose fails with groups (onnx 1.23.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx.reference.op_run import OpRun

from widthfold_onnx.runtime.ports import Array

Ints = Sequence[int] | None


class Conv(OpRun):
    """Conv in the element type of its inputs, as one product of matrices per tap."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str = "NOTSET",
        dilations: Ints = None,
        group: int = 1,
        kernel_shape: Ints = None,
        pads: Ints = None,
        strides: Ints = None,
    ) -> tuple[Array]:
        rank = w.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        reach = _reach(w, dilations)
        begins, ends = _pads(auto_pad, pads or [0] * 2 * rank, x.shape[2:], strides, reach)
        x = np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
        out = [(e - r) // s + 1 for e, r, s in zip(x.shape[2:], reach, strides, strict=True)]
        x = x.reshape(x.shape[0], group, -1, *x.shape[2:])
        w = w.reshape(group, -1, *w.shape[1:])
        y = np.zeros((x.shape[0], group, w.shape[1], math.prod(out)), x.dtype)
        for tap in np.ndindex(*w.shape[3:]):
            seen = x[:, :, :, *_places(tap, dilations, strides, out)].reshape(*x.shape[:3], -1)
            y += w[:, :, :, *tap] @ seen
        y = y.reshape(x.shape[0], -1, *out)
        return (_biased(y, b),)


class ConvTranspose(OpRun):
    """ConvTranspose in any number of groups: every tap adds a product of matrices."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str = "NOTSET",
        dilations: Ints = None,
        group: int = 1,
        kernel_shape: Ints = None,
        output_padding: Ints = None,
        output_shape: Ints = None,
        pads: Ints = None,
        strides: Ints = None,
    ) -> tuple[Array]:
        rank = w.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        extents = x.shape[2:]
        full = [
            s * (extent - 1) + r + more
            for s, extent, r, more in zip(
                strides, extents, _reach(w, dilations), output_padding or [0] * rank, strict=True
            )
        ]
        if auto_pad.startswith("SAME") and not output_shape:
            output_shape = [s * extent for s, extent in zip(strides, extents, strict=True)]
        if output_shape:
            total = [f - wanted for f, wanted in zip(full, output_shape[-rank:], strict=True)]
            # What the kernel does not reach, less than a stride, lies behind the rest.
            grown = [
                max(0, -t) if more - t < s else 0
                for t, s, more in zip(total, strides, output_padding or [0] * rank, strict=True)
            ]
            full = [f + g for f, g in zip(full, grown, strict=True)]
            total = [t + g for t, g in zip(total, grown, strict=True)]
            begins = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
            ends = [t - begin for t, begin in zip(total, begins, strict=True)]
        else:
            pads = pads or [0] * 2 * rank
            begins, ends = list(pads[:rank]), list(pads[rank:])
        if min([*begins, *ends]) < 0:
            raise RuntimeError("ConvTranspose with negative padding")
        x = x.reshape(x.shape[0], group, -1, math.prod(extents))
        w = w.reshape(group, -1, *w.shape[1:])
        y = np.zeros((x.shape[0], group, w.shape[2], *full), x.dtype)
        for tap in np.ndindex(*w.shape[3:]):
            product = np.swapaxes(w[:, :, :, *tap], 1, 2) @ x
            y[:, :, :, *_places(tap, dilations, strides, extents)] += product.reshape(
                *product.shape[:3], *extents
            )
        y = y.reshape(x.shape[0], -1, *full)
        kept = [slice(b, f - e) for b, e, f in zip(begins, ends, full, strict=True)]
        return (_biased(y[:, :, *kept], b),)


def _biased(y: Array, b: Array | None) -> Array:
    return y if b is None else np.asarray(y + b.reshape(-1, *[1] * (y.ndim - 2)))


def _reach(w: Array, dilations: Sequence[int]) -> list[int]:
    """Extent from the first to the last tap of a kernel along each spatial axis."""
    return [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]


def _places(
    tap: tuple[int, ...], dilations: Sequence[int], strides: Sequence[int], counts: Sequence[int]
) -> list[slice]:
    """Where a tap meets the positions of the larger side of a convolution."""
    return [
        slice(d * t, d * t + s * (n - 1) + 1, s)
        for t, d, s, n in zip(tap, dilations, strides, counts, strict=True)
    ]


def _pads(
    auto_pad: str,
    pads: Sequence[int],
    extents: Sequence[int],
    strides: Sequence[int],
    reach: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Zeros before and after each spatial axis of a Conv."""
    rank = len(extents)
    if not auto_pad.startswith("SAME"):
        return list(pads[:rank]), list(pads[rank:])
    total = [
        max(0, (-(-extent // s) - 1) * s + r - extent)
        for extent, s, r in zip(extents, strides, reach, strict=True)
    ]
    less = [t // 2 for t in total]
    more = [t - half for t, half in zip(total, less, strict=True)]
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)
