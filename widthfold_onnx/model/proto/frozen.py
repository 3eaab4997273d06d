"""Tell which inputs of a model a caller may give, and take weights out of them."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from widthfold_onnx.model.proto.walk import initializers, retain

OVERRIDABLE_SINCE = 4
"""IR version from which an initializer that is also an input is a default value."""


def inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller can give; some may have a default value."""
    old = model.ir_version < OVERRIDABLE_SINCE
    fixed = {tensor.name for tensor in model.graph.initializer} if old else ()
    return [value for value in model.graph.input if value.name not in fixed]


def overridable(model: onnx.ModelProto) -> set[str]:
    """Return the initializers that a caller may replace."""
    if model.ir_version < OVERRIDABLE_SINCE:
        return set()
    return initializers(model.graph).keys() & {value.name for value in model.graph.input}


def frozen(model: onnx.ModelProto, retained: Collection[str] = ()) -> onnx.ModelProto:
    """Return a model whose initializers are no inputs: itself if none is.

    ONNX Runtime treats a weight that is an input as data: it neither packs it nor fuses anything
    with it.

    Args:
        model: the model; it stays as it is.
        retained: names of inputs that stay.
    """
    gone = overridable(model) - set(retained)
    if not gone:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    retain(copy.graph.input, lambda value: value.name not in gone)
    return copy
