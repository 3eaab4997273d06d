"""Results as tables: framed on a terminal, plain columns in a pipe. The only file that prints."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from widthfold_onnx.errors import UsageError
from widthfold_onnx.evidence.rows import ILL_CONDITIONED
from widthfold_onnx.results import (
    InspectReport,
    InspectSite,
    OptimizeReport,
    OutputParity,
    SiteReport,
    Timing,
    VerifyReport,
)
from widthfold_onnx.text import printable

STYLES = {
    "folded": "green",
    "kept": "cyan",
    "refused": "dim",
    "pass": "bold green",
    "exact": "green",
    "fail": "bold red",
    "different": "bold red",
    "unverified": "bold yellow",
    "skipped": "yellow",
}
Cell = str | list[str]
"""The text of a cell, or its lines."""

_PIPE_WIDTH = 10_000
_LONGEST = 400
_NAME_WIDTH = 36


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Print whatever the encoding; a reader that left early is no fault, a full disk is one."""
    if sys.stdout is None:  # the caller closed it: there is nobody to print for
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would fail again when the interpreter ends.
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123 - os.devnull is no path of ours
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UsageError(f"cannot write the table: {error.strerror}") from error


@_printing()
def show_optimize(report: OptimizeReport) -> None:
    """What became of every site, then the sum."""
    _table(
        ["node", "status", "axis", "factor", "form", "MACs", "why"],
        [_site(site) for site in report.sites],
    )
    counts = report.summary
    line = f"{counts.folded} of {len(report.sites)} Conv nodes folded"
    if counts.kept:
        line += f", {counts.kept} kept"
    if report.written is None:
        line += "; nothing written"
    elif counts.folded:
        sizes = f"{_bytes(counts.bytes_before)} -> {_bytes(counts.bytes_after)}"
        line += f"; wrote {report.written} ({sizes})"
    else:
        line += f"; {report.written} is a copy of {report.model}"
    _say(line)
    if report.verification is not None:
        _say(_verdict(report.verification))


@_printing()
def show_verify(report: VerifyReport) -> None:
    """Verdict, outputs, probed sites and time."""
    _table(
        [
            "output",
            "runtime level",
            "max abs",
            "max rel",
            "allowed",
            "ulp",
            "cosine",
            "passed",
            "note",
        ],
        [_output(row) for row in report.outputs],
    )
    if report.exact:
        _table(
            ["rewritten node", "probe", "how"],
            [[s.node, s.verdict, s.reason] for s in report.exact],
        )
    if report.timing is not None:
        _say(_timing(report.timing))
    _say(_verdict(report))
    for reason in report.reasons:
        _say(f"  {reason}")


@_printing()
def show_inspect(report: InspectReport) -> None:
    """Every site, its cost and what each fold would do."""
    _table(
        [
            "node",
            "input",
            "weight",
            "geometry",
            "channels",
            "of 8-wide tiles",
            "MACs",
            "folds, cheapest first",
        ],
        [_inspected(site) for site in report.sites],
    )
    _say(f"{report.model}: {report.nodes} nodes, {len(report.sites)} Conv, opset {report.opset}")


def _site(site: SiteReport) -> list[str]:
    where = f"{site.node} in {site.graph}" if site.graph else site.node
    ratio = "" if site.flops_ratio is None else f"{site.flops_ratio:.2f}x"
    factor = "" if site.factor is None else str(site.factor)
    why = site.reason if site.status == "folded" else f"{site.code}: {site.reason}"
    return [where, site.status, site.axis or "", factor, site.form or "", ratio, why]


def _output(row: OutputParity) -> list[str]:
    def figure(value: float | None) -> str:
        return "-" if value is None else f"{value:.2g}"

    return [
        row.name,
        row.level,
        figure(row.max_abs),
        figure(row.max_rel),
        figure(row.tolerance),
        "-" if row.ulp is None else str(row.ulp),
        "-" if row.cosine is None else f"{row.cosine:.7f}",
        "pass" if row.passed else "fail",
        row.note,
    ]


def _inspected(site: InspectSite) -> list[Cell]:
    folds = [
        f"{c.axis} by {c.factor}: {c.channels}, {c.flops_ratio:.2f}x MACs, {c.form}"
        for c in site.choices
    ]
    if site.folded_as is not None:
        folds = [f"folded: {site.folded_as}"]
    refusals = [f"no fold of {axis}: {reason}" for axis, reason in site.refusals.items()]
    return [
        f"{site.node} in {site.graph}" if site.graph else site.node,
        _shape(site.input_shape),
        _shape(site.weight_shape),
        site.attributes,
        site.channels,
        site.alignment,
        "" if site.flops is None else f"{site.flops:,}",
        [*folds, *refusals],
    ]


def _verdict(report: VerifyReport) -> str:
    exact = sum(site.verdict == "exact" for site in report.exact)
    errors = [row.max_rel for row in report.outputs if row.max_rel is not None]
    forgiven = {row.name for row in report.outputs if row.note.startswith(ILL_CONDITIONED)}
    line = f"verdict: {report.verdict}; {report.input_sets} input sets"
    if errors:
        line += f", largest relative error {max(errors):.1e}"
    if forgiven:
        line += (
            f" ({len(forgiven)} outputs judged by how far one rounding of the inputs moves them)"
        )
    if report.exact:
        line += f"; {exact} of {len(report.exact)} rewritten nodes exact on integers"
    return line


def _timing(timing: Timing) -> str:
    return (
        f"time: {timing.verdict}; original / rewritten = {timing.speedup:.3f} "
        f"[{timing.low:.3f}, {timing.high:.3f}], A/A control {1 + timing.control:.3f}, "
        f"{timing.pairs} pairs, {timing.original_ms:.3f} ms and {timing.rewritten_ms:.3f} ms "
        f"on {timing.provider}, {timing.threads} thread(s), level {timing.level}"
    )


def _shape(dims: Sequence[int | str] | None) -> str:
    return "" if dims is None else "x".join(map(str, dims))


def _bytes(count: int) -> str:
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    if not rows:
        return
    console = _console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not console.is_terminal)
    used = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    table.columns = [table.columns[i] for i in used]
    for row in rows:
        cells = ([cell] if isinstance(cell := row[i], str) else cell for i in used)
        lines = ([printable(line, _LONGEST) for line in cell] for cell in cells)
        shown = [("\n" if console.is_terminal else "; ").join(cell) for cell in lines]
        if console.is_terminal:
            shown[0] = _shortened(shown[0])
        table.add_row(*(Text(text, STYLES.get(text, "")) for text in shown))
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        sys.stdout.write(f"{_tame(line.rstrip())}\n")


def _shortened(name: str) -> str:
    """Exporters write names of hundreds of characters; on a terminal both ends tell enough."""
    if len(name) <= _NAME_WIDTH:
        return name
    half = _NAME_WIDTH // 2
    return f"{name[: half - 1]}…{name[-half:]}"


def _tame(line: str) -> str:
    """A line that begins with two colons would be a command to the log of some CI services."""
    return f"| {line}" if line.lstrip().startswith("::") else line


def say(line: str) -> None:
    """Print one line, escaped."""
    with _printing():
        _say(line)


def _say(line: str) -> None:
    _console().print(Text(_tame(printable(line, 2000))), soft_wrap=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Say so, where rich would exit with a code of its own."""
        raise BrokenPipeError


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return _Console(
        width=None if terminal else _PIPE_WIDTH,
        force_terminal=terminal,  # not even FORCE_COLOR puts control codes into a pipe
        highlight=False,
        soft_wrap=False,
    )
