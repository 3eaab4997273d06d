"""Fold and unfold of a tensor as Reshapes and Transposes, as few as the form allows.

A tensor [N, C, L1, L2, ...] is cut into atoms: N into (n, b), C into groups and channels (r, c),
a folded axis Li into its digit and its rest (interleaved: rest then digit; blocked: digit then
rest). A fold only regroups and reorders atoms, so it is a list of states; between two states lies
a Reshape if the order of the atoms (those of extent 1 aside) is the same, else a Transpose.

    NCHW form   cut - order as (n | b r c a.. | rest..) - merge
    NHWC form   to channels-last - cut - order as (n | rest.. | b r a.. c) - merge - to NCHW

The NCHW form gives channel-major channels, the NHWC form digit-major ones (see `fold.conv`).
In the NHWC form the two outer Transposes cancel against a channels-last runtime's own, and
folding the last axis needs no other: between them stands one Reshape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from widthfold_onnx.fold.axis import FoldedAxis

Axis = tuple[str, ...]
State = tuple[Axis, ...]


@dataclass(frozen=True)
class Reshape:
    """Row-major regrouping. Extents are None where unknown; `keep` marks axes equal by position."""

    extents: tuple[int | None, ...]
    keep: tuple[bool, ...]


@dataclass(frozen=True)
class Transpose:
    """Output axis i is input axis `order[i]`."""

    order: tuple[int, ...]


Step = Reshape | Transpose


@dataclass(frozen=True)
class Packing:
    """How one tensor is folded: extents of all atoms, and the states in both forms."""

    atoms: Mapping[str, int | None]
    nchw: tuple[State, ...]
    nhwc: tuple[State, ...]

    @property
    def is_view(self) -> bool:
        """Whether the NCHW form is a pure Reshape, so that no element moves in memory."""
        return all(isinstance(step, Reshape) for step in self.steps(digit_major=False))

    def steps(self, *, digit_major: bool, inverse: bool = False) -> tuple[Step, ...]:
        """The operations that fold a tensor, or with `inverse` unfold it."""
        states = self.nhwc if digit_major else self.nchw
        path = tuple(reversed(states)) if inverse else states
        steps: list[Step] = []
        here = path[0]
        for there, after in zip(path[1:], (*path[2:], None), strict=True):
            if self._flat(here) != self._flat(there):
                steps.append(Transpose(tuple(here.index(axis) for axis in there)))
            elif after is not None and self._flat(after) == self._flat(there):
                continue  # a longer run of regroupings is one Reshape
            elif self._axes(here) != self._axes(there):
                steps.append(self._reshape(here, there))
            here = there
        return tuple(steps)

    def _reshape(self, here: State, there: State) -> Reshape:
        old, new = self._axes(here), self._axes(there)
        keep = tuple(i < len(old) and old[i] == axis for i, axis in enumerate(new))
        return Reshape(tuple(self.extent(axis) for axis in new), keep)

    def extent(self, axis: Axis) -> int | None:
        """Extent of a group of atoms, None where one is unknown."""
        sizes = [self.atoms[a] for a in axis]
        return None if None in sizes else math.prod(s for s in sizes if s is not None)

    def _axes(self, state: State) -> State:
        return tuple(tuple(a for a in axis if self.atoms[a] != 1) for axis in state)

    def _flat(self, state: State) -> tuple[str, ...]:
        return tuple(a for axis in self._axes(state) for a in axis)


def pack(
    shape: Sequence[int | None],
    digits: Sequence[tuple[int, bool]],
    *,
    group: int = 1,
    batch: int = 1,
) -> Packing:
    """Describe the fold of a tensor.

    Args:
        shape: [N, C, *spatial], after zero-extension; None where not known and not folded.
        digits: per spatial axis the number of digits and whether they are blocked.
        group: groups of the channels.
        batch: samples moved into channels.
    """
    n, c, *lengths = shape
    if c is None:
        raise ValueError("the channel count must be known")
    atoms: dict[str, int | None] = {
        "n": None if n is None else n // batch,
        "b": batch,
        "r": group,
        "c": c // group,
    }
    split: list[Axis] = []
    for i, (length, (count, blocked)) in enumerate(zip(lengths, digits, strict=True)):
        atoms[f"digit{i}"] = count
        atoms[f"rest{i}"] = None if length is None else length // count
        split.append((f"digit{i}", f"rest{i}") if blocked else (f"rest{i}", f"digit{i}"))
    channels: Axis = ("r", "c")
    rest: list[Axis] = [(f"rest{i}",) for i in range(len(split))]
    digit = tuple(f"digit{i}" for i in range(len(split)))

    def cut(state: Sequence[Axis]) -> State:
        return tuple((atom,) for axis in state for atom in axis if atoms[atom] != 1)

    source: State = (("n", "b"), channels, *split)
    major: State = (("n",), ("b", "r", "c", *digit), *rest)
    last: State = (("n", "b"), *split, channels)
    digit_last: State = (("n",), *rest, ("b", "r", *digit, "c"))
    target: State = (("n",), ("b", "r", *digit, "c"), *rest)
    return Packing(
        atoms,
        (source, cut(source), cut(major), major),
        (source, last, cut(last), cut(digit_last), digit_last, target),
    )


def digits_of(axes: Sequence[FoldedAxis], *, output: bool) -> list[tuple[int, bool]]:
    """The `digits` argument of `pack` for the input or the output of a folded Conv."""
    return [(a.out_digits if output else a.in_digits, a.blocked) for a in axes]
