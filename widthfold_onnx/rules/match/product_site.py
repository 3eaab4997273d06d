"""Define the sites that are products of matrices, and find the rows that must not mix.

Samples of a batch must not mix, but a graph does not say which axis is its batch. `samples_of`
takes the first axis of every model input with two or more axes for it. So the rows of a matrix that
is an input are samples.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from widthfold_onnx.arrays import size_of
from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.proto.dims import Dims, dims_of
from widthfold_onnx.operators.base import misfit
from widthfold_onnx.operators.einsum import Einsum, Labels
from widthfold_onnx.operators.matmul import Product
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.match.site import LinearSite

Counts = frozenset[int | None]
"""Possible numbers of samples; None is any number."""


@dataclass(frozen=True)
class Samples:
    """The axes that may count samples.

    Attributes:
        counts: what each axis of the data, as the product reads it, may count.
    """

    counts: tuple[Counts, ...]

    def mixed(self, data: Dims, positions: slice, factor: int) -> bool:
        """Check whether neighbours that are folded into one may belong to several samples.

        Args:
            data: extents.
            positions: the axes that are folded.
            factor: number of neighbours.
        """
        for axis, counts in enumerate(self.counts):
            if not positions.start <= axis < positions.stop:
                continue
            extent = data[axis]
            behind = math.prod(e for e in data[axis + 1 : positions.stop] if e is not None)
            if any(
                n is None or extent is None or (extent % n == 0 and behind * (extent // n) % factor)
                for n in counts - {1}
            ):
                return True
        return False


def samples_of(document: Document, data: Dims, order: Sequence[int]) -> Samples:
    """Return the axes of a product's data that may count samples of a batch.

    Args:
        document: the model.
        data: extents of the data as it is stored; None where the model leaves them open.
        order: axis of the stored data for each axis that the product reads.
    """
    graph = document.proto.graph
    held = {tensor.name for tensor in graph.initializer}
    shapes = (dims_of(value) for value in graph.input if value.name not in held)
    batches = {dims[0] for dims in shapes if dims is not None and len(dims) > 1}
    first, second = data[:2]
    later = frozenset({second} if first not in batches and second in batches else ())
    if len(data) > 2:
        counts = (Counts() if later else Counts({first}), later)
    else:
        counts = (Counts({None} if first is None else batches - {None}), later)
    return Samples(tuple(counts[axis] if axis < len(counts) else Counts() for axis in order))


@dataclass(frozen=True, kw_only=True, eq=False)
class ProductSite(LinearSite):
    """A product of matrices; its rows, or with the weight on the left its columns, are folded.

    Attributes:
        operator: its description.
        samples: where rows or columns may be samples of a batch.
        stored_rank: axes of the data as it is stored.
    """

    operator: Product
    samples: Samples
    stored_rank: int

    @property
    def transposed(self) -> bool:
        """True if the data is stored with its last two axes exchanged."""
        return self.operator.data_transposed(self.node)

    @property
    def labels(self) -> Labels | None:
        """The labels of an Einsum, whose axes lie in another order; None for other products."""
        if not isinstance(self.operator, Einsum):
            return None
        return self.operator.labels(self.node, self.stored_rank)

    @property
    def is_reordered(self) -> bool:
        """True for an Einsum that moves elements of data or result around its product."""
        if self.labels is None:
            return False
        packings = self.labels.packing(self.planned, self.weight.shape, 1)
        return not all(packing.is_view for packing in packings)

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """Extents of the weight as matrices."""
        return self.operator.matrix_shape(self.node, self.weight.shape)

    @property
    def flat(self) -> bool:
        """True if the weight is a vector, so that the result has no axis of channels."""
        return self.labels is None and len(self.weight.shape) == 1

    @property
    def batches(self) -> tuple[int, ...]:
        """Leading extents of the weight; none where one matrix serves all."""
        return self.matrix_shape[:-2]

    @property
    def matrices(self) -> int:
        """Matrices in the weight, one for every batch."""
        return math.prod(self.batches)

    @property
    def rank(self) -> int:
        """Spatial axes: none."""
        return 0

    @property
    def position_names(self) -> tuple[str, ...]:
        """Rows or columns."""
        return ("columns" if self.weight_on_left else "rows",)

    @property
    def stored_axes(self) -> tuple[int, ...]:
        """The axis of the stored data for every axis that the site reads."""
        return self.operator.stored_order(self.node, self.stored_rank)

    def result(self, data: Dims) -> Dims:
        """Return [.., L, O] or with the weight on the left [.., O, L], see `LinearSite.result`."""
        leading, outputs = _broadcast(data[:-2], self.batches), self.channels[1]
        return (
            (*leading, outputs, data[-1]) if self.weight_on_left else (*leading, data[-2], outputs)
        )

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one run, None where an extent is not known."""
        return size_of((*self.output, self.channels[0]))

    @property
    def signature(self) -> dict[str, object]:
        """Its geometry without extents and element type; of JSON's types."""
        beside = {str(i): list(p.constant.shape) for i, p in self.beside.items()}
        return {
            **({"equation": _equation(self.labels)} if self.labels else {}),
            "weight": list(self.matrix_shape),
            "left": self.weight_on_left,
            "transposed": self.transposed,
            "turned": self.operator.weight_transposed(self.node),
            "flat": self.flat,
            "bias": None if self.bias is None else list(self.bias.shape),
            **({"dequantized": True} if self.is_dequantized else {}),
            **({"beside": beside} if beside else {}),
        }

    @property
    def geometry(self) -> Hashable:
        """The values that determine its forms besides extents, element size and weight."""
        layout = (self.transposed, self.flat, self.labels, self.weight.shape)
        return (super().geometry, self.matrices, layout, self.samples)

    @property
    def attributes(self) -> str:
        """The side of the weight, and its transposes and additions, for reports."""
        if self.labels is not None:
            return _equation(self.labels)
        turned = self.operator.weight_transposed(self.node)
        text = f"weight {'left' if self.weight_on_left else 'right'}"
        text += ", data transposed" * self.transposed + ", weight transposed" * turned
        return text if self.bias is None else f"{text}, C {list(self.bias.shape)}"

    def problem(self) -> Refusal | None:
        """Say why data, weight and C do not fit together."""
        if self.labels is not None and None in self._shared(self.labels):
            return Refusal(
                Code.UNKNOWN_EXTENT,
                "a label of data and weight has an extent of the data that is not known; if it is "
                "1, ONNX Runtime broadcasts it",
            )
        if self._fits():
            return None
        bias = "" if self.bias is None else f" and C {list(self.bias.shape)}"
        return misfit(self.planned, self.weight.shape, bias)

    def _shared(self, labels: Labels) -> Dims:
        """Return the extents of the data that the model fixes for labels of the weight, too."""
        row = len(self.static) - (1 if self.weight_on_left else 2)
        first = len(labels.rows) - 1
        return tuple(n for i, n in enumerate(self.static) if i >= first and i != row)

    def _fits(self) -> bool:
        data, inputs = self.planned, self.channels[0]
        pairs = zip(reversed(data[:-2]), reversed(self.batches), strict=False)
        fits = data[-2 if self.weight_on_left else -1] in (None, inputs)
        fits = fits and all(a in (None, b) or 1 in (a, b) for a, b in pairs)
        if self.operator.inputs.bias is not None:
            fits = fits and len(data) == len(self.weight.shape) == 2
        if self.bias is None or not fits:
            return fits
        extents = (1,) * (2 - len(self.bias.shape)) + self.bias.shape
        ends = zip(extents, self.output, strict=False)
        return len(extents) == 2 and all(e in (1, w) or w is None for e, w in ends)


def _equation(labels: Labels) -> str:
    """Return the equation of an Einsum, each hidden axis named by a digit."""
    terms = ("".join(term) for term in (labels.data, labels.weight, labels.result))
    return "{},{}->{}".format(*terms)


def _broadcast(data: Dims, weight: tuple[int, ...]) -> Dims:
    """Return the leading extents of the result; open if the data's are and the weight's are 1."""
    rank = max(len(data), len(weight))
    batches = (1,) * (rank - len(data)) + tuple(data)
    matrices = (1,) * (rank - len(weight)) + tuple(weight)
    return tuple(b if b != 1 else a for a, b in zip(batches, matrices, strict=True))
