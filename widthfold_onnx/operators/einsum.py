"""Describe an Einsum of data and a constant weight as a product of matrices.

A label of both operands is a batch (group) if the result has it, and is summed if not. The other
labels of the data are rows, those of the weight are columns. The operands are read as

    weight on the right:  [rows.., batches.., row, summed..]; weight [batches.., summed, columns]
    weight on the left:   [rows.., batches.., summed.., row]; weight [batches.., columns, summed]

So an Einsum is a MatMul between two Transposes, of the data and of the result. The last label of
the rows is folded (`algebra.layouts`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.packing import Packing
from widthfold_onnx.arrays import Array, Dims, size_of
from widthfold_onnx.model.document import Node
from widthfold_onnx.operators.base import FoldedOperator, Inputs, inconsistent_shapes
from widthfold_onnx.operators.matmul import Product
from widthfold_onnx.refusal import Code, Refusal

ELLIPSIS = "..."
FIRST_HIDDEN = "0"
"""Name of the first axis that an ellipsis hides: no label is a digit."""

Term = tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Labels:
    """The labels of an Einsum of two operands, each with every label once.

    Attributes:
        data: a label for each axis of the data.
        weight: likewise of the weight.
        result: likewise of the result.
        weight_on_left: whether the weight is the left operand of the product.
    """

    data: Term
    weight: Term
    result: Term
    weight_on_left: bool

    @property
    def batches(self) -> Term:
        """The labels of groups, in the order of the weight."""
        return tuple(label for label in self.weight if label in self.data and label in self.result)

    @property
    def summed(self) -> Term:
        """The labels of input channels, in the order of the weight."""
        return tuple(label for label in self.weight if label not in self.result)

    @property
    def columns(self) -> Term:
        """The labels of output channels, in the order of the weight."""
        return tuple(label for label in self.weight if label not in self.data)

    @property
    def rows(self) -> Term:
        """The labels of positions, in the order of the data."""
        return tuple(label for label in self.data if label not in self.weight)

    @property
    def leading(self) -> Term:
        """The axes of the product before its two last ones."""
        return (*self.rows[:-1], *self.batches)

    def oriented(self, row: Sequence[T], channels: Sequence[T]) -> tuple[T, ...]:
        """Return the row and the channels in the order in which the product has them."""
        return (*channels, *row) if self.weight_on_left else (*row, *channels)

    @property
    def order(self) -> tuple[int, ...]:
        """The axis of the data for each axis of the product; the first of several summed ones."""
        axes = (*self.leading, *self.oriented(self.rows[-1:], self.summed[:1]))
        return tuple(self.data.index(label) for label in axes)

    def is_plain(self, term: Term, channels: Term) -> bool:
        """Check whether data or result lie as the product has them, with one axis of channels."""
        last = self.oriented(self.rows[-1:], channels)
        return len(channels) == 1 and term == (*self.leading, *last)

    def product(self, data: Dims) -> Dims:
        """Return the extents of the data as the product reads it."""
        extents = dict(zip(self.data, data, strict=True))
        row, channels = extents[self.rows[-1]], size_of([extents[label] for label in self.summed])
        return (*(extents[label] for label in self.leading), *self.oriented([row], [channels]))

    def packing(self, product: Dims, weight: Sequence[int], factor: int) -> tuple[Packing, Packing]:
        """Describe the moves of data and result around a product whose last row is folded.

        Args:
            product: extents of the data as the product reads it; None where they stay open.
            weight: extents of the weight as it is stored.
            factor: positions of the last row that become channels.
        """
        sizes: dict[str, int | None] = dict(zip(self.weight, weight, strict=True))
        sizes |= zip(self.leading, product, strict=False)
        length = product[-1 if self.weight_on_left else -2]
        atoms = {**sizes, "rest": None if length is None else length // factor, "tile": factor}
        return (
            self._packing(atoms, self.data, self.summed),
            self._packing(atoms, self.result, self.columns),
        )

    def _packing(self, atoms: dict[str, int | None], stored: Term, channels: Term) -> Packing:
        """Describe a tensor as it is stored, as the product has it, and with the folded row."""
        row, tiled = self.oriented(["rest"], ["tile"]), self.oriented(["tile"], channels)
        axis = {label: (label,) for label in stored} | {self.rows[-1]: row}
        leading = tuple(axis[label] for label in self.leading)
        ordered_axes = (*leading, *self.oriented([row], [(label,) for label in channels]))
        folded_axes = (*leading, *self.oriented([("rest",)], [tiled]))
        return Packing(atoms, (tuple(axis[label] for label in stored), ordered_axes, folded_axes))


@dataclass(frozen=True, kw_only=True)
class Einsum(Product):
    """An Einsum that is a product of matrices."""

    def problem(self, node: Node) -> Refusal | None:
        """Refuse an Einsum that is no product of two operands."""
        terms = _terms(node)
        if terms is None or len(node.inputs) != 2:
            return _no_product(f"it has {len(node.inputs)} operands, and two make a product")
        first, second, result = terms
        for term in (first, second, result):
            if repeated := [label for label, count in Counter(term).items() if count > 1]:
                return _no_product(f"{repeated[0]} is repeated in one operand or the result")
        for label in result:
            if label not in (*first, *second):
                return _no_product(f"{label} is in its result alone")
        for label in (*first, *second):
            count = sum(label in term for term in (first, second, result))
            if label not in result and (count == 1 or label == ELLIPSIS):
                return _no_product(f"it sums over {label}, which only one operand has")
        if not any(label in second and label not in result for label in first):
            return _no_product("it sums over no label of both operands")
        return None

    def data_problem(self, node: Node, data: Dims, weight: tuple[int, ...]) -> Refusal | None:
        """Refuse hidden axes of the weight, a product without rows, and extents that differ."""
        labels = self.labels(node, len(data))
        if len(labels.weight) != len(weight) or len(labels.data) != len(data):
            return _no_product("an ellipsis hides axes of the weight, or the ranks do not fit")
        if not labels.rows:
            return _no_product("all labels of the data are the weight's, so that it has no rows")
        sizes = dict(zip(labels.weight, weight, strict=True))
        pairs = zip(labels.data, data, strict=True)
        if any(extent != sizes.get(label, extent) for label, extent in pairs if extent is not None):
            return inconsistent_shapes(data, weight, "")
        return None

    def labels(self, node: Node, rank: int) -> Labels:
        """Return the labels for data of a rank; an ellipsis stands for the axes that it hides."""
        terms = _terms(node)
        assert terms is not None
        first, second, result = terms
        data, weight = (second, first) if self.weight_on_left else (first, second)
        hidden = [chr(ord(FIRST_HIDDEN) + i) for i in range(rank - len(data) + 1)]
        weight = tuple(label for label in weight if label != ELLIPSIS)
        if ELLIPSIS not in data:
            hidden = []
        return Labels(_expand(data, hidden), weight, _expand(result, hidden), self.weight_on_left)

    def data_shape(self, node: Node, stored: Dims, channels: int) -> Dims:
        """Return the extents of the data as the product reads it."""
        return self.labels(node, len(stored)).product(stored)

    def stored_order(self, node: Node, rank: int) -> tuple[int, ...]:
        """Return the axis of the stored data for each axis that the product reads."""
        return self.labels(node, rank).order

    def folded_operator(self, node: Node, fold: ConvFold) -> FoldedOperator:
        """Return a MatMul."""
        return FoldedOperator("", "MatMul", {})

    def matrices(self, weight: Array, node: Node) -> Array:
        """Return [batches.., summed, columns], with the weight on the left the last two turned."""
        labels = self.labels(node, weight.ndim)  # the rank of the data changes no label here
        axes = (labels.batches, *labels.oriented([labels.summed], [labels.columns]))
        turned = weight.transpose([labels.weight.index(label) for label in chain(*axes)])
        first, second = (
            math.prod(weight.shape[labels.weight.index(label)] for label in term)
            for term in axes[1:]
        )
        return turned.reshape(*turned.shape[: len(labels.batches)], first, second)


def _terms(node: Node) -> tuple[Term, Term, Term] | None:
    """Return the labels of both operands and of the result; None if there are not two operands."""
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms = [_term(text) for text in operands.split(",")]
    if len(terms) != 2:
        return None
    if arrow:
        return terms[0], terms[1], _term(result)
    counts = Counter(chain(*terms))
    singles = sorted(label for label, count in counts.items() if count == 1 and label != ELLIPSIS)
    return terms[0], terms[1], (*((ELLIPSIS,) if ELLIPSIS in counts else ()), *singles)


def _term(text: str) -> Term:
    """Return the labels of one term."""
    leading, ellipsis, trailing = text.partition(ELLIPSIS)
    return (*leading, *([ellipsis] if ellipsis else []), *trailing)


def _expand(term: Term, hidden: Sequence[str]) -> Term:
    """Return a term with the axes that its ellipsis hides."""
    return tuple(chain.from_iterable(hidden if label == ELLIPSIS else [label] for label in term))


def _no_product(reason: str) -> Refusal:
    return Refusal(Code.NO_PRODUCT, f"the Einsum is no product of matrices: {reason}")


_RIGHT = Einsum(inputs=Inputs(), min_opset=12)
EINSUM = (_RIGHT, replace(_RIGHT, inputs=Inputs(data=1, weight=0)))
