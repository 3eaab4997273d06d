"""Gathers the input sets of a comparison: stored ones, and random ones of several kinds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Shapes, Sizes, VerifyOptions
from widthfold_onnx.runtime.inputs.cases import shown_values
from widthfold_onnx.runtime.inputs.dimensions import Dimensions
from widthfold_onnx.runtime.inputs.distributions import Distribution, distribution_of
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.recorded import InputSet, stored_feeds
from widthfold_onnx.runtime.inputs.sizes import (
    any_shapes,
    find_shapes,
    find_sizes,
    other_shapes,
    with_batch,
)
from widthfold_onnx.runtime.sessions.session import Session

BATCHES = {2: 2, 3: 7}
"""By seed: the batch of its set, where the model leaves that open; the others have batch 1."""


@dataclass(frozen=True)
class InputSets:
    """Input sets of a model.

    Attributes:
        sets: all of them; those that are stored come first.
        sizes: at which random sets were made, the primary ones first; empty if there are none.
        limits: what could not be covered, and sets that were left out, one line each.
    """

    sets: list[InputSet]
    sizes: Sizes = ()
    limits: list[str] = field(default_factory=list)


def input_sets(
    session: Session, options: VerifyOptions, suits: Callable[[Shapes], bool] = any_shapes
) -> InputSets:
    """Return stored sets, then random ones.

    Args:
        session: of the original, at any level.
        options: stored inputs, shapes, seeds, and whether random sets are varied.
        suits: as for `find_shapes`.

    Raises:
        UsageError: stored inputs or shapes that do not fit the model.
        UnverifiedError: as `find_shapes`, if none is stored.
    """
    stored = [item for path in options.inputs for item in stored_feeds(Path(path), session.inputs)]
    if options.seeds < 1 and stored:
        return InputSets(stored)
    count = max(options.seeds, 1)
    try:
        made = random_sets(session, options.input_shapes, count, suits, varied=options.thorough)
    except UnverifiedError as error:
        if not stored:
            raise
        return InputSets(stored, limits=[f"stored inputs only: {error}"])
    return InputSets([*stored, *made.sets], made.sizes, made.limits)


def random_sets(
    session: Session,
    fixed: Sizes,
    count: int,
    suits: Callable[[Shapes], bool] = any_shapes,
    *,
    varied: bool = True,
) -> InputSets:
    """Make random sets of several distributions, batches and sizes, one per seed.

    Args:
        session: of the original, at any level.
        fixed: sizes that the caller demands.
        count: how many; five cover all distributions, four all batches, two an odd size. There is
            at least one for each size. One more set is made for each further combination of values.
        suits: as for `find_shapes`.
        varied: several distributions, batches and sizes; otherwise normal numbers only.

    Raises:
        UsageError: as `Dimensions`.
        UnverifiedError: as `find_shapes`.
    """
    sizes = find_sizes(session, fixed, suits)
    first = sizes[0]
    special: dict[int, Shapes] = {}
    limits = []
    if count > 1 and varied and (other := other_shapes(session, fixed[0], first)):
        special[1] = other  # they may be long, so one set is enough
    missing = []
    for seed, batch in BATCHES.items() if varied else ():
        if seed < count and any(Dimensions(session.inputs, fixed[0]).opened.values()):
            shapes = with_batch(session, fixed[0], first, batch)
            if shapes is None:
                missing.append(str(batch))
            else:
                special[seed] = shapes
    if missing:
        limits.append(f"not compared at batch {' or '.join(missing)}: the original does not run")
    sets = []
    for seed in range(max(count, len(sizes))):
        kind = distribution_of(seed) if varied else Distribution.NORMAL
        feeds = random_feeds(
            session.inputs, seed, special.get(seed, sizes[seed % len(sizes)]), kind
        )
        size = f", batch {BATCHES[seed]}" if seed in BATCHES and seed in special else ""
        sets.append(InputSet(f"seed {seed}, {kind}{size}", feeds, random=True))
    for seed, case in enumerate(session.cases[1:], len(sets)):
        kind = distribution_of(seed) if varied else Distribution.NORMAL
        feeds = random_feeds(case.inputs, seed, _own_shapes(case, fixed[0], first), kind)
        label = f"seed {seed}, {kind}, {shown_values(case.inputs)}"
        sets.append(InputSet(label, feeds, random=True))
    return InputSets(sets, sizes, limits)


def _own_shapes(case: Session, fixed: Shapes, shapes: Shapes) -> Shapes:
    """Return the shapes at which a combination of values runs: the usual ones, or its own.

    A part of a model may take other sizes than those that the caller demands: then it is compared
    at these.
    """
    for demanded in (shapes, fixed, {}):
        with contextlib.suppress(UnverifiedError):
            return find_shapes(case, demanded)
    return shapes
