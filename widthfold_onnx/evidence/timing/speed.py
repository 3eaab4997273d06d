"""Judge whether the rewritten model is faster than the original at its best.

The verdict is about both at the settings that suit them best (`contest`); the ratio at one common
setting, and where the time of each goes, are reported beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from widthfold_onnx.evidence.timing.profile import (
    Roofline,
    fallback_lines,
    fallbacks,
    placement,
    profile,
)
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import Shapes, Sizes, TimingOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.results import Gain, Gpu, Side, SizeGain, Timing
from widthfold_onnx.runtime.clock import clock_name
from widthfold_onnx.runtime.contest import Contest, hold_contest
from widthfold_onnx.runtime.environment import Device
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.runtime.settings import open_at
from widthfold_onnx.system import cores, load_average

KEPT_SAMPLES = 500

FENCE = 1.5
"""Interquartile ranges beyond the quartiles from which a run is an outlier (Tukey, 1977)."""

Seconds = npt.NDArray[np.float64]


def time_models(
    original: LoadedModel,
    rewritten: LoadedModel,
    options: TimingOptions,
    sizes: Sizes,
    *,
    load: float,
) -> Timing:
    """Time both models, and measure the time of their nodes.

    Args:
        original: the model before.
        rewritten: the model after.
        options: as `hold_contest`.
        sizes: shapes of every input, one or more assignments, which share the time budget; without
            any, shapes are searched. Profiles are taken at the first assignment.
        load: load of the machine before this program began to work. If it is lower than the load
            now, it counts: the comparison of outputs has raised the load, and is over.

    Raises:
        UnverifiedError: a model does not run, or no inputs were found.
        UsageError: the provider does not take its options.
    """
    busy = min(load_average(), load)
    assignments: Sequence[Shapes | None] = sizes or (None,)
    share = replace(options, time_budget=options.time_budget / len(assignments))
    files = original.path, rewritten.path
    contests = [hold_contest(*files, share, shapes) for shapes in assignments]
    first = contests[0]
    roofline = Roofline(first.options)
    sides = {}
    for number, (role, model) in enumerate({"original": original, "rewritten": rewritten}.items()):
        progress(Step(f"profile of {model.name}"))
        sides[role] = _side(first, number, model, roofline)
    timing = _timing(first, sides, busy)
    rows = [_at_size(item) for item in contests]
    return msgspec.structs.replace(timing, limits=roofline.limits(), sizes=rows)


def _at_size(contest: Contest) -> SizeGain:
    """Return the row of one size."""
    pairing = contest.pairing
    return SizeGain(
        shapes={name: list(array.shape) for name, array in contest.inputs.sets[0].items()},
        gain=Gain(ratio=pairing.ratio, low=pairing.low, high=pairing.high, pairs=pairing.pairs),
        verdict=pairing.verdict,
        original_ms=_ms(np.median(pairing.samples[:, 0])),
    )


def _timing(contest: Contest, sides: dict[str, Side], busy: float) -> Timing:
    """Judge the pairs at the load `busy` of the machine.

    The verdict is inconclusive if several threads were asked for and fewer cores are free: then
    one of two identical models may take several times as long as the other.
    """
    options, pairing = contest.options, contest.pairing
    crowded = busy + options.threads > cores()
    notes = [
        "" if contest.inputs.random else "timed on the stored inputs",
        contest.choice.advice,
        _busy(busy, options.threads) if crowded else "",
        *fallback_lines(sides, options.provider, heavy=False),
    ]
    return Timing(
        provider=options.provider.value,
        threads=options.threads,
        clock=clock_name(options),
        shapes={name: list(array.shape) for name, array in contest.inputs.sets[0].items()},
        pairs=pairing.pairs,
        processes=len(pairing.samples),
        sessions=pairing.samples.shape[2],
        speedup=pairing.ratio,
        low=pairing.low,
        high=pairing.high,
        control=pairing.control,
        converged=pairing.converged,
        crowded=crowded,
        same_level=contest.choice.ratio_at_first_setting,
        original=sides["original"],
        rewritten=sides["rewritten"],
        verdict="inconclusive" if crowded and options.threads > 1 else pairing.verdict,
        note="; ".join(filter(None, notes)),
        gpu=_gpu(contest),
    )


def _side(contest: Contest, number: int, model: LoadedModel, roofline: Roofline) -> Side:
    """Describe one model, timed at the setting that suits it best."""
    setting = contest.choice.settings[number]
    feeds = contest.inputs.sets[0]
    seconds = contest.pairing.samples[:, number]
    least = roofline.of(model.path, setting)
    nodes = profile(partial(open_at, model.path, setting), feeds, least)
    return Side(
        level=str(setting),
        median_ms=_ms(np.median(seconds)),
        p90=_ms(np.quantile(seconds, 0.9)),
        p99=_ms(np.quantile(seconds, 0.99)),
        samples_ms=thinned(seconds),
        outliers=outliers(seconds),
        load_ms=_ms(np.median([process.loads[number] for process in contest.processes])),
        first_ms=_ms(np.median([process.firsts[number] for process in contest.processes])),
        file_bytes=file_bytes(model),
        providers=placement(nodes),
        fallbacks=fallbacks(nodes, contest.options.provider),
        nodes=nodes,
    )


def file_bytes(model: LoadedModel) -> int:
    """Return the size of a model with the files of its external data."""
    return sum(path.stat().st_size for path in model.files)


def _gpu(contest: Contest) -> Gpu | None:
    """Describe the GPU and its clocks during the paired timing; None if NVML knows none of it."""
    if traits_of(contest.options.provider).device != "nvidia":
        return None
    states = [state for process in contest.processes for state in process.gpu]
    return msgspec.structs.replace(
        Device(contest.options).facts(),
        before=states[0] if states else None,
        after=states[-1] if states else None,
        throttled=[
            sorted({reason for state in process.gpu for reason in state.throttled})
            for process in contest.processes
        ],
    )


def _busy(load: float, threads: int) -> str:
    threads_text = "1 thread" if threads == 1 else f"{threads} threads"
    return f"the machine was busy: load {load:.1f} on {cores()} cores before {threads_text} of ours"


def _ms(seconds: float | np.floating) -> float:
    return round(float(seconds) * 1e3, 6)


def thinned(seconds: Seconds) -> list[list[list[float]]]:
    """Return evenly taken samples in ms, by process and session; at least one of each session."""
    processes, sessions, runs = seconds.shape
    step = -(-runs // max(KEPT_SAMPLES // (processes * sessions), 1))
    return [[[_ms(value) for value in row] for row in rows] for rows in seconds[..., ::step]]


def outliers(seconds: Seconds) -> int:
    """Count the runs beyond Tukey's fences of their session, the last axis."""
    low, high = np.quantile(seconds, (0.25, 0.75), axis=-1, keepdims=True)
    reach = FENCE * (high - low)
    return int(np.count_nonzero((seconds < low - reach) | (seconds > high + reach)))
