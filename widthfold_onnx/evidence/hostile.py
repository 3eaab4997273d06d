"""Models with guards on finite data, run on Inf and NaN: the outputs must be those of the original.

Both branches of a guard are proved equal for finite data (`evidence.proof`). That its condition
sends everything else to the original nodes is no matter of algebra: structural zeros meet Inf and
NaN only on the runtime, so there it is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.rounds import attempt, noise, opened, originals
from widthfold_onnx.evidence.rows import Judge, difference
from widthfold_onnx.model.loader import load
from widthfold_onnx.model.walk import all_nodes
from widthfold_onnx.options import FINITE, Shapes, VerifyOptions
from widthfold_onnx.rewrite.conditions import GUARD_KEY
from widthfold_onnx.runtime.feeds import random_feeds
from widthfold_onnx.runtime.ports import Array
from widthfold_onnx.runtime.session import Level
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable

HOSTILE = (np.nan, np.inf, -np.inf)
MAX_INPUTS = 4
"""So many inputs get hostile data, one after the other."""

SEED = 0


def guards_finite(model: onnx.ModelProto) -> bool:
    """Whether a model says that it guards folded nodes against data that is not finite."""
    return any(
        entry.key == GUARD_KEY and FINITE in entry.value.split("+")
        for node in all_nodes(model.graph.node)
        for entry in node.metadata_props
    )


def hostile_differences(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes,
    report: Callable[[str], None],
) -> tuple[list[str], list[str]]:
    """Run a model that guards against data that is not finite, and its original, on such data.

    Args:
        original: model file.
        rewritten: model file.
        options: where both run, and what counts as equal.
        shapes: of every input, with which the original runs.
        report: gets a line of text per run.

    Returns:
        Where the models differ, and why they were not run.
    """
    if not guards_finite(load(rewritten).proto):
        return [], []
    try:
        session = opened(original, options, Level.DISABLED)
        usual = random_feeds(session.inputs, SEED, shapes)
        names = [name for name, array in usual.items() if array.dtype.kind == "f" and array.size]
        made = [
            InputSet(f"{value} in {printable(name)}", feeds, made_up=True)
            for (place, value), name in product(enumerate(HOSTILE), names[:MAX_INPUTS])
            for feeds in [{**usual, name: _with(usual[name], place, value)}]
        ]
        sets, reference = originals(session, made, [], report)
        again = [session.run(item.feeds) for item in sets]
        del session
    except UnverifiedError as error:
        return [], [f"the guards were not run on Inf and NaN: {error}"]
    computed = attempt(rewritten, options, Level.DISABLED, sets, report)
    if isinstance(computed, str):
        return [f"the original runs on Inf and NaN, the rewritten model does not: {computed}"], []
    unsteady = {
        name
        for one, other in zip(reference, again, strict=True)
        for name in one
        if not np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f")
    }
    judge = Judge(options.tolerance, unsteady, [{} for _ in sets])
    cells = judge.cells("disabled", reference, computed)
    if judge.failed(cells):
        cells = judge.forgiven(cells, noise(original, options, sets, reference, report))
    return [difference(cell, sets[number].label) for number, cell in judge.failed(cells)], []


def _with(array: Array, place: int, value: float) -> Array:
    """Return a copy with one element replaced: the first, the last, or one in between."""
    copy = array.copy()
    copy.flat[(0, -1, array.size // 2)[place]] = value
    return copy
