"""Define the results of the commands as frozen structs, which are also the JSON reports.

In this order: parts that several results share, times, the result of `verify`, the search, and the
results of `tune`, `optimize` and `inspect`. `schemas/` holds the JSON Schemas. A number that can be
infinite or undefined is None in that case: JSON has no NaN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ClassVar, Literal

import msgspec

from widthfold_onnx.errors import CheckFailedError, UnverifiedError, WidthfoldError

Verdict = Literal["pass", "fail", "unverified"]
"""The result of a check: it holds, it does not hold, or that could not be decided."""


class ReportPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of reports and of their parts: frozen, keywords only."""


class Report(ReportPart, kw_only=True, frozen=True):
    """Base of the result of a command, which a notebook shows as HTML.

    Attributes:
        as_html: renders a report of any class; `reports.notebook` sets it.
    """

    as_html: ClassVar[Callable[..., str]]

    def _repr_html_(self) -> str:
        """Return the report as a part of a page: summary, tables, and pictures of times."""
        return Report.as_html(self)


SpeedVerdict = Literal["faster", "slower", "no difference", "inconclusive"]
"""The result of a timing, by its interval (`runtime.intervals.speed_verdict`)."""


class Gain(ReportPart, kw_only=True, frozen=True):
    """A speed-up: time of the original / time of the new one, with its 95 % interval.

    Attributes:
        ratio: the speed-up.
        low: lower end of the interval (`runtime.intervals`).
        high: upper end.
        pairs: number of timed runs of each side.
        predicted: True if nothing was timed: `pairs` is 0, and `low` and `high` equal `ratio`.
    """

    ratio: float
    low: float
    high: float
    pairs: int
    predicted: bool = False

    @property
    def is_surely_faster(self) -> bool:
        """True if the whole interval is above 1."""
        return self.low > 1

    @property
    def is_surely_slower(self) -> bool:
        """True if the whole interval is below 1."""
        return self.high < 1


class SizeGain(ReportPart, kw_only=True, frozen=True):
    """The gain of the whole model at one size.

    Attributes:
        shapes: of every input.
        gain: None where the models were not timed at this size, or did not run.
        verdict: of the interval, noise considered; None where there is no gain.
        original_ms: time of one run of the original; None where it was not timed.
        note: why there is no gain.
    """

    shapes: dict[str, list[int]]
    gain: Gain | None = None
    verdict: SpeedVerdict | None = None
    original_ms: float | None = None
    note: str = ""


class AssumedSizes(ReportPart, kw_only=True, frozen=True):
    """Sizes that were assumed, as neither the model nor the caller fixes them.

    Attributes:
        open: input -> its open dimensions, each as its symbol, or as its axis if it has none.
        sizes: shapes of these inputs, one or more assignments.
    """

    open: dict[str, list[str]]
    sizes: list[dict[str, list[int]]]


class NodeTime(ReportPart, kw_only=True, frozen=True):
    """One node of the runtime's optimized graph in a profile.

    Attributes:
        us: mean time of one run in microseconds, without the nodes in its bodies.
        reached: share of what this machine can do: the least time that its work takes here
            (`Timing.limits`) / `us`. None where the work is not known, or too short to tell.
    """

    name: str
    op: str
    provider: str
    us: float
    reached: float | None = None


class Side(ReportPart, kw_only=True, frozen=True):
    """One model of a timing.

    Attributes:
        level: the runtime's optimization level at which it was fastest, and the options of the
            provider that were chosen with it.
        median_ms: time of one run.
        p90: 90th percentile in ms; p99 likewise. The median is p50.
        samples_ms: [process][session][run]; at most 500 in all, evenly spaced among the runs.
        outliers: number of runs beyond Tukey's fences of their session (1.5 interquartile ranges
            from the quartiles).
        load_ms: median time of opening a session.
        first_ms: median time of the first run of a session.
        file_bytes: size of the model file, external data included.
        providers: how many nodes ran on which provider.
        fallbacks: the nodes that did not run on the provider that was asked for.
        nodes: every node of the optimized graph that ran, slowest first; the time of a node with a
            body is without the nodes of the body, which have entries of their own.
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
    providers: dict[str, int]
    fallbacks: list[NodeTime]
    nodes: list[NodeTime]


class GpuState(ReportPart, kw_only=True, frozen=True):
    """The state of a GPU at one moment; None for what the device does not report.

    Attributes:
        sm_mhz: clock of the multiprocessors.
        memory_mhz: clock of the memory.
        throttled: why clocks are lower than they could be, as NVML names it.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttled: list[str] = msgspec.field(default_factory=list)


class Gpu(ReportPart, kw_only=True, frozen=True):
    """The GPU of a timing; "" or None for what the device does not report.

    Attributes:
        driver: its version.
        driver_cuda: the newest CUDA that the driver supports.
        cuda: version of the CUDA runtime, if it is a Python package.
        cudnn: version of the library that is loaded.
        before: clocks before the first timed run.
        after: clocks after the last one.
        throttled: by process: the reasons for low clocks that were seen during its runs.
        missing: why none of this is known; "" if it is.
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


class Baseline(ReportPart, kw_only=True, frozen=True):
    """The speed-up of this run, compared with that of a saved report.

    Attributes:
        report: name of the file of the saved report.
        differs: what else than the rewritten model differs from that run. If anything does, the
            speed-ups are not compared, and all that follows is None.
        speedup: the saved speed-up.
        ratio: the speed-up / the saved one: above 1, the model is faster than it was.
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


class Timing(ReportPart, kw_only=True, frozen=True):
    """Paired timing of both models; `speedup` is original / rewritten, so above 1 is faster.

    Attributes:
        clock: wall time, or the processor time of the single thread.
        speedup: exp of the mean over processes and sessions of the median log ratio of runs, each
            model at its best level.
        low: lower end of the 95 % interval of `speedup`, which covers other processes and sessions.
        high: upper end.
        shapes: of the inputs that both models were timed on, at the first size.
        sizes: the speed-up at each size, the first included.
        limits: measured top speeds of this machine, by name, per second. Only on the CPU.
        control: A/A control: the ratio of the sessions of the original to each other, minus 1.
        same_level: speed-up with both models at the level ALL and the provider's usual options.
        pairs: how many pairs were run, in all.
        processes: in how many processes.
        sessions: how many sessions of each model each of them opened.
        converged: True if the interval became narrow within the time budget.
        crowded: True if the machine was too busy to leave a core to every thread.
        verdict: faster or slower beyond the control, no difference, or inconclusive.
        note: what limits the verdict, "" if nothing.
        gpu: the device, None on the CPU.
        baseline: the comparison with a saved speed-up, None if none was given.
        fail_under: the required speed-up, or required `baseline.ratio` where there is a baseline;
            None if nothing is required.
        fail_under_verdict: whether it was reached; pass where nothing is required.
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
        """True if several threads had no free cores, so that the speed-up is not known."""
        return self.crowded and self.threads > 1


VERIFY_SCHEMA = "widthfold.verify/8"


class WorstElement(ReportPart, kw_only=True, frozen=True):
    """The element with the largest finite difference."""

    index: list[int]
    original: float
    rewritten: float

    @property
    def change(self) -> str:
        """The element and both values, e.g. "[0,1]: 0 became -0.907"."""
        where = ",".join(map(str, self.index))
        return f"[{where}]: {self.original:.9g} became {self.rewritten:.9g}"


LevelName = Literal["disabled", "all"]
"""Optimization levels at which outputs are compared."""

Caveat = Literal["", "meaningless", "saturated", "ill-conditioned", "unsteady"]
"""Why the comparison of an output says little; "" where it does not.

Meaningless: the values can show nothing, e.g. all are NaN. Saturated: there are only two different
values. Ill-conditioned: the difference exceeds the tolerance, but rounding alone moves the original
as far. Unsteady: the original returns other values in each run, so nothing can be compared.
"""


class OutputParity(ReportPart, kw_only=True, frozen=True):
    """The comparison of one output on the input set on which it is nearest to failing.

    Attributes:
        max_abs: largest |a - b| over elements finite in both; a is the reference: the truth where
            it is usable.
        mean_abs: mean |a - b| over the same elements.
        max_rel: `max_abs` over the largest finite |reference| of the output.
        nonfinite_match: same type and shape, same NaN positions, same Inf positions and signs.
        worst: the element that differs most, None where none differs.
        movement: how far rounding moves the output of the original, in units of `max_rel`; None
            where that was not measured.
        tolerance: the largest `max_rel` that was allowed.
        note: a remark for people; `caveat` is for programs.
    """

    name: str
    dtype: str
    level: LevelName
    max_abs: float | None
    mean_abs: float | None
    max_rel: float | None
    nonfinite_match: bool
    worst: WorstElement | None
    movement: float | None
    tolerance: float
    passed: bool
    note: str = ""
    caveat: Caveat = ""

    @property
    def share_of_allowed(self) -> float:
        """`max_rel` as a multiple of `tolerance`; beyond 1 the output differs."""
        return (self.max_rel or 0.0) / max(self.tolerance, sys.float_info.min)


class AxisPattern(ReportPart, kw_only=True, frozen=True):
    """The fold of one axis of a layer.

    Attributes:
        axis: batch, depth, height or width; rows or columns of a product of matrices.
        in_tile: input positions per folded position, P.
        out_tile: output positions per folded position, F.
        blocked: the tile is the outer part of the index.
        in_length: planned input extent, extended as the fold needs; None if the fold fits any.
        original_kernel: taps of the original.
        kernel: taps of the folded Conv.
        stride: of the folded Conv.
        taps: where the original taps went, one (output position in its tile, input position in its
            tile, position in the folded kernel, original tap) each; empty if they are too many.
    """

    axis: str
    in_tile: int
    out_tile: int
    blocked: bool
    in_length: int | None
    original_kernel: int
    kernel: int
    stride: int
    taps: list[tuple[int, int, int, int]]


class FoldReport(ReportPart, kw_only=True, frozen=True):
    """The fold that the metadata of a node names; no proof reads it.

    Attributes:
        node: name of the node.
        form: axes, factor and kind, e.g. "width by 8, view blocked"; "unreadable" if the record
            cannot be read.
        channels: of the original and of the folded node, e.g. "8 -> 8, folded 64 -> 64".
        axes: the folded axes.
    """

    node: str
    form: str
    channels: str = ""
    axes: list[AxisPattern] = msgspec.field(default_factory=list)


class Unproved(ReportPart, kw_only=True, frozen=True):
    """A value that the proof can show neither equal nor different.

    Attributes:
        reason: why.
        values: names in the main graph: the value, then what either model computes it from, back to
            values that are equal in both, or that have an `Unproved` of their own.
    """

    reason: str
    values: list[str]


class Proof(ReportPart, kw_only=True, frozen=True):
    """The verdict of the proof that both models are the same function (docs/verification.md).

    Attributes:
        verdict: equal; different; not provable, where the new model rounds what the original
            computes; or skipped, where the original cannot be evaluated.
        reason: where they differ, or why nothing can be said; "" where they are equal.
        values: number of values with the same name in both models that were found equal.
        rounded: number of constants that are the rounded result of other constants, such as w * s.
            The exact result took their place, so `equal` means equal except for that rounding.
        error_bits: the probability that `equal` is wrong is below 2^-error_bits.
        primes: random elements were drawn once modulo each of them.
        functions: operators that were treated as unknown functions of their inputs.
        extents: of the inputs, for each evaluation; those of a difference come last.
        unseen: first outputs of Ifs whose condition is not known, or whose new branch was computed
            at no extents.
        unproved: the values for which it is not provable.
    """

    verdict: Literal["equal", "different", "not provable", "skipped"]
    reason: str = ""
    values: int = 0
    rounded: int = 0
    error_bits: int = 0
    primes: list[int] = msgspec.field(default_factory=list)
    functions: list[str] = msgspec.field(default_factory=list)
    extents: list[dict[str, list[int]]] = msgspec.field(default_factory=list)
    unseen: list[str] = msgspec.field(default_factory=list)
    unproved: list[Unproved] = msgspec.field(default_factory=list)


class Witness(ReportPart, kw_only=True, frozen=True):
    """An input set on which the runtime shows that two models differ.

    Attributes:
        input_set: its label, e.g. "seed 0, normal".
        shapes: of its inputs.
        output: the output that is furthest beyond what is allowed there.
    """

    input_set: str
    shapes: dict[str, list[int]]
    output: OutputParity


class IntegerRun(ReportPart, kw_only=True, frozen=True):
    """The linear nodes that changed, run by the runtime on small integers.

    Attributes:
        verdict: exact, where every result equals the node's definition, bit for bit; different;
            or skipped, where some could not be run.
        reason: where one differs, or why one was not run.
        nodes: how many were run and are exact.
    """

    verdict: Literal["exact", "different", "skipped"]
    reason: str = ""
    nodes: int = 0


class Environment(ReportPart, kw_only=True, frozen=True):
    """The machine, versions and settings that the numbers of a report depend on.

    Attributes:
        provider_options: options that the caller chose; `Side.level` names the timed level.
        session_options: entries of the session's configuration that the caller chose.
        u8s8_error: largest error of the kernel of unsigned data and signed weights on this CPU, in
            steps out of 255; None where neither model holds integers of 8 bits.
        mhz_before: mean clock of the cores before the work, None where the system does not say.
        mhz_after: the same afterwards.
        command: the command line that repeats the run, "" from Python.
        vectors: the widest vector instructions of the processor, "" if not known.
    """

    widthfold: str
    onnx: str
    onnxruntime: str
    python: str
    provider: str
    provider_options: dict[str, str]
    session_options: dict[str, str]
    u8s8_error: int | None
    machine: str
    cores: int
    load_before: float
    load_after: float
    mhz_before: float | None
    mhz_after: float | None
    command: str
    vectors: str = ""


class VerifyReport(Report, kw_only=True, frozen=True):
    """Result of `verify`.

    Attributes:
        schema: name and version of the JSON report.
        original: the file before.
        rewritten: the file after.
        outputs: the comparison of each output, at each level.
        proof: None where it was not asked for.
        witness: of a proof that says "different"; None where no input set shows the difference.
        integers: the run on small integers; None where the proof was not asked for, or does not
            hold.
        folds: the folds that metadata of the rewritten model name.
        timing: None where nothing was timed.
        assumed: sizes that were assumed; None where nothing was left open.
        verdict: decides the exit code.
        reasons: why the verdict is not pass, or what limits a pass.
        input_sets: how many were compared.
        environment: machine, versions and settings.
        saturates_further: True if the 8-bit kernels of this CPU saturate, and that makes outputs of
            the rewritten model less exact than those of the original.
        unrun: the kernel that the runtime lacks, if it could run neither model but the proof says
            equal; else "".
        note: a remark on the plan of the rewritten model; "" if there is none.
        values: combinations of values of inputs that choose between parts of the models.
    """

    schema: str = VERIFY_SCHEMA
    original: str
    rewritten: str
    outputs: list[OutputParity]
    proof: Proof | None
    integers: IntegerRun | None
    folds: list[FoldReport]
    timing: Timing | None
    verdict: Verdict
    reasons: list[str]
    input_sets: int
    environment: Environment
    assumed: AssumedSizes | None = None
    saturates_further: bool = False
    unrun: str = ""
    note: str = ""
    values: list[dict[str, list[float]]] = msgspec.field(default_factory=list)
    witness: Witness | None = None

    @property
    def error(self) -> WidthfoldError | None:
        """The error that stands for the verdict; None if it is pass."""
        reasons = "; ".join(self.reasons) or "no reason given"
        match self.verdict:
            case "pass":
                return None
            case "fail":
                return CheckFailedError(reasons)
            case "unverified":
                return UnverifiedError(reasons)


class SearchReport(ReportPart, kw_only=True, frozen=True):
    """The search that chose the forms.

    Attributes:
        provider: where everything ran.
        threads: intra-op threads.
        target: device whose times are predicted; where forms are timed, predictions order them.
        sizes: the whole model at each size; layers were measured at the first.
        layers: number of distinct layers that have a form to choose.
        forms: number of forms of these layers.
        measured: number of measurements of this run; the others were in the store.
        pending: number of layers that are not measured completely.
        predicted: number of layers that were decided by prediction, without measurements.
        interrupted: True if the user ended the measurements.
        store_read_only: True if the store could not be written, so that no measurement was kept.
        whole: gain of the whole model in the final trial, at the first size, against the original
            at its best setting; None where no layer gained, or nothing was to be measured.
        control: A/A control of that trial, as in `Timing`.
        bar: the ratio that the low end of `whole` must exceed. It grows with the noise.
        failure: the model that did not run in that trial, and why; "" where both did.
        note: a remark on how fast the original is at its settings.
        original_setting: level and options of the runtime at which the original is fastest; ""
            where that was not timed.
        folded_setting: the same for the folded model.
        accepted: True if the model is changed: the new model is faster beyond noise at one size and
            slower at none, or it was not timed.
    """

    provider: str
    threads: int
    target: str
    sizes: list[SizeGain]
    layers: int
    forms: int
    measured: int
    pending: int
    predicted: int
    interrupted: bool
    store_read_only: bool
    whole: Gain | None
    accepted: bool
    control: float = 0.0
    bar: float = 0.0
    failure: str = ""
    note: str = ""
    original_setting: str = ""
    folded_setting: str = ""


class TunedModel(ReportPart, kw_only=True, frozen=True):
    """The counts of one model, over all machines; layers and their forms are measured.

    Attributes:
        model: name of the file.
        layers: number of distinct layers that have a form to choose.
        forms: number of forms of these layers, alone and between packed tensors.
        measured: measurements that this run added to the store; that of a layer in several models
            counts for each of them.
        stored: measurements that were in the store before.
        skipped: measured and stored ones that were not run: their arithmetic alone would take too
            long, or no time was left.
        failed: measured and stored ones that gave no time: a crash, a hang, no memory, or no kernel
            in the runtime.
        pending: layers that are not measured completely on some machine.
        reason: why the model was not tuned, "" where it was.
        code: exit code of the error that is the reason, 0 where there is none.
    """

    model: str
    layers: int = 0
    forms: int = 0
    measured: int = 0
    stored: int = 0
    skipped: int = 0
    failed: int = 0
    pending: int = 0
    reason: str = ""
    code: int = 0


class TunedMachine(ReportPart, kw_only=True, frozen=True):
    """A machine (`identity.machine_identity`), and how many measurements it took."""

    provider: str
    machine: str
    measured: int


class TuneReport(Report, kw_only=True, frozen=True):
    """Result of `tune`.

    Attributes:
        schema: name and version of the JSON report.
        threads: intra-op threads.
        machines: where it was measured; several kinds are possible on a cluster.
        models: in the order in which they were named.
        interrupted: True if the user ended the measurements.
        store_read_only: True if the store could not be written, so that no measurement was kept.
    """

    schema: str = "widthfold.tune/4"
    threads: int
    machines: list[TunedMachine]
    models: list[TunedModel]
    interrupted: bool
    store_read_only: bool


class SiteReport(ReportPart, kw_only=True, frozen=True):
    """The outcome of one site.

    Attributes:
        node: name of the node, or its op and first output where it has no name.
        graph: where the node is: "" for the main graph, else the path of names to it.
        op: operator type.
        status: folded; kept (left alone without a fault, e.g. on request or for want of a gain);
            refused.
        axis: folded axes of the input, by name, joined by "+"; None unless folded.
        factor: positions per channel that became channels, of the output, or of the input where
            a ConvTranspose has a stride; None unless folded.
        form: view or move, and the kind of fold, e.g. "view blocked"; None unless folded.
        code: stable word for the outcome, e.g. "folded", "already-wide".
        reason: one sentence with the numbers in it.
        flops_ratio: multiply-adds after / before; None unless folded.
        spread: mean number of outputs that an Inf or NaN in one input may reach, after / before;
            None unless folded.
        guard: "extents" if the fold is in a guard: at sizes that it does not support, the nodes of
            the original compute; else "".
        gain: of the layer alone in its form, or in its best form if it is kept, measured or
            predicted; None where neither is known.
    """

    node: str
    graph: str
    op: str
    status: Literal["folded", "kept", "refused"]
    axis: str | None = None
    factor: int | None = None
    form: str | None = None
    code: str
    reason: str
    flops_ratio: float | None = None
    spread: float | None = None
    guard: str = ""
    gain: Gain | None = None


class Stop(ReportPart, kw_only=True, frozen=True):
    """A node that was left as it is: name, operator, and the reason in a word and a sentence."""

    node: str
    op: str
    code: str
    reason: str


class RegionReport(ReportPart, kw_only=True, frozen=True):
    """Connected nodes whose tensors stay packed.

    Attributes:
        graph: where they are: "" for the main graph, else the path of names to it.
        folded: the folded nodes.
        carried: the operators that run on folded tensors, each as its type and its name.
        stops: the nodes at which it ends, in the order of the nodes that they follow.
    """

    graph: str
    folded: list[str]
    carried: list[str]
    stops: list[Stop]


class CompanionReport(ReportPart, kw_only=True, frozen=True):
    """The outcome of a companion, a rule that exchanges nodes for equal ones that run faster.

    Attributes:
        name: its name.
        status: exchanged; kept (nodes could be exchanged, but are not); refused (none can be).
        nodes: names of the nodes that can be exchanged.
        replacements: the operators of their new nodes, one line for each different list.
        refused: the nodes that match and cannot be exchanged, with the reason.
        reason: why they are kept; else "".
        gain: of the whole model with this companion against that with the companions accepted
            before it. If it was timed together with lifted layers, it includes their gain.
        gain_on_smooth: the same on inputs whose neighbours are alike, where branches cost less.
    """

    name: str
    status: Literal["exchanged", "kept", "refused"]
    nodes: list[str]
    replacements: list[str]
    refused: list[Stop]
    reason: str = ""
    gain: Gain | None = None
    gain_on_smooth: Gain | None = None


class PaddedChannels(ReportPart, kw_only=True, frozen=True):
    """The output channels of a layer, and these with padding."""

    node: str
    channels: int
    padded: int


class PaddingReport(ReportPart, kw_only=True, frozen=True):
    """Channels that are padded with zeros, in whole chains of layers.

    Attributes:
        status: padded; kept (they are left alone).
        multiple: padded channels are a multiple of it.
        layers: the layers whose output is padded; empty if none can be padded.
        stops: the nodes for which other channels cannot be padded.
        reason: why they are kept; else "".
        gain: of the whole model with all chains padded against the model without padding, where
            that was measured; chains that did not help are not padded.
    """

    status: Literal["padded", "kept"]
    multiple: int
    layers: list[PaddedChannels]
    stops: list[Stop]
    reason: str = ""
    gain: Gain | None = None


class OptimizeSummary(ReportPart, kw_only=True, frozen=True):
    """Counts over all sites, and the size of the model file in bytes.

    Attributes:
        exchanged: nodes that companions replaced.
        frozen: weights that were taken out of the inputs.
        padded: layers whose output channels were padded.
    """

    folded: int
    kept: int
    refused: int
    bytes_before: int
    bytes_after: int
    exchanged: int = 0
    frozen: int = 0
    padded: int = 0

    @property
    def is_changing(self) -> bool:
        """True if the result is another model than the original."""
        return self.folded + self.exchanged + self.frozen + self.padded > 0


class OptimizeReport(Report, kw_only=True, frozen=True):
    """Result of `optimize` and `apply`.

    Attributes:
        schema: name and version of the JSON report.
        model: the file that was read.
        sites: every node that could be folded, with its outcome.
        regions: nodes between which nothing is unpacked.
        companions: outcomes of the companions that match a node.
        padding: padded channels; None if there are none that could be padded.
        summary: counts over all sites, and sizes of the files.
        assumed: sizes that were assumed; None where nothing was left open.
        search: how the forms were chosen; None at a fixed factor.
        fixed_sizes: sizes of inputs that the model left open and the new one declares.
        values: combinations of values of inputs that choose between parts of the model.
        note: a remark on the plan; "" if there is none.
        remarks: remarks on the models.
        written: the new file, None where none was written.
        verification: the checks; None where nothing was written or they were off.
    """

    schema: str = "widthfold.optimize/11"
    model: str
    sites: list[SiteReport]
    regions: list[RegionReport]
    companions: list[CompanionReport] = msgspec.field(default_factory=list)
    padding: PaddingReport | None = None
    summary: OptimizeSummary
    assumed: AssumedSizes | None = None
    search: SearchReport | None = None
    fixed_sizes: dict[str, list[int]] = msgspec.field(default_factory=dict)
    values: list[dict[str, list[float]]] = msgspec.field(default_factory=list)
    note: str = ""
    remarks: list[str] = msgspec.field(default_factory=list)
    written: str | None
    verification: VerifyReport | None


class FormChoice(ReportPart, kw_only=True, frozen=True):
    """One legal form of a layer, with its cost on paper: each ratio is after / before.

    Attributes:
        axis: folded axes of the input, by name, joined by "+".
        factor: positions per channel that become channels.
        form: view or move, and the kind of fold, e.g. "view blocked".
        channels: input -> output channels of the folded node, as text.
        flops_ratio: multiply-adds.
        lanes_ratio: multiply-adds, unused lanes included, of vectors of 16 output channels.
        bytes_ratio: bytes of input, weight and output.
        structural_zeros: share of structural zeros in the folded weight.
        guard: "extents" if the fold needs a guard, as in `SiteReport`: `optimize` folds the layer
            only if it can prove both branches; else "".
    """

    axis: str
    factor: int
    form: str
    channels: str
    flops_ratio: float
    lanes_ratio: float
    bytes_ratio: float
    structural_zeros: float
    guard: str = ""

    @property
    def only_multiplies(self) -> bool:
        """True if the form computes more vectors than the layer."""
        return self.lanes_ratio > 1


class InspectSite(ReportPart, kw_only=True, frozen=True):
    """A site as `inspect` describes it; None or "" for what cannot be read.

    Attributes:
        channels: input -> output channels, as text.
        alignment: the same, each "n of m": m is n padded to whole tiles of 8.
        flops: multiply-adds of one run.
        earlier_fold: the form of a fold that an earlier run wrote; None for any other node.
        choices: the cheapest form along each axis at the factor, cheapest first; `optimize` at that
            factor takes the first. Empty for a node with an `earlier_fold`.
        refusals: by axis: why it has no form; or one reason for "any axis".
        hint: options that were tried and with which a site without choices folds; "" where none do.
    """

    node: str
    graph: str
    op: str
    input_shape: list[int | str] | None = None
    weight_shape: list[int] | None = None
    output_shape: list[int | str] | None = None
    attributes: str = ""
    channels: str = ""
    alignment: str = ""
    flops: int | None = None
    earlier_fold: str | None
    choices: list[FormChoice]
    refusals: dict[str, str]
    hint: str

    @property
    def must_be_reached(self) -> bool:
        """True if its cheapest fold does not run at every size: it has a guard, or is in an If.

        `optimize` folds it only if the proof covers sizes at which the fold runs.
        """
        is_in_branch = not {"then_branch", "else_branch"}.isdisjoint(self.graph.split("/"))
        return bool(self.choices) and (bool(self.choices[0].guard) or is_in_branch)


class InspectReport(Report, kw_only=True, frozen=True):
    """Result of `inspect`.

    Attributes:
        schema: name and version of the JSON report.
        model: the file that was read.
        opset: version of the default operator set.
        ir_version: version of the file format.
        nodes: how many the model has.
        sites: every node that could be folded, with its forms at the factor.
        companions: outcomes of the companions that match a node.
        padding: channels that could be padded; None if there are none.
        assumed: sizes at which the model runs; None where no size is open, or none was found.
        values: combinations of values of inputs that choose between parts of the model.
        remarks: remarks on the model.
    """

    schema: str = "widthfold.inspect/4"
    model: str
    opset: int
    ir_version: int
    nodes: int
    sites: list[InspectSite]
    companions: list[CompanionReport] = msgspec.field(default_factory=list)
    padding: PaddingReport | None = None
    assumed: AssumedSizes | None = None
    values: list[dict[str, list[float]]] = msgspec.field(default_factory=list)
    remarks: list[str] = msgspec.field(default_factory=list)
