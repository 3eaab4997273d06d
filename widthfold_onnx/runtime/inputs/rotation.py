"""Chooses the inputs of timed runs: enough sets take turns that none of them stays in a cache."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, Shapes, VerifyOptions
from widthfold_onnx.runtime.environment import last_cache_bytes
from widthfold_onnx.runtime.inputs.distributions import Distribution
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.recorded import stored_feeds
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.session import Session

INPUT_SETS = (4, 64)
"""Fewest and most input sets that take turns; as many as together exceed the last cache."""

GPU_CACHE = 64 << 20
"""Bytes that no last cache of a GPU here holds: 40 MB on an A100, 50 on an H100, 60 on an H200."""


def timed_inputs(
    session: Session,
    shapes: Shapes | None,
    options: VerifyOptions,
    kind: Distribution = Distribution.NORMAL,
) -> tuple[list[dict[str, Array]], bool]:
    """Return the input sets that take turns, and whether they are random.

    Args:
        session: of the model.
        shapes: of every random input; None searches them.
        options: stored inputs, and shapes to search with.
        kind: how random floats are distributed.

    Raises:
        UnverifiedError: no random input runs, and none is stored.
        UsageError: stored inputs that do not fit.
    """
    if options.seeds < 1 and options.inputs:
        return _stored(session, options), False
    try:
        return _feeds(session, shapes or find_shapes(session, options.input_shapes), kind), True
    except UnverifiedError:
        if not options.inputs:
            raise
        return _stored(session, options), False


def _feeds(session: Session, shapes: Shapes, kind: Distribution) -> list[dict[str, Array]]:
    """Make random inputs: as many sets as exceed the last cache together."""
    first = random_feeds(session.inputs, 0, shapes, kind)
    seeds = range(1, _count(first, session.provider))
    return [first, *(random_feeds(session.inputs, seed, shapes, kind) for seed in seeds)]


def _stored(session: Session, options: VerifyOptions) -> list[dict[str, Array]]:
    """Return the stored sets of one shape, repeated until they exceed the last cache together."""
    paths = map(Path, options.inputs)
    sets = [item.feeds for path in paths for item in stored_feeds(path, session.inputs)]
    first = sets[0]
    alike = [s for s in sets if all(s[name].shape == first[name].shape for name in first)]
    return list(islice(cycle(alike), max(_count(first, session.provider), len(alike))))


def _count(feeds: Mapping[str, Array], provider: Provider) -> int:
    size = sum(array.nbytes for array in feeds.values())
    cache = last_cache_bytes() if described(provider).device == "cpu" else GPU_CACHE
    fewest, most = INPUT_SETS
    return min(max(fewest, cache // max(size, 1) + 1), most)
