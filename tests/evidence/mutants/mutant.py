"""A folded model with a fault, and whether the proof finds it.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx

from tests.evidence.mutants.algebra import Planted
from tests.evidence.mutants.folded import Fault, Folded
from tests.evidence.mutants.judge import Judgement, judge
from tests.evidence.mutants.proof import difference
from tests.folding import fold_model
from widthfold_onnx.options import FoldOptions


@dataclass(frozen=True, eq=False)
class Mutant:
    """A faulty fold of an original.

    Attributes:
        base: name of the original.
        fault: name of the fault; its first word is the kind.
        original: the model that was to be folded.
        model: the folded model.
    """

    base: str
    fault: str
    original: onnx.ModelProto
    model: onnx.ModelProto

    def __str__(self) -> str:
        return f"{self.base}-{self.fault}"


@dataclass(frozen=True, kw_only=True, eq=False)
class RightFold:
    """An original and the right fold of it, to plant faults in.

    Attributes:
        base: name of the original.
        original: the model that was to be folded.
        options: how.
        model: the folded model.
    """

    base: str
    original: onnx.ModelProto
    options: FoldOptions
    model: onnx.ModelProto

    def in_model(self, faults: Mapping[str, Fault]) -> Iterator[Mutant]:
        """Faults in the folded model, where there is a place for them."""
        for name, fault in faults.items():
            planted = Folded(self.model)
            if fault(planted) and content(planted.model) != content(self.model):
                yield Mutant(self.base, name, self.original, planted.model)

    def in_code(self, faults: Mapping[str, Planted]) -> Iterator[Mutant]:
        """The original folded by broken code, None where that fails."""
        for name, context in faults.items():
            with context():
                try:
                    model, _ = fold_model(self.original, self.options)
                except ValueError:
                    continue
            if content(model) != content(self.model) and len(model.graph.node) > len(
                self.original.graph.node
            ):
                yield Mutant(self.base, name, self.original, model)


def content(model: onnx.ModelProto) -> bytes:
    """Bytes of a model without the records of its nodes."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for node in bare.graph.node:
        del node.metadata_props[:]
    return bare.SerializeToString(deterministic=True)


def check(
    mutant: Mutant,
    strict: Mapping[str, str],
    judged: Callable[[onnx.ModelProto, onnx.ModelProto], Judgement] = judge,
) -> Judgement:
    """Show that the proof finds a mutant of another function, and no other one.

    Args:
        mutant: the mutant.
        strict: patterns of names of mutants that compute the same for the judge and are rejected
            all the same, and why that is right.
        judged: says whether the mutant is another function.
    """
    difference_named, verdict = (
        difference(mutant.original, mutant.model),
        judged(mutant.original, mutant.model),
    )
    if verdict is not Judgement.SAME:
        assert difference_named, f"{mutant} is {verdict}, and nothing was found"
    elif difference_named:
        assert any(fnmatchcase(str(mutant), pattern) for pattern in strict), (
            f"{mutant}: {difference_named}"
        )
    return verdict


def check_right(original: onnx.ModelProto, folded: onnx.ModelProto) -> None:
    """A right fold is one for the judge and for the proof."""
    verdict, message = judge(original, folded), difference(original, folded)
    assert verdict is Judgement.SAME, verdict
    assert not message, message
