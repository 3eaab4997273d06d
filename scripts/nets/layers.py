"""List layers to measure, and write each as a model: of few channels, of users, and published ones.

Published figures are context: they are of other devices and libraries, and each source times its
layer in its own way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from make_models import near_normal
from onnx import helper, numpy_helper

BUILD = Path(__file__).resolve().parents[2] / "build"
MIB = 1 << 20
LAYER_BYTES = {"cpu": 4 * MIB, "gpu": 128 * MIB}
"""Input and output of a layer of few channels. On a GPU they exceed the last cache: 50 MB on an
H100, 60 MB on an H200."""

CHANNELS = ((1, 1), (1, 4), (1, 16), (3, 16), (3, 64), (8, 8), (32, 1))
KERNELS = (((3, 3), 1), ((1, 31), 1), ((5, 1), 1), ((7, 7), 2), ((1, 5), 1))
SAMPLES = 64
"""The batch: all factors divide it."""


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
        """Name its file: by its geometry, if it has no name of its own, and by the element type."""
        words = self.name or self.geometry.replace("->", "to").replace(" ", "_")
        return words if self.dtype == "float32" else f"{words}_{self.dtype}"

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
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """[N, C, *spatial] of input and output."""
        (samples, *lengths), (inputs, outputs) = self.extents, self.channels
        results = []
        for length, k, pads in zip(lengths, self.kernel, self.ends, strict=True):
            if self.transposed:
                results.append((length - 1) * self.stride + k - sum(pads))
            else:
                results.append((length + sum(pads) - k) // self.stride + 1)
        return (samples, inputs, *lengths), (samples, outputs, *results)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """[O, C/group, *kernel], of a ConvTranspose [C, O, *kernel]."""
        inputs, outputs = self.channels
        first, second = (inputs, outputs) if self.transposed else (outputs, inputs // self.group)
        return (first, second, *self.kernel)

    def model(self, *, has_neighbour: bool) -> onnx.ModelProto:
        """The layer alone, without bias; its weight is made up, the same every time.

        Args:
            has_neighbour: put a Neg behind it, so that no fold pays for writing a graph output.
        """
        weight = near_normal(str(self), self.weight_shape).astype(self.dtype)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        nodes = [
            helper.make_node(
                "ConvTranspose" if self.transposed else "Conv",
                ["x", "w"],
                ["c" if has_neighbour else "y"],
                "layer",
                group=self.group,
                pads=self.onnx_pads,
                strides=[self.stride] * len(self.kernel),
            )
        ]
        if has_neighbour:
            nodes.append(helper.make_node("Neg", ["c"], ["y"], "neg"))
        x, y = (
            helper.make_tensor_value_info(name, element, shape)
            for name, shape in zip("xy", self.shapes, strict=True)
        )
        constants = [numpy_helper.from_array(weight, "w")]
        graph = helper.make_graph(nodes, "layer", [x], [y], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def written(layers: Iterable[Layer], device: str) -> list[Path]:
    """Write a model of each layer, for "cpu" or "gpu"; on a GPU with a neighbour."""
    folder = BUILD / f"layers-{device}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for layer in layers:
        paths.append(folder / f"{layer}.onnx")
        onnx.save(layer.model(has_neighbour=device == "gpu"), paths[-1])
    return paths


def few_channels(device: str) -> list[Layer]:
    """Layers of few channels, which the paper on width folding is about, and around them.

    On a GPU those in float16 come first, and the same in float32, which is computed in TF32.
    """
    return [
        _of_size(channels, kernel, stride, dtype, LAYER_BYTES[device])
        for dtype in (("float16", "float32") if device == "gpu" else ("float32",))
        for (kernel, stride), channels in itertools.product(KERNELS, CHANNELS)
    ]


def _of_size(
    channels: tuple[int, int], kernel: tuple[int, int], stride: int, dtype: str, size: int
) -> Layer:
    """A layer whose input and output take so many bytes, twice as wide as high."""
    per_position = (channels[0] + channels[1] / stride**2) * np.dtype(dtype).itemsize
    rows = max(16, round(math.sqrt(size / per_position / SAMPLES / 2) / 16) * 16)
    return Layer(channels, kernel, stride, dtype, (SAMPLES, rows, 2 * rows))


def of_users(device: str) -> list[Layer]:
    """1-D layers that users of runtimes report as slow; on a CPU of few positions and channels."""
    dtype, none = "float16" if device == "gpu" else "float32", (0, 0)
    layers = [
        # The inverse of a short-time Fourier transform.
        Layer((1026, 1), (1024,), 256, dtype, (1, 224), none, transposed=True),
        # The transform: 8 x 10 s at 44.1 kHz, 16 s and 20 s at 16 kHz.
        Layer((1, 2050), (2048,), 512, dtype, (8, 2048 + 512 * 863), none),
        # Depthwise: Conformer, Mamba.
        *(Layer((c, c), (31,), 1, dtype, (16, 1024), group=c) for c in (256, 512, 768)),
        Layer((12288, 12288), (4,), 1, dtype, (1, 16384), (3, 0), 12288),
        Layer((1, 130), (128,), 8, dtype, (8, 128 + 8 * 32767), none),
        Layer((1, 102), (100,), 10, dtype, (8, 100 + 10 * 32767), none),
        Layer((2049, 1), (4096,), 1024, dtype, (12, 340), none, transposed=True),
        Layer((4098, 1), (4096,), 1024, dtype, (8, 435), none, transposed=True),
    ]
    return layers if device == "gpu" else [_shrunk(layer) for layer in layers]


def _shrunk(layer: Layer) -> Layer:
    """Divide channels and groups by 16, and leave 8 positions where there is a stride, else 64."""
    inputs, outputs = (max(count // 16, 1) for count in layer.channels)
    lengths = [64 if layer.stride == 1 else 8] * len(layer.kernel)
    if layer.stride > 1 and not layer.transposed:
        reach = (k - sum(pads) for k, pads in zip(layer.kernel, layer.ends, strict=True))
        lengths = [math.ceil(n / layer.stride + 7) * layer.stride for n in reach]
    group = max(layer.group // 16, 1)
    return replace(layer, channels=(inputs, outputs), group=group, extents=(8, *lengths))
