"""Quantized convolutions of random integers, and what the loop oracle says they return.

Scales are powers of two and sums stay below 2**24, so that nothing rounds but the output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests import running
from tests.oracle import conv, conv_transpose
from tests.running import LEVELS, Array


@dataclass(frozen=True, kw_only=True)
class Case:
    """One convolution; `op` is the operator, with "QDQ" before it between (de)quantizers.

    Attributes:
        kinds: element types of data and weight; the output has the type of the data.
        per_channel: each output channel of the weight has a scale and a zero point of its own.
        pads: as the attributes resolve them.
        plain: a weight between dequantized data and bias is held in floats.
        behind: an operator between DequantizeLinear and convolution that changes no number.
        saturates: weights have all 8 bits, also where the kernel saturates on some CPUs.
    """

    op: str
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    kinds: tuple[type[Any], type[Any]] = (np.uint8, np.int8)
    per_channel: bool = True
    bias: bool = True
    attributes: dict[str, Any] = field(default_factory=dict)
    pads: tuple[int, ...] = ()
    opset: int = 17
    open_axes: frozenset[int] = frozenset()
    seed: int = 0
    plain: bool = False
    behind: onnx.NodeProto | None = None
    saturates: bool = False

    @property
    def node(self) -> str:
        return self.op.removeprefix("QDQ ")

    @property
    def group(self) -> int:
        return int(self.attributes.get("group", 1))

    @property
    def outputs(self) -> int:
        return self.weight[1] * self.group if self.node == "ConvTranspose" else self.weight[0]

    @property
    def out_axis(self) -> int:
        return int(self.node == "ConvTranspose")

    @property
    def bits(self) -> int:
        """Bits of weight and zero point: 7 where the kernel saturates on some CPUs."""
        # The runtime makes signed data unsigned where it is quantized and dequantized.
        unsigned = self.kinds[0] is np.uint8 or self.node != self.op
        exact = self.kinds[1] is np.uint8 if unsigned else self.kinds[1] is np.int8
        return 8 if self.saturates or exact else 7

    def data(self) -> Array:
        return whole(self.kinds[0], np.random.default_rng(self.seed + 1), self.shape)

    def constants(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed)
        data, weight = self.kinds
        count = self.weight[self.out_axis]
        numbers: dict[str, Array] = {
            "xs": np.array(0.25, np.float32),
            "xz": whole(data, rng, ()),
            "w": whole(weight, rng, self.weight, self.bits),
            "ws": 2.0 ** -rng.integers(1, 5, count).astype(np.float32),
            "wz": distinct(weight, rng, count, self.bits),
            "ys": np.array(2.0 ** rng.integers(5, 9), np.float32),
            "yz": whole(data, rng, ()),
            "b": rng.integers(-9999, 9999, self.outputs).astype(np.int32),
        }
        if not self.per_channel:
            numbers |= {"ws": numbers["ws"][0], "wz": numbers["wz"][0]}
        return {name: np.asarray(array) for name, array in numbers.items()}

    def model(self) -> onnx.ModelProto:
        numbers = self.constants()
        bias = ["b"] if self.bias else []
        if self.node == "ConvInteger":
            nodes = [helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], "c")]
        elif self.node == "QLinearConv":
            inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", *bias]
            nodes = [helper.make_node("QLinearConv", inputs, ["y"], "c")]
        else:
            axis = {"axis": self.out_axis} if self.per_channel else {}
            nodes = [
                helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
                helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], **axis),
                helper.make_node(self.node, ["xf", "wf", *(["bf"] if bias else [])], ["yf"], "c"),
                helper.make_node("QuantizeLinear", ["yf", "ys", "yz"], ["y"]),
            ]
            if bias:
                numbers["bs"] = np.asarray(numbers["xs"] * numbers["ws"])
                if self.per_channel:
                    numbers["bs"] = np.tile(numbers["bs"], self.group if self.out_axis else 1)
                along = {"axis": 0} if self.per_channel else {}
                nodes.insert(0, helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"], **along))
            if self.plain:
                nodes = [node for node in nodes if node.output[0] != "wf"]
                numbers["wf"] = self.weight_of_floats()
            if self.behind is not None:
                nodes = [self._moved(node) for node in nodes]
                nodes.insert(-2, self.behind)
        nodes[-1 if self.node == self.op else -2].attribute.extend(
            helper.make_attribute(name, value) for name, value in self.attributes.items()
        )
        used = {name for node in nodes for name in node.input}
        dims = [f"d{i}" if i in self.open_axes else n for i, n in enumerate(self.shape)]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.kinds[0]))
        out = helper.np_dtype_to_tensor_dtype(np.dtype(self.out_kind))
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", kind, dims)],
            [helper.make_tensor_value_info("y", out, [None] * len(dims))],
            [numpy_helper.from_array(a, name) for name, a in numbers.items() if name in used],
        )
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def weight_of_floats(self) -> Array:
        """The weight, dequantized."""
        numbers, shape = self.constants(), [1] * len(self.weight)
        if self.per_channel:
            shape[self.out_axis] = -1
        less = numbers["w"].astype(np.float32) - numbers["wz"].reshape(shape).astype(np.float32)
        return np.asarray(less * numbers["ws"].reshape(shape))

    def _moved(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node with the output of `behind` in the place of its dequantized data."""
        assert self.behind is not None
        moved = onnx.NodeProto()
        moved.CopyFrom(node)
        moved.input[:] = [self.behind.output[0] if n == "xf" else n for n in node.input]
        return moved

    @property
    def out_kind(self) -> type[Any]:
        return np.int32 if self.node == "ConvInteger" else self.kinds[0]

    def sums(self, data: Array) -> Array:
        """Sums in the accumulators, by the oracle."""
        numbers = {name: array.astype(np.int64) for name, array in self.constants().items()}
        x = data.astype(np.int64) - numbers["xz"]
        shape = [1] * len(self.weight)
        if self.per_channel:
            shape[self.out_axis] = -1
        w = numbers["w"] - numbers["wz"].reshape(shape)
        bias = numbers["b"] if self.bias and self.node != "ConvInteger" else None
        names = ("strides", "dilations", "group")
        settings = {name: self.attributes[name] for name in names if name in self.attributes}
        function = conv_transpose if self.node == "ConvTranspose" else conv
        return np.asarray(function(x, w, bias, pads=list(self.pads) or None, **settings))

    def expected(self, data: Array) -> Array:
        """The oracle's result for some data."""
        sums, numbers = self.sums(data), self.constants()
        if self.node == "ConvInteger":
            return sums.astype(np.int32)
        assert np.abs(sums).max() < 1 << 24
        scale = np.tile(numbers["ws"].ravel(), self.outputs // numbers["ws"].size)
        real = sums * (scale * numbers["xs"] / numbers["ys"]).reshape(-1, *[1] * (sums.ndim - 2))
        stepped = np.rint(real) + numbers["yz"].astype(np.int64)
        return np.clip(stepped, *limits(self.kinds[0], 8)).astype(self.kinds[0])


def whole(
    kind: type[Any], rng: np.random.Generator, shape: tuple[int, ...], bits: int = 8
) -> Array:
    """Integers over the whole range of a type, or of so many of its bits."""
    low, high = limits(kind, bits)
    return np.asarray(rng.integers(low, high, shape, endpoint=True).astype(kind))


def distinct(kind: type[Any], rng: np.random.Generator, count: int, bits: int = 8) -> Array:
    """Zero points, no two of them alike."""
    low, high = limits(kind, bits)
    return np.asarray(rng.permutation(np.arange(low, high + 1))[:count].astype(kind))


def limits(kind: type[Any], bits: int) -> tuple[int, int]:
    """The least and the largest number of a type of 8 bits that so many of them hold."""
    low = 0 if np.iinfo(kind).min == 0 else -(1 << (bits - 1))
    return low, low + (1 << bits) - 1


def run(model: onnx.ModelProto, x: Array, level: str = LEVELS[0]) -> Array:
    (y,) = running.run(model, x, level)
    return np.asarray(y)
