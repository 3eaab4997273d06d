"""Compares the interfaces of two models: callers rely on it, so it may not change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.model.proto.frozen import overridable
from widthfold_onnx.model.proto.walk import initializers
from widthfold_onnx.text import printable

Extents = tuple[int | str, ...]
"""Declared extents: numbers, symbols, and \"\" where neither is known."""


def interface_differences(
    original: Path, rewritten: Path, *, freeze_weights: bool = False
) -> tuple[list[str], list[Declaration]]:
    """List differences in names, order, element types, dims or overridable initializers.

    Args:
        original: model file; weights outside it are not read.
        rewritten: model file.
        freeze_weights: whether initializers of the original may be no inputs any more.

    Returns:
        Those that may break a caller, and outputs with other extents than before: what the
        original returns decides about these.

    Raises:
        UnverifiedError: a file that is no model.
    """
    before, after = _load(original), _load(rewritten)
    faults, inputs = _ports("input", _fed(before), _fed(after))
    more, outputs = _ports("output", before.graph.output, after.graph.output)
    faults += [declaration.line for declaration in inputs] + more
    gone = [] if freeze_weights else sorted(overridable(before) - overridable(after))
    new = sorted(overridable(after) - overridable(before))
    faults += [f"overridable initializer {printable(name)} is gone" for name in gone]
    faults += [f"overridable initializer {printable(name)} is new" for name in new]
    return faults, outputs


@dataclass(frozen=True)
class Declaration:
    """An input or output whose extents two models declare in different words.

    Attributes:
        name: of the input or output.
        line: says so.
        old: extents by the original, None where it declares not even the rank.
        new: extents by the rewritten model.
    """

    name: str
    line: str
    old: Extents | None
    new: Extents | None

    def is_exact(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Check whether the new declaration is the more exact one.

        It says at least what the old one says, or the old one is wrong; and it is right.

        Args:
            shapes: of what the original returned.
        """
        if self.new is None or not all(_fits(shape, self.new) for shape in shapes):
            return False
        if self.old is None or not all(_fits(shape, self.old) for shape in shapes):
            return True
        pairs = zip(self.old, self.new, strict=False)
        return all(a in (b, "") or (isinstance(a, str) and isinstance(b, int)) for a, b in pairs)


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
) -> tuple[list[str], list[Declaration]]:
    """Return differences, and apart from these the ports of one element type."""
    old, new = list(before), list(after)
    names, others = [value.name for value in old], [value.name for value in new]
    if names != others:
        return [f"{kind}s are {_list(others)} instead of {_list(names)}"], []
    faults: list[str] = []
    declared: list[Declaration] = []
    for one, two in zip(old, new, strict=True):
        what = f"{kind} {printable(one.name)}"
        line = f"{what} is declared {_shown(two)} instead of {_shown(one)}"
        tensors = one.type.tensor_type, two.type.tensor_type
        extents = tuple(map(_extents, tensors))
        if 0 < tensors[0].elem_type == tensors[1].elem_type:
            if extents[0] != extents[1]:
                declared.append(Declaration(one.name, line, *extents))
        elif one.type != two.type:
            faults.append(line)
    return faults, declared


def _extents(tensor: onnx.TypeProto.Tensor) -> Extents | None:
    # Exporters name anonymous extents "?".
    dims = (d.dim_value if d.dim_value > 0 else d.dim_param.strip("?") for d in tensor.shape.dim)
    return tuple(dims) if tensor.HasField("shape") else None


def _fits(shape: Sequence[int], extents: Extents) -> bool:
    return len(shape) == len(extents) and all(
        not isinstance(extent, int) or extent == size
        for size, extent in zip(shape, extents, strict=True)
    )


def _shown(value: onnx.ValueInfoProto) -> str:
    """Show a declared type as it is written in text: float[1, n, ?]."""
    tensor = value.type.tensor_type
    if not tensor.elem_type:
        return f"a {value.type.WhichOneof('value') or 'value'} of its own"
    name, extents = onnx.TensorProto.DataType.Name(tensor.elem_type).lower(), _extents(tensor)
    if extents is None:
        return f"{name} of any shape"
    return f"{name}[{', '.join(printable(str(extent)) or '?' for extent in extents)}]"


def _list(names: list[str]) -> str:
    return ", ".join(printable(name) for name in names) or "none"
