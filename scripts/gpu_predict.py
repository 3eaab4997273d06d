#!/usr/bin/env python3
"""Print what the cost model expects of the layers that gpu_bench.py measures, as Markdown.

usage: gpu_predict.py > benchmarks/gpu/predicted.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gpu.graphs import packings
from gpu.layers import AS_IS, Form, Layer, forms, paper, users
from gpu.published import PUBLISHED, published
from gpu.stage import FULL
from gpu.tables import CLAIM, Section, published_times

from widthfold_onnx.algebra.axis import keep_axis
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.arrays import round_up
from widthfold_onnx.tuning.cost import Work, form_seconds, layer_seconds
from widthfold_onnx.tuning.targets import Target, load_target

DEVICES = ("a100", "h100", "h200")
TITLE = "PREDICTED times of layers, none measured"
NOTES = (
    "Microseconds of a layer and the Neg behind it in NCHW, in float16 unless TF32 is named, by "
    "`tuning/cost.py` and the data sheets in `tuning/targets/` "
    "(`scripts/gpu_predict.py`): gain is the faster of as it is and padded / best fold; the floors "
    "are the least bytes at full bandwidth and multiply-adds in whole tiles (64 output channels x "
    "16 products) at full peak, which a kernel without tensor cores does not pay; the larger one "
    "of the fold binds it.",
    f"The paper's claim, at least {CLAIM:g}x for float16 layers with one input channel against the "
    "vendor's library, is refuted for a layer if the fastest of the layer as it is in both "
    f"layouts, padded, and through PyTorch takes less than {CLAIM:g} times as long as the fastest "
    f"fold; if it takes less than {CLAIM:g} times the floor by bytes, no fold can change that.",
    "These predictions are refuted, and their gains with them, if a layer as it is takes much less "
    "than predicted: they suppose that the library copies it into padded channels and back, and a "
    "kernel for few channels would not.",
)


def work_of(layer: Layer, form: Form) -> Work:
    """Return the work of the Conv or ConvTranspose of a form."""
    x, y = map(math.prod, layer.shapes)
    work = Work(
        dtype={"float16": "FLOAT16", "float32": "FLOAT"}[layer.dtype],
        itemsize=layer.itemsize,
        channels=layer.channels,
        group=layer.group,
        taps=math.prod(layer.kernel),
        rank=len(layer.kernel),
        inputs=x,
        outputs=y,
        transposed=layer.transposed,
        strided=layer.stride > 1 and not layer.transposed,
    )
    if form.padded is not None:
        wide, more = form.padded
        inputs, outputs = layer.channels
        x, y = x // inputs * wide, y // outputs * more
        return replace(work, channels=form.padded, inputs=x, outputs=y)
    if form.fold is None:
        return work
    return replace(
        work,
        channels=form.fold.channels(*layer.channels),
        group=form.fold.new_group,
        taps=math.prod(form.fold.kernel),
        transposed=False,
        strided=any(axis.stride > 1 for axis in form.fold.axes),
    )


def predicted(layer: Layer, form: Form, device: Target) -> float:
    """Return the seconds of a form in NCHW and the Neg behind it."""
    work = work_of(layer, AS_IS)
    if form == AS_IS:
        return layer_seconds(work, device)
    fold = form.fold or ConvFold(axes=tuple(map(keep_axis, layer.axes)), group=layer.group)
    before, after = packings(layer, fold)
    moves = before.moves, after.inverse_moves
    return form_seconds(work, moves, work_of(layer, form), 0, device)


def floors(layer: Layer, form: Form, device: Target) -> tuple[float, float]:
    """Return the least seconds of a form by its bytes, and by its tiles on tensor cores."""
    work = work_of(layer, form)
    inputs, outputs = (count // work.group for count in work.channels)
    if work.group > 1 and inputs == outputs == 1:  # depthwise, as `tuning.cost` takes it
        per_position = round_up(work.group, device.lanes) * work.taps
    else:
        rows, columns = round_up(inputs * work.taps, device.depth), round_up(outputs, device.lanes)
        per_position = work.group * rows * columns
    tiles = work.positions * per_position / device.rate[work.dtype]
    return layer.bytes / device.memory_bandwidth, tiles


def table(device: Target, layers: Sequence[Layer], title: str) -> Section:
    """Return the predictions for one device."""
    body = []
    reached: list[bool] = []
    for layer in layers:
        times = {form: predicted(layer, form, device) for form in (AS_IS, *forms(layer))}
        rivals = {form: seconds for form, seconds in times.items() if not form.fold}
        least, tiles = floors(layer, AS_IS, device)
        pad = next((_us(seconds) for form, seconds in rivals.items() if form.padded), "")
        row = [str(layer), _us(rivals[AS_IS]), pad]
        folds = [form for form in times if form.fold]
        if not folds:
            body.append([*row, "", "none", "", _us(least), _us(tiles), "", ""])
            continue
        best = min(folds, key=lambda form: times[form])
        gain = min(rivals.values()) / times[best]
        if layer.channels[0] == 1 and len(layer.kernel) > 1:
            reached.append(gain >= CLAIM)
        _, folded_tiles = floors(layer, best, device)
        row += [_us(times[best]), best.name, f"{gain:.2f}x"]
        binds = "bytes" if least > folded_tiles else "tiles"
        body.append([*row, *map(_us, (least, tiles, folded_tiles)), binds])
    notes = [f"{sum(reached)} of {len(reached)} layers with one input channel gain {CLAIM:g}x."]
    head = ["layer", "as it is", "padded", "best fold", "form", "gain", "bytes", "tiles as it is"]
    head += ["tiles of the fold", "binds"]
    return Section(f"PREDICTED, {device.device}, {title}", notes if reached else [], head, body)


def text() -> str:
    """Return the whole file."""
    tables = [
        table(load_target(name), layers, title)
        for name in DEVICES
        for title, layers in (
            ("layers", paper("float16", FULL.layer_bytes)),
            ("layers of users", users("float16")),
            ("published layers", published("float16")),
            ("published layers in TF32", published("float32")),
        )
    ]
    tables.append(published_times([entry.layer for entry in PUBLISHED]))
    return "\n".join([f"# {TITLE}", "", *NOTES, "", *(section.markdown() for section in tables)])


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}"


if __name__ == "__main__":
    print(text(), end="")
