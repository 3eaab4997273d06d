"""A carried op beside the original: what every check of one looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.claims import Claim, read
from widthfold_onnx.evidence.rewritten import Rewritten
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.graph import Node
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Step:
    """A node of the original and the one that stands for it.

    Attributes:
        data: claims of the packed inputs, by index.
        results: claims of the outputs.
        shape: its natural extents at which it is checked.
    """

    graph: Rewritten
    before: Node
    after: Node
    data: dict[int, Claim]
    results: list[Claim]
    state: State
    shape: tuple[int, ...]
    options: VerifyOptions

    @property
    def result(self) -> Claim:
        """Claim of the first output."""
        return self.results[0]

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Extents of the first output, packed."""
        return tuple(self.state.packed(np.broadcast_to(np.int8(0), self.shape)).shape)

    def constants(self, index: int) -> tuple[Array, Array]:
        """The numbers of an input, before and after."""
        one, other = self.before.inputs[index], self.after.inputs[index]
        assert one is not None
        assert other is not None
        return read(self.graph.old, one), read(self.graph.new, other)

    def integer(self, name: str, default: int) -> int:
        """An attribute; both nodes have the same."""
        found = self.before.attributes.get(name)
        return default if found is None else found.as_int()


def check_others(step: Step, but: int | None = None) -> None:
    """All inputs but the first, and perhaps another, are the same on both sides."""
    for i, (old, new) in enumerate(zip(step.before.inputs, step.after.inputs, strict=True)):
        if i in (0, but) or old is None or new is None:
            continue
        if not step.graph.alike(old, new):
            raise Mismatch(f"{printable(old.name or '')} is another on both sides")
