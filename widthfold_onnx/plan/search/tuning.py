"""Measure the layers of many models ahead, so that `optimize` finds all of them in the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from widthfold_onnx.errors import UsageError, WidthfoldError
from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.read.loader import load
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions, Provider, SearchOptions
from widthfold_onnx.plan.decide.decisions import ALREADY_FOLDED
from widthfold_onnx.plan.measure.bench import Bench
from widthfold_onnx.plan.measure.cluster import Cluster
from widthfold_onnx.plan.measure.cluster_pool import ClusterPool
from widthfold_onnx.plan.measure.effort import SPENDING
from widthfold_onnx.plan.measure.local_pool import measure_with
from widthfold_onnx.plan.measure.successive_halving import Setup
from widthfold_onnx.plan.predict.targets import target, usual
from widthfold_onnx.plan.search.assign import foresee
from widthfold_onnx.plan.search.level_search import racing
from widthfold_onnx.plan.store.identity import find_place
from widthfold_onnx.plan.store.store import Store
from widthfold_onnx.plan.workload.layers import Layers
from widthfold_onnx.plan.workload.workloads import Workload, joined, most_work_first
from widthfold_onnx.progress import Progress, Step, silent
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import TunedMachine, TunedModel, TuneReport
from widthfold_onnx.results.store import AS_IS
from widthfold_onnx.rewrite.record import carries_folds
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.environment import cores
from widthfold_onnx.runtime.running import running

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
    if fold_options.fixed is not None:
        raise UsageError("tune measures the forms of every factor; give none")
    with (
        Store(search_options.store) as store,
        _measuring(search_options, fold_options, store, jobs, dask) as measuring,
    ):
        read = []
        for path in map(Path, models):
            on_progress(Step(f"reading {path.name}"))
            read.append((path.name, _layers(path, measuring.reads, fold_options)))
        spending = SPENDING[search_options.effort]
        several = [
            racing(layers, layers.workloads, spending.forms, foresee(layers))
            if isinstance(layers, Layers)
            else []
            for _, layers in read
        ]
        every = most_work_first(joined(chain.from_iterable(several)).values())
        seconds = search_options.time_budget or spending.race * len(models)
        deadline = time.monotonic() + seconds
        interrupted = False
        try:
            measuring.measure(every, deadline, on_progress)
        except KeyboardInterrupt:
            interrupted = True
        return TuneReport(
            threads=search_options.threads,
            machines=[
                TunedMachine(
                    provider=bench.setup.how.provider,
                    machine=bench.machine,
                    measured=bench.measured,
                )
                for bench in measuring.benches
            ],
            models=[
                _row(name, layers, racing, measuring.benches)
                for (name, layers), racing in zip(read, several, strict=True)
            ],
            interrupted=interrupted,
            store_read_only=store.read_only,
        )


class _Measuring(NamedTuple):
    """The benches that measure, and the function that runs them.

    Attributes:
        reads: the provider on which models are tried to find the shapes of their inputs.
        benches: one for each kind of machine; those of a cluster come while it measures.
        measure: measures workloads until a deadline.
    """

    reads: Provider
    benches: list[Bench]
    measure: Callable[[Sequence[Workload], float, Progress], None]


@contextlib.contextmanager
def _measuring(
    options: SearchOptions, fold: FoldOptions, store: Store, jobs: int, dask: str | None
) -> Iterator[_Measuring]:
    if dask is not None:
        if jobs != 1:
            raise UsageError("jobs are of this machine; on a cluster every worker measures")
        with Cluster(dask, options) as cluster:
            pool = ClusterPool(cluster, options, fold, store)
            # This machine need not have the device.
            yield _Measuring(Provider.CPU, pool.benches, pool.measure)
        return
    most = max(cores() // options.threads, 1)
    if not 1 <= jobs <= most:
        raise UsageError(
            f"{jobs} jobs of {options.threads} thread(s) on {cores()} core(s) would wait for "
            f"each other: at most {most}, at least 1"
        )
    reads, machine = isolated(find_place, options)
    bench = Bench(Setup(replace(options, provider=reads), fold), store, machine)
    measure = bench.measure if jobs == 1 else partial(measure_with, jobs, bench)
    yield _Measuring(reads, [bench], measure)


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
    name: str,
    layers: Layers | Refusal | WidthfoldError,
    workloads: Sequence[Workload],
    benches: Sequence[Bench],
) -> TunedModel:
    if isinstance(layers, WidthfoldError):
        return TunedModel(model=name, reason=str(layers), code=layers.exit_code)
    if isinstance(layers, Refusal):
        return TunedModel(model=name, reason=layers.reason)
    keys = [(workload.subject, AS_IS) for workload in workloads]
    keys += [(workload.subject, form.key) for workload in workloads for form in workload.forms]
    # On a cluster from which no worker has answered yet, everything is left.
    left = layers.behind(workload for bench in benches for workload in bench.missing(workloads))
    found = [(key in b.kept, known) for b in benches for key in keys if (known := b.known(*key))]
    return TunedModel(
        model=name,
        layers=len(layers.workloads),
        forms=len(keys) - len(workloads),
        measured=sum(now for now, _ in found),
        known=sum(not now for now, _ in found),
        skipped=sum(known.skipped for _, known in found),
        failed=sum(known.status == "lost" and not known.skipped for _, known in found),
        left=len(left if benches else layers.workloads),
    )
