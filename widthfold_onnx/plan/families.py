"""Choices that agree: many layers in one state, so that no fold has to be undone between them.

The best form of a layer alone pays for folding its input and unfolding its output. Neighbours in
the same state pay neither, which no race of single layers can show. So every state that several
layers can have is a choice of its own, to be tried with the whole model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from widthfold_onnx.fold.state import State
from widthfold_onnx.plan.layers import Layers
from widthfold_onnx.plan.store import Measurement
from widthfold_onnx.rewrite.record import FoldRecord, read_record

Family = Mapping[str, tuple[float, str]]
"""Subject -> seconds saved by a form alone, and the form."""

SLOWEST = 0.4
"""A form that ran alone at less than this ratio is in no family."""


def families(
    layers: Layers, known: Callable[[str, str], Measurement | None], most: int
) -> list[dict[str, str]]:
    """Choices in which layers read and return one state, the most promising first.

    Args:
        layers: of the model.
        known: what was measured of (subject, form).
        most: how many.

    Returns:
        Subject -> form, for at least two layers of the model each.
    """
    found: dict[tuple[str, State], dict[str, tuple[float, str]]] = defaultdict(dict)
    for subject, unit in layers.units.items():
        for form in unit.forms:
            record = read_record(form.key)
            state = _kept(record)
            measured = known(subject, form.key) if state is not None else None
            if state is None or measured is None or measured.ratio < SLOWEST:
                continue
            saved = layers.count(subject) * measured.seconds * (measured.ratio - 1)
            best = found[record.axis, state].get(subject)
            if best is None or saved > best[0]:
                found[record.axis, state][subject] = (saved, form.key)
    # What layers save by agreeing is not known here, so of all states along the same axes only
    # that one is tried in which they do best alone.
    by_axes: dict[tuple[str, int], Family] = {}
    for (axis, state), family in found.items():
        if sum(map(layers.count, family)) > 1:
            other = by_axes.get((axis, state.lift), family)
            by_axes[axis, state.lift] = max(family, other, key=_promise)
    several = sorted(by_axes.values(), key=_promise, reverse=True)
    return [{s: key for s, (_, key) in family.items()} for family in several[:most]]


def _kept(record: FoldRecord) -> State | None:
    """The state that a form both reads and returns, if there is one."""
    same = all(axis.out_digits == axis.in_digits for axis in record.axes)
    if not same or record.dense:
        return None
    digits = tuple((axis.in_digits, axis.blocked) for axis in record.axes)
    return State(record.batch, digits, record.lift, record.digit_major)


def _promise(family: Family) -> tuple[float, list[str]]:
    return sum(saved for saved, _ in family.values()), sorted(key for _, key in family.values())
