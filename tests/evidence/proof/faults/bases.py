"""Small folded models of many kinds, to plant faults in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
from onnx import numpy_helper

from tests.folding import fold_model
from widthfold_onnx.options import FoldOptions

OPSET_17 = '<ir_version: 8, opset_import: ["": 17]>'


@dataclass(frozen=True)
class Base:
    """A model in ONNX's text form, its random constants and how it is folded.

    Attributes:
        text: behind the versions.
        random: extents of the constants that are drawn.
        factor: of the fold.
        ragged: whether extents need not be multiples of the factor.
        versions: of the file format and the operators.
    """

    text: str
    random: Mapping[str, tuple[int, ...]]
    factor: int = 2
    ragged: bool = False
    versions: str = OPSET_17


BASES = {
    "residual": Base(
        """g (float[2, 3, 5, 24] x) => (float[2, 3, 5, 24] y)
        <float low = {-1.5}, float high = {2.5}> {
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  c = Clip (a, low, high)
            d = Conv <pads = [1, 0, 1, 2]> (c, v)  e = PRelu (d, s)  y = Add (x, e) }""",
        {"w": (3, 3, 3, 3), "b": (3,), "v": (3, 3, 3, 3), "s": (3, 1, 1)},
        factor=3,
    ),
    "joined": Base(
        """g (float[n, 2, 7, 16] x) => (float[n, 4, 7, 16] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            c = BatchNormalization <epsilon = 0.01> (a, p, q, r, t)
            d = Conv <dilations = [1, 2], pads = [0, 2, 0, 2]> (x, v)
            e = Concat <axis = 1> (c, d, x)  f = Mul (e, m)
            y = Conv <group = 2> (f, u) }""",
        {"w": (3, 2, 3, 3), "b": (3,), "p": (3,), "q": (3,), "r": (3,), "v": (1, 2, 1, 3),
         "m": (6, 1, 1), "u": (4, 3, 1, 1)},
        factor=2,
    ),
    "pooled": Base(
        """g (float[2, 2, 6, 32] x) => (float[2, 3, 6, 16] y, float[2, 3, 6, 32] z)
        <int64[8] pads = {0, 0, 0, 1, 0, 0, 0, 1}, float fill = {0.25}> {
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            c = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)
            d = AveragePool <kernel_shape = [1, 2], strides = [1, 2]> (c)
            e = Pad (d, pads, fill)  y = Conv <kernel_shape = [1, 3]> (e, v)
            z = Sigmoid (c) }""",
        {"w": (3, 2, 3, 3), "b": (3,), "v": (3, 3, 1, 3)},
        factor=2,
    ),
    "transposed": Base(
        """g (float[2, 3, 4, 16] x) => (float[2, 2, 8, 32] y) {
            a = Conv (x, w)  c = LeakyRelu <alpha = 0.2> (a)
            y = ConvTranspose <strides = [2, 2], pads = [0, 0, 1, 1],
                output_padding = [1, 1]> (c, v, b) }""",
        {"w": (2, 3, 1, 1), "v": (2, 2, 2, 2), "b": (2,)},
        factor=2,
    ),
    "signal": Base(
        """g (float[n, 1, l] x) => (float[n, 2, k] y) {
            a = Conv <kernel_shape = [5], pads = [2, 2], strides = [1]> (x, w, b)
            c = Relu (a)  y = Conv <auto_pad = "SAME_LOWER", kernel_shape = [4]> (c, v) }""",
        {"w": (3, 1, 5), "b": (3,), "v": (2, 3, 4)},
        factor=2,
    ),
    "ragged": Base(
        """g (float[1, 2, 4, 37] x) => (float[1, 2, 4, 37] y) {
            a = Conv <pads = [0, 1, 0, 1]> (x, w, b)  c = Elu (a)
            d = Conv <pads = [0, 1, 0, 1]> (c, v)  y = Sub (d, x) }""",
        {"w": (3, 2, 1, 3), "b": (3,), "v": (2, 3, 1, 3)},
        factor=8,
        ragged=True,
    ),
    "resized": Base(
        """g (float[4, 3, 5, 12] x) => (float[4, 2, 10, 12] y)
        <float[4] scales = {1, 1, 2, 1}> {
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  c = Resize <mode = "linear"> (a, , scales)
            y = Conv <group = 1> (c, v) }""",
        {"w": (2, 3, 3, 3), "b": (2,), "v": (2, 2, 1, 1)},
        factor=2,
    ),
    "products": Base(
        """g (float[n, 24, 4] x) => (float[n, 24, 3] y) {
            a = MatMul (x, w)  c = Add (a, b)  d = Tanh (c)  e = Mul (d, m)
            f = MatMul (e, v)  y = Add (q, f) }""",
        {"w": (4, 5), "b": (5,), "m": (5,), "v": (5, 3), "q": (3,)},
        factor=8,
    ),
    "gemm": Base(
        """g (float[24, 4] x) => (float[24, 3] y) {
            a = Gemm <transB = 1> (x, w, b)  c = Relu (a)
            y = Gemm <alpha = 0.5, beta = 2.0> (c, v, q) }""",
        {"w": (5, 4), "b": (5,), "v": (5, 3), "q": (3,)},
        factor=3,
    ),
    "branches": Base(
        """g (float[2, 2, 3, 16] x, bool k) => (float[2, 2, 3, 16] y) {
            y = If (k) <then_branch = t () => (float[2, 2, 3, 16] p) {
                a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  p = Relu (a) },
              else_branch = e () => (float[2, 2, 3, 16] q) {
                c = Conv <pads = [0, 1, 0, 1]> (x, v)  q = Neg (c) }> }""",
        {"w": (2, 2, 3, 3), "b": (2,), "v": (2, 2, 1, 3)},
        factor=2,
    ),
    "loop": Base(
        """g (float[2, 2, 3, 16] x) => (float[2, 2, 3, 16] y, float[3, 2, 2, 3, 16] z)
        <int64 n = {3}, bool on = {1}> {
            y, z = Loop (n, on, x) <body = o (int64 i, bool k, float[2, 2, 3, 16] s)
                => (bool l, float[2, 2, 3, 16] t, float[2, 2, 3, 16] u) {
                l = Identity (k)  a = Conv <pads = [1, 1, 1, 1]> (s, w, b)  u = Tanh (a)
                t = Add (u, x) }> }""",
        {"w": (2, 2, 3, 3), "b": (2,)},
        factor=2,
    ),
    "quantized": Base(
        """g (float[2, 2, 4, 16] x) => (float[2, 3, 4, 16] y)
        <float s = {0.05}, uint8 z = {117}, float t = {0.125}, uint8 r = {121},
         float[3] f = {0.02, 0.03, 0.04}> {
            a = QuantizeLinear (x, s, z)  c = DequantizeLinear (a, s, z)
            d = DequantizeLinear <axis = 0> (w, f)  e = Conv <pads = [1, 1, 1, 1]> (c, d, b)
            h = QuantizeLinear (e, t, r)  y = DequantizeLinear (h, t, r) }""",
        {"b": (3,)},
        factor=2,
        versions='<ir_version: 9, opset_import: ["": 19]>',
    ),
    "qlinear": Base(
        """g (uint8[2, 2, 4, 16] x) => (uint8[2, 3, 4, 16] y)
        <float s = {0.05}, uint8 z = {117}, float t = {0.4}, uint8 r = {121},
         float[3] f = {0.02, 0.03, 0.04}, int8[3] o = {0, 0, 0}, int32[3] b = {100, -30, 7}> {
            y = QLinearConv <pads = [1, 1, 1, 1]> (x, s, z, w, f, o, t, r, b) }""",
        {},
        factor=2,
    ),
    "opset 10": Base(
        """g (float[n, 2, 8] x) => (float[n, 3, 8] y) {
            c = Conv <pads = [1, 1]> (x, w, b)
            d = Clip <min = -0.75, max = 1.25> (c)
            e = Pad <pads = [0, 0, 2, 0, 0, 2], value = 0.5> (d)
            y = MaxPool <kernel_shape = [5]> (e) }""",
        {"w": (3, 2, 3), "b": (3,)},
        factor=4,
        versions='<ir_version: 5, opset_import: ["": 10]>',
    ),
}  # fmt: skip


@cache
def right_fold(name: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a base and its fold.

    The variance of a BatchNormalization and the integers of a weight are no normal numbers.
    """
    base = BASES[name]
    model = onnx.parser.parse_model(f"{base.versions} {base.text}")
    rng = np.random.default_rng(len(name))
    for constant, shape in base.random.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, constant))
    stored_names = {tensor.name for tensor in model.graph.initializer}
    if name == "joined":
        model.graph.initializer.append(
            numpy_helper.from_array(rng.uniform(0.5, 2, 3).astype(np.float32), "t")
        )
    if "w" not in stored_names:
        integers = rng.integers(-99, 99, (3, 2, 3, 3)).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(integers, "w"))
    onnx.checker.check_model(model, full_check=True)
    options = FoldOptions(
        factor=base.factor,
        mix_samples=True,
        ragged=base.ragged,
        max_flops_growth=1e9,
        max_bytes_growth=1e9,
    )
    folded, sites = fold_model(model, options)
    assert any(site.status == "folded" for site in sites), sites
    return model, folded
