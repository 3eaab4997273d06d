"""Results of timing: both models, their samples and where their nodes ran."""

from __future__ import annotations

from typing import Literal

import msgspec

from widthfold_onnx.results.base import Result, SizeGain, SpeedVerdict, Verdict


class NodeTime(Result, kw_only=True, frozen=True):
    """One node of the runtime's optimized graph in a profile.

    Attributes:
        us: the mean of a run.
        reached: the least time of its work on this machine, `Timing.limits`, / `us`; None where the
            work is not known, or too short.
    """

    name: str
    op: str
    provider: str
    us: float
    reached: float | None = None


class Side(Result, kw_only=True, frozen=True):
    """One model of a timing.

    Attributes:
        level: the runtime's optimization level at which it was fastest.
        median_ms: time of one run.
        p90: 90th percentile in ms; p99 likewise. The median is p50.
        samples_ms: by process and session, up to 500 samples in all, evenly taken.
        outliers: runs beyond Tukey's fences of their session, which are one and a half
            interquartile ranges away from the quartiles.
        load_ms: time of opening a session, the median of all.
        first_ms: time of a session's first run, the median of all.
        file_bytes: size of the model file, external data included.
        peak_mib: peak resident memory of a process that loads the model and runs it once.
        gpu_mib: memory of the GPU that a process took which only runs the model; None on the CPU,
            or where the GPU does not tell.
        gpu_mj: energy of the GPU in one run, in mJ, its idle energy included; None likewise.
        providers: how many nodes ran on which provider.
        fallbacks: the nodes that did not run on the provider that was asked for.
        nodes: every node of the optimized graph that ran, slowest first; one with a body without
            the nodes in it, which are there by themselves.
    """

    level: str
    median_ms: float
    p90: float
    p99: float
    samples_ms: list[list[list[float]]]
    outliers: int
    load_ms: float
    first_ms: float
    file_bytes: int
    peak_mib: float
    providers: dict[str, int]
    fallbacks: list[NodeTime]
    nodes: list[NodeTime]
    gpu_mib: float | None = None
    gpu_mj: float | None = None

    @property
    def runs_ms(self) -> list[float]:
        """The samples of all sessions."""
        return [ms for process in self.samples_ms for session in process for ms in session]


class GpuState(Result, kw_only=True, frozen=True):
    """A GPU at one moment; None where it does not tell.

    Attributes:
        sm_mhz: clock of the multiprocessors.
        memory_mhz: clock of the memory.
        throttled: why clocks are lower than they could be, as NVML names it.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttled: list[str] = msgspec.field(default_factory=list)


class Gpu(Result, kw_only=True, frozen=True):
    """The GPU of a timing, "" and None where it does not tell.

    Attributes:
        driver: its version.
        driver_cuda: the newest CUDA that the driver supports.
        cuda: version of the CUDA runtime, if it is a Python package.
        cudnn: version of the library that is loaded.
        before: clocks before the first run that counts.
        after: clocks behind the last one.
        throttled: by process, the reasons for low clocks that were seen during its runs, so that
            the samples of that process were taken while throttled.
        missing: why nothing of all this is known, "" if it is.
    """

    name: str = ""
    driver: str = ""
    driver_cuda: str = ""
    cuda: str = ""
    cudnn: str = ""
    before: GpuState | None = None
    after: GpuState | None = None
    throttled: list[list[str]] = msgspec.field(default_factory=list)
    missing: str = ""


class Baseline(Result, kw_only=True, frozen=True):
    """The speed-up beside the speed-up of a saved report.

    Attributes:
        report: name of its file.
        differs: what differs besides the rewritten model, so that nothing is judged.
        speedup: the saved speed-up; it and all that follows is None where nothing is judged.
        ratio: the speed-up / the saved one, so above 1 is faster than it was.
        low: lower end of the 95 % interval of `ratio`.
        high: upper end.
        verdict: as the verdict of a timing.
    """

    report: str
    differs: list[str] = msgspec.field(default_factory=list)
    speedup: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: SpeedVerdict | None = None


class Timing(Result, kw_only=True, frozen=True):
    """Paired timing of both models; `speedup` is original / rewritten, so above 1 is faster.

    Attributes:
        clock: what every time here is: wall time, or the processor time of the single thread.
        speedup: exp of the mean over processes and sessions of the median log ratio of runs, each
            model at its best level.
        low: lower end of the 95 % interval of `speedup`, which covers other processes and sessions.
        high: upper end.
        shapes: of the inputs that both models were timed on, at the first size.
        sizes: the speed-up at each size, the first included.
        limits: what this machine was measured to do at most, by name; per second. Only on the CPU.
        control: deviation from 1 of the sessions of the original against each other, in the same
            run.
        same_level: speed-up with both models at the level ALL.
        pairs: how many pairs were run, in all.
        processes: in how many processes.
        sessions: how many sessions of each model each of them opened.
        converged: the interval became narrow within the time budget.
        crowded: the machine was too busy to leave a core to every thread.
        verdict: faster or slower beyond the control, no difference, or inconclusive.
        note: what limits the verdict, "" if nothing.
        gpu: the device, None on the CPU.
        baseline: the speed-up beside a saved one, None if none was given.
        fail_under: the speed-up that was asked for, or `baseline.ratio` where there is a baseline;
            None if none was.
        fail_under_verdict: whether it was reached; pass where none was asked for.
    """

    provider: str
    threads: int
    clock: Literal["wall", "thread"]
    pairs: int
    processes: int
    sessions: int
    speedup: float
    low: float
    high: float
    control: float
    converged: bool
    crowded: bool
    same_level: float
    original: Side
    rewritten: Side
    verdict: SpeedVerdict
    note: str = ""
    shapes: dict[str, list[int]] = msgspec.field(default_factory=dict)
    sizes: list[SizeGain] = msgspec.field(default_factory=list)
    limits: dict[str, float] = msgspec.field(default_factory=dict)
    gpu: Gpu | None = None
    baseline: Baseline | None = None
    fail_under: float | None = None
    fail_under_verdict: Verdict = "pass"

    @property
    def sides(self) -> dict[str, Side]:
        """Both models by name."""
        return {"original": self.original, "rewritten": self.rewritten}

    @property
    def hindered(self) -> bool:
        """Check whether several threads had no free cores, so that the speed-up is not known."""
        return self.crowded and self.threads > 1
