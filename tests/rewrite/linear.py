"""Random graphs of products of matrices and what lies between them, on integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.rewrite.graphs import Builder


@dataclass
class Linear(Builder):
    """A graph whose channels are the last axis, or with the weights on the left the last but one.

    The shape is the shape of x.
    """

    weight_on_left: bool = False

    def __post_init__(self) -> None:
        self.channels["x"] = int(self.shape[-2 if self.weight_on_left else -1])

    def product(self, value: str, out: int) -> str:
        """A MatMul."""
        shape = (self.channels[value], out)
        weight = self.integers(*shape[:: -1 if self.weight_on_left else 1])
        operands = (weight, value) if self.weight_on_left else (value, weight)
        return self.op("MatMul", *operands, channels=out)

    def column(self, *extents: int) -> np.ndarray:
        """Integers of extents that end with the channels; behind these is the axis of columns."""
        return self.integers(*extents, *([1] if self.weight_on_left else []))

    def linear(self, value: str, out: int) -> str:
        """A MatMul, a bias and a Relu."""
        return self.op("Relu", self.op("Add", self.product(value, out), self.column(out)))


def perceptron(
    *shape: int | str, weight_on_left: bool = False, widths: tuple[int, ...] = (5, 5, 1, 2)
):
    """Linear layers, each with bias and Relu; nothing passes the Softmax packed."""
    g = Linear(list(shape), np.random.default_rng(1), weight_on_left=weight_on_left)
    value = "x"
    for width in widths:
        value = g.linear(value, width)
    return g.model([g.op("Softmax", value, axis=-1)])
