"""A folded model with a fault, and whether the proof finds it.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import onnx

from tests.evidence.mutants.algebra import Planted
from tests.evidence.mutants.folded import Fault, Folded, metadata
from tests.evidence.mutants.judge import Judgement, judge
from tests.evidence.mutants.proof import difference
from widthfold_onnx import FoldOptions, fold_model
from widthfold_onnx.rewrite.record import FOLD_KEY


@dataclass(frozen=True, eq=False)
class Mutant:
    """A faulty fold of an original.

    Attributes:
        base: name of the original.
        fault: name of the fault; its first word is the kind.
        original: the model that was to be folded.
        model: the folded model.
        context: in which the checker runs; other than empty for faults of the folding code.
    """

    base: str
    fault: str
    original: onnx.ModelProto
    model: onnx.ModelProto
    context: Planted = nullcontext

    def __str__(self) -> str:
        return f"{self.base}-{self.fault}"

    @property
    def kind(self) -> str:
        return self.fault.partition(".")[0]


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
            if fault(planted) and self._differs(planted.model):
                yield Mutant(self.base, name, self.original, planted.model)

    def in_code(self, faults: Mapping[str, Planted]) -> Iterator[Mutant]:
        """What broken code makes of the original, where it gets that far."""
        for name, context in faults.items():
            with context():
                try:
                    model, _ = fold_model(self.original, self.options)
                except ValueError:
                    continue
            if self._differs(model) and any(metadata(n, FOLD_KEY) for n in model.graph.node):
                yield Mutant(self.base, name, self.original, model, context)

    def _differs(self, model: onnx.ModelProto) -> bool:
        return model.SerializeToString() != self.model.SerializeToString()


@cache
def judged(mutant: Mutant) -> Judgement:
    return judge(mutant.original, mutant.model)


def check(mutant: Mutant, strict: Mapping[str, str], folder: Path) -> None:
    """The proof finds a mutant of another function; of others, only what `strict` says.

    Args:
        strict: patterns of names of mutants that compute the same and are rejected all the same,
            and why that is right.
    """
    with mutant.context():
        found = difference(mutant.original, mutant.model, folder)
    if judged(mutant) is not Judgement.SAME:
        assert found, f"{mutant} is {judged(mutant)}, and nothing was found"
    elif found:
        assert any(fnmatchcase(str(mutant), pattern) for pattern in strict), f"{mutant}: {found}"


def check_right(original: onnx.ModelProto, folded: onnx.ModelProto, folder: Path) -> None:
    """A right fold is one for the judge and for the proof."""
    assert judge(original, folded) is Judgement.SAME
    assert difference(original, folded, folder) == ""
