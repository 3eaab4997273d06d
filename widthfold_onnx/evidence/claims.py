"""What a tensor of the rewritten graph claims to hold: a value of the original, in a state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.evidence.chain import MAX_ELEMENTS, Labels, Mismatch, labels_of, too_large
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Document, Value
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.record import (
    FoldRecord,
    ProductRecord,
    StateRecord,
    read_record,
    read_state,
)

Array = npt.NDArray[Any]

MAX_AXES = 3
"""Spatial axes of a Conv."""
MAX_RANK = 16
"""Of a packed tensor, by nature; packing cuts axes in two, and numpy has 64 at most."""
# Extents for dimensions that the plan leaves open, few because that is fast. Two of each: a shape
# that is written into the new nodes may happen to fit one.
FREE_SAMPLES = (2, 1)
FREE_POSITIONS = (5, 6)


def fold_record(text: str) -> FoldRecord | ProductRecord:
    """What a folded node says of its fold.

    Raises:
        Mismatch: it cannot be read, or holds a number out of range.
    """
    try:
        return read_record(text)
    except InvalidModelError as error:
        raise Mismatch(str(error)) from error


def state_record(text: str) -> StateRecord:
    """What a node says of the state of its outputs; the errors are those of `fold_record`."""
    try:
        return read_state(text)
    except InvalidModelError as error:
        raise Mismatch(str(error)) from error


@dataclass(frozen=True)
class Claim:
    """What a tensor holds.

    Attributes:
        value: name of a value of the original.
        state: how it is packed; None where it is natural.
        shape: its natural extents where it is packed, None where any will do.
    """

    value: str
    state: State | None = None
    shape: Dims = ()

    def labels(self, shape: tuple[int, ...]) -> Labels:
        """Which element of the value every element is, for natural extents `shape`; from 1."""
        labels = labels_of(shape)
        return labels if self.state is None else self.state.packed(labels)


def every_concrete(shape: Dims) -> list[tuple[int, ...]]:
    """Extents at which a claim is checked; more than one where some are open.

    Raises:
        UnverifiedError: they are too many.
    """
    free = zip(FREE_POSITIONS, FREE_SAMPLES, strict=True)
    return list(dict.fromkeys(concrete(shape, *item) for item in free))


def concrete(
    shape: Dims, positions: int = FREE_POSITIONS[0], samples: int = FREE_SAMPLES[0]
) -> tuple[int, ...]:
    """Extents at which a claim is checked; `positions` and `samples` where they are open.

    Raises:
        UnverifiedError: they are too many.
    """
    free = (samples if i == 0 else positions for i in range(len(shape)))
    filled = tuple(f if e is None else e for e, f in zip(shape, free, strict=True))
    if math.prod(filled) > MAX_ELEMENTS:
        raise too_large()
    return filled


def read(document: Document, value: Value) -> Array:
    """The numbers of a constant.

    Raises:
        Mismatch: it is none.
    """
    constant = document.constant(value)
    if isinstance(constant, Refusal):
        raise Mismatch(constant.reason)
    return document.read(constant)


def content(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    """An array, comparable bit for bit."""
    return (array.dtype.str, array.shape, array.tobytes())


def placed(
    parameters: Sequence[Array], labels: Sequence[Labels], zero: npt.ArrayLike = 0
) -> list[Array]:
    """The numbers of weight and bias where labels stand (index + 1), `zero` where there is none.

    Args:
        parameters: weight and bias.
        labels: of each.
        zero: one number, or one per output channel, broadcasting.

    Raises:
        Mismatch: a label stands for no number.
    """
    result = []
    for array, places in zip(parameters, labels, strict=True):
        if places.min(initial=0) < 0 or places.max(initial=0) > array.size:
            raise Mismatch("the fold holds something else than the original's numbers")
        numbers = np.append(np.zeros(1, array.dtype), array)[places]
        gaps = places == 0
        if np.any(zero) and gaps.any():
            numbers[gaps] = np.broadcast_to(np.asarray(zero, array.dtype), places.shape)[gaps]
        result.append(numbers)
    return result


def packed_claim(value: str, record: StateRecord, index: int) -> Claim:
    """The claim of a node's output; the record comes from the model, so it may be of any size.

    Raises:
        Mismatch: it makes no sense.
        UnverifiedError: it would need too much memory.
    """
    state, shape = record.state, tuple(record.shapes[index])
    numbers = [e for e in shape if e is not None]
    if len(shape) > MAX_RANK or max(numbers, default=1) > MAX_ELEMENTS:
        raise too_large()
    if not state.fits(shape):
        raise Mismatch(f"its state does not fit the extents {list(shape)}")
    return Claim(value, state, shape)


def check_extents(claim: Claim, shape: tuple[int, ...], fixed: Dims) -> None:
    """Check that a packed tensor has the extents that the folded node was planned with.

    Args:
        claim: of what the node reads or returns.
        shape: extents at which the node is checked.
        fixed: which of them the plan fixes, as numbers; the others are None.

    Raises:
        Mismatch: it has others.
    """
    if claim.state is None:
        return
    fits = len(claim.shape) == len(shape) and all(
        not plan or claimed in (None, extent)
        for claimed, extent, plan in zip(claim.shape, shape, fixed, strict=True)
    )
    if not fits:
        raise Mismatch(f"a packed tensor has the extents {list(claim.shape)}, not {list(shape)}")
