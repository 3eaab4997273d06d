"""Models of one MatMul or Gemm, with the weight on either side; extents of such operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.oracle import gemm, matmul

EXTENT = st.integers(1, 4)


@dataclass(frozen=True)
class Operands:
    """Extents of data and weight of a product.

    Attributes:
        kind: of the weight: "plain", "vector" (it has no outputs) or "batched".
    """

    weight_on_left: bool
    kind: str
    outputs: int
    shape: list[int]
    weight: list[int]


@st.composite
def operands(draw: st.DrawFn, factor: int) -> Operands:
    """A weight on either side, plain, a vector or batched; a factor divides the rows often."""
    weight_on_left = draw(st.booleans())
    leading = draw(st.lists(EXTENT, max_size=2))
    length = draw(st.sampled_from([factor, 2 * factor, draw(st.integers(1, 12))]))
    channels, outputs = draw(EXTENT), draw(EXTENT)
    kind = draw(st.sampled_from(["plain", "plain", "vector", "batched"]))
    weight = [outputs, channels] if weight_on_left else [channels, outputs]
    if kind == "vector":
        weight = [channels]
    if kind == "batched":
        batches = [draw(st.sampled_from([1, extent])) for extent in leading]
        weight = [*([draw(EXTENT)] if draw(st.booleans()) else []), *batches, *weight]
    shape = [*leading, channels, length] if weight_on_left else [*leading, length, channels]
    return Operands(weight_on_left, kind, outputs, shape, weight)


@dataclass(kw_only=True)
class Product:
    """x -> Identity -> MatMul or Gemm -> Identity -> y; `dims` are the declared extents of x."""

    shape: Sequence[int]
    weight: Sequence[int]
    weight_on_left: bool = False
    addend: Sequence[int] | None = None
    dims: Sequence[int | str] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    op: str = "MatMul"
    opset: int = 17
    dtype: type[np.generic] = np.float32
    seed: int = 0
    first: str = "Identity"
    last: str = "Identity"
    scale: float | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """The constants: integers from 1 to 9, or with `scale` random numbers."""
        rng = np.random.default_rng(self.seed)
        shapes = {"w": self.weight} | ({} if self.addend is None else {"c": self.addend})
        if self.scale is not None:
            numbers = {name: rng.standard_normal(s) * self.scale for name, s in shapes.items()}
        else:
            numbers = {name: rng.integers(1, 10, shape) for name, shape in shapes.items()}
        return {name: np.asarray(array, self.dtype) for name, array in numbers.items()}

    @property
    def rank(self) -> int:
        """Rank of the result."""
        return max(len(self.shape), len(self.weight)) - (len(self.weight) == 1)

    def model(self) -> onnx.ModelProto:
        arrays = self.arrays()
        operands = ["w", "z"] if self.weight_on_left else ["z", "w"]
        inputs = [*operands, *(["c"] if "c" in arrays else [])]
        nodes = [
            helper.make_node(self.first, ["x"], ["z"], "first"),
            helper.make_node(self.op, inputs, ["m"], "site", **self.attributes),
            helper.make_node(self.last, ["m"], ["y"], "last"),
        ]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        dims = self.shape if self.dims is None else self.dims
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", kind, dims)],
            [helper.make_tensor_value_info("y", kind, [None] * self.rank)],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=7)

    def expected(self, x: np.ndarray) -> np.ndarray:
        """Output by the oracle."""
        arrays = self.arrays()
        pair = (arrays["w"], x) if self.weight_on_left else (x, arrays["w"])
        if self.op == "MatMul":
            return matmul(*pair)
        settings = self.attributes
        return gemm(
            *pair,
            arrays.get("c"),
            alpha=settings.get("alpha", 1),
            beta=settings.get("beta", 1),
            trans_a=bool(settings.get("transA", 0)),
            trans_b=bool(settings.get("transB", 0)),
        )
