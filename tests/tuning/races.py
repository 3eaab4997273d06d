"""Races for `tuning.bench` whose forms do, in a child process, what their names say."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Effort, Provider, SearchOptions
from widthfold_onnx.rules.form import FormSpec
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.tuning import bench as bench_module
from widthfold_onnx.tuning.bench import Bench, Budget
from widthfold_onnx.tuning.effort import RaceOptions
from widthfold_onnx.tuning.measurement import AS_IS, CandidateResult, Measurement
from widthfold_onnx.tuning.store import Store
from widthfold_onnx.tuning.successive_halving import Start
from widthfold_onnx.tuning.workloads import PredictedForm, Workload

LOG = "WIDTHFOLD_TEST_LOG"
OPTIONS = RaceOptions.at(Level.ALL, SearchOptions(provider=Provider.CPU, effort=Effort.THOROUGH))


@dataclass(frozen=True)
class NamedForm:
    """Stands in for a form that is used alone, so that it needs no layouts."""

    spec: FormSpec | str
    ends = SimpleNamespace(input_layout=None, output_layout=None)


def workload(subject: str, *forms: str, macs: float = 1.0) -> Workload:
    """A layer that runs by its subject, and forms that run by their names."""
    predicted = tuple(predicted_form(form, macs, macs) for form in forms)
    return Workload(subject, subject.encode(), predicted, 1, 1.0)


def predicted_form(spec: FormSpec | str, macs: float, seconds: float) -> PredictedForm:
    return PredictedForm(NamedForm(spec), macs, seconds, 0.0)


def bench(store: Store) -> Bench:
    return Bench(OPTIONS, store, "machine")


def kept(store: Store) -> dict[tuple[str, str], Measurement]:
    return {(key.subject, key.candidate): measurement for key, measurement in store.items()}


def behaving(workloads: Sequence[Workload], options: RaceOptions, seconds: float, *, send) -> None:
    """Do what the name of every form says, and report its start and a result."""
    for item in workloads:
        for key in (AS_IS, *(form.spec for form in item.forms)):
            send(Start(item.subject, key))
            _note(f"{os.getpid()} {item.subject} {key}")
            _do(item.subject if key == AS_IS else key)
        for key in (AS_IS, *(form.spec for form in item.forms)):
            send(CandidateResult(item.subject, key, Measurement.of_ratio(1.5, 1.4, 1.6, 1e-3, 4)))


def _do(name: str) -> None:
    if name.startswith("exit"):
        os._exit(3)
    elif name.startswith("segfault"):
        os.kill(os.getpid(), signal.SIGSEGV)
    elif name.startswith("hang"):
        time.sleep(60)
    elif name.startswith("eat"):
        bytearray(1 << 40)
    elif name.startswith("refuse"):
        raise UnverifiedError("no kernel")
    elif name.startswith("brief"):
        time.sleep(0.01)


def _note(line: str) -> None:
    if path := os.environ.get(LOG):
        with Path(path).open("a") as log:
            log.write(f"{line}\n")


def measure_many(path: Path, count: int) -> None:
    """Measure layers of two forms each, for as long as one is let; to be killed."""
    bench_module.race = behaving
    workloads = [workload(f"layer{number:03}", "brief1", "brief2") for number in range(count)]
    with Store(path) as store:
        bench(store).measure(workloads, Budget(60.0))
