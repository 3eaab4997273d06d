"""Measure the layers of many models ahead, so that `optimize` finds all of them in the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from widthfold_onnx.errors import UsageError, WidthfoldError
from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.loader import load
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions, Provider, SearchOptions
from widthfold_onnx.plan.cluster import Cluster
from widthfold_onnx.plan.crew import Crew
from widthfold_onnx.plan.decisions import ALREADY_FOLDED
from widthfold_onnx.plan.layers import Layers
from widthfold_onnx.plan.local import Local
from widthfold_onnx.plan.measure import AS_IS, Bench
from widthfold_onnx.plan.store import Store
from widthfold_onnx.plan.targets import target, usual
from widthfold_onnx.plan.units import Unit
from widthfold_onnx.progress import Progress, Step, silent
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import TunedMachine, TunedModel, TuneReport
from widthfold_onnx.rewrite.record import carries_folds
from widthfold_onnx.runtime.running import running
from widthfold_onnx.runtime.worker import isolated

EVERY_FORM = FoldOptions()
BY_DEFAULT = SearchOptions()


def tune(
    models: Sequence[Path | str],
    fold_options: FoldOptions = EVERY_FORM,
    search_options: SearchOptions = BY_DEFAULT,
    *,
    jobs: int = 1,
    dask: str | None = None,
    on_progress: Progress = silent,
) -> TuneReport:
    """Measure every layer of every model, each once, and keep it in the store.

    Args:
        models: model files. One that cannot be read is reported; the others are tuned.
        fold_options: select the sites, and limit the forms.
        search_options: where to measure, the store, and the seconds for all models together.
        jobs: number of processes that measure on this machine at a time; they disturb each other.
        dask: address of the scheduler of a Dask cluster, whose workers measure instead.
        on_progress: gets a step now and then.

    Returns:
        A report of what is known now. KeyboardInterrupt while measuring only ends the measuring.

    Raises:
        UsageError: an option does not fit, or there is no such cluster.
        UnverifiedError: nothing can be measured, because there is no runtime or no worker.
    """
    if fold_options.factor is not None:
        raise UsageError("tune measures the forms of every factor; give none")
    with (
        Store(search_options.store) as store,
        _crew(search_options, fold_options, store, jobs, dask) as crew,
    ):
        read = []
        for path in map(Path, models):
            on_progress(Step(f"reading {path.name}"))
            read.append((path.name, _layers(path, crew.reads, fold_options)))
        units: dict[str, Unit] = {}
        for _, layers in read:
            if isinstance(layers, Layers):
                for unit in layers.in_order():
                    like = units.get(unit.subject)
                    units[unit.subject] = unit if like is None else like.joined(unit)
        deadline = time.monotonic() + search_options.time_budget
        interrupted = False
        try:
            crew.measure(Layers(units).in_order(), deadline, on_progress)
        except KeyboardInterrupt:
            interrupted = True
        return TuneReport(
            threads=search_options.threads,
            machines=[
                TunedMachine(
                    provider=bench.setup.provider, machine=bench.machine, measured=bench.measured
                )
                for bench in crew.benches
            ],
            models=[_row(name, layers, crew.benches) for name, layers in read],
            interrupted=interrupted,
            store_read_only=store.read_only,
        )


@contextlib.contextmanager
def _crew(
    options: SearchOptions, fold: FoldOptions, store: Store, jobs: int, dask: str | None
) -> Iterator[Local | Crew]:
    if dask is None:
        yield Local(options, fold, store, jobs)
        return
    if jobs != 1:
        raise UsageError("jobs are of this machine; on a cluster every worker measures")
    wanted = options.provider, options.provider_options, options.session_options
    with Cluster(dask, *wanted) as cluster:
        yield Crew(cluster, options, fold, store)


def _layers(
    model: Path, provider: Provider, options: FoldOptions
) -> Layers | Refusal | WidthfoldError:
    try:
        loaded = load(model)
        if carries_folds(loaded.proto):
            return ALREADY_FOLDED
        used, shapes = isolated(running, model, provider, dict(options.input_shapes))
        aim = target(usual(used))
        document = Document(loaded.proto, loaded.folder, OPERATORS)
        return Layers.of(document, options, shapes, aim)
    except WidthfoldError as error:
        return error


def _row(
    name: str, layers: Layers | Refusal | WidthfoldError, benches: Sequence[Bench]
) -> TunedModel:
    if isinstance(layers, WidthfoldError):
        return TunedModel(model=name, reason=str(layers), code=layers.exit_code)
    if isinstance(layers, Refusal):
        return TunedModel(model=name, reason=layers.reason)
    units = layers.in_order()
    keys = [(unit.subject, AS_IS) for unit in units]
    keys += [(unit.subject, form.key) for unit in units for form in unit.forms]
    # On a cluster from which no worker has answered yet, everything is left.
    left = layers.behind(unit for bench in benches for unit in bench.missing(units))
    found = [(key in b.kept, known) for b in benches for key in keys if (known := b.known(*key))]
    return TunedModel(
        model=name,
        layers=len(layers.units),
        forms=len(keys) - len(units),
        measured=sum(now for now, _ in found),
        known=sum(not now for now, _ in found),
        skipped=sum(known.skipped for _, known in found),
        failed=sum(known.status == "lost" and not known.skipped for _, known in found),
        left=len(left if benches else layers.units),
    )
