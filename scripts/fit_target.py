#!/usr/bin/env python3
"""Put what gpu_bench.py measured into the file of a target, each number with its source.

usage: fit_target.py RESULTS NAME [--base NAME] [--out FILE]

RESULTS is the folder of its results. Bandwidths, the share of a Transpose, launch and rates are
read off the ceilings; the efficiency brings the predictions of `tuning.cost` nearest to
the layers of the grid as they are. All other numbers, also without a measurement, come from the
base.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmark.ranking import rank_correlation
from gpu.results import Row, latest, of, read

from widthfold_onnx.errors import UsageError
from widthfold_onnx.tuning import targets
from widthfold_onnx.tuning.cost import Work, layer_seconds
from widthfold_onnx.tuning.targets import Target

FOLDER = Path(targets.__file__).parent
TYPES = {"float32": "FLOAT", "float16": "FLOAT16"}
DIGITS = 4


def fitted(rows: list[Row], base: Target, name: str) -> Target:
    """Return the base with the measured numbers.

    Args:
        rows: of a run.
        base: what stays where nothing was measured.
        name: of the new target.

    Raises:
        ValueError: there is no run; it was a quick one, whose figures say nothing; or it ran
            elsewhere than where the target stands for.
    """
    run = next(iter(of(rows, "run")), None)
    if run is None:
        raise ValueError("there are no results")
    if run["quick"]:
        raise ValueError("a quick run measures nothing; fit a full one")
    if run["provider"] != base.provider:
        raise ValueError(f"the run is of {run['provider']}, {base.name} stands for {base.provider}")
    device = base.device
    if device not in run["device"]:
        if name == base.name:
            raise ValueError(f"the run is of {run['device']}, {name} stands for {device}")
        device = run["device"]
    where = f"measured by gpu_bench.py on {run['device']}, {run['date']}, ONNX Runtime "
    where += f"{run['onnxruntime']}: "
    ceilings = {(row["what"], row.get("dtype")): row for row in of(rows, "ceilings") if "us" in row}
    fields: dict[str, Any] = {}
    source = dict(base.source)

    def say(field: str, value: Any, words: str) -> None:
        fields[field], source[field] = value, where + words

    copy, moved = (ceilings.get((what, "float16")) for what in ("copy", "transpose"))
    if copy:
        say("memory_bandwidth", _round(_per_second(copy, "bytes")), "a Neg of 512 MiB of float16")
    if copy and moved:
        share = min(copy["us"] / moved["us"], 1.0)
        say("transpose", _round(share), "a Transpose of 512 MiB against a Neg of as many")
    if cached := ceilings.get(("cached", None)):
        say("cache_bandwidth", _round(_per_second(cached, "bytes")), "a Neg of 8 MiB in a chain")
    if launch := ceilings.get(("launch", None)):
        say("launch", _round(launch["us"] * 1e-6), "a Neg of one element in a chain")
    products = {
        TYPES[dtype]: _round(_per_second(ceilings["product", dtype], "macs"))
        for dtype in TYPES
        if ("product", dtype) in ceilings
    }
    if products:
        words = f"a square matrix product of {' and '.join(products)}, float32 in TF32"
        say("rate", {**base.rate, **products}, words)
    target = msgspec.structs.replace(base, name=name, source=source, **fields)
    layers = as_is(rows)
    if layers:
        say(
            "efficiency",
            _efficiency(layers, target),
            f"nearest to {len(layers)} layers as they are",
        )
    return msgspec.structs.replace(target, device=device, source=source, **fields)


def as_is(rows: list[Row]) -> list[tuple[Work, float]]:
    """Return the layers of the grid in NCHW as they are, and their seconds."""
    layers = []
    for row in of(rows, "grid"):
        if row.get("form") == "none" and row.get("layout") == "nchw" and "us" in row:
            outputs, inputs, *kernel = row["weight"]
            positions = row["layer_macs"] // (math.prod(row["weight"]))
            work = Work(
                dtype=TYPES[row["dtype"]],
                itemsize=np.dtype(row["dtype"]).itemsize,
                channels=(inputs, outputs),
                group=1,
                taps=math.prod(kernel),
                rank=len(kernel),
                inputs=math.prod(row["shape"]),
                outputs=positions * outputs,
            )
            layers.append((work, row["us"] * 1e-6))
    return layers


def _efficiency(layers: list[tuple[Work, float]], target: Target) -> float:
    """Return the share of the peak at which predictions are nearest in the mean of logarithms.

    Where the bandwidth alone decides, all do equally well, and the share of the base stays.
    """

    def loss(efficiency: float) -> tuple[float, float]:
        aim = msgspec.structs.replace(target, efficiency=efficiency)
        far = [abs(math.log(layer_seconds(work, aim) / seconds)) for work, seconds in layers]
        return round(sum(far) / len(far), 6), abs(math.log(efficiency / target.efficiency))

    tried = [target.efficiency, *(float(_round(e)) for e in np.geomspace(0.01, 1.0, 300))]
    return min(tried, key=loss)


def text(target: Target, layers: list[tuple[Work, float]]) -> str:
    """Return the target as TOML, with a word on how well it predicts."""
    predicted = [layer_seconds(work, target) for work, _ in layers]
    measured = [seconds for _, seconds in layers]
    off = [abs(math.log(p / m)) for p, m in zip(predicted, measured, strict=True)]
    lines = [f"# {target.name}: fitted by scripts/fit_target.py; [source] says what was measured."]
    if layers:
        rank = rank_correlation(predicted, measured)
        lines.append(
            f"# {len(layers)} layers as they are: predictions off by "
            f"{math.exp(np.median(off)):.2f}x in the median, rank correlation "
            f"{math.nan if rank is None else rank:.2f}."
        )
    values = msgspec.structs.asdict(target)
    tables = {key: values.pop(key) for key in ("rate", "source")}
    lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{name} = {json.dumps(item)}" for name, item in table.items())]
    return "\n".join(lines) + "\n"


def _per_second(row: Row, what: str) -> float:
    return float(row[what] / row["us"] * 1e6)


def _round(value: float) -> float:
    """Round to as many digits as a measurement may have."""
    return float(f"{value:.{DIGITS}g}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("name")
    parser.add_argument("--base", help="target to start from; default NAME")
    parser.add_argument("--out", type=Path, help="default: the target's file in the package")
    arguments = parser.parse_args()
    try:
        rows = latest(read(arguments.results))
        target = fitted(rows, targets.load_target(arguments.base or arguments.name), arguments.name)
    except (ValueError, UsageError) as error:
        print(f"fit_target: {error}", file=sys.stderr)
        return 2
    out = arguments.out or FOLDER / f"{arguments.name}{targets.SUFFIX}"
    out.write_text(text(target, as_is(rows)), encoding="utf-8")
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
