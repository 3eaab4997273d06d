"""Chooses the inputs of timed runs: enough sets take turns that none of them stays in a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, Shapes, VerifyOptions
from widthfold_onnx.runtime.inputs.distributions import Distribution
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.recorded import stored_feeds
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.session import Feeds, Session
from widthfold_onnx.system import last_cache_bytes

INPUT_SETS = (4, 64)
"""Fewest and most input sets that take turns; as many as together exceed the last cache."""

GPU_CACHE = 64 << 20
"""Bytes that no last cache of a GPU here holds: 40 MB on an A100, 50 on an H100, 60 on an H200."""


@dataclass(frozen=True)
class Rotation:
    """Input sets that take turns.

    Attributes:
        sets: all of them.
        random: whether they are random, not stored.
    """

    sets: Sequence[Feeds]
    random: bool

    def shared(self, sessions: int) -> Sequence[Feeds]:
        """Return the sets that each of several sessions takes.

        Each session has copies of its own, and all copies together need to exceed the cache.
        """
        if not self.random:
            return self.sets
        return self.sets[: max(INPUT_SETS[0], len(self.sets) // sessions)]


def timed_inputs(
    session: Session,
    shapes: Shapes | None,
    options: VerifyOptions,
    kind: Distribution = Distribution.NORMAL,
) -> Rotation:
    """Return the input sets that take turns.

    Args:
        session: of the model.
        shapes: of every input; None takes those of the first stored inputs, or searches them.
        options: stored inputs, and sizes to search with.
        kind: how random floats are distributed.

    Raises:
        UnverifiedError: no random input runs, and none is stored.
        UsageError: stored inputs that do not fit.
    """
    if options.seeds > 0 or not options.inputs:
        try:
            shapes = shapes or find_shapes(session, options.input_shapes[0])
            return Rotation(_random(session, shapes, kind), random=True)
        except UnverifiedError:
            if not options.inputs:
                raise
    if stored := _stored(session, options, shapes):
        return Rotation(stored, random=False)
    assert shapes is not None
    return Rotation(_random(session, shapes, kind), random=True)


def _random(session: Session, shapes: Shapes, kind: Distribution) -> list[Feeds]:
    """Make random inputs: as many sets as exceed the last cache together."""
    first = random_feeds(session.inputs, 0, shapes, kind)
    seeds = range(1, _count(first, session.provider))
    return [first, *(random_feeds(session.inputs, seed, shapes, kind) for seed in seeds)]


def _stored(session: Session, options: VerifyOptions, shapes: Shapes | None) -> list[Feeds]:
    """Return the stored sets of these shapes, repeated until they exceed the last cache together.

    Without shapes those of the first set count.
    """
    paths = map(Path, options.inputs)
    sets = [item.feeds for path in paths for item in stored_feeds(path, session.inputs)]
    shapes = shapes or {name: array.shape for name, array in sets[0].items()}
    alike = [s for s in sets if all(s[name].shape == shapes[name] for name in shapes)]
    if not alike:
        return []
    return list(islice(cycle(alike), max(_count(alike[0], session.provider), len(alike))))


def _count(feeds: Feeds, provider: Provider) -> int:
    size = sum(array.nbytes for array in feeds.values())
    cache = last_cache_bytes() if described(provider).device == "cpu" else GPU_CACHE
    fewest, most = INPUT_SETS
    return min(max(fewest, cache // max(size, 1) + 1), most)
