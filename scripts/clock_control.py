#!/usr/bin/env python3
"""Try the clock on a hostile machine: identical models, then planted differences.

usage: clock_control.py MODEL [--repeats 50] [--budget 10]

A second process keeps one core busy all the time. The model is timed against itself again and
again (no verdict but "no difference" or "inconclusive" is right), then against itself with a spin
of 10 % and of 5 % of its own time added to one side (the verdict must be faster, then slower).
Results go to benchmarks/clock/ as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.reports.data.json import encode
from widthfold_onnx.runtime.clock import Run, clock_of, paired
from widthfold_onnx.runtime.environment import Before, environment
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.sessions.session import open_session

ROOT = Path(__file__).parents[1]
CLOCK = clock_of(Provider.CPU, threads=1)


def spinning(run: Run, seconds: float) -> Run:
    """The same run, and then a busy wait."""

    def longer(count: int) -> None:
        run(count)
        end = CLOCK() + seconds * 1e9
        while CLOCK() < end:
            pass

    return longer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds per repeat")
    arguments = parser.parse_args()
    before = Before()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        results = measure(arguments.model, arguments.repeats, arguments.budget)
    finally:
        busy.kill()
    counts = {what: dict(Counter(r["verdict"] for r in rows)) for what, rows in results.items()}
    print(json.dumps(counts, indent=1))
    where = json.loads(encode(environment(VerifyOptions(provider=Provider.CPU), before)))
    target = ROOT / "benchmarks" / "clock" / f"{arguments.model.stem}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    report = {"budget_s": arguments.budget, "counts": counts, "runs": results, "environment": where}
    target.write_text(json.dumps(report, indent=1) + "\n")


def measure(model: Path, repeats: int, budget: float) -> dict[str, list[dict[str, Any]]]:
    def runner() -> Run:
        session = open_session(model, Provider.CPU)
        feeds = random_feeds(session.inputs, 0, find_shapes(session, {}))
        once: Callable[[], None] = session.bound(feeds)
        return lambda count: once()

    sides = [runner(), runner(), runner()]
    alone = float(np.median(paired(*sides, budget=2.0, clock=CLOCK).samples[:, 0]))
    plans: dict[str, tuple[list[Run], int]] = {
        "identical": (sides, repeats),
        "planted 10 % faster": (
            [spinning(sides[0], alone * 0.1), sides[1], spinning(sides[2], alone * 0.1)],
            max(repeats // 10, 1),
        ),
        "planted 5 % slower": ([sides[0], spinning(sides[1], alone * 0.05), sides[2]], 5),
    }
    results: dict[str, list[dict[str, Any]]] = {}
    for what, (runs, count) in plans.items():
        results[what] = []
        for _ in range(count):
            p = paired(*runs, budget=budget, clock=CLOCK)
            row = {"verdict": p.verdict, "pairs": len(p.samples), "ratio": p.ratio}
            row |= {"low": p.low, "high": p.high, "control": p.control}
            results[what].append(row)
            print(what, p.verdict, f"{p.ratio:.3f} [{p.low:.3f}, {p.high:.3f}]", flush=True)
    return results


if __name__ == "__main__":
    main()
