"""Judge declared extents by what inference finds: a model may hold those of an earlier export.

A declaration fills gaps of inference, so a wrong one is found only where inference knows more: at
extents of the inputs that leave nothing open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from widthfold_onnx.arrays import Dims
from widthfold_onnx.model.proto.dims import Dimensions, probe_extents
from widthfold_onnx.model.shapes.fact import Fact
from widthfold_onnx.text import printable

PROBE = 960
"""Extent of all open dimensions of a probe; many factors divide it."""


@dataclass(frozen=True)
class WrongDeclaration:
    """Extents that a model declares for a value, and that the value does not have.

    Attributes:
        path: of the graph (`model.linking.Scope.path`).
        name: of the value.
        declared: the declared extents, None where one is open.
        found: the extents, as far as they are known.
    """

    path: str
    name: str
    declared: Dims
    found: Dims | None


def contradict(declared: Dims | None, found: Dims | None) -> bool:
    """Check whether declared extents cannot be those that were found.

    >>> contradict((1, None), (1, 5)), contradict((1, 4), (1, 5)), contradict((1,), (1, 5))
    (False, True, True)
    """
    if declared is None or found is None:
        return False
    pairs = zip(declared, found, strict=False)
    return len(declared) != len(found) or any(a != b for a, b in pairs if None not in (a, b))


def probes(
    declared_dims: Mapping[str, Sequence[int | str | None]], facts: Mapping[str, Fact]
) -> Iterator[Mapping[str, Fact]]:
    """Yield the facts of the inputs with all extents known: as they are, or else at two sizes.

    Args:
        declared_dims: of every input with a rank (`model.proto.dims.declared`).
        facts: of the inputs.
    """
    known_shapes = {
        name: tuple(n for n in fact.dims if n is not None)
        for name, fact in facts.items()
        if name in declared_dims and fact.dims is not None and None not in fact.dims
    }
    dims = Dimensions.of(declared_dims, known_shapes)
    if not dims.open_dims:
        yield facts
        return
    for extents in (dict.fromkeys(dims.open_dims, PROBE), probe_extents(dims.open_dims)):
        shapes = dims.shapes(extents)
        yield {**facts, **{name: replace(facts[name], dims=shapes[name]) for name in shapes}}


def declaration_remarks(subject: str, wrong: Sequence[WrongDeclaration]) -> list[str]:
    """Say that declarations of a model are not used, in one line.

    Args:
        subject: what the model is called, as in "the original".
        wrong: its declarations that do not hold.
    """
    if not wrong:
        return []
    first = wrong[0]
    others = f"; values that are declared wrong: {len(wrong)}" if len(wrong) > 1 else ""
    return [
        f"{subject} declares {_shown(first.declared)} for {printable(first.name)}, which is "
        f"{_shown(first.found)}; this declaration is not used{others}"
    ]


def _shown(dims: Dims | None) -> str:
    if dims is None:
        return "of unknown rank"
    return f"[{', '.join('?' if n is None else str(n) for n in dims)}]"
