"""List the layers to measure, and the forms that each may take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, fold_axis, keep_axis
from widthfold_onnx.algebra.channels import Grouping, Regrouping
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.refusal import Refusal

ALIGN = 8
"""Channels to which cuDNN pads float16 (NVIDIA, Convolutional Layers User's Guide)."""

BLOCKS = (8, 16, 32, 64)
BANDS = (8, 16)
PIXELS = 4
"""Positions of the output, along every axis with more than a tap, that become channels: 16 of an
image. The input stays as it is, and is read with a stride."""
GROUPS = (8, 16)
"""Groups of a layer that are joined to one."""

HEAVY = 2.0
"""A form is left out if its weight takes so many times the bytes of the layer: it is read, too."""

BATCH = 8

CHANNELS = ((1, 1), (1, 4), (1, 16), (3, 16), (3, 64), (8, 8), (32, 1))
KERNELS = (((5, 1), 1), ((1, 5), 1), ((3, 3), 1), ((7, 7), 2), ((1, 31), 1))
SAMPLES = 64
"""The batch of the paper's grid: all factors divide it."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """One Conv or ConvTranspose.

    Attributes:
        channels: of input and output.
        kernel: an extent per spatial axis.
        stride: of every axis.
        dtype: numpy's name.
        extents: N and the spatial extents of the input.
        pads: before and behind every axis; None for pads that keep the extents at stride 1.
        group: groups; a ConvTranspose has one.
        transposed: whether it is a ConvTranspose.
        name: its name in results; "": by its geometry.
    """

    channels: tuple[int, int]
    kernel: tuple[int, ...]
    stride: int
    dtype: str
    extents: tuple[int, ...]
    pads: tuple[int, int] | None = None
    group: int = 1
    transposed: bool = False
    name: str = ""

    def __str__(self) -> str:
        """Name it."""
        return self.name or self.geometry

    @property
    def geometry(self) -> str:
        """Operator, channels and kernel, its height first."""
        inputs, outputs = self.channels
        words = ["ConvTranspose"] if self.transposed else []
        words += [f"{inputs}->{outputs}", "x".join(map(str, self.kernel))]
        words += [f"s{self.stride}"] if self.stride > 1 else []
        if self.group > 1:
            words += ["depthwise" if self.group == inputs == outputs else f"{self.group} groups"]
        return " ".join(words)

    @property
    def ends(self) -> list[tuple[int, int]]:
        """Pads before and behind each axis."""
        return [self.pads or (k // 2, k // 2) for k in self.kernel]

    @property
    def onnx_pads(self) -> list[int]:
        """Pads as ONNX lists them: before all axes, then behind all."""
        return [pad for side in zip(*self.ends, strict=True) for pad in side]

    @property
    def axes(self) -> tuple[ConvAxis, ...]:
        """Geometry of the spatial axes, of a ConvTranspose as a Conv (`algebra.axis`)."""
        axes = []
        for length, k, (begin, end) in zip(self.extents[1:], self.kernel, self.ends, strict=True):
            axis = ConvAxis(length=length, kernel=k, pad_begin=begin, pad_end=end)
            if self.transposed:
                mirrored = replace(axis, pad_begin=k - 1 - begin, pad_end=k - 1 - end)
                axes.append(replace(mirrored, base_dilation=self.stride))
            else:
                axes.append(replace(axis, stride=self.stride))
        return tuple(axes)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """[N, C, *spatial] of input and output."""
        lengths = tuple(axis.out_length or 0 for axis in self.axes)
        samples = self.extents[0]
        return (samples, self.channels[0], *self.extents[1:]), (samples, self.channels[1], *lengths)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """[O, C/group, *kernel], of a ConvTranspose [C, O, *kernel]."""
        inputs, outputs = self.channels
        first, second = (inputs, outputs) if self.transposed else (outputs, inputs // self.group)
        return (first, second, *self.kernel)

    def as_conv(self, weight: Array) -> Array:
        """Return the weight of the Conv whose geometry `axes` is."""
        if not self.transposed:
            return weight
        return np.flip(weight.swapaxes(0, 1), tuple(range(2, weight.ndim)))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Least traffic: x and weight are read, y is written, and by the Neg read and written."""
        x, y = map(math.prod, self.shapes)
        return (x + 3 * y + math.prod(self.weight_shape)) * self.itemsize

    @property
    def macs(self) -> int:
        """Multiply-adds: every weight of an output channel at every position."""
        shape = self.shapes[not self.transposed]
        return math.prod(shape) * math.prod(self.weight_shape[1:])


@dataclass(frozen=True)
class Form:
    """A form of a layer: a fold, or channels padded with zeros, or the layer as it is."""

    name: str
    fold: ConvFold | None = None
    padded: tuple[int, int] | None = None

    def macs(self, layer: Layer) -> float:
        """Return the multiply-adds, structural zeros and padding included."""
        if self.fold is not None:
            x, y = (math.prod(shape[2:]) for shape in layer.shapes)
            return layer.macs * self.fold.flops_growth(y / x if layer.transposed else 1.0)
        channels = self.padded or layer.channels
        return layer.macs * math.prod(channels) / math.prod(layer.channels)


AS_IS = Form("none")


def paper(dtype: str, size: int) -> list[Layer]:
    """Return the grid of few channels that the paper is about, and around it.

    Args:
        dtype: numpy's name.
        size: bytes of input and output together, about.
    """
    return [
        paper_layer(channels, kernel, stride, dtype, size)
        for channels, (kernel, stride) in itertools.product(CHANNELS, KERNELS)
    ]


def paper_layer(
    channels: tuple[int, int], kernel: tuple[int, int], stride: int, dtype: str, size: int
) -> Layer:
    """Return a layer of such a size that is twice as wide as high; its pads keep the extents."""
    per_position = (channels[0] + channels[1] / stride**2) * np.dtype(dtype).itemsize
    height = math.sqrt(size / per_position / SAMPLES / 2)
    rows = max(64, round(height / 64) * 64)
    return Layer(channels, kernel, stride, dtype, (SAMPLES, rows, 2 * rows))


def users(dtype: str, *, quick: bool = False) -> list[Layer]:
    """Return 1-D layers that users of runtimes report as slow.

    Args:
        dtype: numpy's name.
        quick: with few positions and channels.
    """
    none = (0, 0)
    layers = [
        # The inverse of a short-time Fourier transform.
        Layer((2049, 1), (4096,), 1024, dtype, (12, 340), none, transposed=True),
        Layer((4098, 1), (4096,), 1024, dtype, (8, 435), none, transposed=True),
        Layer((1026, 1), (1024,), 256, dtype, (1, 224), none, transposed=True),
        # The transform: 8 x 10 s at 44.1 kHz, 16 s and 20 s at 16 kHz.
        Layer((1, 2050), (2048,), 512, dtype, (8, 2048 + 512 * 863), none),
        Layer((1, 130), (128,), 8, dtype, (8, 128 + 8 * 32767), none),
        Layer((1, 102), (100,), 10, dtype, (8, 100 + 10 * 32767), none),
        # Depthwise: Conformer, Mamba.
        *(Layer((c, c), (31,), 1, dtype, (16, 1024), group=c) for c in (256, 512, 768)),
        Layer((12288, 12288), (4,), 1, dtype, (1, 16384), (3, 0), 12288),
    ]
    return [shrink(layer) for layer in layers] if quick else layers


def shrink(layer: Layer) -> Layer:
    """Divide channels and groups by 16, and leave 8 positions where there is a stride, else 64."""
    inputs, outputs = (max(count // 16, 1) for count in layer.channels)
    lengths = [64 if layer.stride == 1 else 8] * len(layer.kernel)
    if layer.stride > 1 and not layer.transposed:
        reach = (k - sum(pads) for k, pads in zip(layer.kernel, layer.ends, strict=True))
        lengths = [math.ceil(n / layer.stride + 7) * layer.stride for n in reach]
    group = max(layer.group // 16, 1)
    return replace(layer, channels=(inputs, outputs), group=group, extents=(8, *lengths))


def forms(layer: Layer) -> list[Form]:
    """Return the forms that the extents allow and that are not `HEAVY`; the layer is none."""
    weight = math.prod(layer.weight_shape) * layer.itemsize
    return [
        form
        for form in _every_form(layer)
        if form.fold is None or weight * form.fold.weight_growth() < HEAVY * layer.bytes
    ]


def _every_form(layer: Layer) -> Iterator[Form]:
    inputs, outputs = (-(-count // ALIGN) * ALIGN for count in layer.channels)
    padded = []
    if (inputs, outputs) != layer.channels and layer.group == 1:
        padded = [Form(f"pad {ALIGN}", padded=(inputs, outputs))]
    if layer.transposed:
        tiles = dict.fromkeys(_spatial(layer), (layer.stride, 1))
        yield from _axis_form("sub-pixel", layer, tiles)
        yield from padded  # last, since it takes seconds
        return
    yield from padded
    unfolded = tuple(map(keep_axis, layer.axes))
    if layer.extents[0] % BATCH == 0:
        yield Form(f"batch {BATCH}", ConvFold(axes=unfolded, group=layer.group, batch=BATCH))
    pointwise = [i for i in _spatial(layer) if layer.kernel[i] == 1]
    for factor in BLOCKS if layer.group == 1 else ():
        if pointwise:
            yield from _axis_form(f"block {factor}", layer, {pointwise[0]: (factor, factor)})
        elif layer.extents[0] % factor == 0:
            yield Form(f"block {factor}", ConvFold(axes=unfolded, batch=factor, dense=True))
    along = max(i for i in _spatial(layer) if layer.kernel[i] > 1)
    for factor in BANDS:
        tiles = {along: (factor, factor * layer.stride)}
        yield from _axis_form(f"band {factor}", layer, tiles)
    if layer.channels[1] < ALIGN:
        tiles = {i: (PIXELS, 1) for i in _spatial(layer) if layer.kernel[i] > 1}
        yield from _axis_form(f"pixels {PIXELS}", layer, tiles)
    if layer.stride > 1:
        tiles = dict.fromkeys(_spatial(layer), (1, layer.stride))
        yield from _axis_form("space-to-depth", layer, tiles)
    for size in GROUPS if layer.group > 1 else ():
        if layer.group % size:
            continue
        before, after = (Grouping(*layer.channels, n) for n in (layer.group, layer.group // size))
        joined = ConvFold(axes=unfolded, group=after.group, regrouping=Regrouping(before, after))
        yield Form(f"groups of {size}", joined)


def _spatial(layer: Layer) -> range:
    return range(len(layer.kernel))


def _axis_form(name: str, layer: Layer, tiles: Mapping[int, tuple[int, int]]) -> Iterator[Form]:
    """Yield a fold of some axes, if there is one with nothing to extend or to cut.

    Args:
        name: of the form.
        layer: the layer.
        tiles: by axis, how many positions of output and input become channels.
    """
    axes: list[FoldedAxis] = []
    for i, axis in enumerate(layer.axes):
        if i not in tiles:
            axes.append(keep_axis(axis))
            continue
        # The outer part of the axis next to the channels becomes channels by a Reshape.
        folded = fold_axis(axis, *tiles[i], blocked=i == 0 and axis.kernel == 1)
        if isinstance(folded, Refusal):
            return
        if (folded.extended_length, folded.extended_out_length) != (axis.length, axis.out_length):
            return
        axes.append(folded)
    yield Form(name, ConvFold(axes=tuple(axes), group=layer.group))
