"""Makes inputs that cover the whole range of the quantizers that read them.

Numbers of other distributions seldom get near both ends of a quantizer's range. There sums of 8
bits saturate (`runtime.saturation`), and there weights have most effect.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.eight_bits.exact_kernels import holds_bytes
from widthfold_onnx.model.graph.constants import Constant
from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.proto.domain import is_default
from widthfold_onnx.model.read.loader import load
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.rules.match.dequantized import REMOVED, SELECTING
from widthfold_onnx.runtime.inputs.recorded import InputSet

LABEL = "whole range of the quantizers"


def filling(model: Path, like: InputSet) -> InputSet | None:
    """Return a set that fills the range of every quantizer of the inputs, None if there is none.

    Args:
        model: the file.
        like: gives the shapes, and the data of all other inputs.
    """
    loaded = load(model)
    if not holds_bytes(loaded.proto):
        return None
    document = Document(loaded.proto, loaded.folder, OPERATORS)
    ranges: dict[str, tuple[float, float]] = {}
    for _, node in document.nodes({("", "QuantizeLinear")}):
        name, found = _source(node.inputs[0]), _range(document, node)
        if name in like.feeds and found is not None:
            low, high = ranges.get(name, found)
            ranges[name] = min(low, found[0]), max(high, found[1])
    feeds = {name: _uniform(name, like.feeds[name], *ends) for name, ends in ranges.items()}
    return replace(like, label=LABEL, feeds={**like.feeds, **feeds}) if feeds else None


def _source(value: Value | None) -> str:
    """Return the name of the value whose elements were only moved or selected since."""
    while value is not None and (node := value.producer()) is not None:
        if not is_default(node, *SELECTING, *REMOVED):
            break
        value = node.inputs[0]
    return "" if value is None else value.name or ""


def _range(document: Document, node: Node) -> tuple[float, float] | None:
    """Return the range that a quantizer represents, if its numbers are constant scalars."""
    arrays = [_scalar(document, value) for value in node.inputs[1:] if value is not None]
    scale, zero = (*arrays, _default_zero(node))[:2]
    if scale is None or zero is None or zero.dtype.kind not in "iu":
        return None
    limits = np.iinfo(zero.dtype)
    first, last = ((end - int(zero)) * float(scale) for end in (limits.min, limits.max))
    return (min(first, last), max(first, last)) if math.isfinite(last - first) else None


def _default_zero(node: Node) -> Array:
    """Return the default zero point of a quantizer; since opset 21 an attribute gives its type."""
    kind = node.attributes.get_int("output_dtype", 0)
    return np.zeros((), helper.tensor_dtype_to_np_dtype(kind) if kind else np.uint8)


def _scalar(document: Document, value: Value) -> Array | None:
    constant = document.constant(value)
    if not isinstance(constant, Constant) or math.prod(constant.shape) != 1:
        return None
    return document.read(constant).reshape(())


def _uniform(name: str, like: Array, low: float, high: float) -> Array:
    generator = np.random.default_rng([*name.encode()])
    return np.asarray(generator.uniform(low, high, like.shape)).astype(like.dtype)
