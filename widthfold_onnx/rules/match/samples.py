"""Guess which positions of a product of matrices may be samples of a batch, which must not mix.

A graph does not say which axis is its batch. The first axis of every input of the model with two or
more axes is taken for one, so rows of a matrix that is an input are samples.

Data of more than two axes has its samples on the first one; but on the second, if that is as long
as a batch and the first is not (time before samples, as in recurrent layers). The rows of a matrix
may be samples if their number is open; if it is a multiple of a batch, each sample may have several
rows. Its columns may be samples as a second axis may: a Transpose puts them there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.proto.dims import Dims, dims_of

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
