"""Random graphs of products and carried ops: folded, they return what the loop oracle computes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import matmul
from tests.rewrite.graphs import ops, run
from tests.rewrite.linear import Linear
from tests.rewrite.proved import assert_proved
from widthfold_onnx import FoldOptions, fold_model

LIMITS = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}
UNARY = {
    "Relu": lambda a: np.maximum(a, 0),
    "Abs": np.abs,
    "Neg": np.negative,
    "Identity": np.copy,
    "Floor": np.floor,
}
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum}
KINDS = ("product", "product", "product", "unary", "constant", "constant", "slope", "two", "along")


@dataclass
class Computed(Linear):
    """A graph that knows what its values are."""

    values: dict[str, np.ndarray] = field(default_factory=dict)

    def known(self, name: str, value: np.ndarray) -> str:
        self.values[name] = value
        return name

    def signed_product(self, value: str, out: int) -> str:
        """With a Sign behind it, so that numbers do not grow without end."""
        name = self.product(value, out)
        weight = self.constants[f"k{len(self.nodes) - 1}_{0 if self.left else 1}"]
        pair = (weight, self.values[value]) if self.left else (self.values[value], weight)
        self.known(name, matmul(*pair))
        return self.known(self.op("Sign", name), np.sign(self.values[name]))


def graph(seed: int) -> tuple[Computed, onnx.ModelProto, np.ndarray, FoldOptions]:
    """A graph of integers, its input and how it is folded."""
    rng = np.random.default_rng(seed)

    def one_of(*choices):
        return choices[rng.integers(len(choices))]

    factor = int(one_of(2, 3, 4))
    length = factor * int(rng.integers(1, 4)) if rng.random() < 0.8 else int(one_of(5, 7, 6))
    leading = [int(one_of(1, 2, 3, factor)) for _ in range(rng.integers(0, 3))]
    left, count = bool(rng.random() < 0.3), int(one_of(1, 2, 3))
    shape = [*leading, *((count, length) if left else (length, count))]
    dims = [
        "n" if i == 0 and len(shape) > 2 and rng.random() < 0.4 else e for i, e in enumerate(shape)
    ]
    g = Computed(shape, rng, left=left)
    g.shape = dims
    x = rng.integers(-2, 3, shape).astype(np.float32)
    pool = [g.known("x", x), ""]
    pool[1] = g.signed_product("x", int(one_of(1, 2, 3)))
    for _ in range(rng.integers(2, 8)):
        value, kind = one_of(*pool[-2:]), one_of(*KINDS)
        count, array = g.channels[value], g.values[value]
        if kind == "product":
            value = g.signed_product(value, int(one_of(1, 2, 3, 5)))
        elif kind == "unary":
            op = one_of(*UNARY)
            value = g.known(g.op(op, value), UNARY[op](array))
        elif kind == "constant":
            ones = [1] * int(rng.integers(0, len(shape) - 1))
            numbers = one_of(g.column(*ones, count), g.integers(*ones, 1), g.integers())
            op, turned = one_of(*BINARY), rng.random() < 0.3
            pair = (numbers, array) if turned else (array, numbers)
            names = (numbers, value) if turned else (value, numbers)
            value = g.known(g.op(op, *names, channels=count), BINARY[op](*pair))
        elif kind == "slope":
            slope = one_of(g.column(count), g.integers())
            value = g.known(g.op("PRelu", value, slope), np.where(array < 0, slope * array, array))
        elif kind == "two":
            other = one_of(*(v for v in pool if g.channels[v] == count))
            op = one_of("Add", "Sub", "Max")
            value = g.known(g.op(op, value, other), BINARY[op](array, g.values[other]))
        else:
            axis = int(rng.integers(-len(shape), 0))
            value = g.op("CumSum", value, np.array(axis))
            g.known(value, np.cumsum(array, axis, dtype=np.float32))
            value = g.known(g.op("Sign", value), np.sign(g.values[value]))
        pool.append(value)
    outputs = [pool[-1], *(value for value in pool[1:-1] if rng.random() < 0.15)]
    options = FoldOptions(factor=factor, mix_samples=bool(rng.random() < 0.7), **LIMITS)
    return g, g.model(list(dict.fromkeys(outputs))), x, options


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_folded_graph_returns_what_the_oracle_computes(seed: int) -> None:
    g, model, x, options = graph(seed)
    folded, _ = fold_model(model, options)
    onnx.checker.check_model(folded, full_check=True)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        for value, found in zip(model.graph.output, run(folded, x, level), strict=True):
            np.testing.assert_array_equal(found, g.values[value.name])
    assert fold_model(model, options)[0].SerializeToString() == folded.SerializeToString()
    again, _ = fold_model(folded, options)
    assert again.SerializeToString() == folded.SerializeToString()
    assert ops(folded).count("MatMul") == ops(model).count("MatMul")
    assert "Transpose" not in ops(folded)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_folded_graph_is_proved(seed: int) -> None:
    _, model, _, options = graph(seed)
    folded, sites = fold_model(model, options)
    assert_proved(model, folded, sum(site.status == "folded" for site in sites))
