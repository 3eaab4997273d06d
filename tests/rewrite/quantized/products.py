"""Models of one MatMulInteger or QLinearMatMul, and their outputs by the loop oracle."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.oracle import matmul
from tests.rewrite.quantized.convs import limits

INTEGER, LINEAR = "MatMulInteger", "QLinearMatMul"
ORDER = {INTEGER: "a b za zb", LINEAR: "a sa za b sb zb sy zy"}


@dataclass(kw_only=True)
class QuantizedProduct:
    """x -> MatMulInteger or QLinearMatMul -> y; `dims` are the declared extents of x.

    Shapes of zero points and scales are given for A, B and the result; None leaves one out. Scales
    are powers of two, so that the oracle and any order of multiplications agree. What `saturates`
    has weights of all 8 bits, also where the kernel saturates on some CPUs.
    """

    shape: Sequence[int]
    weight: Sequence[int]
    op: str = INTEGER
    weight_on_left: bool = False
    types: tuple[str, str] = ("uint8", "int8")
    zeros: tuple[Sequence[int] | None, Sequence[int] | None] = ((), ())
    scales: tuple[Sequence[int], Sequence[int]] = ((), ())
    result: Sequence[int] = ()
    dims: Sequence[int | str] | None = None
    opset: int = 17
    seed: int = 0
    saturates: bool = False

    @property
    def of_data(self) -> str:
        """Name of the operand that is the data."""
        return "b" if self.weight_on_left else "a"

    @property
    def kind(self) -> str:
        """Element type of the data."""
        return self.types[self.weight_on_left]

    def arrays(self) -> dict[str, np.ndarray]:
        """The constants, by the names in `ORDER`."""
        rng = np.random.default_rng(self.seed)
        exact = self.types[0] == self.types[1]  # other kernels saturate on some CPUs
        drawn = functools.partial(integers, rng, bits=8 if exact or self.saturates else 7)
        arrays = {
            "a" if self.weight_on_left else "b": drawn(
                self.types[not self.weight_on_left], self.weight
            )
        }
        for name, kind, shape in zip(("za", "zb"), self.types, self.zeros, strict=True):
            if shape is not None:
                arrays[name] = (
                    integers(rng, kind, shape) if name[1] == self.of_data else drawn(kind, shape)
                )
        if self.op == LINEAR:
            for name, shape in zip(("sa", "sb"), self.scales, strict=True):
                arrays[name] = powers(rng, shape, 1)
            arrays["sy"] = powers(rng, self.result, 2048)
            arrays["zy"] = integers(rng, self.types[0], self.result)
        return arrays

    def model(self) -> onnx.ModelProto:
        arrays = self.arrays()
        names = ["x" if name == self.of_data else name for name in ORDER[self.op].split()]
        node = helper.make_node(
            self.op, [n if n == "x" or n in arrays else "" for n in names], ["y"], "site"
        )
        while node.input and not node.input[-1]:
            del node.input[-1]
        returned = np.int32 if self.op == INTEGER else np.dtype(self.types[0])
        rank = max(len(self.shape), len(self.weight)) - (len(self.weight) == 1)
        graph = helper.make_graph(
            [node],
            "g",
            [described("x", self.kind, self.shape if self.dims is None else self.dims)],
            [described("y", returned, [None] * rank)],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=8)

    def data(self, seed: int) -> np.ndarray:
        return integers(np.random.default_rng(seed), self.kind, self.shape)

    def expected(self, x: np.ndarray) -> np.ndarray:
        """Output by the oracle: sums of integers of 64 bits; ties round to even."""
        operands = self.arrays() | {self.of_data: x}
        a = operands["a"].astype(np.int64) - of_rows(operands.get("za", np.int64(0)))
        b = operands["b"].astype(np.int64) - operands.get("zb", np.int64(0))
        total = matmul(a, b)
        if self.op == INTEGER:
            return total.astype(np.int32)
        rows = [of_rows(operands[name]) for name in ("sa", "sy", "zy")]
        scaled = np.round(total * (rows[0] * operands["sb"] / rows[1])) + rows[2]
        return np.clip(scaled, *limits(np.dtype(self.types[0]).type, 8)).astype(self.types[0])


def of_rows(array: np.ndarray) -> np.ndarray:
    """A constant of A or of the result, wide; a vector has one number per row."""
    wide = np.asarray(array, np.float64 if array.dtype.kind == "f" else np.int64)
    return wide[:, None] if wide.shape not in ((), (1,)) and wide.ndim == 1 else wide


def integers(
    rng: np.random.Generator, kind: str, shape: Sequence[int], bits: int = 8
) -> np.ndarray:
    low, high = limits(np.dtype(kind).type, bits)
    return rng.integers(low, high, shape, kind, endpoint=True)


def powers(rng: np.random.Generator, shape: Sequence[int], largest: int) -> np.ndarray:
    return (largest * 2.0 ** rng.integers(-3, 0, shape, endpoint=True)).astype(np.float32)


def described(name: str, kind: Any, dims: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), dims
    )
