"""Optimize and verify whole models by the command line, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.stage import Stage
from widthfold_onnx.options import Provider

ROOT = Path(__file__).resolve().parents[2]
CLI = (sys.executable, "-c", "from widthfold_onnx.cli import main; main()")


def run_models(stage: Stage, models: Sequence[Path]) -> None:
    """Optimize and time the models, or as many as there is time for."""
    layouts = ("nchw", "nhwc") if stage.provider is Provider.CUDA else ("nchw",)
    todo = [
        (path, layout)
        for layout in layouts
        for path in models
        if stage.results.row("models", model=path.stem, layout=layout) is None
    ]
    longest = 0.0
    for done, (path, layout) in enumerate(todo):
        before = stage.seconds_left
        if before <= longest:
            stage.results.add("models", unmeasured=len(todo) - done, reason="no time was left")
            return
        row = {"model": path.stem, "layout": layout}
        stage.results.add("models", **row, **_model(stage, path, nhwc=layout == "nhwc"))
        longest = max(longest, before - stage.seconds_left)


def _model(stage: Stage, path: Path, *, nhwc: bool) -> dict[str, Any]:
    """Return the fields of a row; the search runs in one layout, `verify` at the best of both."""
    out, store = stage.folder / "folded.onnx", stage.folder / "store"
    seconds = str(stage.scale.model_seconds)
    search: list[str | Path] = ["--factor", "auto", "--store", store, "--time-budget", seconds]
    search += ["--provider-option", "prefer_nhwc=1"] if nhwc else []
    report = _widthfold(stage, "optimize", path, out, *search)
    if "error" in report:
        return report
    result, counts = report["search"], report["summary"]
    row: dict[str, Any] = {
        "convs": len(report["sites"]),
        "folded": counts["folded"],
        "layers": result["layers"],
        "pending": result["pending"],
    }
    if report["written"] is None or not counts["folded"] + counts["exchanged"]:
        return row
    report = _widthfold(stage, "verify", path, out, "--time-budget", seconds)
    if "error" in report:
        return row | report
    timing = report["timing"]
    return row | {
        "us": timing["rewritten"]["median_ms"] * 1e3,
        "base_us": timing["original"]["median_ms"] * 1e3,
        "ratio": timing["speedup"],
        **{field: timing[field] for field in ("low", "high", "control", "verdict")},
        "rounds": timing["pairs"],
    }


def _widthfold(stage: Stage, command: str, *arguments: str | Path) -> dict[str, Any]:
    """Run a command and return its report, or its last line as an error."""
    report = stage.folder / f"{command}.json"
    report.unlink(missing_ok=True)
    done = subprocess.run(
        [*CLI, command, *arguments, "--provider", str(stage.provider), "--report", report],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not report.is_file():
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        return {"error": f"{command} ended with {done.returncode}: {last}"}
    fields: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return fields
