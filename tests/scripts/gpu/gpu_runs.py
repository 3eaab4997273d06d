"""The GPU script as it is called, and the rows that it keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.shared import ROOT

BENCH = ROOT / "scripts" / "gpu_bench.py"
EXTRAS = ("msgspec", "onnx_ir", "platformdirs", "scipy", "click", "jinja2", "rich", "matplotlib")
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({(*EXTRAS, "torch")}))
sys.path.insert(0, {str(BENCH.parent)!r})
"""
"""Begins a program as if these packages were not installed."""

HIDDEN = f"""{BARE}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script as if these packages were not installed."""


def bench(*arguments: object, hidden: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(["-c", HIDDEN] if hidden else []), BENCH, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def rows_of(folder: Path, part: str) -> list[dict[str, Any]]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["part"] == part]
