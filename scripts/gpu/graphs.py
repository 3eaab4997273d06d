"""Make ONNX models of a few nodes: any graph, and a layer in one of its forms.

A layer is a Conv and a Neg behind it, so that no form pays for writing a graph output (a Reshape
that makes one is a copy). The input lies as a neighbour would leave it: [N, C, H, W], or, for a
runtime that computes channels-last, [N, H, W, C] with a Transpose before and behind the Conv, which
that runtime cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper, numpy_helper

from gpu.layers import Array, Form, Layer
from widthfold_onnx.algebra.conv import ConvFold, fold_weight
from widthfold_onnx.algebra.packing import Packing, Transpose, pack

Port = tuple[str, npt.DTypeLike, Sequence[int] | None]
"""Name, type and shape of an input or an output; None leaves the shape to the runtime."""


def serialized(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: Mapping[str, Array],
) -> bytes:
    """Return a model of opset 17, which every runtime of today reads."""
    graph = helper.make_graph(
        nodes,
        "part",
        [_value(port) for port in inputs],
        [_value(port) for port in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    return bytes(helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())


def _value(port: Port) -> Any:
    name, dtype, shape = port
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element, shape)


def to_last(rank: int) -> list[int]:
    """Return the order that makes [N, C, *spatial] channels-last."""
    return [0, *range(2, rank + 2), 1]


def packings(layer: Layer, fold: ConvFold) -> tuple[Packing, Packing]:
    """Return how a fold packs input and output."""
    x, y = layer.shapes
    before, after = fold.layout(output=False).tiles, fold.layout(output=True).tiles
    return (
        pack(x, before, tile_major=fold.tile_major, group=fold.group, batch=fold.batch),
        pack(y, after, tile_major=fold.tile_major, group=fold.group, batch=fold.batch),
    )


def model(layer: Layer, weight: Array, form: Form, *, last: bool) -> bytes:
    """Return the layer in a form.

    Args:
        layer: the layer.
        weight: of `layer.weight_shape`, in the layer's dtype.
        form: what replaces the layer.
        last: whether input and output are channels-last.
    """
    order = to_last(len(layer.kernel))
    x, y = ([shape[i] for i in order] if last else list(shape) for shape in layer.shapes)
    graph = _Line(layer, last)
    if form.fold is None:
        graph.unfolded(weight, form.padded)
    else:
        graph.folded(weight, form.fold)
    graph.add("Neg")
    ports = [("x", layer.dtype, x)], [(graph.end, layer.dtype, y)]
    return serialized(graph.nodes, *ports, graph.constants)


class _Line:
    """Nodes of a layer, one behind the other."""

    def __init__(self, layer: Layer, last: bool) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.end = "x"
        self._layer, self._last = layer, last
        self._to_last = to_last(len(layer.kernel))
        self._to_first = [self._to_last.index(i) for i in range(len(self._to_last))]

    def add(self, op: str, *constants: Array, **attributes: Any) -> None:
        """Add a node that reads the end of the line and constants."""
        name = f"{op}{len(self.nodes)}"
        inputs = [f"{name}_{i}" for i in range(len(constants))]
        self.constants |= zip(inputs, constants, strict=True)
        self.nodes.append(helper.make_node(op, [self.end, *inputs], [name], name, **attributes))
        self.end = name

    def unfolded(self, weight: Array, padded: tuple[int, int] | None) -> None:
        """Add the operator as it is; channels are padded with zeros before and cut behind it."""
        layer = self._layer
        (inputs, outputs), (wide, more) = layer.channels, padded or layer.channels
        rank, axis = len(layer.shapes[0]), -1 if self._last else 1
        if wide > inputs:
            pads = np.zeros((2, rank), np.int64)
            pads[1, axis] = wide - inputs
            self.add("Pad", pads.ravel())
        stored = replace(layer, channels=(wide, more)).weight_shape
        grown = [(0, n - old) for n, old in zip(stored, weight.shape, strict=True)]
        room = np.pad(weight, grown)
        if self._last:
            self.add("Transpose", perm=self._to_first)
        self.add(
            "ConvTranspose" if layer.transposed else "Conv",
            room,
            group=layer.group,
            pads=layer.onnx_pads,
            strides=[layer.stride] * len(layer.kernel),
        )
        if self._last:
            self.add("Transpose", perm=self._to_last)
        if more > outputs:
            bounds = (0, outputs, axis)
            self.add("Slice", *(np.array([bound], np.int64) for bound in bounds))

    def folded(self, weight: Array, fold: ConvFold) -> None:
        """Add fold, Conv and unfold."""
        fold = replace(fold, tile_major=self._last)
        before, after = packings(self._layer, fold)
        self._move(before, inverse=False)
        self.add(
            "Conv",
            fold_weight(self._layer.as_conv(weight), fold),
            group=fold.new_group,
            dilations=[axis.dilation for axis in fold.axes],
            pads=[a.pad_begin for a in fold.axes] + [a.pad_end for a in fold.axes],
            strides=[axis.stride for axis in fold.axes],
        )
        self._move(after, inverse=True)

    def _move(self, packing: Packing, *, inverse: bool) -> None:
        """Fold a tensor; a channels-last one begins where the first Transpose ends."""
        if self._last and packing.moves:
            packing = replace(packing, path=packing.path[1:])
        elif self._last:
            self.add("Transpose", perm=self._to_last if inverse else self._to_first)
        for move in packing.inverse_moves if inverse else packing.moves:
            if isinstance(move, Transpose):
                self.add("Transpose", perm=move.order)
            else:
                self.add("Reshape", np.array([n or 0 for n in move.extents], np.int64))
