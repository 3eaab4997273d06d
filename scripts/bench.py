#!/usr/bin/env python3
"""Fold models at a fixed factor, verify them, time them in pairs, and print a Markdown table.

usage: bench.py [--factor 8] [--budget 20] [--readme] [MODEL ...]

Without MODEL: every model in models/. Every row is one run of `optimize` and `verify`: both models
alternate in one process with a second copy of the original as control, one thread, the original at
the better of the runtime's levels ALL and EXTENDED. --readme puts the table into README.md, and
the full reports under benchmarks/.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from widthfold_onnx import FoldOptions, VerifyOptions, VerifyReport, optimize, verify
from widthfold_onnx.reports.json import write_report

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- bench: made by scripts/bench.py -->", "<!-- /bench -->"
HEAD = [
    "| model | Conv folded | original ms | folded ms | speed-up [95 %] | A/A control | verdict |",
    "|---|---|---|---|---|---|---|",
]


def measure(model: Path, factor: int, budget: float, folder: Path) -> tuple[str, VerifyReport]:
    out = folder / model.name
    folded = optimize(model, out, FoldOptions(factor=factor), VerifyOptions(timing=False))
    report = verify(model, out, VerifyOptions(time_budget=budget))
    counts = f"{folded.summary.folded} of {len(folded.sites)}"
    if report.timing is None:
        return f"| {model.stem} | {counts} | | | | | {report.verdict} |", report
    t = report.timing
    return (
        f"| {model.stem} | {counts} | {t.original_ms:.3f} | {t.rewritten_ms:.3f} "
        f"| {t.speedup:.2f} [{t.low:.2f}, {t.high:.2f}] | {1 + t.control:.2f} | {t.verdict} |"
    ), report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--factor", type=int, default=8)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per model")
    parser.add_argument("--readme", action="store_true", help="update README.md and benchmarks/")
    arguments = parser.parse_args()
    models = arguments.models or sorted((ROOT / "models").glob("*.onnx"))
    lines = list(HEAD)
    print("\n".join(HEAD))
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            line, report = measure(model, arguments.factor, arguments.budget, Path(folder))
            print(line, flush=True)
            lines.append(line)
            if arguments.readme:
                target = ROOT / "benchmarks" / f"factor{arguments.factor}" / f"{model.stem}.json"
                target.parent.mkdir(parents=True, exist_ok=True)
                write_report(report, target, [])
    where = report.environment
    made = f"Made by `scripts/bench.py` on {where.machine}, {where.cores} cores, "
    made += f"ONNX Runtime {where.onnxruntime}, 1 thread, factor {arguments.factor}."
    print(made)
    if arguments.readme:
        readme = ROOT / "README.md"
        head, rest = readme.read_text().split(BEGIN)
        _, tail = rest.split(END)
        table = "\n".join(lines)
        readme.write_text(f"{head}{BEGIN}\n{table}\n\n{made}\n{END}{tail}")


if __name__ == "__main__":
    main()
