"""Finds sizes at which a model runs, for the dimensions that it leaves open.

A model does not tell how long an audio input must be. So the original is run at one size after
another until one works; each try costs milliseconds, since a wrong size stops early.

A child process runs `running`, so this file imports nothing that only rewriting needs: that would
take longer than most models take to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, RuntimeOptions, Shapes
from widthfold_onnx.runtime.inputs.dimensions import Dimensions, Key
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.recorded import stored_feeds
from widthfold_onnx.runtime.sessions.session import Session, open_session

LADDER = (64, 16, 256, 1, 20, 128, 160, 224, 320, 576, 640, 1024, 4096, 16384, 65536)
"""Sizes to try. 64 first: with 1, padded borders would be all there is to compare."""

MAX_ELEMENTS = 1 << 24
"""Largest input set that is tried without being asked for, in elements over all inputs."""

ENOUGH = 2000
"""Inputs of so many elements are tried first: a single frame of audio shows and times little."""

SMALL_ELEMENTS = 750_000
"""Largest input set for the second shapes, where a much larger size is tried first."""


def running(
    model: Path, how: RuntimeOptions, fixed: Shapes, inputs: Sequence[str] = ()
) -> tuple[Provider, Shapes]:
    """Return the provider and the shapes of a model: those of stored inputs, else found by trying.

    Meant to run in `runtime.child.isolated`.

    Raises:
        UnverifiedError: the provider cannot be used, or no shapes were found.
        UsageError: stored inputs that the model does not take.
    """
    session = open_session(model, RuntimeOptions(provider=how.provider, cases=how.cases))
    if not inputs:
        return session.provider, dict(find_shapes(session, fixed))
    first, *_ = stored_feeds(Path(inputs[0]), session.inputs)
    return session.provider, {name: array.shape for name, array in first.feeds.items()}


def any_shapes(_: Shapes) -> bool:
    """Accept shapes whatever they are."""
    return True


def find_shapes(
    session: Session, fixed: Shapes, suits: Callable[[Shapes], bool] = any_shapes
) -> Shapes:
    """Return the first shapes with which the model runs, for every input.

    Args:
        session: of the original, at any level.
        fixed: shapes that the caller demands.
        suits: accepts shapes at which the model runs; if it accepts none, the first ones serve.

    Raises:
        UsageError: as `Dimensions`.
        UnverifiedError: no try ran.
    """
    dims = Dimensions(session.inputs, fixed)
    small = list(_small_batch(dims.opened))
    every = [*small, *(dict.fromkeys(dims.opened, size) for size in LADDER)]
    found, _ = _first(session, dims, small, least=ENOUGH)
    if found is None:
        found, failure = _first(session, dims, every)
    if found is None:
        raise UnverifiedError(
            f"no random input was found that runs ({failure}); "
            "pass --input-shape NAME:SIZE,... or --inputs"
        )
    if dims.opened and not suits(found):
        found = _first(session, dims, every, least=ENOUGH, suits=suits)[0] or found
    return found


def other_shapes(session: Session, fixed: Shapes, found: Shapes) -> Shapes | None:
    """Return shapes with other sizes for the open dimensions, None if none is open or none runs.

    A rewrite that bakes one size in passes at that size, so a second one is compared as well.
    """
    dims = Dimensions(session.inputs, fixed)
    sizes = dims.sizes(found)
    long, _ = _first(session, dims, _grown(sizes, dims.opened), most=SMALL_ELEMENTS)
    if long is not None:
        return long
    double = {key: size * 2 for key, size in sizes.items()}
    tries = (item for item in (double, _batched(sizes, dims.opened)) if item != sizes)
    return _first(session, dims, tries)[0]


def with_batch(session: Session, fixed: Shapes, found: Shapes, batch: int) -> Shapes | None:
    """Return the found shapes with another batch, None if the model does not run so."""
    dims = Dimensions(session.inputs, fixed)
    wanted = {key: batch if dims.opened[key] else n for key, n in dims.sizes(found).items()}
    return _first(session, dims, [wanted])[0]


def _batched(sizes: Mapping[Key, int], opened: Mapping[Key, bool]) -> dict[Key, int]:
    return {key: size * 3 if opened[key] else size for key, size in sizes.items()}


def _grown(sizes: Mapping[Key, int], opened: Mapping[Key, bool]) -> Iterator[dict[Key, int]]:
    """Yield much longer sizes: odd before even (indivisible shows more), batch 3 before 1."""
    if all(opened.values()):
        return
    for growth in (16, 4, 2):
        for cut in (1, 0):
            long = {
                key: size if opened[key] else size * growth - cut for key, size in sizes.items()
            }
            yield _batched(long, opened)
            if any(opened.values()):
                yield long


def _small_batch(opened: Mapping[Key, bool]) -> Iterator[dict[Key, int]]:
    """Yield sizes to try: batch 1 and the same size elsewhere, then one of them long."""
    rest = [key for key, leads in opened.items() if not leads]
    for size in LADDER:
        yield {key: 1 if leads else size for key, leads in opened.items()}
        for long in rest[:4]:
            yield {key: size if key == long else 1 for key in opened}


def _first(
    session: Session,
    dims: Dimensions,
    candidates: Iterable[dict[Key, int]],
    *,
    least: int = 0,
    most: int = MAX_ELEMENTS,
    suits: Callable[[Shapes], bool] = any_shapes,
) -> tuple[Shapes | None, str]:
    """Return the first candidate that runs, else the message on the first that did not."""
    failure = ""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for candidate in candidates:
        shapes = dims.shapes(candidate)
        mark = tuple(shapes.values())
        elements = sum(map(math.prod, mark))
        if mark in seen or (candidate and not least <= elements <= most):
            continue
        seen.add(mark)
        feeds = random_feeds(session.inputs, 0, shapes)
        try:
            session.run(feeds)
        except UnverifiedError as error:
            failure = failure or str(error)
        else:
            if suits(shapes):
                return shapes, ""
    return None, failure
