"""Keep the rows of a run as they come, and continue a run that was interrupted."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmark.gpu import ceilings, check_conv, is_gpu, name_of
from benchmark.ranking import Compared, rank_correlation
from benchmark.report import Cell, Ranks, Row, Suite, read
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.results import Environment
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.environment import StartReadings, environment

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CONTINUED = ("machine", "provider", "onnxruntime")
"""What of the environment must be equal where a run is continued."""


class Task(NamedTuple):
    """A model to measure in a suite."""

    suite: str
    model: Path
    threads: int

    def __str__(self) -> str:
        """Name its row."""
        return str(self.row({}))

    def row(self, cells: dict[str, Cell]) -> Row:
        """The row without what only a measurement tells."""
        return Row(model=self.model.stem, layers=0, threads=self.threads, cells=cells)


class Kept:
    """The rows of one suite in a folder.

    The run begins, continues one that was interrupted, or replaces rows of single models.

    Args:
        path: of the JSON file.
        tasks: all models of the run.
        machine: where it runs.
        corrects: replace the rows of these models, and keep the others.

    Raises:
        UsageError: a run would be continued that was begun on another machine; or the file is not
            of this code.
    """

    def __init__(self, path: Path, tasks: list[Task], machine: Machine, *, corrects: bool) -> None:
        self.path, self.machine = path, machine
        earlier = read(path) if path.exists() else None
        if earlier is not None and (corrects or earlier.pending):
            self.suite = earlier
        else:
            self.suite = Suite(rows=[], ranks=None, environment=None)
        self.corrects = corrects and earlier is not None
        self.is_continued = bool(self.suite.pending) and not corrects
        self.pending, self.tasks = list(self.suite.pending), tasks
        if self.pending:
            self._check_machine()
        if not self.corrects:
            self.pending = self.pending or [str(task) for task in tasks]
            left = [task for task in tasks if str(task) in self.pending]
            self.tasks = sorted(left, key=lambda task: self.pending.index(str(task)))

    def _check_machine(self) -> None:
        """Refuse to continue what was begun elsewhere.

        Raises:
            UsageError: it was.
        """
        where = self.machine.where()
        now = {"device": self.machine.device, **{key: getattr(where, key) for key in CONTINUED}}
        then = {"device": self.suite.device, **(self.suite.environment or {})}
        for key, value in now.items():
            if then.get(key) != value:
                raise UsageError(
                    f"{self.path} holds a part of a run of {key} {then.get(key)!r}, not {value!r}: "
                    "choose another --out, or remove it"
                )

    def begin(self, task: Task | None = None) -> None:
        """Note that the run, or one of its models, begins.

        If that model ends the run, the others come first when it is continued.
        """
        if str(task) in self.pending:
            self.pending.remove(str(task))
            self.pending.append(str(task))
        self._write(self.suite.rows, self.suite.ranks, self.suite.compared)

    def add(self, task: Task, row: Row, forms: list[Compared]) -> None:
        """Keep a row."""
        self.pending = [name for name in self.pending if name != str(task)]
        rows = {str(row): row for row in [*self.suite.rows, row]}
        # Predictions are of one core.
        compared = [*self.suite.compared, *(forms if row.threads == 1 else [])]
        ranks = self.suite.ranks if self.corrects else ranked(compared)
        self._write(list(rows.values()), ranks, compared)

    def _write(self, rows: list[Row], ranks: Ranks | None, compared: list[Compared]) -> None:
        self.suite = Suite(
            rows=rows,
            ranks=ranks,
            environment=msgspec.to_builtins(self.machine.where()),
            pending=self.pending,
            compared=compared if self.pending else [],
            device=self.machine.device,
            ceilings=self.machine.ceilings,
        )
        self.path.write_bytes(msgspec.json.format(msgspec.json.encode(self.suite)))


@dataclass(frozen=True)
class Machine:
    """What models run on.

    Attributes:
        options: its provider.
        device: name of the GPU; "" on a CPU.
        ceilings: what the GPU does at most per second, by name.
        before: readings from before the run.
    """

    options: RuntimeOptions
    device: str = ""
    ceilings: dict[str, float] = field(default_factory=dict)
    before: StartReadings = field(default_factory=StartReadings)

    @classmethod
    def of(cls, provider: Provider, out: Path | None) -> Machine:
        """Ask a machine what it is; a GPU must compute one Conv as the CPU does.

        Raises:
            UnverifiedError: the provider cannot be used.
            CheckFailedError: it computes something else.
            UsageError: nobody tells the name of the GPU, and there is no folder for its results.
        """
        options = RuntimeOptions(provider=provider)
        if not is_gpu(provider):
            return cls(options)
        isolated(check_conv, options)
        device = name_of(options, "" if out is None else out.name)
        return cls(options, device, isolated(ceilings, options))

    def where(self) -> Environment:
        """Describe the machine now."""
        return environment(self.options, self.before)


def ranked(layers: list[Compared]) -> Ranks:
    """Rank correlations of the speed-up: of the forms within each layer, and of all forms."""
    pairs = [(p, m) for it in layers for p, m in zip(it.predicted, it.measured, strict=True)]
    return Ranks(
        forms=len(pairs),
        overall=rank_correlation([p for p, _ in pairs], [m for _, m in pairs]),
        layers={it.subject: rank_correlation(it.predicted, it.measured) for it in layers},
        scale=statistics.median(it.scale for it in layers) if layers else None,
    )


def default_out(machine: Machine) -> Path:
    """The folder of the results of a machine."""
    if not machine.device:
        return BENCHMARKS
    words = [machine.device, *([] if machine.options.provider == "cuda" else ["tensorrt"])]
    return BENCHMARKS / "gpu" / re.sub(r"\W+", "-", " ".join(words)).lower()
