#!/usr/bin/env python3
"""Fold models in every way, time them in pairs, and write a table, a plot and all numbers.

usage: bench.py [--suite NAME]... [--provider cpu] [--seconds S] [--budget 20] [--search SECONDS]
                [--store PATH] [--out DIR] [MODEL ...]
       bench.py --report [--suite NAME]... [--out DIR]

The suites:

suite: models/, and the real models beside the repository where there are any
architectures: the nets of architectures.py; on a CPU at one and at two threads
layers: layers of few channels (`nets.layers`)
published_layers: layers whose times others published (`nets.published_layers`)
users: 1-D layers that users of runtimes report as slow

Every model runs as it is, folded at factor 8, folded by auto, and with the channels of every Conv
padded to multiples of 8. As it is, it also runs in a rival, where that is installed: on a CPU in
OpenVINO (extra `bench`), on a GPU each layer in PyTorch. Each of these alternates with the
original. A second copy of the original is the control (A/A), and each side runs at the setting of
the runtime that suits it best. The forms that auto measured at one thread are compared with their
predictions (rank correlation).

On a GPU (--provider cuda or tensorrt) a run first compares one Conv with the CPU, and measures
nothing if they differ. Without --suite it takes turns between all suites but the architectures, the
most telling models of each first. Nodes that fell back to the CPU, clocks that moved and throttling
are said in the table.

A run ends before a model for which the --seconds would not suffice. The same command continues a
run that was ended or interrupted. MODELs replace their own rows of the table and leave the others,
so that disturbed rows can be repeated; the line on the machine describes the last run.

The folder --out (benchmarks/, for a GPU benchmarks/gpu/<device>) gets <suite>.json after every
model, and history.jsonl a line with commit, machine and versions; then <suite>.md, <suite>.svg and
history.svg, the course of each model over commits, which --report makes again of the numbers.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from architectures import NETS, OUT
from benchmark.gpu import check_conv, is_gpu
from benchmark.history import Commit, append, draw_history, history
from benchmark.kept import BENCHMARKS, Kept, Machine, Task, default_out
from benchmark.measuring import measure
from benchmark.report import Cell, Suite, columns, draw, read, table
from make_models import write
from nets import layers, published_layers

from widthfold_onnx import WidthfoldError
from widthfold_onnx.options import Provider, SearchOptions
from widthfold_onnx.runtime.child import isolated

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "models"
FIRST = ("pitch_cnn", "basic-pitch__nmp", "swift-f0__model", "accelerated_features__xfeat")
"""Models that a GPU measures before the others: time may be short."""


def ours(device: str) -> list[Path]:
    """The models of the repository and those beside it."""
    if not SHARED.is_dir():
        print(f"no real models in {SHARED}", file=sys.stderr)
    models = [*sorted((ROOT / "models").glob("*.onnx")), *sorted(SHARED.glob("*.onnx"))]
    return sorted(models, key=lambda it: device == "gpu" and it.stem not in FIRST)


def published(_: str) -> list[Path]:
    """The nets of architectures.py, written again."""
    return write({name: net() for name, net in NETS.items()}, OUT)


class Subject(NamedTuple):
    """A suite.

    Attributes:
        models: returns its models for "cpu" or "gpu", the most telling first.
        threads: of a CPU, for each model.
        context: returns the text that its page adds.
        are_layers: every model is one layer of fixed extents.
    """

    models: Callable[[str], list[Path]]
    threads: tuple[int, ...] = (1,)
    context: Callable[[str], str] = lambda _: ""
    are_layers: bool = False


def written(listed: Callable[[str], list[layers.Layer]], device: str) -> list[Path]:
    return layers.written(listed(device), device)


SUITES = {
    "layers": Subject(partial(written, layers.few_channels), are_layers=True),
    "published_layers": Subject(
        partial(written, published_layers.layers),
        context=published_layers.context,
        are_layers=True,
    ),
    "users": Subject(partial(written, layers.of_users), are_layers=True),
    "suite": Subject(ours),
    "architectures": Subject(published, (1, 2)),
}
PROVIDERS = (Provider.CPU, Provider.CUDA, Provider.TENSORRT)
ON_GPU = ("layers", "published_layers", "users", "suite")


def tasks_of(name: str, models: list[Path], machine: Machine) -> list[Task]:
    """The models of a suite, each at its numbers of threads."""
    device = "gpu" if machine.device else "cpu"
    threads = (1,) if machine.device else SUITES[name].threads
    chosen = models or SUITES[name].models(device)
    return [Task(name, model, count) for model, count in itertools.product(chosen, threads)]


def run(arguments: argparse.Namespace, names: Sequence[str]) -> Path:
    """Measure models of all suites in turn, as long as there is time; return the folder.

    Raises:
        UnverifiedError: the provider cannot be used.
        CheckFailedError: a GPU computes something else than the CPU, at first or after an error.
        UsageError: the folder holds a part of a run on another machine.
    """
    code, machine = Commit.of(ROOT), Machine.of(arguments.provider, arguments.out)
    out = arguments.out or default_out(machine)
    out.mkdir(parents=True, exist_ok=True)
    suites = {}
    for name in names:
        tasks = tasks_of(name, arguments.models, machine)
        path = out / f"{name}.json"
        suites[name] = Kept(path, tasks, machine, corrects=bool(arguments.models))
    # A run that is continued does not begin anew with the suites that it has ended.
    suites = {n: it for n, it in suites.items() if it.is_continued} or suites
    for kept in suites.values():
        kept.begin()
    rounds = itertools.zip_longest(*(kept.tasks for kept in suites.values()))
    tasks = [task for each in rounds for task in each if task is not None]
    end, longest = time.monotonic() + arguments.seconds, 0.0
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or Path(folder) / "store.sqlite"
        for done, task in enumerate(tasks):
            start = time.monotonic()
            if done and start + longest > end:
                print(f"bench: no time for {len(tasks) - done} more; run it again", file=sys.stderr)
                break
            search = SearchOptions(
                provider=arguments.provider,
                time_budget=arguments.search,
                store=store,
                threads=task.threads,
            )
            is_layer = SUITES[task.suite].are_layers
            suites[task.suite].begin(task)
            try:
                row, forms = measure(task.model, search, arguments.budget, is_layer=is_layer)
            except WidthfoldError as error:  # the model does not run: the others may
                cells = {name: Cell(note=str(error)) for name in columns(arguments.provider)}
                row, forms = task.row(cells), []
            if machine.device and not any(cell.ratio for cell in row.cells.values()):
                isolated(check_conv, machine.options)  # behind a lost device all would fail
            suites[task.suite].add(task, row, forms)
            append(out, code, machine.where(), row)
            print(table([row], columns(arguments.provider))[-1], flush=True)
            longest = max(longest, time.monotonic() - start)
    return out


def publish(out: Path, name: str) -> Suite:
    """Write table and pictures of the numbers in a folder; returns the numbers.

    Raises:
        UsageError: there are none that this code reads.
    """
    suite = read(out / f"{name}.json")
    context = SUITES[name].context("gpu" if suite.device else "cpu")
    (out / f"{name}.md").write_text("\n".join(filter(None, (suite.markdown(), context))))
    if find_spec("matplotlib") is None:
        print("bench: no pictures without matplotlib", file=sys.stderr)
        return suite
    draw(suite, out / f"{name}.svg")
    if entries := history(out):
        draw_history(entries, out / "history.svg")
    return suite


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--suite", choices=SUITES, action="append", help="may be repeated")
    parser.add_argument("--provider", type=Provider, choices=PROVIDERS, default=Provider.CPU)
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all models")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per timing")
    parser.add_argument("--search", type=float, help="seconds of auto for layers; default: its own")
    parser.add_argument("--store", type=Path, help="measurements to start from and to keep")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--report", action="store_true", help="only make table and picture")
    arguments = parser.parse_args()
    on_gpu = is_gpu(arguments.provider) and not arguments.models
    names = arguments.suite or (ON_GPU if on_gpu else ("suite",))
    try:
        out = (arguments.out or BENCHMARKS) if arguments.report else run(arguments, names)
        if not (arguments.report and arguments.suite):  # all that is there
            shown = SUITES if arguments.report else names
            names = [name for name in shown if (out / f"{name}.json").exists()] or names
        for name in names:
            print(publish(out, name).markdown())
    except WidthfoldError as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
