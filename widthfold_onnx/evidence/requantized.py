"""Integers that are dequantized, moved and quantized again (`Region.signed`) are only moved.

Every integer of the type comes back from the two: all 256 are tried, in the float32 of the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import read
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Node


def moves_of(document: Document, line: Sequence[Node]) -> list[Node]:
    """A line of moves without the DequantizeLinear and QuantizeLinear around it, if they are there.

    Args:
        document: the rewritten model.
        line: new nodes, each of which reads the one before.

    Raises:
        Mismatch: an integer does not come back from the two.
    """
    first, last = line[0], line[-1]
    if not (
        is_default(first, "DequantizeLinear")
        and is_default(last, "QuantizeLinear")
        and len(line) > 2
    ):
        return list(line)
    alike = list(first.inputs[1:]) == list(last.inputs[1:]) and len(first.inputs) == 3
    if not alike or first.attributes or last.attributes:
        raise Mismatch("integers are quantized again in another way")
    scale, zero = (read(document, value) for value in first.inputs[1:] if value is not None)
    if scale.size != 1 or zero.size != 1 or zero.dtype != np.int8:
        raise Mismatch("integers are quantized again in another way")
    every = np.arange(-128, 128, dtype=np.float32)
    less = zero.reshape(()).astype(np.float32)
    real = (every - less) * scale.reshape(())
    if (np.rint(real / scale.reshape(())) + less != every).any():
        raise Mismatch("integers do not come back when they are quantized again")
    return list(line[1:-1])
