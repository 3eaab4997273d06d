"""Functions that test workers run in place of a race; a worker imports them by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import msgspec

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Shapes, VerifyOptions
from widthfold_onnx.tuning.effort import RaceOptions
from widthfold_onnx.tuning.measurement import AS_IS, SKIPPED, CandidateResult, Measurement, now
from widthfold_onnx.tuning.successive_halving import Send, Start
from widthfold_onnx.tuning.workloads import Workload

SECONDS = 0.2
MEETING = "MEETING"
"""The environment variable that names the folder in which races meet."""

GO_ON = "GO_ON"
"""The environment variable that names the file for which `halting` waits."""

PATIENCE = 60.0


def workloads(log: Path, count: int) -> list[Workload]:
    """Layers that say in their subject what becomes of them, and in their model where to log."""
    model = str(log).encode()
    return [Workload(f"layer {n}", model, (), 1, 1.0) for n in range(count)]


def noted(
    workload: Workload, options: RaceOptions, seconds: float, share: float
) -> list[CandidateResult]:
    """Log when it began and ended, and where; a layer may kill the worker, or call it broken."""
    log = Path(os.fsdecode(workload.model))
    began = time.monotonic()
    if "deadly" in workload.subject:
        _note(log, workload, began)
        os.kill(os.getpid(), signal.SIGKILL)
    if "fatal once" in workload.subject and not (scar := log.with_name("scar")).exists():
        scar.touch()
        _note(log, workload, began)
        os.kill(os.getpid(), signal.SIGKILL)
    if "claims" in workload.subject:
        with log.with_name("broken").open("a+") as claim:  # the first line is of the broken one
            claim.write(f"{os.getpid()}\n")
            claim.flush()
            claim.seek(0)
            broken = int(claim.readline())
        if broken == os.getpid():
            _note(log, workload, began)
            raise UnverifiedError("this worker has no device")
    time.sleep(SECONDS)
    _note(log, workload, began)
    measurement = Measurement("ok", 1.0, 1.0, 1.0, 1e-3, 4, "", now())
    return [CandidateResult(workload.subject, AS_IS, measurement)]


def _note(log: Path, workload: Workload, began: float) -> None:
    with log.open("a") as file:
        file.write(f"{os.getpid()}\t{workload.subject}\t{began}\t{time.monotonic()}\n")


def own_number() -> dict[str, str]:
    """Versions that are never the same."""
    return {"widthfold-onnx": str(os.getpid())}


def quick(
    workloads: Sequence[Workload], options: RaceOptions, seconds: float, *, send: Send
) -> None:
    """A race without a runtime, in which every form is as fast as the layer."""
    end = time.perf_counter() + seconds
    for index, workload in enumerate(workloads):
        if index and time.perf_counter() > end:
            return
        for key in (AS_IS, *(form.spec for form in workload.forms)):
            send(Start(workload.subject, key))
            measurement = Measurement.of_ratio(1.0, 1.0, 1.0, 1e-3, 4)
            send(CandidateResult(workload.subject, key, measurement))


def falling(
    workloads: Sequence[Workload], options: RaceOptions, seconds: float, *, send: Send
) -> None:
    """A race in which two forms are not run, each for another reason, and no other works."""
    for workload in workloads:
        quick([replace(workload, forms=())], options, seconds, send=send)
        for form, why in zip_longest(workload.forms, sorted(SKIPPED), fillvalue="no kernel"):
            send(CandidateResult(workload.subject, form.spec, Measurement.lost(why)))


def meeting(
    workloads: Sequence[Workload], options: RaceOptions, seconds: float, *, send: Send
) -> None:
    """A race that begins when two others have begun as well.

    Raises:
        UnverifiedError: they never did.
    """
    folder = Path(os.environ[MEETING])
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    end = time.monotonic() + PATIENCE
    while len(list(folder.iterdir())) < 3:
        if time.monotonic() > end:
            raise UnverifiedError("the others never came")
        time.sleep(0.02)
    quick(workloads, options, seconds, send=send)


def halting(
    workloads: Sequence[Workload], options: RaceOptions, seconds: float, *, send: Send
) -> None:
    """The first layer is raced, and then nothing more is heard until it is told to go on.

    Raises:
        UnverifiedError: it never was.
    """
    quick(workloads[:1], options, seconds, send=send)
    go_on = Path(os.environ[GO_ON])
    end = time.monotonic() + PATIENCE
    while not go_on.exists():
        if time.monotonic() > end:
            raise UnverifiedError("nobody said to go on")
        time.sleep(0.02)
    quick(workloads[1:], options, seconds, send=send)


def hopeless(
    workloads: Sequence[Workload], options: RaceOptions, seconds: float, *, send: Send
) -> None:
    """No runtime.

    Raises:
        UnverifiedError: always.
    """
    raise UnverifiedError("there is no runtime")


def sleeping(*args: object, level: object) -> None:
    """A comparison that never ends."""
    time.sleep(PATIENCE)


def slow_at_extended(
    model: Path, options: VerifyOptions, sizes: Sequence[Shapes]
) -> Iterator[list[Measurement]]:
    """Stand in for `time_levels`: a model that only level ALL suits."""
    slower = Measurement.of_ratio(0.5, 0.5, 0.5, 2.0, 50)
    slower = msgspec.structs.replace(slower, original_setting="all", setting="extended")
    yield from [[slower]] * len(sizes)
