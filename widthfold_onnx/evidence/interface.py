"""Compare the interfaces of two models: callers rely on it, so it may not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from widthfold_onnx.model.proto.walk import overridable, required_inputs
from widthfold_onnx.options import Sizes
from widthfold_onnx.text import printable

Extents = tuple[int | str, ...]
"""Declared extents: numbers, symbols, and \"\" where neither is known."""


@dataclass(frozen=True)
class Declaration:
    """An input or output whose extents the two models declare differently.

    Attributes:
        name: of the input or output.
        line: the message of the difference.
        old: extents by the original, None where it declares not even the rank.
        new: extents by the rewritten model.
    """

    name: str
    line: str
    old: Extents | None
    new: Extents | None

    def states(self, shape: Sequence[int] | None) -> bool:
        """Check whether the new extents are the old ones, with open ones set to `shape`."""
        if shape is None or self.new is None or len(self.new) != len(shape):
            return False
        old = self.old or ("",) * len(shape)
        trios = zip(old, self.new, shape, strict=False)
        return all(a == b or (isinstance(a, str) and b == size) for a, b, size in trios)

    def fault(self, shapes: Sequence[Sequence[int]]) -> str:
        """Return why the new declaration may break a caller.

        The text is "" if all shapes fit the new declaration, and the old one is not more exact, or
        is itself wrong.

        Args:
            shapes: extents of the outputs of the original; empty for an input.
        """
        if self.new is None:
            return self.line
        for shape in shapes:
            if not _fits(shape, self.new):
                return f"{self.line}; the original returned {list(shape)}"
        if self.old is None or not all(_fits(shape, self.old) for shape in shapes):
            return ""
        pairs = zip(self.old, self.new, strict=False)
        is_exact = all(
            a in (b, "") or (isinstance(a, str) and isinstance(b, int)) for a, b in pairs
        )
        return "" if is_exact else self.line


def interface_differences(
    old: onnx.ModelProto, new: onnx.ModelProto, freeze_weights: bool, sizes: Sizes
) -> tuple[list[str], list[Declaration]]:
    """List differences in names, order, element types, dims or overridable initializers.

    Args:
        old: the original, without its external data.
        new: the rewritten model.
        freeze_weights: True if callers need no longer be able to override initializers.
        sizes: extents that the caller demands of inputs, one or more assignments; the rewritten
            model may declare an extent that is the same in all of them.

    Returns:
        Two lists: differences that may break a caller; and inputs that only name anonymous extents,
        with outputs of other extents, which `Declaration.fault` judges when the original has run.
    """
    faults, inputs = _ports("input", required_inputs(old), required_inputs(new))
    output_faults, outputs = _ports("output", old.graph.output, new.graph.output)
    symbols = Counter(
        extent for value in required_inputs(new) for extent in _extents(value.type) or ()
    )
    renamings = [item for item in inputs if _is_renaming(item, symbols)]
    accepted = [
        item for item in inputs if all(item.states(shapes.get(item.name)) for shapes in sizes)
    ]
    faults += [item.line for item in inputs if item not in (*renamings, *accepted)] + output_faults
    old_names, new_names = overridable(old), overridable(new)
    absent_names = [] if freeze_weights else sorted(old_names - new_names)
    faults += [f"overridable initializer {printable(name)} is gone" for name in absent_names]
    faults += [
        f"overridable initializer {printable(name)} is new"
        for name in sorted(new_names - old_names)
    ]
    return faults, renamings + outputs


def _ports(
    kind: str, old: Sequence[onnx.ValueInfoProto], new: Sequence[onnx.ValueInfoProto]
) -> tuple[list[str], list[Declaration]]:
    """Compare inputs, or outputs: return faults, and the pairs that differ in extents alone."""
    old_names, new_names = ([value.name for value in side] for side in (old, new))
    if old_names != new_names:
        return [f"{kind}s are {_list(new_names)} instead of {_list(old_names)}"], []
    faults: list[str] = []
    declarations: list[Declaration] = []
    for old_port, new_port in zip(old, new, strict=True):
        types = f"{_type_text(new_port.type)} instead of {_type_text(old_port.type)}"
        line = f"{kind} {printable(old_port.name)} is declared {types}"
        extents = _extents(old_port.type), _extents(new_port.type)
        if 0 < old_port.type.tensor_type.elem_type == new_port.type.tensor_type.elem_type:
            if extents[0] != extents[1]:
                declarations.append(Declaration(old_port.name, line, *extents))
        elif old_port.type != new_port.type:
            faults.append(line)
    return faults, declarations


def _is_renaming(item: Declaration, symbols: Counter[int | str]) -> bool:
    """Check whether only anonymous extents got names, each its own: all shapes fit as before."""
    if item.old is None or item.new is None or len(item.old) != len(item.new):
        return False
    pairs = zip(item.old, item.new, strict=True)
    return all(a == b or (a == "" and isinstance(b, str) and symbols[b] == 1) for a, b in pairs)


def _extents(kind: onnx.TypeProto) -> Extents | None:
    shape = kind.tensor_type.shape
    # Exporters name anonymous extents "?".
    dims = (d.dim_value if d.dim_value > 0 else d.dim_param.strip("?") for d in shape.dim)
    return tuple(dims) if kind.tensor_type.HasField("shape") else None


def _fits(shape: Sequence[int], extents: Extents) -> bool:
    pairs = zip(shape, extents, strict=False)
    return len(shape) == len(extents) and all(b == a for a, b in pairs if isinstance(b, int))


def _type_text(kind: onnx.TypeProto) -> str:
    """Show a declared type as it is written in text: float[1, n, ?], seq(float[n])."""
    for word, inner in (("seq", kind.sequence_type), ("optional", kind.optional_type)):
        if inner.HasField("elem_type"):
            return f"{word}({_type_text(inner.elem_type)})"
    elem_type, extents = kind.tensor_type.elem_type, _extents(kind)
    if not elem_type:
        return f"{kind.WhichOneof('value') or 'a value'} without a type"
    name = onnx.TensorProto.DataType.Name(elem_type).lower()
    if extents is None:
        return f"{name} of any shape"
    return f"{name}[{', '.join(printable(str(extent)) or '?' for extent in extents)}]"


def _list(names: list[str]) -> str:
    return ", ".join(printable(name) for name in names) or "none"
