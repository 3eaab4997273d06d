"""Show the results of bench.py as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmark.profile import Shares
from benchmark.ranking import Compared
from widthfold_onnx.errors import UsageError
from widthfold_onnx.results import Gpu

WAYS = ("factor 8", "auto", "channel pad")
OPENVINO, PYTORCH = "OpenVINO", "PyTorch"
"""The rival on a CPU, and on a GPU."""

MOVED = 1.03
"""Figures of a timing that began and ended at clocks that are further apart are void."""

CLAIM = 3.0
"""The gain that the paper on width folding claims for float16 layers with one input channel."""


def columns(provider: str) -> tuple[str, ...]:
    """Return the ways to run a model that are compared on a provider."""
    return (*WAYS, OPENVINO if provider == "cpu" else PYTORCH)


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to run a model against the original: original / this, with its 95 % interval.

    `note` is the verdict on speed, or why there are no figures. `fallback` names the layers that
    did not run on the provider that was asked for, so that the figures say nothing of it.
    """

    note: str
    folded: int | None = None
    original_ms: float | None = None
    ms: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    control: float | None = None
    fallback: str = ""

    def __str__(self) -> str:
        if self.fallback:
            return "fell back"
        if self.ratio is None:
            return self.note.partition(":")[0].replace("|", "/")[:60]
        return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}]"


NOT_RUN = Cell(note="not run")
"""Of a column that the code which ran did not have."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model at so many threads: how many layers it has, and a cell per column.

    `shares` says where the time of the original goes, and of the model of a column; `gpu` what
    clocks and throttling were seen while the columns were timed.
    """

    model: str
    layers: int
    threads: int = 1
    cells: dict[str, Cell] = {}
    shares: dict[str, Shares] = {}
    gpu: list[Gpu] = []

    def __str__(self) -> str:
        return self.model if self.threads == 1 else f"{self.model}, {self.threads} threads"


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement of predictions and measurements in order.

    Attributes:
        forms: how many were both predicted and measured.
        overall: Spearman's rho of the speed-ups of all forms.
        layers: of the forms of each layer.
        scale: median of measured / predicted seconds of the layers as they are.
    """

    forms: int
    overall: float | None
    layers: dict[str, float | None]
    scale: float | None


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one run, and the machine that it ran on.

    `environment` is the `results.Environment` of the code that ran: its fields change.

    Attributes:
        pending: names of the rows that an interrupted run did not measure yet.
        compared: predictions beside measurements, kept while rows are pending.
        device: name of the GPU, "" on a CPU.
        ceilings: what the GPU did at most per second, by name.
    """

    rows: list[Row]
    ranks: Ranks | None
    environment: dict[str, Any] | None
    pending: list[str] = []
    compared: list[Compared] = []
    device: str = ""
    ceilings: dict[str, float] = {}
    schema: str = "widthfold.bench/1"

    @property
    def columns(self) -> tuple[str, ...]:
        """The ways to run a model that were compared."""
        return columns((self.environment or {}).get("provider", "cpu"))

    def markdown(self) -> str:
        """The table, and below it where it was made and how well predictions agree."""
        lines = [*table(self.rows, self.columns), ""]
        if self.pending:
            lines.append(f"Not measured yet: {', '.join(self.pending)}.\n")
        if self.device:
            lines += gpu_lines(self)
        if self.environment is not None and self.rows:
            threads = " and ".join(map(str, sorted({row.threads for row in self.rows})))
            work = f"{threads} thread{'s' * (threads != '1')}"
            lines.append(f"`scripts/bench.py`: {conditions(self.environment, work)}")
        if self.ranks is not None and self.ranks.overall is not None:
            each = [rho for rho in self.ranks.layers.values() if rho is not None]
            lines.append(
                f"Prediction and measurement of {self.ranks.forms} forms: rank correlation "
                f"{self.ranks.overall:.2f}, within {len(each)} layers "
                f"{sum(each) / max(len(each), 1):.2f} in the mean;\n"
                f"layers take {self.ranks.scale:.2f} times as long as predicted in the median."
            )
        return "\n".join([*lines, *profiles(self.rows)]) + "\n"


def conditions(where: Mapping[str, Any], threads: str) -> str:
    """Return a sentence on the machine and versions of an `Environment` in JSON."""
    machine = " ".join(filter(None, (where["machine"], where.get("vectors"))))
    return (
        f"{machine}, {where['cores']} cores, ONNX Runtime {where['onnxruntime']}, {threads}, load "
        f"{where['load_before']} to {where['load_after']}."
    )


def profiles(rows: list[Row]) -> list[str]:
    """A table of where the time goes at one thread; empty where no row was profiled."""
    lines = [
        f"| {row} | {row.shares['original']} | {row.shares.get('auto', 'as it is')} |"
        for row in rows
        if row.threads == 1 and "original" in row.shares
    ]
    if not lines:
        return []
    head = "Where the time goes at one thread, by the runtime's profile at its level ALL:"
    return ["", head, "", "| model | original | auto |", "|---|---|---|", *lines]


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a page."""
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{head}{begin}{text}{end}{rest.partition(end)[2]}", encoding="utf-8")


def read(path: Path) -> Suite:
    """Return the results of an earlier run, also of older code.

    Raises:
        UsageError: there is none, or its rows have another format than today's.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Suite)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path.name} is stale or broken, measure again: {error}") from error


def gpu_lines(suite: Suite) -> list[str]:
    """Say on which GPU a suite ran, how fast it is, and which figures are void.

    They are where the clock moved or the device was throttled.
    """
    known = {gpu.driver: gpu for row in suite.rows for gpu in row.gpu}
    versions = [f"driver {it.driver}, CUDA {it.cuda}, cuDNN {it.cudnn}" for it in known.values()]
    speeds = [f"{value / 1e12:.3g} T {name}/s" for name, value in suite.ceilings.items()]
    lines = [f"{'; '.join([suite.device, *versions, *speeds])}.\n"]
    void = {
        str(row): text
        for row in suite.rows
        if (text := ", ".join(filter(None, map(void_by, row.gpu))))
    }
    if void:
        lines.append(f"VOID: {'; '.join(f'{name} ({text})' for name, text in void.items())}.\n")
    lines += [
        f"{row}, {name}: {cell.fallback}.\n"
        for row in suite.rows
        for name, cell in row.cells.items()
        if cell.fallback
    ]
    return [*lines, *claim(suite.rows)]


def void_by(gpu: Gpu) -> str:
    """Say what makes figures void: a clock that moved, throttling; "" if nothing does."""
    reasons = sorted({reason for process in gpu.throttled for reason in process})
    clocks = [state.sm_mhz for state in (gpu.before, gpu.after) if state and state.sm_mhz]
    if clocks and max(clocks) > MOVED * min(clocks):
        reasons.insert(0, f"{clocks[0]} to {clocks[-1]} MHz")
    return ", ".join(reasons)


def claim(rows: Sequence[Row]) -> list[str]:
    """Say how many float16 layers of one input channel gain what the paper claims."""
    gains = []
    for row in rows:
        ratios = {name: cell.ratio or 0.0 for name, cell in row.cells.items() if not cell.fallback}
        if row.model.startswith("1to") and row.model.endswith("_float16"):
            rival = max(1.0, *(ratios.get(name, 0.0) for name in ("channel pad", PYTORCH)))
            gains.append(max(ratios.get(name, 0.0) for name in ("factor 8", "auto")) / rival)
    if not gains:
        return []
    reached = sum(gain >= CLAIM for gain in gains)
    return [
        f"{reached} of {len(gains)} float16 layers with one input channel gain {CLAIM:g}x against "
        f"the fastest of the original, padded channels and PyTorch, "
        f"{sum(gain > 1 for gain in gains)} gain at all.\n"
    ]


def table(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """A line of Markdown per model, below the headings."""
    lines = [
        f"| model | layers | original ms | {' | '.join(names)} | A/A control |",
        f"|---|---|---|{'---|' * len(names)}---|",
    ]
    for row in rows:
        cells = [row.cells.get(name, NOT_RUN) for name in names]
        times = [cell.original_ms for cell in cells if cell.original_ms is not None]
        noise = [cell.control for cell in cells if cell.control is not None]
        figures = [
            f"{min(times):.3f}" if times else "",
            *map(str, cells),
            f"{1 + max(noise):.2f}" if noise else "",
        ]
        lines.append(f"| {row} | {row.layers} | {' | '.join(figures)} |")
    return lines


def pyplot() -> Any:
    """The plotting library, which draws the same bytes every time."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "widthfold"
    return plt


def lengths(cells: list[Cell]) -> tuple[list[float], list[list[float]]]:
    """Return the measured ratios, and how far their intervals reach below and above."""
    ratios = [(cell.ratio or 0, cell.low or 0, cell.high or 0) for cell in cells]
    below, above = [ratio - low for ratio, low, _ in ratios], [high - r for r, _, high in ratios]
    return [ratio for ratio, _, _ in ratios], [below, above]


def label_ratios(axes: Any, axis: Any) -> None:
    """Make one axis, axes.xaxis or axes.yaxis, one of ratios."""
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log", base=2)
    axis.set_major_formatter(lambda ratio, _: f"{ratio:g}x" if ratio >= 1 else f"1/{1 / ratio:g}x")


def draw(suite: Suite, path: Path) -> None:
    """Speed-up over the original by model and column, with intervals, as SVG."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 1 + 0.45 * len(suite.rows)), layout="constrained")
    for offset, name in enumerate(suite.columns):
        shown = [(i, row.cells.get(name, NOT_RUN)) for i, row in enumerate(suite.rows)]
        place = 0.2 * (offset - (len(suite.columns) - 1) / 2)
        points = [(i + place, cell) for i, cell in shown if cell.ratio is not None]
        if not points:
            continue  # a rival that is not installed has no place in the legend
        ratios, reach = lengths([cell for _, cell in points])
        heights = [at for at, _ in points]
        axes.errorbar(ratios, heights, xerr=reach, fmt="o", markersize=4, label=name)
    axes.axvline(1, color="gray", linewidth=1)
    label_ratios(axes, axes.xaxis)
    axes.set_yticks(range(len(suite.rows)), list(map(str, suite.rows)))
    axes.invert_yaxis()
    axes.set_xlabel("original / this (right of 1 is faster)")
    if axes.containers:
        figure.legend(loc="outside upper center", ncols=len(suite.columns))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
