"""Measure the layers of many models ahead, so that `optimize` finds them in the store.

They are measured at level ALL; `optimize` measures other levels and whole models itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from widthfold_onnx.errors import UsageError, WidthfoldError
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import FoldOptions, RuntimeOptions, SearchOptions
from widthfold_onnx.progress import Step, progress
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import TunedMachine, TunedModel, TuneReport
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.reading import ALREADY_FOLDED, Reading
from widthfold_onnx.rewrite.record import contains_folds
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.inputs.cases import for_model
from widthfold_onnx.runtime.inputs.sizes import provider_and_sizes
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.system import cores
from widthfold_onnx.tuning.bench import Bench, Budget, LocalPool
from widthfold_onnx.tuning.cluster import Cluster, ClusterPool
from widthfold_onnx.tuning.effort import SPENDING, RaceOptions
from widthfold_onnx.tuning.identity import find_place
from widthfold_onnx.tuning.layers import Layers
from widthfold_onnx.tuning.measurement import AS_IS, Candidate
from widthfold_onnx.tuning.search.agreement import forms_by_prediction
from widthfold_onnx.tuning.search.level_race import workloads_to_race
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.targets import default_target, load_target
from widthfold_onnx.tuning.workloads import Workload, joined, most_work_first


def tune(
    models: Sequence[Path | str],
    fold_options: FoldOptions,
    search_options: SearchOptions,
    *,
    jobs: int = 1,
    dask: str | None = None,
) -> TuneReport:
    """Measure every layer of every model, each once, and keep it in the store.

    Args:
        models: model files. An unreadable model is reported; the others are tuned.
        fold_options: select the layers, and limit the forms.
        search_options: where to measure, the store, and the seconds for all models together.
        jobs: number of processes that measure on this machine at a time; they disturb each other.
        dask: address of the scheduler of a Dask cluster, whose workers measure instead.

    Returns:
        A report of all results so far. KeyboardInterrupt while measuring only ends the measuring.

    Raises:
        UsageError: an option does not fit, or there is no such cluster.
        UnverifiedError: nothing can be measured, because there is no runtime or no worker.
    """
    if not fold_options.is_measured:
        raise UsageError("tune measures the forms of every factor; give none")
    spending = SPENDING[search_options.effort]
    with (
        Store(search_options.store) as store,
        _pool(search_options, store, jobs, dask) as pool,
    ):
        entries = []
        for path in map(Path, models):
            progress(Step(f"reading {path.name}"))
            runtime_options = replace(search_options, provider=pool.provider)
            entries.append(_listed_model(path, runtime_options, fold_options, spending.forms))
        workloads = joined(workload for model in entries for workload in model.workloads)
        seconds = search_options.time_budget or spending.race * len(models)
        interrupted = False
        try:
            pool.measure(most_work_first(workloads.values()), Budget(seconds))
        except KeyboardInterrupt:
            interrupted = True
        return TuneReport(
            threads=search_options.threads,
            machines=[
                TunedMachine(
                    provider=bench.options.provider,
                    machine=bench.machine,
                    measured=len(bench.new_measurements),
                )
                for bench in pool.benches
            ],
            models=[_row(model, pool.benches) for model in entries],
            interrupted=interrupted,
            store_read_only=store.read_only,
        )


@contextlib.contextmanager
def _pool(
    options: SearchOptions, store: Store, jobs: int, dask: str | None
) -> Iterator[LocalPool | ClusterPool]:
    if dask is not None:
        if jobs != 1:
            raise UsageError("jobs are of this machine; on a cluster every worker measures")
        with Cluster(dask, options) as cluster:
            yield ClusterPool(cluster, options, store)
        return
    most = max(cores() // options.threads, 1)
    if not 1 <= jobs <= most:
        raise UsageError(
            f"{jobs} jobs of {options.threads} thread(s) on {cores()} core(s) would wait for "
            f"each other: at most {most}, at least 1"
        )
    provider, machine = isolated(find_place, options)
    race_options = RaceOptions.at(Level.ALL, replace(options, provider=provider))
    yield LocalPool(Bench(race_options, store, machine), jobs)


class _ListedModel(NamedTuple):
    """A model with its layers, as they are listed before they are measured.

    Attributes:
        name: name of its file.
        layers: its layers, or why it has none.
        workloads: the layers with the forms that race in `optimize`.
    """

    name: str
    layers: Layers | Refusal | WidthfoldError
    workloads: Sequence[Workload] = ()


def _listed_model(
    path: Path, runtime_options: RuntimeOptions, options: FoldOptions, forms: int | None
) -> _ListedModel:
    """Return a model file with its layers, and at most `forms` forms of each; None: all."""
    try:
        loaded = load(path)
        if contains_folds(loaded.proto):
            return _ListedModel(path.name, ALREADY_FOLDED)
        runtime_options = for_model(runtime_options, loaded.proto)
        provider, sizes = isolated(provider_and_sizes, path, runtime_options, options.input_shapes)
        reading = Reading.of(loaded, Draft.first(loaded, options))
        layers = Layers.of(reading, options, sizes[0], load_target(default_target(provider)))
    except WidthfoldError as error:
        return _ListedModel(path.name, error)
    workloads = workloads_to_race(layers, layers.workloads, forms, forms_by_prediction(layers))
    return _ListedModel(path.name, layers, workloads)


def _row(model: _ListedModel, benches: Sequence[Bench]) -> TunedModel:
    name, layers, workloads = model
    if isinstance(layers, WidthfoldError):
        return TunedModel(model=name, reason=str(layers), code=layers.exit_code)
    if isinstance(layers, Refusal):
        return TunedModel(model=name, reason=layers.reason)
    keys: list[tuple[str, Candidate]] = [(workload.subject, AS_IS) for workload in workloads]
    keys += [(workload.subject, form.spec) for workload in workloads for form in workload.forms]
    # On a cluster from which no worker has answered yet, everything is pending.
    pending = layers.subjects_of(
        workload for bench in benches for workload in bench.pending(workloads)
    )
    stored = [
        (key in b.new_measurements, m)
        for b in benches
        for key in keys
        if (m := b.measurement(*key))
    ]
    return TunedModel(
        model=name,
        layers=len(layers.workloads),
        forms=len(keys) - len(workloads),
        measured=sum(is_new for is_new, _ in stored),
        stored=sum(not is_new for is_new, _ in stored),
        skipped=sum(m.skipped for _, m in stored),
        failed=sum(m.status == "lost" and not m.skipped for _, m in stored),
        pending=len(pending if benches else layers.workloads),
    )
