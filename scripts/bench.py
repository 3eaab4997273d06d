#!/usr/bin/env python3
"""Fold models in every way, time them in pairs, and write a table, a plot and all numbers.

usage: bench.py [--budget 20] [--search 150] [--store PATH] [--out DIR] [--readme] [MODEL ...]

Without MODEL: models/, and the real models beside the repository where there are any. Every model
runs as it is, folded at factor 8, folded by auto, with the channels of every Conv padded to
multiples of 8, and, as it is, in OpenVINO where that is installed (extra `bench`). Each of these
alternates with the original in one process, with a second copy of the original as control (A/A);
one thread, each side at the better of the runtime's levels. The forms that auto measured are
compared with their predictions (rank correlation).

The folder --out (benchmarks/) gets suite.json, suite.md and suite.svg; --readme puts the table
into README.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec
from bench_openvino import against_openvino
from bench_report import Cell, Ranks, Row, Suite, draw, table

from widthfold_onnx import FoldOptions, VerifyOptions, WidthfoldError, optimize, verify
from widthfold_onnx.evidence.timing.environment import Before, environment
from widthfold_onnx.fold.channels import Grouping
from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.loader import load
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import Provider, SearchOptions, Shapes
from widthfold_onnx.plan.decisions import plan, rewriting
from widthfold_onnx.plan.identity import machine_identity, setting_identity
from widthfold_onnx.plan.layers import Layers
from widthfold_onnx.plan.ranking import Compared, compare, rank_correlation
from widthfold_onnx.plan.store import Key, Store
from widthfold_onnx.plan.targets import target
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import SearchReport
from widthfold_onnx.rules.form import Reformulation
from widthfold_onnx.rules.forms import forms
from widthfold_onnx.rules.site import LinearSite
from widthfold_onnx.runtime.session import Level

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "models"
BEGIN, END = "<!-- bench: made by scripts/bench.py -->", "<!-- /bench -->"
FACTOR = 8
TILE = 8
"""Channels of a tensor core in half precision."""
SHAPES: dict[str, Shapes] = {"swift-f0__model": {"input_audio": (1, 16000)}}
"""Of models that run at many sizes: one second of audio."""


def measure(model: Path, search: SearchOptions, budget: float) -> tuple[Row, list[Compared]]:
    """All columns of one model, and what prediction and measurement say of its layers."""
    shapes = SHAPES.get(model.stem, {})
    row, ranks = Row(model=model.stem, layers=0), []
    with tempfile.TemporaryDirectory() as folder:
        for name, factor in ((f"factor {FACTOR}", FACTOR), ("auto", None)):
            options = FoldOptions(factor=factor, input_shapes=shapes)
            out = Path(folder) / f"{factor}.onnx"
            try:
                report = optimize(model, out, options, search_options=search)
                row = msgspec.structs.replace(row, layers=len(report.sites))
                folded = report.summary.folded
                wrong = folded and report.written is None
                cell = timed(model, out, None if wrong else folded, budget, shapes)
            except WidthfoldError as error:
                cell, report = Cell(note=str(error)), None
            row.cells[name] = cell
            if report is not None and report.search is not None:
                ranks = list(compared(model, report.search, search))
        out = Path(folder) / "padded.onnx"
        row.cells["channel pad"] = timed(model, out, pad_channels(model, out), budget, shapes)
    try:
        row.cells["OpenVINO"] = against_openvino(model, shapes, budget)
    except WidthfoldError as error:
        row.cells["OpenVINO"] = Cell(note=str(error))
    return row, ranks


def pad_channels(model: Path, out: Path) -> int:
    """Write a model with all channels padded to multiples of a tile; returns of how many Conv.

    That is the advice of NVIDIA's convolution guide, the rival of every fold.
    """

    def choose(site: LinearSite) -> Reformulation | Refusal:
        if site.op != "Conv" or site.group > 1:
            return Refusal(Code.NO_GAIN, "only a Conv of one group is padded")
        grouping = Grouping(*(-(-channels // TILE) * TILE for channels in site.channels))
        unlimited = FoldOptions(ragged=True, max_flops_growth=1e9, max_bytes_growth=1e9)
        found = forms(site, unlimited, (1,) * (1 + len(site.axes)), grouping=grouping)
        return next((form for _, form in found), Refusal(Code.NO_GAIN, "nothing is missing"))

    loaded = load(model)
    document = Document(loaded.proto, loaded.folder, OPERATORS)
    options = FoldOptions(input_shapes=SHAPES.get(model.stem, {}))
    decisions = plan(document, options, choose)
    out.write_bytes(rewriting(document, decisions, options).carry_out().SerializeToString())
    return sum(isinstance(decision.outcome, Reformulation) for decision in decisions)


def timed(model: Path, out: Path, folded: int | None, budget: float, shapes: Shapes) -> Cell:
    """A model of which so many layers were changed, against the original; None: it is wrong."""
    if not folded:
        return Cell(note="did not pass" if folded is None else "as it is")
    options = VerifyOptions(
        seeds=1, exact=False, thorough=False, time_budget=budget, input_shapes=shapes
    )
    timing = verify(model, out, options).timing
    if timing is None:
        return Cell(folded=folded, note="not timed")
    return Cell(
        folded=folded,
        original_ms=timing.original.median_ms,
        ms=timing.rewritten.median_ms,
        ratio=timing.speedup,
        low=timing.low,
        high=timing.high,
        control=timing.control,
        note=timing.verdict,
    )


def compared(model: Path, found: SearchReport, search: SearchOptions) -> list[Compared]:
    """Predictions beside what the store holds of the layers of a model."""
    shapes = {name: tuple(dims) for name, dims in found.shapes.items()}
    fold = FoldOptions(input_shapes=SHAPES.get(model.stem, {}))
    layers = Layers.of(
        Document(load(model).proto, model.parent, OPERATORS), fold, shapes, target(found.target)
    )
    provider = Provider(found.provider)
    setting = setting_identity(provider, {}, {}, Level.ALL, search.threads)
    machine = machine_identity(provider)
    with Store(search.store) as store:
        return list(
            compare(
                layers.units.values(),
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
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per timing")
    parser.add_argument("--search", type=float, default=150.0, help="seconds of auto per model")
    parser.add_argument("--store", type=Path, help="measurements to start from and to keep")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    arguments = parser.parse_args()
    models = [*sorted((ROOT / "models").glob("*.onnx")), *sorted(SHARED.glob("*.onnx"))]
    if not SHARED.is_dir():
        print(f"no real models in {SHARED}", file=sys.stderr)
    before, layers = Before(), []
    suite = Suite(rows=[], ranks=None, environment=None)
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or Path(folder) / "store.sqlite"
        search = SearchOptions(time_budget=arguments.search, store=store)
        for model in arguments.models or models:
            row, found = measure(model, search, arguments.budget)
            suite.rows.append(row)
            layers += found
            print(table([row])[-1], flush=True)
    suite = msgspec.structs.replace(
        suite,
        ranks=ranked(layers),
        environment=environment(VerifyOptions(provider=Provider.CPU), before),
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = suite.markdown()
    (arguments.out / "suite.json").write_bytes(msgspec.json.format(msgspec.json.encode(suite)))
    (arguments.out / "suite.md").write_text(text)
    draw(suite, arguments.out / "suite.svg")
    print(text)
    if arguments.readme:
        readme = ROOT / "README.md"
        head, _, rest = readme.read_text().partition(BEGIN)
        readme.write_text(f"{head}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
