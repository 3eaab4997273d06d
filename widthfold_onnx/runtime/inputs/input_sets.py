"""Gather the input sets of a comparison and of timed runs: stored sets, and random sets.

In timed runs so many sets take turns that none of them stays in a cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

from widthfold_onnx.errors import GivenUpError, UnverifiedError
from widthfold_onnx.options import Provider, Shapes, Sizes, TimingOptions, VerifyOptions
from widthfold_onnx.runtime.inputs.cases import shown_values
from widthfold_onnx.runtime.inputs.feeds import (
    Distribution,
    InputSet,
    distribution_of,
    random_feeds,
)
from widthfold_onnx.runtime.inputs.sizes import (
    Budget,
    any_shapes,
    find_shapes,
    find_sizes,
    input_dimensions,
    second_compared_shapes,
    with_batch,
)
from widthfold_onnx.runtime.inputs.stored import stored_feeds
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.runtime.session import Feeds, Session
from widthfold_onnx.system import last_cache_bytes

BATCHES = {2: 2, 3: 7}
"""Seed -> batch of its set, if the model leaves the batch open; sets of other seeds have batch
1."""


@dataclass(frozen=True)
class InputSets:
    """Input sets of a model.

    Attributes:
        sets: all of them; stored sets come first.
        sizes: sizes for random sets and for timing, the primary one first; () if nothing is drawn.
        compared: sizes at which outputs are compared: those that the caller demands, else the first
            one found; then that of `second_compared_shapes`.
        remarks: what could not be covered, and sets that were left out, one line each.
    """

    sets: list[InputSet]
    sizes: Sizes = ()
    compared: Sizes = ()
    remarks: list[str] = field(default_factory=list)


def input_sets(
    session: Session,
    options: VerifyOptions,
    suits: Callable[[Shapes], bool],
    is_light: Callable[[Shapes], bool],
) -> InputSets:
    """Return the sets to compare models on: stored ones, then random ones.

    Args:
        session: of the original, at any level.
        options: stored inputs, shapes and seeds.
        suits: as in `find_shapes`.
        is_light: as in `second_compared_shapes`.

    Raises:
        UsageError: stored inputs or shapes that do not fit the model.
        UnverifiedError: as `find_shapes`, if none is stored.
    """
    stored = [item for path in options.inputs for item in stored_feeds(Path(path), session.inputs)]
    if options.seeds < 1 and stored:
        return InputSets(stored)
    count = max(options.seeds, 1)
    try:
        drawn = random_sets(session, options.input_shapes, count, suits, is_light)
    except UnverifiedError as error:
        if not stored or isinstance(error, GivenUpError):
            raise
        return InputSets(stored, remarks=[f"stored inputs only: {error}"])
    return replace(drawn, sets=[*stored, *drawn.sets])


def random_sets(
    session: Session,
    demanded: Sizes,
    count: int,
    suits: Callable[[Shapes], bool],
    is_light: Callable[[Shapes], bool] = any_shapes,
) -> InputSets:
    """Make random sets of several distributions, batches and sizes, one per seed.

    They do not depend on how fast the model runs, so that a busy machine compares on the same sets
    as an idle one. (The larger size for timing does depend on it.)

    Args:
        session: of the original, at any level.
        demanded: sizes that the caller demands.
        count: least number of sets; five cover all distributions, four all batches. There are more
            if the demanded sizes are more, or if a second size is compared. One more set is made
            for each further case.
        suits: as in `find_shapes`.
        is_light: as in `second_compared_shapes`.

    Raises:
        UsageError: as `input_dimensions`.
        UnverifiedError: as `find_shapes`.
    """
    budget = Budget()
    sizes = find_sizes(session, demanded, suits, budget)
    compared = sizes[: len(demanded)]
    first = compared[0]
    # One set: these shapes may be long.
    special = {1: second_compared_shapes(session, demanded[0], first, is_light)}
    count = max(count, len(compared), 1 if special[1] is None else 2)
    if input_dimensions(session.inputs, demanded[0]).batch_dims:
        for seed, batch in BATCHES.items():
            if seed < count:
                special[seed] = with_batch(session, demanded[0], first, batch)
    draws = [
        (
            session,
            special.get(seed) or compared[seed % len(compared)],
            f"batch {BATCHES[seed]}" if seed in BATCHES and special.get(seed) else "",
        )
        for seed in range(count)
    ]
    draws += [
        (case, _own_shapes(case, demanded[0], first, budget), shown_values(case.inputs))
        for case in session.case_sessions[1:]
    ]
    sets = []
    for seed, (case, shapes, note) in enumerate(draws):
        kind = distribution_of(seed)
        label = ", ".join(filter(None, (f"seed {seed}", kind, note)))
        sets.append(InputSet(label, random_feeds(case.inputs, seed, shapes, kind), random=True))
    batches = [str(batch) for seed, batch in BATCHES.items() if special.get(seed, first) is None]
    remark = f"not compared at batch {' or '.join(batches)}: the original does not run"
    if special[1] is not None:
        compared = (*compared, special[1])
    return InputSets(sets, sizes, compared, [remark] if batches else [])


def _own_shapes(case: Session, demanded: Shapes, shapes: Shapes, budget: Budget) -> Shapes:
    """Return shapes at which a case runs: the given ones if possible, else demanded ones, else any.

    A part of a model may accept other sizes than those that the caller demands.
    """
    for tried in (shapes, demanded, {}):
        with contextlib.suppress(UnverifiedError):
            return find_shapes(case, tried, budget=budget)
    budget.seconds_left()  # raises if the search only ran out of time
    return shapes


INPUT_SETS = (4, 64)
"""Fewest and most input sets that take turns; between, as many as exceed the last cache
together."""

DRAWN_ELEMENTS = 1 << 20
"""Most elements that are drawn for random sets, beyond the fewest sets. All further sets are copies
in other memory, which take an eighth of the time (docs/verification.md#why-runs-are-timed-so)."""

GPU_CACHE = 64 << 20
"""Bytes that exceed the last cache of a GPU: 40 MB on an A100, 50 on an H100, 60 on an H200."""


@dataclass(frozen=True)
class Rotation:
    """Input sets that take turns.

    Attributes:
        sets: all of them.
        random: True if they were drawn, False if they were stored.
    """

    sets: Sequence[Feeds]
    random: bool

    def shared(self, sessions: int) -> Sequence[Feeds]:
        """Return the sets for each of several sessions that take turns.

        Each session copies its sets, so all copies together exceed the cache with fewer sets.
        """
        if not self.random:
            return self.sets
        return self.sets[: max(INPUT_SETS[0], len(self.sets) // sessions)]


def timed_inputs(
    session: Session,
    shapes: Shapes | None,
    options: TimingOptions,
    kind: Distribution = Distribution.NORMAL,
) -> Rotation:
    """Return the input sets that take turns.

    Args:
        session: of the model.
        shapes: of every input; None takes the shapes of the first stored inputs, or searches them.
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
    """Draw so many sets that together they exceed the last cache."""
    first = random_feeds(session.inputs, 0, shapes, kind)
    elements = sum(array.size for array in first.values())
    drawn = max(INPUT_SETS[0], DRAWN_ELEMENTS // max(elements, 1))
    seeds = range(1, min(_count(first, session.provider), drawn))
    others = (random_feeds(session.inputs, seed, shapes, kind) for seed in seeds)
    return _with_copies([first, *others], session.provider)


def _stored(session: Session, options: TimingOptions, shapes: Shapes | None) -> list[Feeds]:
    """Return the stored sets of these shapes, and copies until they exceed the last cache.

    None takes the shapes of the first stored set.
    """
    paths = map(Path, options.inputs)
    sets = [item.feeds for path in paths for item in stored_feeds(path, session.inputs)]
    shapes = shapes or {name: array.shape for name, array in sets[0].items()}
    alike = [s for s in sets if all(s[name].shape == shapes[name] for name in shapes)]
    return _with_copies(alike, session.provider) if alike else []


def _with_copies(sets: Sequence[Feeds], provider: Provider) -> list[Feeds]:
    """Return sets, and copies of them in other memory until all together exceed the last cache."""
    missing = max(_count(sets[0], provider) - len(sets), 0)
    originals = islice(cycle(sets), missing)
    return [*sets, *({name: array.copy() for name, array in s.items()} for s in originals)]


def _count(feeds: Feeds, provider: Provider) -> int:
    size = sum(array.nbytes for array in feeds.values())
    cache = last_cache_bytes() if traits_of(provider).device == "cpu" else GPU_CACHE
    fewest, most = INPUT_SETS
    return min(max(fewest, cache // max(size, 1) + 1), most)
