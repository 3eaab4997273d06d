"""Keep the results of bench.py over time: a line of JSON per model and run, and a picture."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from benchmark.report import OPENVINO, PYTORCH, WAYS, Row, label_ratios, lengths, pyplot
from widthfold_onnx.errors import UsageError
from widthfold_onnx.results import Environment

FILE = "history.jsonl"
ACROSS = 2
"""Models beside each other in the picture."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the code: "" outside a repository, `dirty` if files differ from the commit."""

    commit: str
    dirty: bool

    def __str__(self) -> str:
        return f"{self.commit[:7] or 'no commit'}{' dirty' * self.dirty}"

    @classmethod
    def of(cls, root: Path) -> Self:
        """The state of a working tree, without the results in benchmarks/, which are not run."""

        def git(*arguments: str) -> str:
            command = ["git", "-C", str(root), *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        try:
            changed = git("status", "--porcelain", "--", ".", ":!benchmarks")
            return cls(commit=git("rev-parse", "HEAD").strip(), dirty=bool(changed))
        except (OSError, subprocess.CalledProcessError):
            return cls(commit="", dirty=False)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One model in one run."""

    code: Commit
    date: str
    machine: str
    versions: dict[str, str]
    row: Row


def append(out: Path, code: Commit, where: Environment, row: Row) -> None:
    """Add a model to the history in a folder."""
    entry = Entry(
        code=code,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{where.machine}, {where.cores} cores",
        versions={name: getattr(where, name) for name in ("widthfold", "onnxruntime", "python")},
        row=row,
    )
    with (out / FILE).open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")


def history(out: Path) -> list[Entry]:
    """The history in a folder, oldest first; nothing where there is none.

    Raises:
        UsageError: a line has another format than today's.
    """
    path, entries = out / FILE, []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except msgspec.MsgspecError as error:
            raise UsageError(f"{FILE}, line {number}: {error}") from error
    return entries


def draw_history(entries: list[Entry], path: Path) -> None:
    """The course of each model over commits, with intervals, as SVG; machines are not joined."""
    plt = pyplot()
    models = list(dict.fromkeys(str(entry.row) for entry in entries))
    machines = list(dict.fromkeys(entry.machine for entry in entries))
    down, shown = -(-len(models) // ACROSS), {}
    figure, grid = plt.subplots(
        down, ACROSS, figsize=(5 * ACROSS, 1 + 2.2 * down), layout="constrained", squeeze=False
    )
    for axes, model in zip(grid.flat, models, strict=False):
        own = [entry for entry in entries if str(entry.row) == model]
        commits = list(dict.fromkeys(str(entry.code) for entry in own))
        for color, name in enumerate((*WAYS, OPENVINO, PYTORCH)):
            for kind, machine in enumerate(machines):
                points = [
                    (commits.index(str(entry.code)), cell)
                    for entry in own
                    if entry.machine == machine
                    and (cell := entry.row.cells.get(name)) is not None
                    and cell.ratio is not None
                ]
                if not points:
                    continue  # a rival that is not installed has no place in the legend
                ratios, reach = lengths([cell for _, cell in points])
                shown[f"{name}, {machine}"] = axes.errorbar(
                    [at for at, _ in points],
                    ratios,
                    yerr=reach,
                    color=f"C{color}",
                    marker="osD^v"[kind % 5],
                    markersize=4,
                )
        axes.axhline(1, color="gray", linewidth=1)
        axes.set_title(model)
        axes.set_xticks(range(len(commits)), commits, rotation=30, ha="right")
        label_ratios(axes, axes.yaxis)
    for axes in grid.flat[len(models) :]:
        axes.remove()
    figure.legend(shown.values(), shown, loc="outside upper center", ncols=ACROSS)
    figure.supylabel("original / this (above 1 is faster)")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
