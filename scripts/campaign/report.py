"""Results of published.py: rows, their problems, and their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from benchmark.report import Row as ChartRow
from benchmark.report import Suite, conditions

from campaign.judge import Judgement
from widthfold_onnx.errors import UsageError

MOST_MIB = 4096
MOST_SECONDS = 120
"""What a command may take at `--effort quick`."""

LONGEST = 160
"""Characters of what the runtime says."""

HEAD = """\
| package and model | for | auto | OpenVINO | original ms | A/A control | layers | sizes |
|---|---|---|---|---|---|---|---|"""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was run.

    Attributes:
        name: of the command.
        code: its exit code, None if it was stopped.
        seconds: that it took.
        mib: the most memory that its processes held at once.
        last_line: of its output, or the limit that stopped it; empty where the code is 0. The JSON
            calls it `said`.
    """

    name: str
    code: int | None
    seconds: float
    mib: float
    last_line: str = msgspec.field(default="", name="said")

    def __str__(self) -> str:
        if self.code == 0:
            return ""
        ended = "stopped" if self.code is None else f"exit {self.code}"
        return f"{self.name}: {ended}, {self.last_line}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A model: its commands at the first size, and what the runtime says at every size.

    `failed` says why there is less than that.
    """

    name: str
    field: str
    effort: str
    layers: int = 0
    changed: bool = False
    commands: list[Command] = []
    sizes: list[Judgement] = []
    failed: str = ""

    @property
    def problems(self) -> list[str]:
        """Everything that must not be."""
        problems = [*filter(None, [self.failed, *map(str, self.commands)])]
        for it in self.commands:
            if it.mib > MOST_MIB:
                problems.append(f"{it.name}: {it.mib / 1024:.1f} GiB")
            if self.effort == "quick" and it.seconds > MOST_SECONDS:
                problems.append(f"{it.name}: {it.seconds:.0f} s")
        for size in self.sizes:
            if size.wrong:
                problems.append(f"at {size.size}: {size.wrong[:LONGEST]}")
            if size.auto.note == "slower":
                problems.append(f"at {size.size}: slower, {size.auto}")
        return problems


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, and where they were measured: the `results.Environment` of the code that ran."""

    rows: list[Row]
    environment: dict[str, Any]
    schema: str = "widthfold.published/1"

    def gains(self) -> list[Row]:
        """The models that are faster at the sizes of their owners, and right at all sizes."""
        return [
            row
            for row in self.rows
            if row.changed and not row.problems and row.sizes[0].auto.note == "faster"
        ]

    def suite(self) -> Suite:
        """The models that gain, for the chart."""
        rows = [
            ChartRow(
                model="\n".join(row.name.rsplit(" ", 1)),
                layers=row.layers,
                cells={"auto": row.sizes[0].auto, "OpenVINO": row.sizes[0].openvino},
            )
            for row in self.gains()
        ]
        return Suite(rows=rows, ranks=None, environment=None)

    def summary(self) -> str:
        """The table of the models that gain, and how many do not."""
        lines = [line for row in self.gains() for line in table(row)[:1]]
        others = len(self.rows) - len(lines)
        counts = f"Of {len(self.rows)} published models that were tried, {others} do not gain.\n"
        return "\n".join([HEAD, *lines, "", self.where(), counts])

    def markdown(self) -> str:
        """All models at all sizes, and their problems below."""
        lines = [HEAD, *(line for row in self.rows for line in table(row)), "", self.where()]
        wrong = [f"- {row.name}: {problem}" for row in self.rows for problem in row.problems]
        return "\n".join(lines + (["", "What is wrong:", "", *wrong] if wrong else [])) + "\n"

    def where(self) -> str:
        """One line on machine and versions."""
        where, efforts = self.environment, sorted({row.effort for row in self.rows})
        command = f"scripts/published.py --effort {' and '.join(efforts)}"
        return f"`{command}`: {conditions(where, '1 thread')}"


def table(row: Row) -> list[str]:
    """A line of Markdown per size; names stand in the first one."""
    names = f"{row.name} | {row.field}"
    lines = []
    for it in row.sizes:
        times = [c.original_ms for c in (it.auto, it.openvino) if c.original_ms is not None]
        controls = [c.control for c in (it.auto, it.openvino) if c.control is not None]
        figures = [
            (it.wrong and "wrong") or f"{it.auto}",
            f"{it.openvino}",
            f"{min(times):.3f}" if times else "",
            f"{1 + max(controls):.2f}" if controls else "",
            f"{row.layers}",
            it.size,
        ]
        lines.append(f"| {names} | {' | '.join(figures)} |")
        names = " | "
    return lines or [f"| {names} | {row.failed or 'did not run'} | | | | {row.layers} | |"]


def read(path: Path) -> Campaign:
    """Return what an earlier run wrote.

    Raises:
        UsageError: the file is missing, or its rows have an older form.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Campaign)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path.name} is stale or broken, measure again: {error}") from error
