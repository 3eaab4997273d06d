"""Compares the interfaces of two models: callers rely on it, so it may not change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.proto.frozen import overridable
from widthfold_onnx.model.proto.walk import initializers
from widthfold_onnx.text import printable


def interface_differences(
    original: Path, rewritten: Path, *, freeze_weights: bool = False
) -> list[str]:
    """List differences in names, order, element types, dims or overridable initializers.

    Args:
        original: model file; weights outside it are not read.
        rewritten: model file.
        freeze_weights: whether initializers of the original may be no inputs any more.

    Raises:
        UnverifiedError: a file that is no model.
    """
    before, after = _load(original), _load(rewritten)
    lines = _ports("input", _fed(before), _fed(after))
    lines += _ports("output", before.graph.output, after.graph.output)
    gone = [] if freeze_weights else sorted(overridable(before) - overridable(after))
    new = sorted(overridable(after) - overridable(before))
    lines += [f"overridable initializer {printable(name)} is gone" for name in gone]
    lines += [f"overridable initializer {printable(name)} is new" for name in new]
    return lines


def _load(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.ModelProto()
        model.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise UnverifiedError(
            f"{printable(path.name)} cannot be read: {printable(str(error))}"
        ) from error
    return model


def _fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must feed."""
    kept = initializers(model.graph).keys()
    return [value for value in model.graph.input if value.name not in kept]


def _ports(
    kind: str, before: Iterable[onnx.ValueInfoProto], after: Iterable[onnx.ValueInfoProto]
) -> list[str]:
    old, new = list(before), list(after)
    names, others = [value.name for value in old], [value.name for value in new]
    if names != others:
        return [f"{kind}s are {_list(others)} instead of {_list(names)}"]
    return [
        f"{kind} {printable(one.name)} has another type or shape"
        for one, two in zip(old, new, strict=True)
        if one.type != two.type
    ]


def _list(names: list[str]) -> str:
    return ", ".join(printable(name) for name in names) or "none"
