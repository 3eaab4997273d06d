"""Judges whether the rewritten model is faster than the original at its best.

The verdict is about both at the settings that suit them best (`contest`); the ratio at one common
setting, and where the time of each goes, are reported beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from widthfold_onnx.evidence.timing.memory import file_bytes, peak_mib
from widthfold_onnx.evidence.timing.placement import fallbacks, placement, remarks
from widthfold_onnx.evidence.timing.profile import profile
from widthfold_onnx.options import Shapes, VerifyOptions
from widthfold_onnx.results import Side, Timing
from widthfold_onnx.runtime.clock import clock_name
from widthfold_onnx.runtime.environment import cores, load_average
from widthfold_onnx.runtime.paired_benchmark import Setting, contest, open_at
from widthfold_onnx.runtime.sessions.session import Feeds

KEPT_SAMPLES = 500

Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]


def time_models(
    original: Path,
    rewritten: Path,
    options: VerifyOptions,
    shapes: Shapes | None = None,
    *,
    load: float | None = None,
    report: Callable[[str], None] | None = None,
) -> Timing:
    """Time both models, and measure the time of their nodes.

    The verdict is inconclusive if several threads were asked for on cores that are not free:
    there even identical models differ several times.

    Args:
        original: model file.
        rewritten: model file.
        options: as `contest`.
        shapes: of every random input; None searches them.
        load: of the machine before this program began to work; it is used if it is lower than
            now, because the load of the comparison of values is gone when the timing begins.
        report: called with a line when a phase begins.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
        UsageError: the provider does not take its options.
    """
    say = report or (lambda line: None)
    busy = load_average() if load is None else min(load_average(), load)
    found = contest(original, rewritten, options, shapes, report=report)
    options, pairing = found.options, found.pairing
    sides = {}
    models = {"original": original, "rewritten": rewritten}
    for role, setting, times in zip(models, found.settings, pairing.samples.T, strict=False):
        say(f"profile of {models[role].name}")
        sides[role] = _side(models[role], setting, times, options, found.feeds[0])
    crowded = busy + options.threads > cores()
    notes = [
        "" if found.made_up else "timed on the stored inputs",
        found.advice,
        _busy(busy, options.threads) if crowded else "",
        *remarks(sides, options.provider),
    ]
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
        original=sides["original"],
        rewritten=sides["rewritten"],
        verdict="inconclusive" if crowded and options.threads > 1 else pairing.verdict,
        note="; ".join(filter(None, notes)),
    )


def _side(
    model: Path, setting: Setting, seconds: Seconds, options: VerifyOptions, feeds: Feeds
) -> Side:
    """Describe one model, timed at the setting that suits it best."""
    chosen = dataclasses.replace(options, provider_options=setting.options)
    nodes = profile(partial(open_at, model, options, setting), feeds)
    return Side(
        level=str(setting),
        median_ms=_ms(np.median(seconds)),
        p90=_ms(np.quantile(seconds, 0.9)),
        p99=_ms(np.quantile(seconds, 0.99)),
        samples_ms=_thinned(seconds),
        file_bytes=file_bytes(model),
        peak_mib=round(peak_mib(model, chosen, setting.level, feeds), 1),
        providers=placement(nodes),
        fallbacks=fallbacks(nodes, options.provider),
        nodes=nodes,
    )


def _busy(load: float, threads: int) -> str:
    wanted = "1 thread" if threads == 1 else f"{threads} threads"
    return f"the machine was busy: load {load:.1f} on {cores()} cores before {wanted} of ours"


def _ms(seconds: float | np.floating) -> float:
    return round(float(seconds) * 1e3, 6)


def _thinned(seconds: Seconds) -> list[float]:
    """Return evenly taken samples in ms."""
    step = max(1, -(-len(seconds) // KEPT_SAMPLES))
    return [_ms(value) for value in seconds[::step]]
