"""The layers of the grid, as they are and in every form, as ONNX models of a few nodes.

A layer is a Conv and a Neg behind it, so that no form pays for writing a graph output (a Reshape
that makes one is a copy). The input lies as a neighbour would leave it: [N, C, H, W], or, for a
runtime that computes channels-last, [N, H, W, C] with a Transpose before and behind the Conv, which
that runtime cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import helper

from gpu.graphs import serialized
from widthfold_onnx.arrays import Array
from widthfold_onnx.fold.axis import fold_axis, keep_axis
from widthfold_onnx.fold.conv import ConvFold, fold_weight
from widthfold_onnx.fold.conv_axis import ConvAxis, FoldedAxis
from widthfold_onnx.fold.layout import Packing, Step, Transpose, pack
from widthfold_onnx.refusal import Refusal

ALIGN = 8
"""Channels to which cuDNN pads float16 (NVIDIA, Convolutional Layers User's Guide)."""

BLOCKS = (8, 16, 32, 64)
BANDS = (8, 16)
BATCH = 8
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclass(frozen=True)
class Layer:
    """One Conv with "same" pads; `dtype` is numpy's name, `extents` are N, H, W of the input."""

    channels: tuple[int, int]
    kernel: tuple[int, int]
    stride: int
    dtype: str
    extents: tuple[int, int, int]

    def __str__(self) -> str:
        (inputs, outputs), (height, width) = self.channels, self.kernel
        stride = f" s{self.stride}" if self.stride > 1 else ""
        return f"{inputs}->{outputs} {height}x{width}{stride}"

    @property
    def axes(self) -> tuple[ConvAxis, ...]:
        """Geometry of both spatial axes."""
        return tuple(
            ConvAxis(length=n, kernel=k, stride=self.stride, pad_begin=k // 2, pad_end=k // 2)
            for n, k in zip(self.extents[1:], self.kernel, strict=True)
        )

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """[N, C, H, W] of input and output."""
        lengths = tuple(axis.out_length or 0 for axis in self.axes)
        samples = self.extents[0]
        return (samples, self.channels[0], *self.extents[1:]), (samples, self.channels[1], *lengths)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """[O, C, kH, kW]."""
        return (self.channels[1], self.channels[0], *self.kernel)

    @property
    def bytes(self) -> int:
        """Least traffic: the Conv reads x and writes y, the Neg reads and writes y."""
        x, y = map(math.prod, self.shapes)
        return (x + 3 * y) * np.dtype(self.dtype).itemsize

    @property
    def macs(self) -> int:
        """Multiply-adds of the Conv."""
        return math.prod(self.shapes[1]) * math.prod(self.weight_shape[1:])


@dataclass(frozen=True)
class Form:
    """What becomes of a layer: a fold, or channels padded with zeros, or nothing."""

    name: str
    fold: ConvFold | None = None
    padded: tuple[int, int] | None = None

    def macs(self, layer: Layer) -> float:
        """Multiply-adds, structural zeros and padding included."""
        if self.fold is not None:
            return layer.macs * self.fold.flops_growth()
        channels = self.padded or layer.channels
        return layer.macs * math.prod(channels) / math.prod(layer.channels)


AS_IS = Form("none")


def forms(layer: Layer) -> Iterator[Form]:
    """Every form that the layer's extents allow, but the layer as it is."""
    inputs, outputs = (-(-c // ALIGN) * ALIGN for c in layer.channels)
    if (inputs, outputs) != layer.channels:
        yield Form(f"pad {ALIGN}", padded=(inputs, outputs))
    height, width = layer.axes
    kept = keep_axis(height), keep_axis(width)
    samples = layer.extents[0]
    if samples % BATCH == 0:
        yield Form(f"batch {BATCH}", ConvFold(axes=kept, batch=BATCH))
    for factor in BLOCKS:
        rows = _folded(height, factor, factor, blocked=True) if height.kernel == 1 else None
        columns = _folded(width, factor, factor) if width.kernel == 1 else None
        if rows or columns:
            axes = (rows or kept[0], kept[1] if rows else columns or kept[1])
            yield Form(f"block {factor}", ConvFold(axes=axes))
        elif samples % factor == 0:
            yield Form(f"block {factor}", ConvFold(axes=kept, batch=factor, dense=True))
    for factor in BANDS:
        on_width = width.kernel > 1
        banded = _folded(width if on_width else height, factor, factor * layer.stride)
        if banded:
            axes = (kept[0], banded) if on_width else (banded, kept[1])
            yield Form(f"band {factor}", ConvFold(axes=axes))
    rows, columns = (_folded(axis, 1, axis.stride) for axis in layer.axes)
    if layer.stride > 1 and rows and columns:
        yield Form("space-to-depth", ConvFold(axes=(rows, columns)))


def _folded(
    axis: ConvAxis, out_digits: int, in_digits: int, *, blocked: bool = False
) -> FoldedAxis | None:
    """The folded axis, if there is one with nothing to extend or to cut."""
    folded = fold_axis(axis, out_digits, in_digits, blocked=blocked)
    if isinstance(folded, Refusal):
        return None
    lengths = (folded.in_length, folded.out_length)
    return folded if lengths == (axis.length, axis.out_length) else None


def model(layer: Layer, weight: Array, form: Form, *, last: bool) -> bytes:
    """The layer in a form.

    Args:
        layer: the layer.
        weight: [O, C, kH, kW], in the layer's dtype.
        form: what becomes of it.
        last: whether input and output are [N, H, W, C].
    """
    x, y = ([shape[i] for i in TO_LAST] if last else list(shape) for shape in layer.shapes)
    graph = _Line(last)
    if form.fold is None:
        graph.unfolded(layer, weight, form.padded)
    else:
        graph.folded(layer, weight, form.fold)
    graph.add("Neg")
    ports = [("x", layer.dtype, x)], [(graph.end, layer.dtype, y)]
    return serialized(graph.nodes, *ports, graph.constants)


class _Line:
    """Nodes one behind the other."""

    def __init__(self, last: bool) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.end = "x"
        self._last = last

    def add(self, op: str, *constants: Array, **attributes: Any) -> None:
        """A node that reads the end of the line and constants."""
        name = f"{op}{len(self.nodes)}"
        inputs = [f"{name}_{i}" for i in range(len(constants))]
        self.constants |= zip(inputs, constants, strict=True)
        self.nodes.append(helper.make_node(op, [self.end, *inputs], [name], name, **attributes))
        self.end = name

    def unfolded(self, layer: Layer, weight: Array, padded: tuple[int, int] | None) -> None:
        """The Conv as it is, its channels padded with zeros and cut again."""
        axis = 3 if self._last else 1
        inputs, outputs = padded or layer.channels
        if inputs > layer.channels[0]:
            pads = np.zeros(8, np.int64)
            pads[4 + axis] = inputs - layer.channels[0]
            self.add("Pad", pads)
        room = np.zeros((outputs, inputs, *layer.kernel), weight.dtype)
        room[: layer.channels[1], : layer.channels[0]] = weight
        half = [k // 2 for k in layer.kernel]
        if self._last:
            self.add("Transpose", perm=TO_FIRST)
        self.add("Conv", room, pads=half + half, strides=[layer.stride] * 2)
        if self._last:
            self.add("Transpose", perm=TO_LAST)
        if outputs > layer.channels[1]:
            bounds = (0, layer.channels[1], axis)
            self.add("Slice", *(np.array([bound], np.int64) for bound in bounds))

    def folded(self, layer: Layer, weight: Array, fold: ConvFold) -> None:
        """Fold, Conv, unfold."""
        fold = replace(fold, digit_major=self._last)
        ends = (
            [(a.in_digits, a.blocked) for a in fold.axes],
            [(a.out_digits, a.blocked) for a in fold.axes],
        )
        before, after = (
            pack(shape, digits, batch=fold.batch)
            for shape, digits in zip(layer.shapes, ends, strict=True)
        )
        self.move(before, inverse=False)
        self.add(
            "Conv",
            fold_weight(weight, fold),
            group=fold.new_group,
            dilations=[a.dilation for a in fold.axes],
            pads=[a.pad_begin for a in fold.axes] + [a.pad_end for a in fold.axes],
            strides=[a.stride for a in fold.axes],
        )
        self.move(after, inverse=True)

    def move(self, packing: Packing, *, inverse: bool) -> None:
        """The fold of a tensor; channels-last ones begin where the first Transpose ends."""
        folded = packing.steps(digit_major=False)
        if self._last and folded:
            packing = replace(packing, nhwc=packing.nhwc[1:])
        elif self._last:
            self.add("Transpose", perm=TO_LAST if inverse else TO_FIRST)
        for step in packing.steps(digit_major=self._last, inverse=inverse):
            self.step(step)

    def step(self, step: Step) -> None:
        """One Reshape or Transpose."""
        if isinstance(step, Transpose):
            self.add("Transpose", perm=step.order)
        else:
            self.add("Reshape", np.array([n or 0 for n in step.extents], np.int64))
