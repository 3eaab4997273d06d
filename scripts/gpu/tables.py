"""Make the tables of all parts, and set folds against the fastest of their rivals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu.layers import Layer
from gpu.published import CONTEXT, HEAD, PUBLISHED
from gpu.results import Row, is_lone, of

MIN_CLEAR = 6
"""Below six pairs not even pairs that all agree exclude 1 at 95 %: 2 * 0.5**5 > 0.05."""

AS_IS, PADDED, PYTORCH, FOLDED = "as it is", "padded", "PyTorch", "folded"
RIVALS = (AS_IS, PADDED, PYTORCH)
"""What folding must beat: the layer as it is, of which cuDNN pads the channels itself where it
wants tensor cores, the layer with channels padded before, and what PyTorch's tuning finds."""

KINDS = (*RIVALS, FOLDED)

LAYERS = {
    "grid": "Layers",
    "published": "Layers whose times others published",
    "users": "Layers of users",
}
"""Parts that measure layers in all forms, and the titles of their tables."""

CLAIM = 3.0
"""The gain that the paper on width folding claims for float16 layers with one input channel."""

MOVED = 1.03
"""Figures of a part during which the clock moves further than this are void."""

FLOOR = (
    "GB/s counts the input, the weight, the output, and twice the output for the Neg behind the "
    "layer; floor is the time of these bytes at the measured copy bandwidth in percent of the time "
    "taken. Ratio is as-is / form, the median of alternating runs with its 95 % interval, or with "
    "the number of rounds where they are too few for one; best is the fastest as-is of both "
    "layouts / form, from medians. A/A is a second copy of the layer as it is. On CUDA float32 is "
    "computed in TF32, by PyTorch as well."
)


@dataclass(frozen=True)
class Section:
    """A title, lines of text, and a table."""

    title: str
    notes: list[str]
    head: Sequence[str] = ()
    body: list[list[str]] = field(default_factory=list)

    def markdown(self) -> str:
        """Return it as Markdown."""
        rows = [self.head, ["---"] * len(self.head), *self.body] if self.body else []
        lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
        parts = [[f"## {self.title}"], lines, self.notes]
        return "\n".join(line for part in parts if part for line in (*part, ""))


def sections(rows: Sequence[Row]) -> list[Section]:
    """Return one section per part that has rows, and the verdict on folds and their rivals.

    Args:
        rows: one per subject, see `results.latest`.
    """
    tables = [_about(rows)]
    for part, table in TABLES.items():
        own = of(rows, part)
        if own:
            section = table(own, rows)
            section.notes.extend(_reason(row) for row in own if "reason" in row and is_lone(row))
            tables.append(section)
    return [*tables, *_verdict(rows), *_beside_published(rows)]


def bandwidth(rows: Iterable[Row], dtype: str) -> float | None:
    """Return the bytes per second of a copy, None where it was not measured."""
    for row in rows:
        if (row["part"], row.get("what"), row.get("dtype")) == ("ceilings", "copy", dtype):
            return float(row["bytes"] / row["us"] * 1e6) if "us" in row else None
    return None


def floor_share(row: Row, rows: Iterable[Row]) -> float | None:
    """Return the time of the row's bytes at the copy bandwidth / time taken."""
    speed = bandwidth(rows, row["dtype"])
    return None if speed is None else row["bytes"] / speed / (row["us"] * 1e-6)


def fastest(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """Return the fastest row of each kind, of both layouts, by layer and type."""
    best: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row["part"] in (*LAYERS, "torch") and "us" in row:
            by_kind, kind = best.setdefault((row["layer"], row["dtype"]), {}), _kind(row)
            if kind not in by_kind or row["us"] < by_kind[kind]["us"]:
                by_kind[kind] = row
    return best


def _kind(row: Row) -> str:
    if row["part"] == "torch":
        return PYTORCH
    if row["form"] == "none":
        return AS_IS
    return PADDED if row["form"].startswith("pad ") else FOLDED


def _about(rows: Sequence[Row]) -> Section:
    run = of(rows, "run")[0]
    states = of(rows, "state")
    driver = next((f"driver {row['driver']}, " for row in states if "driver" in row), "")
    notes = [
        f"`{run['command']}`, {run['date']}, {driver}ONNX Runtime {run['onnxruntime']}, "
        f"Python {run['python']}."
    ]
    if run["quick"]:
        notes.append("A quick run: the figures say nothing.")
    if not of(rows, "end"):
        notes.append("The run was cut off; what is here was measured before.")
    for row in states:
        if row.get("sm_mhz"):
            low, high = np.quantile(row["sm_mhz"], (0.1, 0.9))
            void = ": it moved, the figures are void" if high > MOVED * low else ""
            notes.append(f"SM clock during {row['during']}: {low:.0f} to {high:.0f} MHz{void}.")
    return Section(f"{run['device']}, {run['provider']}", [*notes, "", FLOOR])


def _ceilings(own: Sequence[Row], rows: Sequence[Row]) -> Section:
    body = []
    for row in own:
        if is_lone(row):
            continue
        what = " ".join(filter(None, [row.get("what"), row.get("dtype")]))
        if "us" not in row:
            value = row.get("error", "")
        elif "macs" in row:
            value = f"{2 * row['macs'] / row['us'] / 1e6:.1f} TFLOP/s"
        elif "bytes" in row:
            value = f"{_gbs(row)} GB/s"
        else:
            value = ""
        body.append([what, _us(row), value])
    return Section("Ceilings", [], ["what", "us", "value"], body)


def _grid(own: Sequence[Row], rows: Sequence[Row]) -> Section:
    best = fastest(own)
    body = []
    for row in own:
        if is_lone(row):
            continue
        start = [row["layer"], row["dtype"], row["layout"], row["form"]]
        if "us" not in row:
            body.append([*start, "", "", "", _why(row), "", "", ""])
            continue
        against = f"{best[row['layer'], row['dtype']][AS_IS]['us'] / row['us']:.2f}x"
        numbers = [_us(row), _gbs(row), _floor(row, rows), _ratio(row), against, _control(row)]
        body.append([*start, *numbers, _pair(row["transposes"])])
    head = ["layer", "type", "layout", "form", "us", "GB/s", "floor", "ratio", "best", "A/A", "T"]
    return Section(LAYERS[own[0]["part"]], _cancelled(own), head, body)


def _cancelled(own: Sequence[Row]) -> list[str]:
    """Say how often the runtime took away the two Transposes around a channels-last Conv."""
    shown = [row for row in own if row.get("layout") == "nhwc" and row.get("transposes")]
    gone = [row for row in shown if row["transposes"][0] <= row["transposes"][1] - 2]
    lines = ["T: Transposes that the runtime's optimized graph holds / that the model holds."]
    if shown:
        lines.append(
            f"Of {len(shown)} channels-last models, which hold two Transposes around the Conv, "
            f"the runtime cancelled both of {len(gone)}."
        )
    return lines


def _torch(own: Sequence[Row], rows: Sequence[Row]) -> Section:
    about = next((row for row in reversed(own) if "version" in row), None)
    notes = []
    if about is not None:
        notes.append(
            f"PyTorch {about['version']} on {about['device']}, nhwc is channels_last. On CUDA, "
            f"cuDNN (of PyTorch: {about['cudnn']}) measures its kernels first, and PyTorch's "
            "profiler names those that ran; of ONNX Runtime at cudnn_conv_algo_search=HEURISTIC."
        )
    body = []
    for row in own:
        if "layer" in row:
            named = [(row.get(key) or [""])[0] for key in ("kernels", "runtime_kernels")]
            named = [named[0] or row.get("error", ""), named[1] or row.get("runtime_error", "")]
            numbers = [_us(row), _gbs(row), _floor(row, rows)]
            body.append([row["layer"], row["dtype"], row["layout"], *numbers, *named])
    head = ["layer", "type", "layout", "us", "GB/s", "floor", "longest kernel", "of ONNX Runtime"]
    return Section("PyTorch", notes, head, body)


def _models(own: Sequence[Row], rows: Sequence[Row]) -> Section:
    body = []
    for row in own:
        if is_lone(row):
            continue
        times = [f"{row[key] / 1e3:.3f}" if key in row else "" for key in ("base_us", "us")]
        folded = f"{row['folded']}/{row['convs']}" if "folded" in row else ""
        pending = f"{row['pending']}/{row['layers']}" if "pending" in row else ""
        result = _ratio(row) or row.get("error", "as it is")
        body.append([row["model"], row["layout"], pending, folded, *times, result, _control(row)])
    notes = [
        "`widthfold optimize --factor auto`, then `widthfold verify`. The layout is that of the "
        "search; then each model runs at its own best setting. Left: layers for which the search "
        "had no time, of all different ones."
    ]
    head = ["model", "layout", "pending", "folded", "as-is ms", "ms", "ratio", "A/A"]
    return Section("Whole models", notes, head, body)


TABLES = {
    "ceilings": _ceilings,
    **dict.fromkeys(LAYERS, _grid),
    "torch": _torch,
    "models": _models,
}


def _verdict(rows: Sequence[Row]) -> list[Section]:
    """Return a table of the layers with a measured fold and a measured rival.

    With it goes a sentence on the claim, unless nothing was measured that bears on it: it is about
    tensor cores.
    """
    (run,) = of(rows, "run")
    body = []
    claimed: list[tuple[float, bool]] = []
    for (layer, dtype), own in fastest(rows).items():
        rivals = {kind: own[kind] for kind in RIVALS if kind in own}
        if not rivals or FOLDED not in own:
            continue
        fold = own[FOLDED]
        gain = min(row["us"] for row in rivals.values()) / fold["us"]
        if dtype == "float16" and layer.startswith("1->") and fold["part"] == "grid":
            claimed.append((gain, PYTORCH in own))
        times = [
            f"{_us(rivals[kind])} {rivals[kind]['layout']}" if kind in rivals else ""
            for kind in RIVALS
        ]
        name = f"{fold['form']}, {fold['layout']}"
        floor = _floor(fold, rows)
        body.append([layer, dtype, *times, _us(fold), name, f"{gain:.2f}x", floor])
    notes = [
        "Medians in us, each of the layout that is the faster one. PyTorch is timed apart from the "
        "others, so these ratios have no interval; those of ONNX Runtime are under Layers."
    ]
    if claimed and not run["quick"] and run["provider"] != "cpu":
        gains, tuned = np.array(claimed).T
        notes.append(
            f"The claim, at least {CLAIM:g}x in float16 from one input channel: "
            f"{(gains >= CLAIM).sum()} of {len(gains)} layers reach it against the fastest rival; "
            f"{(gains > 1).sum()} are faster at all; the median is {np.median(gains):.2f}x. "
            f"PyTorch was measured on {tuned.sum():.0f} of them."
        )
    head = ["layer", "type", *(f"{kind} us" for kind in RIVALS), "folded us", "fold", "gain"]
    return [Section("Against the fastest rival", notes, [*head, "floor"], body)] if body else []


def published_times(layers: Sequence[Layer]) -> Section:
    """Return what others published of layers that are in `PUBLISHED`."""
    cells = {entry.layer.name: entry.cells for entry in PUBLISHED}
    body = []
    for layer in layers:
        shape = "x".join(map(str, layer.shapes[0]))
        body.append([layer.name, layer.geometry, shape, *cells[layer.name]])
    return Section("Published times", [CONTEXT], ["layer", "operator", "input here", *HEAD], body)


def _beside_published(rows: Sequence[Row]) -> list[Section]:
    """Return a table of published layers: measured times beside the published times."""
    cells = {entry.layer.name: entry.cells for entry in PUBLISHED}
    body = []
    for (layer, dtype), own in fastest(rows).items():
        if layer in cells:
            times = [_us(own[kind]) if kind in own else "" for kind in KINDS]
            body.append([layer, dtype, *times, *cells[layer]])
    notes = [f"{CONTEXT} Here a Neg runs behind each layer, and float32 is TF32 on CUDA."]
    head = ["layer", "type", *(f"{kind} us" for kind in KINDS), *HEAD]
    return [Section("Beside published times", notes, head, body)] if body else []


def _reason(row: Row) -> str:
    count = f"{row['unmeasured']} more were not measured: " if "unmeasured" in row else ""
    return f"{count}{row['reason']}."


def _us(row: Row) -> str:
    """Return microseconds; "" where nothing was timed."""
    return f"{row['us']:.1f}" if "us" in row else ""


def _gbs(row: Row) -> str:
    return f"{row['bytes'] / row['us'] / 1e3:.0f}" if "us" in row else ""


def _pair(counts: Sequence[int] | None) -> str:
    return "" if counts is None else "/".join(map(str, counts))


def _floor(row: Row, rows: Sequence[Row]) -> str:
    """Return the percent of the bandwidth floor; "" where it is not known."""
    share = floor_share(row, rows) if "us" in row else None
    return "" if share is None else f"{share:.0%}"


def _ratio(row: Row) -> str:
    """Return the ratio with its interval, unless there were too few rounds for one."""
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
    return str(row.get("error") or row.get("skipped", ""))
