"""Describes the times of a verification: both models, their slowest nodes, speed-up and GPU."""

from __future__ import annotations

from widthfold_onnx.reports.description import Column, Detail, Line, Table, tabulated
from widthfold_onnx.reports.words import clauses, counted, figure, short, size
from widthfold_onnx.results import Baseline, Gpu, NodeTime, Side, Timing
from widthfold_onnx.text import printable

_SHAPES = 120
"""Characters of the shapes that were timed."""

SLOWEST = 8
"""Nodes of each model whose times are shown."""

_CLOCKS = {"thread": "its processor time", "wall": "wall time"}

MODELS: tuple[Column[Side], ...] = (
    Column("level", lambda side: side.level),
    Column("p50 ms", lambda side: f"{side.median_ms:.3f}"),
    Column("p90 ms", lambda side: f"{side.p90:.3f}", Detail.FULL),
    Column("p99 ms", lambda side: f"{side.p99:.3f}"),
    Column("outliers", lambda side: str(side.outliers), Detail.FULL),
    Column("load ms", lambda side: f"{side.load_ms:.1f}"),
    Column("first run ms", lambda side: f"{side.first_ms:.3f}", Detail.FULL),
    Column("peak memory", lambda side: f"{side.peak_mib:.0f} MiB"),
    Column("file", lambda side: size(side.file_bytes)),
    Column("ran on", lambda side: ", ".join(_placed(side))),
)
"""Figures of a model. Each is a row of its table, so that the table fits a narrow terminal."""

NODES: tuple[Column[tuple[str, Side, NodeTime]], ...] = (
    Column("slowest nodes", lambda row: row[2].name),
    Column("model", lambda row: row[0]),
    Column("op", lambda row: row[2].op),
    Column("us", lambda row: f"{row[2].us:.0f}"),
    Column("of limit", lambda row: "" if row[2].reached is None else f"{row[2].reached:.0%}"),
    Column("fell back to", lambda row: row[2].provider if row[2] in row[1].fallbacks else ""),
)


def _placed(side: Side) -> list[str]:
    """Return how many nodes ran on each provider."""
    counts = side.providers.items()
    return [f"{count} on {name.removesuffix('ExecutionProvider')}" for name, count in counts]


def tables(timing: Timing, detail: Detail) -> list[Table]:
    """Return both models, and the slowest nodes of each; briefly, only nodes that fell back."""
    sides, full = timing.sides.items(), detail >= Detail.FULL
    slowest = [
        (name, side, node)
        for name, side in sides
        for node in side.nodes[:SLOWEST]
        if full or node in side.fallbacks
    ]
    rows = [
        [entry.heading, *map(entry.cell, timing.sides.values())]
        for entry in MODELS
        if entry.detail <= detail
    ]
    models = Table("models", ["model", *timing.sides], rows, sentences=False)
    return [models, *tabulated("nodes", NODES, slowest)]


def lines(timing: Timing, detail: Detail) -> list[Line]:
    """Return limits of the machine, speed-up and GPU, each if it was measured."""
    limits = ", ".join(f"{rate / 1e9:.3g} G {work}" for work, rate in timing.limits.items())
    texts = {
        "limits, per second": limits if detail >= Detail.FULL else "",
        "time": speed(timing),
        "gpu": gpu(timing),
    }
    return [Line(label, text) for label, text in texts.items() if text]


def speed(timing: Timing) -> str:
    """Return the verdict on speed and the figures that it rests on."""
    before, after = timing.original, timing.rewritten
    pairs = (
        f"{counted(timing.pairs, 'pair')} in {counted(timing.sessions, 'session')} each of "
        f"{counted(timing.processes, 'process')}"
    )
    shapes = " ".join(f"{name}:{','.join(map(str, dims))}" for name, dims in timing.shapes.items())
    return clauses(
        timing.verdict,
        f"original / rewritten = {timing.speedup:.3f} [{timing.low:.3f}, {timing.high:.3f}], "
        f"A/A control {1 + timing.control:.3f}, {pairs}, {before.median_ms:.3f} ms "
        f"(level {before.level}) and {after.median_ms:.3f} ms (level {after.level}) on "
        f"{timing.provider}, {counted(timing.threads, 'thread')} ({_CLOCKS[timing.clock]})"
        + (f", inputs {short(shapes, _SHAPES)}" if shapes else ""),
        f"{timing.same_level:.3f} with both at level all",
        "" if timing.baseline is None else baseline(timing.baseline),
        timing.note,
    )


def baseline(saved: Baseline) -> str:
    """Return the speed-up beside the speed-up of a saved report."""
    name = printable(saved.report)
    if saved.ratio is None:
        reasons = (printable(text, _SHAPES) for text in saved.differs)
        return f"not judged against {name}: {clauses(*reasons)}"
    return (
        f"{saved.verdict} beside {name}, where it was {saved.speedup:.3f}: "
        f"now / then = {saved.ratio:.3f} [{saved.low:.3f}, {saved.high:.3f}]"
    )


def gpu(timing: Timing) -> str:
    """Return GPU, versions, clocks, memory and energy, or why they are unknown; "" on the CPU."""
    device, sides = timing.gpu, (timing.original, timing.rewritten)
    if device is None or device.missing:
        return "" if device is None else device.missing
    versions = {
        "": device.name,
        "driver ": device.driver,
        "for CUDA up to ": device.driver_cuda,
        "CUDA ": device.cuda,
        "cuDNN ": device.cudnn,
    }
    return clauses(
        ", ".join(f"{label}{version}" for label, version in versions.items() if version),
        _clocks(device),
        " and ".join(figure(side.gpu_mib, 5) for side in sides) + " MiB",
        " and ".join(figure(side.gpu_mj, 4) for side in sides) + " mJ per run",
    )


def _clocks(device: Gpu) -> str:
    """Return the clocks before and after, and why they were low."""
    clocks = ""
    if device.before is not None and device.after is not None:
        clocks = (
            f"{figure(device.before.sm_mhz, 4)} MHz before, {figure(device.after.sm_mhz, 4)} "
            f"after, memory {figure(device.after.memory_mhz, 5)} MHz"
        )
    throttled = [reasons for reasons in device.throttled if reasons]
    names = ", ".join(sorted({name for reasons in throttled for name in reasons}))
    processes = counted(len(device.throttled), "process")
    return clauses(
        clocks, f"throttled in {len(throttled)} of {processes}: {names}" if names else ""
    )
