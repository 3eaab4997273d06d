"""Tables of all parts, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu.figures import AS_IS, fastest, floor_share
from gpu.results import Row, of
from widthfold_onnx.runtime.clock import MIN_CLEAR

MOVED = 1.03
"""Where the clock moves further than this during a part, its figures are void."""

FLOOR = (
    "GB/s counts the input, the output, and twice the output for the Neg behind the layer; floor "
    "is the time of these bytes at the measured copy bandwidth in percent of the time taken. Ratio "
    "is as-is / form, the median of alternating runs with its 95 % interval, or with the number of "
    "rounds where they are too few for one; best is the fastest "
    "as-is of both layouts / form, from medians. A/A is a second copy of the layer as it is. "
    "On CUDA float32 is computed in TF32, by PyTorch as well."
)


@dataclass(frozen=True)
class Section:
    """A title, lines of text, and a table."""

    title: str
    notes: list[str]
    head: Sequence[str] = ()
    body: list[list[str]] = field(default_factory=list)

    def markdown(self) -> str:
        """As Markdown."""
        rows = [self.head, ["---"] * len(self.head), *self.body] if self.body else []
        lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
        return "\n".join(
            [f"## {self.title}", *(["", *lines] if lines else []), "", *self.notes, ""]
        )


def sections(rows: Sequence[Row]) -> list[Section]:
    """One per part that has rows."""
    made = [_about(rows)]
    for part, table in TABLES.items():
        found = of(list(rows), part)
        if found:
            section = table(found, rows)
            section.notes.extend(_reason(row) for row in found if "reason" in row and _lone(row))
            made.append(section)
    return made


def _about(rows: Sequence[Row]) -> Section:
    run = of(list(rows), "run")[0]
    states = of(list(rows), "state")
    driver = next((f"driver {row['driver']}, " for row in states if "driver" in row), "")
    notes = [
        f"`{run['command']}`, {run['date']}, {driver}ONNX Runtime {run['onnxruntime']}, "
        f"Python {run['python']}."
    ]
    if run["quick"]:
        notes.append("A quick run: the figures say nothing.")
    if not of(list(rows), "end"):
        notes.append("The run was cut off; what is here was measured before.")
    for row in states:
        if row.get("sm_mhz"):
            low, high = np.quantile(row["sm_mhz"], (0.1, 0.9))
            void = ": it moved, the figures are void" if high > MOVED * low else ""
            notes.append(f"SM clock during {row['during']}: {low:.0f} to {high:.0f} MHz{void}.")
    return Section(f"{run['device']}, {run['provider']}", [*notes, "", FLOOR])


def _ceilings(found: Sequence[Row], rows: Sequence[Row]) -> Section:
    body = []
    for row in found:
        if _lone(row):
            continue
        what = " ".join(filter(None, [row.get("what"), row.get("dtype")]))
        if "us" not in row:
            value = row.get("error", "")
        elif "macs" in row:
            value = f"{2 * row['macs'] / row['us'] / 1e6:.1f} TFLOP/s"
        elif "bytes" in row:
            value = f"{_gbs(row)} GB/s"
        else:
            value = f"A/A {1 + row['control']:.3f}" if "control" in row else ""
        body.append([what, us_of(row), value])
    return Section("Ceilings", [], ["what", "us", "value"], body)


def _grid(found: Sequence[Row], rows: Sequence[Row]) -> Section:
    best = fastest(found)
    body = []
    for row in found:
        if _lone(row):
            continue
        start = [row["layer"], row["dtype"], row["layout"], row["form"]]
        if "us" not in row:
            body.append([*start, "", "", "", _why(row), "", "", ""])
            continue
        against = f"{best[row['layer'], row['dtype']][AS_IS]['us'] / row['us']:.2f}x"
        numbers = [us_of(row), _gbs(row), floor_of(row, rows), _ratio(row), against, _control(row)]
        body.append([*start, *numbers, _pair(row["transposes"])])
    head = ["layer", "type", "layout", "form", "us", "GB/s", "floor", "ratio", "best", "A/A", "T"]
    return Section("Layers", _cancelled(found), head, body)


def _cancelled(found: Sequence[Row]) -> list[str]:
    """Did the runtime take away the two Transposes around a channels-last Conv?"""
    shown = [row for row in found if row.get("layout") == "nhwc" and row.get("transposes")]
    gone = [row for row in shown if row["transposes"][0] <= row["transposes"][1] - 2]
    lines = ["T: Transposes that the runtime's optimized graph holds / that the model holds."]
    if shown:
        lines.append(
            f"Of {len(shown)} channels-last models, which hold two Transposes around the Conv, "
            f"the runtime cancelled both of {len(gone)}."
        )
    return lines


def _torch(found: Sequence[Row], rows: Sequence[Row]) -> Section:
    about = next((row for row in found if "version" in row), None)
    notes = []
    if about is not None:
        notes.append(
            f"PyTorch {about['version']} on {about['device']}, nhwc is channels_last. On CUDA, "
            f"cuDNN (of PyTorch: {about['cudnn']}) measures its kernels first, and PyTorch's "
            "profiler names those that ran; of ONNX Runtime at cudnn_conv_algo_search=HEURISTIC."
        )
    body = []
    for row in found:
        if "layer" in row:
            named = [(row.get(key) or [""])[0] for key in ("kernels", "runtime_kernels")]
            named[0] = named[0] or row.get("error", "")
            numbers = [us_of(row), _gbs(row), floor_of(row, rows)]
            body.append([row["layer"], row["dtype"], row["layout"], *numbers, *named])
    head = ["layer", "type", "layout", "us", "GB/s", "floor", "longest kernel", "of ONNX Runtime"]
    return Section("PyTorch", notes, head, body)


def _gemm(found: Sequence[Row], rows: Sequence[Row]) -> Section:
    body = []
    for row in found:
        if _lone(row):
            continue
        shape = " x ".join(map(str, row["shape"]))
        base = f"{row['base_us']:.1f}" if "base_us" in row else ""
        numbers = [base, us_of(row), _gbs(row), floor_of(row, rows), _ratio(row) or _why(row)]
        body.append([shape, row["dtype"], str(row.get("factor", "")), *numbers, _control(row)])
    head = ["M x K x N", "type", "factor", "as-is us", "us", "GB/s", "floor", "ratio", "A/A"]
    return Section("Matrix products", [], head, body)


def _models(found: Sequence[Row], rows: Sequence[Row]) -> Section:
    body = []
    for row in found:
        if _lone(row):
            continue
        layout = "nhwc" if row["options"].get("prefer_nhwc") == "1" else "nchw"
        times = [f"{row[key] / 1e3:.3f}" if key in row else "" for key in ("base_us", "us")]
        folded = f"{row['folded']}/{row['convs']}" if "folded" in row else ""
        left = f"{row['left']}/{row['layers']}" if "left" in row else ""
        result = _ratio(row) or row.get("error", "as it is")
        counts = " ".join(_pair(counts) for counts in row.get("transposes", []))
        body.append([row["model"], layout, left, folded, *times, result, _control(row), counts])
    notes = [
        "The layout is that of the search; then each model runs at its own best setting. Left: "
        "layers for which the search had no time, of all different ones. T: as above, of the "
        "original and of the folded model at that layout."
    ]
    head = ["model", "layout", "left", "folded", "as-is ms", "ms", "ratio", "A/A", "T"]
    return Section("Whole models", notes, head, body)


TABLES = {
    "ceilings": _ceilings,
    "grid": _grid,
    "torch": _torch,
    "gemm": _gemm,
    "models": _models,
}


def _lone(row: Row) -> bool:
    """Whether a row is about its part, not about one measurement."""
    return not row.keys() & {"layer", "shape", "model", "what"}


def _reason(row: Row) -> str:
    count = f"{row['unmeasured']} more were not measured: " if "unmeasured" in row else ""
    return f"{count}{row['reason']}."


def us_of(row: Row) -> str:
    """Microseconds; "" where nothing was timed."""
    return f"{row['us']:.1f}" if "us" in row else ""


def _gbs(row: Row) -> str:
    return f"{row['bytes'] / row['us'] / 1e3:.0f}" if "us" in row else ""


def _pair(counts: Sequence[int] | None) -> str:
    return "" if counts is None else "/".join(map(str, counts))


def floor_of(row: Row, rows: Sequence[Row]) -> str:
    """Percent of the bandwidth floor; "" where it is not known."""
    share = floor_share(row, rows) if "us" in row else None
    return "" if share is None else f"{share:.0%}"


def _ratio(row: Row) -> str:
    """With its interval, unless there were too few rounds for one."""
    if "ratio" not in row:
        return ""
    rounds = row["rounds"]
    interval = f"[{row['low']:.2f}, {row['high']:.2f}]"
    if rounds < MIN_CLEAR:
        interval = f"({rounds} round{'s' if rounds > 1 else ''})"
    return f"{row['ratio']:.2f}x {interval}"


def _control(row: Row) -> str:
    return f"{1 + row['control']:.2f}" if "control" in row else ""


def _why(row: Row) -> str:
    if "wrong" in row:
        return f"WRONG by {row['wrong']:.1e}"
    return str(row.get("error") or row.get("reason", ""))
