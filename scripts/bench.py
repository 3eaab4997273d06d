#!/usr/bin/env python3
"""Fold models, verify them, time them in pairs, and print a Markdown table.

usage: bench.py [--factor 8] [--axis auto] [--budget 20] [--readme] [MODEL ...]

Without MODEL: the suite below, on models/. Every row is one run of `optimize` and `verify`: both
models alternate in one process with a second copy of the original as control, one thread, each at
the better of the runtime's levels ALL and EXTENDED. --readme puts the table into README.md, and
the full reports under benchmarks/.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from widthfold_onnx import AxisName, FoldOptions, VerifyOptions, VerifyReport, optimize, verify
from widthfold_onnx.reports.files import write_report
from widthfold_onnx.reports.json import encode

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- bench: made by scripts/bench.py -->", "<!-- /bench -->"
HEAD = [
    "| model | options | Conv folded | original ms | folded ms | speed-up [95 %] | A/A control "
    "| verdict |",
    "|---|---|---|---|---|---|---|---|",
]


@dataclass(frozen=True)
class Case:
    """One row: a model and how it is folded."""

    model: Path
    factor: int
    axis: AxisName = AxisName.AUTO

    @property
    def options(self) -> str:
        axis = "" if self.axis is AxisName.AUTO else f" --axis {self.axis}"
        return f"--factor {self.factor}{axis}"


SUITE = [
    *(Case(model, 8) for model in sorted((ROOT / "models").glob("*.onnx"))),
    Case(ROOT / "models" / "wide_signal.onnx", 8, AxisName.WIDTH),
    Case(ROOT / "models" / "wide_signal.onnx", 16, AxisName.WIDTH),
]


def measure(case: Case, budget: float, folder: Path) -> tuple[str, VerifyReport]:
    out = folder / case.model.name
    fold = FoldOptions(factor=case.factor, axis=case.axis)
    folded = optimize(case.model, out, fold, VerifyOptions(timing=False))
    report = verify(case.model, out, VerifyOptions(time_budget=budget))
    counts = f"{folded.summary.folded} of {len(folded.sites)}"
    line = f"| {case.model.stem} | `{case.options}` | {counts} "
    if report.timing is None:
        return f"{line}| | | | | {report.verdict} |", report
    t = report.timing
    return (
        f"{line}| {t.original.median_ms:.3f} | {t.rewritten.median_ms:.3f} "
        f"| {t.speedup:.2f} [{t.low:.2f}, {t.high:.2f}] | {1 + t.control:.2f} | {t.verdict} |"
    ), report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--factor", type=int, default=8)
    parser.add_argument("--axis", type=AxisName, default=AxisName.AUTO)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per row")
    parser.add_argument("--readme", action="store_true", help="update README.md and benchmarks/")
    arguments = parser.parse_args()
    cases = [Case(m, arguments.factor, arguments.axis) for m in arguments.models] or SUITE
    lines = list(HEAD)
    print("\n".join(HEAD))
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            line, report = measure(case, arguments.budget, Path(folder))
            print(line, flush=True)
            lines.append(line)
            if arguments.readme:
                name = f"{case.model.stem} {case.options}".replace(" --", "_").replace(" ", "")
                target = ROOT / "benchmarks" / "cpu" / f"{name}.json"
                target.parent.mkdir(parents=True, exist_ok=True)
                write_report(encode(report).decode(), target, [])
    where = report.environment
    made = f"`scripts/bench.py`: {where.machine}, {where.cores} cores, ONNX Runtime "
    made += f"{where.onnxruntime}, 1 thread."
    print(made)
    if arguments.readme:
        readme = ROOT / "README.md"
        head, rest = readme.read_text().split(BEGIN)
        _, tail = rest.split(END)
        table = "\n".join(lines)
        readme.write_text(f"{head}{BEGIN}\n{table}\n\n{made}\n{END}{tail}")


if __name__ == "__main__":
    main()
