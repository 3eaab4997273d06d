"""Guess which positions of a product of matrices may be samples of a batch, which must not mix.

A graph does not say which axis is its batch. For data of more than two axes the first axis is taken
for the batch; but the second, if it is as long as the batch of an input of the model [N, .., ..]
and the first is not (time before samples, as in recurrent layers). The rows of a matrix may be
samples if their number is open, or several rows per sample if it is a multiple of such a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.proto.dims import Dims, dims_of


@dataclass(frozen=True)
class Samples:
    """The axis that may count samples.

    Attributes:
        axis: axis of the data as the product reads it.
        counts: possible numbers of samples; None is any number.
    """

    axis: int
    counts: frozenset[int | None]

    def mixed(self, data: Dims, positions: slice, factor: int) -> bool:
        """Check whether neighbours that are folded into one may belong to several samples.

        Args:
            data: extents.
            positions: the axes that are folded.
            factor: number of neighbours.
        """
        if not positions.start <= self.axis < positions.stop:
            return False
        extent = data[self.axis]
        behind = math.prod(e for e in data[self.axis + 1 : positions.stop] if e is not None)
        return any(
            n is None or extent is None or (extent % n == 0 and behind * (extent // n) % factor)
            for n in self.counts - {1}
        )


def samples_of(document: Document, data: Dims, *, transposed: bool) -> Samples:
    """Return the axis of a product's data that may count samples of a batch.

    Args:
        document: the model.
        data: extents of the data as the product reads it; None where the model leaves them open.
        transposed: it is stored with its two last axes exchanged.
    """
    shapes = (dims_of(value) for value in document.proto.graph.input)
    batches = {dims[0] for dims in shapes if dims is not None and len(dims) > 2}
    first, second = data[1::-1] if transposed and len(data) == 2 else data[:2]
    if len(data) == 2:
        return Samples(int(transposed), frozenset({None} if first is None else batches - {None}))
    later = first not in batches and second in batches
    return Samples(int(later), frozenset({second if later else first}))
