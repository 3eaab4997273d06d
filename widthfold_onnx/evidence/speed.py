"""Is the rewritten model faster than the original at its best?

The runtime's highest level is not always its fastest: convolutions of few channels were seen to
run up to nine times slower there than one level below. On CUDA the layout and the algorithm search
move more than a fold does. So each model is timed at the setting that suits it best, and the
verdict is about those; the ratio at one common setting is reported beside it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from widthfold_onnx.evidence.environment import cores, load_average
from widthfold_onnx.evidence.memory import file_bytes, peak_mib
from widthfold_onnx.evidence.placement import fallbacks, placement, remarks
from widthfold_onnx.evidence.profile import profile
from widthfold_onnx.evidence.rotation import timed_inputs
from widthfold_onnx.options import Provider, Shapes, VerifyOptions
from widthfold_onnx.results import Side, Timing
from widthfold_onnx.runtime.clock import Clock, Pairing, Run, clock_name, clock_of, paired
from widthfold_onnx.runtime.ports import Array
from widthfold_onnx.runtime.session import Level, Session, open_session, resolved

CHOICE_SHARE = 0.15
"""Share of the budget that choosing the settings may take."""

CHOICE_ROUNDS = (15, 1000)
"""Fewest and most rounds that choose, as far as the share lasts."""

CHOICE_SECONDS = 0.2
"""More rounds than the fewest are run until then: 15 runs of some microseconds choose at random."""

SWEPT = {
    "prefer_nhwc": ("0", "1"),
    "cudnn_conv_algo_search": ("HEURISTIC", "EXHAUSTIVE"),
    "fuse_conv_bias": ("0", "1"),
}
"""Options of CUDA of which the fastest values are a matter of the model."""

KEPT_SAMPLES = 500

Feeds = Sequence[dict[str, Array]]


@dataclass(frozen=True)
class Setting:
    """What the runtime offers to make a model fast."""

    level: Level
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join([self.level, *(f"{k}={v}" for k, v in self.options.items())])


def settings_of(provider: Provider, chosen: Mapping[str, str]) -> list[Setting]:
    """The settings to choose from; the first is the common one. `chosen` options are fixed."""
    if provider is Provider.CPU:
        return [Setting(Level.ALL, chosen), Setting(Level.EXTENDED, chosen)]
    if provider is Provider.TENSORRT:
        return [Setting(Level.ALL, chosen)]
    swept = [
        {**dict(zip(SWEPT, values, strict=True)), **chosen} for values in product(*SWEPT.values())
    ]
    return [Setting(Level.ALL, o) for i, o in enumerate(swept) if o not in swept[:i]]


@dataclass(frozen=True)
class Contest:
    """Two models, each at its best setting, in alternating runs.

    Attributes:
        options: with the provider that was used.
        feeds: the input sets that took turns.
        made_up: whether they are random.
        settings: the best one of each model.
        same_level: original / rewritten at the first setting.
        pairing: what the pairs say.
    """

    options: VerifyOptions
    feeds: Feeds
    made_up: bool
    settings: tuple[Setting, Setting]
    same_level: float
    pairing: Pairing


def contest(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes | None = None,
    *,
    report: Callable[[str], None] | None = None,
) -> Contest:
    """Time two models.

    Inputs are random; the stored ones where the caller wants no others, or no others run.

    Args:
        original: model file.
        rewritten: model file.
        options: provider and its options, threads, shapes and time budget are used.
        shapes: of every random input; None searches them.
        report: called with a line when a phase begins.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
        UsageError: the provider does not take its options, or stored inputs that do not fit.
    """
    say = report or (lambda line: None)
    start = time.perf_counter()
    say("timing: choosing settings")
    options = resolved(options)
    settings = settings_of(options.provider, options.provider_options)
    first = _opened(original, options, settings[0])
    feeds, made_up = timed_inputs(first, shapes, options)
    models = (original, rewritten)
    sessions = [[_opened(model, options, setting) for setting in settings] for model in models]
    clock = clock_of(options.provider, options.threads)
    medians, same = _medians(sessions, feeds, options.time_budget * CHOICE_SHARE, clock)
    best = [int(np.argmin(row)) for row in medians]
    if original.samefile(rewritten):
        best[1] = best[0]
    say("timing: alternating runs")
    pairing = paired(
        _rounds(sessions[0][best[0]], feeds),
        _rounds(sessions[1][best[1]], feeds),
        _rounds(_opened(original, options, settings[best[0]]), feeds),
        budget=options.time_budget - (time.perf_counter() - start),
        clock=clock,
    )
    chosen = settings[best[0]], settings[best[1]]
    return Contest(options, feeds, made_up, chosen, same, pairing)


def ratio_of(original: Path, rewritten: Path, options: VerifyOptions, shapes: Shapes) -> Pairing:
    """What the pairs of a contest say; meant to run in `runtime.worker.isolated`.

    Raises:
        UnverifiedError: a model does not run.
    """
    return contest(original, rewritten, options, shapes).pairing


def time_models(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes | None = None,
    *,
    load: float | None = None,
    report: Callable[[str], None] | None = None,
) -> Timing:
    """Time both models, and see where their time goes.

    The verdict is inconclusive if several threads were asked for on cores that are not free:
    there even identical models differ several times.

    Args:
        original: model file.
        rewritten: model file.
        options: as `contest`.
        shapes: of every random input; None searches them.
        load: of the machine before this program began to work, which counts where it is lower
            than now: what the comparison of the values added is gone when the timing begins.
        report: called with a line when a phase begins.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
        UsageError: the provider does not take its options.
    """
    say = report or (lambda line: None)
    busy = load_average()
    busy = busy if load is None else min(busy, load)
    found = contest(original, rewritten, options, shapes, report=report)
    options, pairing = found.options, found.pairing
    sides = []
    models = (original, rewritten)
    for model, setting, times in zip(models, found.settings, pairing.samples.T, strict=False):
        say(f"profile of {model.name}")
        chosen = dataclasses.replace(options, provider_options=setting.options)
        nodes = profile(partial(_opened, model, options, setting), found.feeds[0])
        sides.append(
            Side(
                level=str(setting),
                median_ms=_ms(np.median(times)),
                p90=_ms(np.quantile(times, 0.9)),
                p99=_ms(np.quantile(times, 0.99)),
                samples_ms=_thinned(times),
                file_bytes=file_bytes(model),
                peak_mib=round(peak_mib(model, chosen, setting.level, found.feeds[0]), 1),
                providers=placement(nodes),
                fallbacks=fallbacks(nodes, options.provider),
                nodes=nodes,
            )
        )
    crowded = busy + options.threads > cores()
    notes = [] if found.made_up else ["timed on the stored inputs"]
    notes += [_busy(busy, options.threads)] if crowded else []
    notes += remarks(dict(zip(("original", "rewritten"), sides, strict=True)), options.provider)
    verdict = pairing.verdict
    if crowded and options.threads > 1:
        verdict = "inconclusive"
    return Timing(
        provider=options.provider.value,
        threads=options.threads,
        clock=clock_name(options.provider, options.threads),
        shapes={name: list(array.shape) for name, array in found.feeds[0].items()},
        pairs=len(pairing.samples),
        speedup=pairing.ratio,
        low=pairing.low,
        high=pairing.high,
        control=pairing.control,
        control_ms=_thinned(pairing.samples[:, 2]),
        converged=pairing.converged,
        crowded=crowded,
        same_level=found.same_level,
        original=sides[0],
        rewritten=sides[1],
        verdict=verdict,
        note="; ".join(notes),
    )


def _opened(
    model: Path, options: VerifyOptions, setting: Setting, prefix: Path | None = None
) -> Session:
    return open_session(
        model,
        options.provider,
        setting.level,
        options.threads,
        tf32=True,
        provider_options=setting.options,
        profile=prefix,
    )


def _busy(load: float, threads: int) -> str:
    wanted = "1 thread" if threads == 1 else f"{threads} threads"
    return f"the machine was busy: load {load:.1f} on {cores()} cores before {wanted} of ours"


def _medians(
    sessions: list[list[Session]], feeds: Feeds, budget: float, clock: Clock
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], float]:
    """Time all settings of both models in turn; the first round only warms up.

    Each round begins with another one: whichever always came first was seen to take 3 to 10 %
    more in models of some microseconds.

    Returns:
        Median seconds [model, setting], and original / rewritten at the first setting.
    """
    runs = [_rounds(session, feeds) for row in sessions for session in row]
    rounds: list[list[float]] = []
    start = time.perf_counter()
    fewest, most = CHOICE_ROUNDS
    for count in range(most):
        spent = [0.0] * len(runs)
        for turn in range(len(runs)):
            side = (count + turn) % len(runs)
            spent[side] = _seconds(runs[side], count, clock)
        rounds.append(spent)
        passed = time.perf_counter() - start
        if passed > budget or (count + 1 >= fewest and passed >= CHOICE_SECONDS):
            break
    times = np.array(rounds[1:] or rounds).reshape(-1, len(sessions), len(sessions[0]))
    same = math.exp(float(np.median(np.log(times[:, 0, 0] / times[:, 1, 0]))))
    return np.median(times, axis=0), same


def _seconds(run: Run, count: int, clock: Clock) -> float:
    before = clock()
    run(count)
    return (clock() - before) * 1e-9


def _rounds(session: Session, feeds: Feeds) -> Run:
    calls = [session.bound(item) for item in feeds]
    return lambda count: calls[count % len(calls)]()


def _ms(seconds: float | np.floating) -> float:
    return round(float(seconds) * 1e3, 6)


def _thinned(seconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """Evenly taken samples in ms."""
    step = max(1, -(-len(seconds) // KEPT_SAMPLES))
    return [_ms(value) for value in seconds[::step]]
