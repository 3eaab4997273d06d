"""Makes synthetic input sets: several distributions, batches and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from widthfold_onnx.options import Shapes
from widthfold_onnx.runtime.inputs.dimensions import open_dimensions
from widthfold_onnx.runtime.inputs.distributions import Distribution, distribution_of
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.recorded import InputSet
from widthfold_onnx.runtime.inputs.sizes import find_shapes, other_shapes, with_batch
from widthfold_onnx.runtime.sessions.session import Session

BATCHES = {2: 2, 3: 7}
"""By seed: the batch of its set, where the model leaves that open; the others have batch 1."""


@dataclass(frozen=True)
class MadeUp:
    """Synthetic input sets.

    Attributes:
        sets: one per seed; the label says how its floats are distributed.
        shapes: of the first set.
        limits: batches and sizes that could not be covered, one line each.
    """

    sets: list[InputSet]
    shapes: Shapes
    limits: list[str]


def made_up(session: Session, fixed: Shapes, count: int, *, varied: bool = True) -> MadeUp:
    """Make input sets of several distributions, batches and sizes.

    Args:
        session: of the original, at any level.
        fixed: shapes that the caller demands.
        count: how many; five cover all distributions, four all batches, two both sizes.
        varied: several distributions, batches and sizes; otherwise normal numbers only.

    Raises:
        UsageError: as `open_dimensions`.
        UnverifiedError: as `find_shapes`.
    """
    shapes = find_shapes(session, fixed)
    special: dict[int, Shapes] = {}
    limits = []
    if count > 1 and varied:  # they may be long, so one set is enough
        special[1] = other_shapes(session, fixed, shapes) or shapes
    missing = []
    for seed, batch in BATCHES.items() if varied else ():
        if seed < count and any(open_dimensions(session.inputs, fixed).values()):
            found = with_batch(session, fixed, shapes, batch)
            if found is None:
                missing.append(str(batch))
            else:
                special[seed] = found
    if missing:
        limits.append(f"not compared at batch {' or '.join(missing)}: the original does not run")
    sets = []
    for seed in range(count):
        kind = distribution_of(seed) if varied else Distribution.NORMAL
        feeds = random_feeds(session.inputs, seed, special.get(seed, shapes), kind)
        size = f", batch {BATCHES[seed]}" if varied and seed in BATCHES and seed in special else ""
        sets.append(InputSet(f"seed {seed}, {kind}{size}", feeds, made_up=True))
    return MadeUp(sets, shapes, limits)
