"""Is the rewritten model faster than the original at its best?

The runtime's highest level is not always its fastest: convolutions of few channels were seen to
run up to nine times slower there than one level below. So each model uses the better one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from widthfold_onnx.evidence.environment import cores, load_average
from widthfold_onnx.options import Provider, Shapes, VerifyOptions
from widthfold_onnx.results import Timing
from widthfold_onnx.runtime.clock import Pairing, Run, paired
from widthfold_onnx.runtime.feeds import find_shapes, random_feeds
from widthfold_onnx.runtime.session import Array, Level, Session, open_session

INPUT_SETS = 4
"""Input sets that take turns, so that no run finds its inputs in the nearest cache."""

LEVEL_SHARE = 0.1
"""Share of the budget that choosing the levels may take."""

_LEVEL_ROUNDS = 15


def time_models(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes | None = None,
    *,
    report: Callable[[str], None] | None = None,
) -> Timing:
    """Time both models on random inputs; meant to run in `runtime.worker.isolated`.

    The verdict is inconclusive if several threads were asked for on cores that are not free:
    there even identical models differ several times.

    Args:
        original: model file.
        rewritten: model file.
        options: provider, threads, shapes and time budget are used.
        shapes: of every input; None searches them.
        report: called with a line when a phase begins.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
    """
    say = report or (lambda line: None)
    start = time.perf_counter()
    crowded = options.threads > 1 and load_average() + options.threads > cores()
    say("timing: choosing levels")
    first = _open(original, options.provider, Level.ALL, options.threads)
    feeds = _feeds(first, shapes or find_shapes(first, options.input_shapes))
    share = options.time_budget * LEVEL_SHARE / 2
    before, level = _best(original, first.provider, options.threads, feeds, share)
    after, other = _best(rewritten, first.provider, options.threads, feeds, share)
    say("timing: alternating runs")
    pairing = paired(
        _rounds(before, feeds),
        _rounds(after, feeds),
        _rounds(_open(original, first.provider, level, options.threads), feeds),
        budget=options.time_budget - (time.perf_counter() - start),
    )
    levels = level.value if level is other else f"original {level}, rewritten {other}"
    timing = as_timing(pairing, first.provider, options.threads, levels)
    return msgspec.structs.replace(timing, verdict="inconclusive") if crowded else timing


def as_timing(pairing: Pairing, provider: Provider, threads: int, level: str) -> Timing:
    """The report's form of a pairing: milliseconds, and where it ran."""
    return Timing(
        provider=provider.value,
        threads=threads,
        level=level,
        pairs=pairing.pairs,
        original_ms=pairing.original * 1e3,
        rewritten_ms=pairing.rewritten * 1e3,
        speedup=pairing.ratio,
        low=pairing.low,
        high=pairing.high,
        control=pairing.control,
        verdict=pairing.verdict,
    )


def _open(model: Path, provider: Provider, level: Level, threads: int) -> Session:
    return open_session(model, provider, level, threads, tf32=True)


def _best(
    model: Path, provider: Provider, threads: int, feeds: Sequence[dict[str, Array]], budget: float
) -> tuple[Session, Level]:
    """The model at the level at which it is fastest."""
    highest = _open(model, provider, Level.ALL, threads)
    lower = _open(model, provider, Level.EXTENDED, threads)
    if _is_faster(lower, highest, feeds, budget):
        return lower, Level.EXTENDED
    return highest, Level.ALL


def _feeds(session: Session, shapes: Shapes) -> list[dict[str, Array]]:
    return [random_feeds(session.inputs, seed, shapes) for seed in range(INPUT_SETS)]


def _rounds(session: Session, feeds: Sequence[dict[str, Array]]) -> Run:
    calls = [session.bound(item) for item in feeds]
    return lambda count: calls[count % len(calls)]()


def _is_faster(
    candidate: Session, current: Session, feeds: Sequence[dict[str, Array]], budget: float
) -> bool:
    """Alternate both for a few rounds; the first round only warms up."""
    sides = (_rounds(candidate, feeds), _rounds(current, feeds))
    spent: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    for count in range(_LEVEL_ROUNDS):
        for side, times in zip(sides, spent, strict=True):
            before = time.perf_counter()
            side(count)
            times.append(time.perf_counter() - before)
        if time.perf_counter() - start > budget:
            break
    first, second = (statistics.median(times[1:] or times) for times in spent)
    return first < second
