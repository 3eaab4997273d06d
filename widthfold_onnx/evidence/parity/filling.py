"""Make inputs that cover the whole range of the quantizers that read them.

Random numbers of other sets seldom get near both ends of the range, where 8-bit kernels saturate
(`runtime.kernels`) and weights have most effect.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.exact_kernels import holds_bytes
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.rules.quantization import before_moves
from widthfold_onnx.runtime.inputs.feeds import InputSet

FILLING_LABEL = "whole range of the quantizers"


def filling_set(loaded: LoadedModel, template: InputSet) -> InputSet | None:
    """Return a set that fills the range of each quantizer of an input, None without a quantizer.

    Args:
        loaded: the model.
        template: gives the shapes, and the data of all other inputs.
    """
    if not holds_bytes(loaded.proto):
        return None
    document = Document(loaded.proto, loaded.folder, OPERATORS)
    ranges: dict[str, tuple[float, float]] = {}
    for _, node in document.nodes({("", "QuantizeLinear")}):
        source, _ = before_moves(node.inputs[0])
        name, interval = None if source is None else source.name, _range(document, node)
        if name is not None and name in template.feeds and interval is not None:
            low, high = ranges.get(name, interval)
            ranges[name] = min(low, interval[0]), max(high, interval[1])
    feeds = {name: _uniform(name, template.feeds[name], *ends) for name, ends in ranges.items()}
    return (
        replace(template, label=FILLING_LABEL, feeds={**template.feeds, **feeds}) if feeds else None
    )


def _range(document: Document, node: Node) -> tuple[float, float] | None:
    """Return the range of a quantizer; None unless scale and zero point are constant scalars."""
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


def _uniform(name: str, template: Array, low: float, high: float) -> Array:
    generator = np.random.default_rng([*name.encode()])
    return np.asarray(generator.uniform(low, high, template.shape)).astype(template.dtype)
