"""Random products of matrices, plain, quantized and between dequantized operands."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnxruntime.capi import (  # noqa: TID251 - they say which models it has no kernel for
    onnxruntime_pybind11_state as errors,
)

from tests.operators.products import EXTENT, Product, operands
from tests.rewrite.checked_fold import ANY_GROWTH, Drawn
from tests.rewrite.quantized.dequantized_products import DequantizedProduct
from tests.rewrite.quantized.products import INTEGER, LINEAR, QuantizedProduct
from tests.running import LEVELS, run
from widthfold_onnx.options import FoldOptions, NonFinite

BYTES = ("uint8", "int8")
SEED = st.integers(0, 1 << 32)
TYPES = [(a, b) for a in BYTES for b in BYTES]


def drawn(
    product: Product | QuantizedProduct | DequantizedProduct, x: np.ndarray, options: FoldOptions
) -> Drawn:
    """A product as the runtime has kernels for it."""
    model = product.model()

    def expected() -> list[np.ndarray]:
        y = product.expected(x)
        return [y.astype(np.float32) if isinstance(product, Product) else y]

    levels = [level for level in LEVELS if runs(model, x, level)]
    return Drawn(model=model, x=x, options=options, levels=levels, expected=expected)


def runs(model: onnx.ModelProto, x: np.ndarray, level: str) -> bool:
    """True if the runtime runs the original.

    It fuses scales per row of A, which no kernel takes, and scales per column of batched weights.
    """
    try:
        run(model, x, level)
    except (errors.Fail, errors.RuntimeException):
        assert level == LEVELS[1]
        return False
    return True


@st.composite
def matmuls(draw: st.DrawFn):
    """A MatMul, its weight plain, a vector or batched, with open dimensions; a factor."""
    factor = draw(st.integers(2, 6))
    it = draw(operands(factor))
    opened = draw(st.sets(st.integers(0, len(it.shape) - 1), max_size=2))
    dims = [f"d{i}" if i in opened else extent for i, extent in enumerate(it.shape)]
    assumed = {"x": tuple(it.shape)} if draw(st.booleans()) else {}
    options = FoldOptions(
        factor=factor, mix_samples=draw(st.booleans()), input_shapes=assumed, **ANY_GROWTH
    )
    opset = draw(st.sampled_from([7, 9, 13, 17, 21]))
    product = Product(
        shape=it.shape, weight=it.weight, weight_on_left=it.weight_on_left, dims=dims, opset=opset
    )
    x = np.random.default_rng(draw(SEED)).integers(-9, 10, product.shape).astype(np.float32)
    return drawn(product, x, options)


@st.composite
def gemms(draw: st.DrawFn):
    """A Gemm: both transA and transB, alpha and beta, every way in which C broadcasts."""
    weight_on_left, factor = draw(st.booleans()), draw(st.integers(2, 6))
    length = factor * draw(st.integers(1, 3))
    channels, outputs = draw(EXTENT), draw(EXTENT)
    m, n = (outputs, length) if weight_on_left else (length, outputs)
    turn = [draw(st.booleans()), draw(st.booleans())]
    operands = [[m, channels], [channels, n]]
    a, b = (shape[::-1] if flag else shape for shape, flag in zip(operands, turn, strict=True))
    addend = draw(st.sampled_from([None, [], [1], [n], [1, n], [m, 1], [m, n], [1, 1]]))
    attributes = {name: int(flag) for name, flag in zip(("transA", "transB"), turn, strict=True)}
    if draw(st.booleans()):
        attributes |= {"alpha": 2.0, "beta": 3.0}
    product = Product(
        op="Gemm",
        shape=b if weight_on_left else a,
        weight=a if weight_on_left else b,
        weight_on_left=weight_on_left,
        addend=[1] if addend is None and draw(st.booleans()) else addend,
        attributes=attributes,
        opset=draw(st.sampled_from([11, 13, 17])),
    )
    x = np.random.default_rng(draw(SEED)).integers(-9, 10, product.shape).astype(np.float32)
    return drawn(product, x, FoldOptions(factor=factor, mix_samples=True, **ANY_GROWTH))


@st.composite
def quantized_products(draw: st.DrawFn):
    """Weights on either side, plain, batched or a vector; every way to quantize that has a kernel.

    Per row of A the runtime has none: `test_quantized_products` has those.
    """
    factor = draw(st.integers(2, 5))
    it = draw(operands(factor))
    op = draw(st.sampled_from([INTEGER, LINEAR]))
    broadcast = st.sampled_from([(), (1,)])
    per_channel = (
        [] if it.weight_on_left or it.kind != "plain" else [(it.outputs,), (1, it.outputs)]
    )
    of_b = draw(st.sampled_from([(), (1,), *per_channel]))
    optional = (None,) if op == INTEGER else ()
    types = draw(st.sampled_from(TYPES))
    if op == LINEAR and types == ("int8", "uint8"):
        types = ("uint8", "int8")  # the other way round there is no kernel
    product = QuantizedProduct(
        op=op,
        shape=it.shape,
        weight=it.weight,
        weight_on_left=it.weight_on_left,
        types=types,
        zeros=(draw(st.sampled_from([*optional, ()])), draw(st.sampled_from([*optional, of_b]))),
        scales=(draw(broadcast), of_b),
        seed=draw(st.integers(0, 99)),
    )
    opened = draw(st.sets(st.integers(0, len(product.shape) - 1), max_size=1))
    product.dims = [f"d{i}" if i in opened else e for i, e in enumerate(product.shape)]
    assumed = {"x": tuple(product.shape)} if draw(st.booleans()) else {}
    policy = draw(st.sampled_from([NonFinite.SPREAD, NonFinite.REFUSE]))
    x = product.data(draw(SEED))
    options = FoldOptions(factor=factor, input_shapes=assumed, nonfinite=policy, **ANY_GROWTH)
    return drawn(product, x, options)


@st.composite
def dequantized_products(draw: st.DrawFn):
    """Weights on either side, plain, turned, batched or a vector; scales per tensor or channel."""
    factor, weight_on_left = draw(st.integers(2, 5)), draw(st.booleans())
    gemm = draw(st.booleans())
    leading = [] if gemm else draw(st.lists(EXTENT, max_size=2))
    length = factor * draw(st.integers(1, 3))
    channels, outputs = draw(EXTENT), draw(EXTENT)
    weight = [outputs, channels] if weight_on_left else [channels, outputs]
    turned = gemm and draw(st.booleans())
    kind = "plain" if gemm else draw(st.sampled_from(["plain", "plain", "vector", "batched"]))
    weight = {"plain": weight[::-1] if turned else weight, "vector": [channels]}.get(
        kind, [*leading, *weight]
    )
    output_axis = len(weight) - (2 if weight_on_left != turned else 1)
    axis = draw(st.sampled_from([None] if kind == "vector" else [None, output_axis]))
    added = None
    if gemm and not weight_on_left and draw(st.booleans()):
        added = [outputs]
    product = DequantizedProduct(
        op="Gemm" if gemm else "MatMul",
        shape=[*leading, channels, length] if weight_on_left else [*leading, length, channels],
        weight=weight,
        weight_on_left=weight_on_left,
        types=(draw(st.sampled_from(BYTES)), draw(st.sampled_from(BYTES))),
        axis=axis,
        turned=turned,
        added=added,
        quantized=draw(st.booleans()),
        opset=draw(st.sampled_from([13, 17, 21])),
        seed=draw(st.integers(0, 99)),
    )
    x = product.data(draw(SEED))
    options = FoldOptions(factor=factor, nonfinite=NonFinite.REFUSE, **ANY_GROWTH)
    return drawn(product, x, options)
