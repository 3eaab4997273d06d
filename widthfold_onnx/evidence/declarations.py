"""Find declared extents of either model that do not hold, and leave them out of the proof."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import onnx

from widthfold_onnx.errors import UsageError
from widthfold_onnx.evidence.parity.outputs import Outputs
from widthfold_onnx.model.proto.dims import dims_of
from widthfold_onnx.model.proto.walk import copy_of
from widthfold_onnx.model.shapes.declarations import (
    WrongDeclaration,
    contradict,
    declaration_remarks,
)
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import Shapes


def without_wrong_outputs(model: onnx.ModelProto, returned: Outputs) -> onnx.ModelProto:
    """Return a model without the declared extents of outputs that returned others."""
    if not _wrong_outputs(model, returned):
        return model
    copy = copy_of(model)
    for value in _wrong_outputs(copy, returned):
        value.type.tensor_type.ClearField("shape")
    return copy


def wrong_declarations(
    old: onnx.ModelProto, new: onnx.ModelProto, shapes: Shapes, returned: Outputs
) -> tuple[str, ...]:
    """Name declared extents of both models that do not hold, each once.

    A model that does not take the shapes is passed over here; other checks report that.

    Args:
        old: the original.
        new: the rewritten model.
        shapes: of the inputs.
        returned: outputs of the original; their shapes count where inference knows none.
    """
    lines: list[str] = []
    seen: set[tuple[str, str]] = set()
    for subject, model in (("the original", old), ("the rewritten model", new)):
        with suppress(UsageError):
            wrong = _wrong_values(model, shapes, returned)
            further = [item for item in wrong if (item.path, item.name) not in seen]
            seen.update((item.path, item.name) for item in further)
            lines += declaration_remarks(subject, further)
    return tuple(lines)


def _wrong_values(
    model: onnx.ModelProto, shapes: Shapes, returned: Outputs
) -> Sequence[WrongDeclaration]:
    """Return wrong declarations: those that inference finds, then outputs that it does not know.

    Raises:
        UsageError: the model does not take these shapes.
    """
    wrong = [*ShapeTable(model, shapes).wrong_declarations]
    names = {item.name for item in wrong}
    outputs = [value for value in _wrong_outputs(model, returned) if value.name not in names]
    return wrong + [
        WrongDeclaration("", value.name, dims_of(value) or (), returned[value.name].shape)
        for value in outputs
    ]


def _wrong_outputs(model: onnx.ModelProto, returned: Outputs) -> list[onnx.ValueInfoProto]:
    """Return the outputs whose declared extents are not those that were returned."""
    return [
        value
        for value in model.graph.output
        if value.name in returned and contradict(dims_of(value), returned[value.name].shape)
    ]
