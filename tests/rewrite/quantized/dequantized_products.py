"""Models of one MatMul or Gemm between dequantized operands, and their outputs by the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.oracle import matmul
from tests.rewrite.quantized.products import integers, powers


@dataclass(kw_only=True)
class DequantizedProduct:
    """x -> Quantize -> Dequantize -> MatMul or Gemm -> (Quantize -> Dequantize ->) y.

    Weight and C are dequantized as well. Scales are powers of two: all sums are exact in float32.
    What `saturates` has weights of all 8 bits.
    """

    shape: Sequence[int]
    weight: Sequence[int]
    op: str = "MatMul"
    weight_on_left: bool = False
    types: tuple[str, str] = ("uint8", "int8")
    axis: int | None = None
    turned: bool = False
    added: Sequence[int] | None = None
    quantized: bool = True
    opset: int = 17
    seed: int = 0
    saturates: bool = False

    def arrays(self) -> dict[str, np.ndarray]:
        """The constants: integers, scales and zero points of data, weight, C and result."""
        rng = np.random.default_rng(self.seed)
        data, weight = self.types
        # The runtime makes signed data unsigned, and then signed weights saturate on some CPUs.
        bits = 8 if self.saturates or weight == "uint8" else 7
        vector = () if self.axis is None else (self.weight[self.axis],)
        arrays = {
            "w": integers(rng, weight, self.weight, bits),
            "sx": powers(rng, (), 2**-4),
            "zx": integers(rng, data, ()),
            "sw": powers(rng, vector, 2**-4),
            "zw": integers(rng, weight, vector, bits),
        }
        if self.added is not None:
            arrays["c"] = rng.integers(-9999, 9999, self.added, np.int32)
            arrays["sc"] = arrays["sx"] * (arrays["sw"] if vector else arrays["sw"].reshape(()))
            arrays["zc"] = np.zeros(arrays["sc"].shape, np.int32)
        if self.quantized:
            arrays |= {"sy": powers(rng, (), 8), "zy": integers(rng, data, ())}
        return arrays

    def model(self) -> onnx.ModelProto:
        arrays = self.arrays()
        node = helper.make_node
        axis = {} if self.axis is None else {"axis": self.axis}
        inputs = ["v", "d"] if self.weight_on_left else ["d", "v"]
        last = "m" if self.quantized else "y"
        nodes = [
            node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
            node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
            node("DequantizeLinear", ["w", "sw", "zw"], ["v"], **axis),
        ]
        if self.added is not None:
            of_c = {} if self.axis is None else {"axis": 0}
            nodes.append(node("DequantizeLinear", ["c", "sc", "zc"], ["e"], **of_c))
            inputs.append("e")
        turned = {"transA" if self.weight_on_left else "transB": 1} if self.turned else {}
        nodes.append(node(self.op, inputs, [last], "site", **turned))
        if self.quantized:
            nodes.append(node("QuantizeLinear", ["m", "sy", "zy"], ["r"]))
            nodes.append(node("DequantizeLinear", ["r", "sy", "zy"], ["y"]))
        rank = max(len(self.shape), len(self.weight)) - (len(self.weight) == 1)
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * rank)],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def data(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(self.shape).astype(np.float32)

    def expected(self, x: np.ndarray) -> np.ndarray:
        """Output by the oracle, in integers and float64; ties round to even."""
        numbers = {name: array.astype(np.float64) for name, array in self.arrays().items()}
        kind = self.types[0]
        sized = [1] * len(self.weight)
        if self.axis is not None:
            sized[self.axis] = -1
        scale, zero = (
            numbers[n].reshape(sized if self.axis is not None else ()) for n in ("sw", "zw")
        )
        data = (rounded(x / numbers["sx"], numbers["zx"], kind) - numbers["zx"]) * numbers["sx"]
        weight = (numbers["w"] - zero) * scale
        weight = weight.T if self.turned else weight
        y = matmul(*((weight, data) if self.weight_on_left else (data, weight)))
        if self.added is not None:
            y = y + numbers["c"] * numbers["sc"]
        if self.quantized:
            y = (rounded(y / numbers["sy"], numbers["zy"], kind) - numbers["zy"]) * numbers["sy"]
        return y.astype(np.float32)


def rounded(array: np.ndarray, zero: np.ndarray, kind: str) -> np.ndarray:
    limits = np.iinfo(kind)
    return np.clip(np.round(array) + zero, limits.min, limits.max)
