"""Random graphs of linear nodes and of ops that folds are carried through, on integers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tests.lacking import NORMALIZES_EXACTLY
from tests.oracle import matmul
from tests.rewrite.checked_fold import ANY_GROWTH, Drawn
from tests.rewrite.graphs import Builder
from tests.rewrite.linear import Linear
from tests.running import run
from widthfold_onnx.options import AxisName, FoldOptions, Layout

SEED = st.integers(0, 1 << 32)
LIMIT = 1 << 22
PLAIN = ["Relu", "Abs", "Neg", "Sign", "Identity", "Floor"]
NORM = "norm" if NORMALIZES_EXACTLY else "unary"
OF_CONVS = ["conv", "conv", "unary", "clip", NORM, "slope", "constant", "two", "two", "join"]


@st.composite
def of_convs(draw: st.DrawFn):
    """Convs and carried ops over one extent; values stay small, so all sums are exact."""
    rng = np.random.default_rng(draw(SEED))

    def one_of(*choices):
        return choices[rng.integers(len(choices))]

    rank = one_of(1, 2)
    shape = [one_of(2, 4), one_of(2, 3, 4), *[one_of(5, 7), one_of(12, 24)][-rank:]]
    g = Builder(shape, rng)

    def conv(value: str) -> str:
        """Add a Conv with a Sign behind it, so that numbers do not grow without end."""
        group = one_of(*(n for n in (1, 2, 3) if g.channels[value] % n == 0))
        kernel = [one_of(1, 3, 3) for _ in range(rank)]
        return g.op("Sign", g.conv(value, group * one_of(1, 2, 3), kernel, group))

    pool = ["x", conv("x")]
    for _ in range(rng.integers(2, 9)):
        value, kind = one_of(*pool[-2:]), one_of(*OF_CONVS)
        count = g.channels[value]
        flat = (count, *[1] * rank)
        if kind == "conv":
            value = conv(value)
        elif kind == "unary":
            value = g.op(one_of(*PLAIN), value)
        elif kind == "clip":
            value = g.op("Clip", value, np.array(-2, np.float32), np.array(3, np.float32))
        elif kind == "norm":
            plain = (np.zeros(count, np.float32), np.full(count, 4, np.float32))
            scales = (g.integers(count), g.integers(count))
            value = g.op("BatchNormalization", value, *scales, *plain, epsilon=0.0)
            value = g.op("Floor", value)
        elif kind == "slope":
            value = g.op("PRelu", value, g.integers(*one_of(flat, (1,))))
        elif kind == "constant":
            numbers = g.integers(*one_of(flat, (1, *flat), (), shape[-1:]))
            value = g.op(one_of("Add", "Sub", "Mul", "Max"), value, numbers)
        elif kind == "two":
            other = one_of(*(v for v in pool if g.channels[v] == count))
            value = g.op(
                one_of("Add", "Sub", "Min", "Max"), *one_of((value, other), (other, value))
            )
        else:
            other = one_of(*pool)
            total = count + g.channels[other]
            value = g.op("Concat", value, other, axis=one_of(1, -1 - rank), channels=total)
        pool.append(value)
    outputs = [pool[-1], *(value for value in pool[1:-1] if rng.random() < 0.15)]
    x = rng.integers(-2, 3, shape).astype(np.float32)
    model = g.model(outputs)
    options = FoldOptions(
        factor=one_of(2, 3, 4),
        axis=draw(st.sampled_from([AxisName.AUTO, AxisName.WIDTH, AxisName.BATCH])),
        layout=draw(st.sampled_from(Layout)),
        **ANY_GROWTH,
    )
    return Drawn(model=model, x=x, options=options, expected=lambda: small(run(model, x)))


def small(arrays: list[np.ndarray]) -> list[np.ndarray]:
    assert all(np.abs(array).max() < LIMIT for array in arrays)
    return arrays


UNARY = {
    "Relu": lambda a: np.maximum(a, 0),
    "Abs": np.abs,
    "Neg": np.negative,
    "Identity": np.copy,
    "Floor": np.floor,
}
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum}
OF_PRODUCTS = [*["product"] * 3, *["constant"] * 2, "unary", "slope", "two", "along"]


@dataclass
class Computed(Linear):
    """A graph with the numbers of its values."""

    values: dict[str, np.ndarray] = field(default_factory=dict)

    def keep(self, name: str, value: np.ndarray) -> str:
        self.values[name] = value
        return name

    def signed_product(self, value: str, out: int) -> str:
        """Add a product with a Sign behind it, so that numbers do not grow without end."""
        name = self.product(value, out)
        weight = self.constants[f"k{len(self.nodes) - 1}_{0 if self.weight_on_left else 1}"]
        pair = (weight, self.values[value]) if self.weight_on_left else (self.values[value], weight)
        self.keep(name, matmul(*pair))
        return self.keep(self.op("Sign", name), np.sign(self.values[name]))


@st.composite
def of_products(draw: st.DrawFn):
    """Products of integers and carried ops, whose results are computed as they are drawn."""
    rng = np.random.default_rng(draw(SEED))

    def one_of(*choices):
        return choices[rng.integers(len(choices))]

    factor = int(one_of(2, 3, 4))
    length = factor * int(rng.integers(1, 4)) if rng.random() < 0.8 else int(one_of(5, 7, 6))
    leading = [int(one_of(1, 2, 3, factor)) for _ in range(rng.integers(0, 3))]
    weight_on_left, count = bool(rng.random() < 0.3), int(one_of(1, 2, 3))
    shape = [*leading, *((count, length) if weight_on_left else (length, count))]
    dims = [
        "n" if i == 0 and len(shape) > 2 and rng.random() < 0.4 else e for i, e in enumerate(shape)
    ]
    g = Computed(shape, rng, weight_on_left=weight_on_left)
    g.shape = dims
    x = rng.integers(-2, 3, shape).astype(np.float32)
    pool = [g.keep("x", x), ""]
    pool[1] = g.signed_product("x", int(one_of(1, 2, 3)))
    for _ in range(rng.integers(2, 8)):
        value, kind = one_of(*pool[-2:]), one_of(*OF_PRODUCTS)
        count, array = g.channels[value], g.values[value]
        if kind == "product":
            value = g.signed_product(value, int(one_of(1, 2, 3, 5)))
        elif kind == "unary":
            op = one_of(*UNARY)
            value = g.keep(g.op(op, value), UNARY[op](array))
        elif kind == "constant":
            flat = [1] * int(rng.integers(0, len(shape) - 1))
            numbers = one_of(g.column(*flat, count), g.integers(*flat, 1), g.integers())
            op, turned = one_of(*BINARY), rng.random() < 0.3
            pair = (numbers, array) if turned else (array, numbers)
            names = (numbers, value) if turned else (value, numbers)
            value = g.keep(g.op(op, *names, channels=count), BINARY[op](*pair))
        elif kind == "slope":
            slope = one_of(g.column(count), g.integers())
            value = g.keep(g.op("PRelu", value, slope), np.where(array < 0, slope * array, array))
        elif kind == "two":
            other = one_of(*(v for v in pool if g.channels[v] == count))
            op = one_of("Add", "Sub", "Max")
            value = g.keep(g.op(op, value, other), BINARY[op](array, g.values[other]))
        else:
            axis = int(rng.integers(-len(shape), 0))
            value = g.op("CumSum", value, np.array(axis))
            g.keep(value, np.cumsum(array, axis, dtype=np.float32))
            value = g.keep(g.op("Sign", value), np.sign(g.values[value]))
        pool.append(value)
    outputs = [pool[-1], *(value for value in pool[1:-1] if rng.random() < 0.15)]
    options = FoldOptions(factor=factor, mix_samples=bool(rng.random() < 0.7), **ANY_GROWTH)
    names = list(dict.fromkeys(outputs))
    expected = [g.values[name].astype(np.float32) for name in names]
    return Drawn(model=g.model(names), x=x, options=options, expected=lambda: expected)
