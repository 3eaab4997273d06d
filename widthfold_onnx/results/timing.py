"""Results of timing: both models, their samples and where their nodes ran."""

from __future__ import annotations

from typing import Literal

import msgspec

from widthfold_onnx.results.base import Result


class NodeTime(Result, kw_only=True, frozen=True):
    """One node of the runtime's optimized graph in a profile; `us` is the mean of a run."""

    name: str
    op: str
    provider: str
    us: float


class Side(Result, kw_only=True, frozen=True):
    """One model of a timing.

    Attributes:
        level: the runtime's optimization level at which it was fastest.
        median_ms: wall time of one run.
        p90: 90th percentile in ms; p99 likewise. The median is p50.
        samples_ms: up to 500 samples, evenly taken from the run.
        file_bytes: size of the model file, external data included.
        peak_mib: peak resident memory of a process that loads the model and runs it once.
        providers: how many nodes ran on which provider.
        fallbacks: the nodes that did not run on the provider that was asked for.
        nodes: every node of the optimized graph that ran, slowest first; one with a body without
            the nodes in it, which are there by themselves.
    """

    level: str
    median_ms: float
    p90: float
    p99: float
    samples_ms: list[float]
    file_bytes: int
    peak_mib: float
    providers: dict[str, int]
    fallbacks: list[NodeTime]
    nodes: list[NodeTime]


class Timing(Result, kw_only=True, frozen=True):
    """Paired timing of both models; `speedup` is original / rewritten, so above 1 is faster.

    Attributes:
        clock: what every time here is: wall time, or the processor time of the one thread.
        speedup: exp of the median log ratio of the pairs, each model at its best level.
        low: lower end of the bootstrap 95 % interval of `speedup`.
        high: upper end.
        shapes: of the inputs that both models were timed on.
        control: largest deviation from 1 that the A/A control showed in the same run.
        same_level: speed-up with both models at the level ALL.
        pairs: how many pairs were run.
        converged: the interval became narrow within the time budget.
        crowded: the machine was too busy to leave a core to every thread.
        verdict: faster or slower beyond the control, no difference, or inconclusive.
        note: what limits the verdict, "" if nothing.
        fail_under: the speed-up that was asked for, None if none was.
        fail_under_verdict: whether it was reached; pass where none was asked for.
    """

    provider: str
    threads: int
    clock: Literal["wall", "thread"]
    pairs: int
    speedup: float
    low: float
    high: float
    control: float
    control_ms: list[float]
    converged: bool
    crowded: bool
    same_level: float
    original: Side
    rewritten: Side
    verdict: Literal["faster", "slower", "no difference", "inconclusive"]
    note: str = ""
    shapes: dict[str, list[int]] = msgspec.field(default_factory=dict)
    fail_under: float | None = None
    fail_under_verdict: Literal["pass", "fail", "unverified"] = "pass"
