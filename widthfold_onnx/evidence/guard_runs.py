"""Both branches of every guard, run: hostile data, and sizes that divide and that do not.

What is proved of guards rests on their nodes; here the runtime has the last word. The outputs must
be those of the original on every input set, with the same NaN and Inf, and it is said of each guard
whether there were sets for either branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.branches import choices
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.conditions import tested
from widthfold_onnx.evidence.inline import inlined
from widthfold_onnx.evidence.rounds import noise, opened, originals
from widthfold_onnx.evidence.rows import Judge, Outputs, difference
from widthfold_onnx.evidence.sites import MAX_BYTES, run_with
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import EXTENTS, FINITE, Shapes, VerifyOptions
from widthfold_onnx.rules.guarding import EXACT
from widthfold_onnx.runtime.feeds import random_feeds
from widthfold_onnx.runtime.ports import Array
from widthfold_onnx.runtime.session import Level, Session
from widthfold_onnx.runtime.sizes import nearby_shapes
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable

HOSTILE = (np.nan, np.inf, -np.inf)
MAX_INPUTS = 4
"""So many inputs get hostile data, one after the other."""

SEED = 0


def has_guards(model: Path) -> bool:
    """Whether a model file holds a guard."""
    return any(True for _ in choices(load(model).proto.graph))


def run_guards(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes,
    report: Callable[[str], None],
) -> tuple[list[str], list[str]]:
    """Run a model with guards and its original on data for either branch.

    Args:
        original: model file.
        rewritten: model file.
        options: where both run, and what counts as equal.
        shapes: of every input, with which the original runs.
        report: gets a line of text per run.

    Returns:
        Where the models differ, and which branches were not run.
    """
    try:
        model = inlined(rewritten, MAX_BYTES)
        session = opened(original, options, Level.DISABLED)
        made = list(_sets(model, session, shapes))
        sets, reference = originals(session, made, [], report)
        again = [session.run(item.feeds) for item in sets]
        del session
        conditions = {
            choice.node.name: choice.node.input[0]
            for choice in choices(model.graph)
            if choice.graph is model.graph
        }
    except UnverifiedError as error:
        return [], [f"the branches of the guards were not run: {error}"]
    report(f"running both branches of {len(conditions)} guards")
    try:
        runs = run_with(model, conditions.values(), sets, options)
    except UnverifiedError as error:
        return [f"the original runs near its sizes, the rewritten model does not: {error}"], []
    unsteady = {
        name
        for one, other in zip(reference, again, strict=True)
        for name in one
        if not np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f")
    }
    computed = [{name: run[name] for name in one} for one, run in zip(reference, runs, strict=True)]
    judge = Judge(options.tolerance, unsteady, [{} for _ in sets])
    cells = judge.cells("disabled", reference, computed)
    if judge.failed(cells):
        cells = judge.forgiven(cells, noise(original, options, sets, reference, report))
    failures = [difference(cell, sets[number].label) for number, cell in judge.failed(cells)]
    return failures, list(_not_run(conditions, runs))


def _sets(model: onnx.ModelProto, session: Session, shapes: Shapes) -> Iterator[InputSet]:
    """Input sets for both branches of the guards of a model."""
    found = list(choices(model.graph))
    purposes = {purpose for choice in found for purpose in choice.purpose}
    usual = random_feeds(session.inputs, SEED, shapes)
    yield InputSet("usual data", usual, made_up=True)
    if FINITE in purposes:
        names = [name for name, array in usual.items() if array.dtype.kind == "f" and array.size]
        for (place, value), name in product(enumerate(HOSTILE), names[:MAX_INPUTS]):
            feeds = {**usual, name: _with(usual[name], place, value)}
            yield InputSet(f"{value} in {printable(name)}", feeds, made_up=True)
    if EXTENTS in purposes:
        for near in nearby_shapes(session, shapes, _rest(model)):
            label = "; ".join(f"{printable(name)} {list(dims)}" for name, dims in near.items())
            yield InputSet(label, random_feeds(session.inputs, SEED, near), made_up=True)


def _with(array: Array, place: int, value: float) -> Array:
    """A copy with one element replaced: the first, the last, or one in between."""
    copy = array.copy()
    copy.flat[(0, -1, array.size // 2)[place]] = value
    return copy


def _rest(model: onnx.ModelProto) -> int:
    """What divides extents at which all folds that take any multiple compute."""
    moduli = {1}
    for choice in choices(model.graph):
        try:
            found = tested(choice.graph, choice.node.input[0])
        except Mismatch:
            continue
        moduli |= {e.modulus for axes in found.extents.values() for e in axes.values()}
    return math.lcm(*(modulus for modulus in moduli if modulus < EXACT))


def _not_run(conditions: Mapping[str, str], runs: list[Outputs]) -> Iterator[str]:
    for name, condition in conditions.items():
        taken = {bool(run[condition]) for run in runs}
        for branch, who in ((True, "the folded nodes"), (False, "the nodes of the original")):
            if branch not in taken:
                yield f"{printable(name)}: on no input set did {who} compute"
