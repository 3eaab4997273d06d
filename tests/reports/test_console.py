"""Tables and lines in a terminal and in a pipe."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.tool import on_terminal
from tests.small_models import MODELS, build, save
from widthfold_onnx.errors import UsageError
from widthfold_onnx.reports import console
from widthfold_onnx.reports.console import printing, say, show, table
from widthfold_onnx.reports.described import described
from widthfold_onnx.reports.description import Cell, Column, Table, tabulated
from widthfold_onnx.results import OptimizeReport, OptimizeSummary, SiteReport


def table_of(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    columns = [Column(name, itemgetter(at)) for at, name in enumerate(headings)]
    (cells,) = tabulated("rows", columns, rows)
    return cells


def test_a_long_cell_in_a_pipe_widens_no_other_row(capsys: pytest.CaptureFixture[str]) -> None:
    table(table_of(["node", "status"], [["x" * 300, "folded"], ["short", "refused"]]))
    head, long, short = capsys.readouterr().out.splitlines()
    assert long == "x" * 300 + "  folded"
    assert len(short) < 70
    assert head.index("status") == short.index("refused")


def test_lines_in_a_pipe_are_one_row_without_blanks_at_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table(table_of(["a", "b", "c"], [["1", "", ["x", "y"]], ["22", "", []]]))
    assert capsys.readouterr().out == "a   c\n1   x; y\n22\n"


def named(text: str) -> Table:
    columns = [Column("node", itemgetter(0), names=True), Column("why", itemgetter(1))]
    (cells,) = tabulated("rows", columns, [[text, "x" * 300], ["short", "no"]])
    return cells


def test_a_pipe_shortens_names_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    name = "first/" + "middle/" * 40 + "last"
    table(named(name))
    _, line, _ = capsys.readouterr().out.splitlines()
    short, text = line.split()
    assert len(short) <= 48
    assert short.startswith("first/")
    assert short.endswith("/last")
    assert text == "x" * 300
    table(named(name), whole_names=True)
    assert capsys.readouterr().out.splitlines()[1].split() == [name, "x" * 300]


def test_a_terminal_wraps_names_that_shall_be_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "".join(f"{place:03}/" for place in range(25))
    terminal = console._Console(width=80, force_terminal=True, no_color=True, highlight=False)
    monkeypatch.setattr(console, "_console", lambda: terminal)
    table(named(name), whole_names=True)
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    column = [line.split("  ")[0] for line in lines[2:]]
    assert "".join(column[: column.index("short")]) == name


@pytest.mark.parametrize("columns", [60, 80])
def test_sentences_stand_below_their_row_where_the_terminal_is_narrow(columns: int) -> None:
    model = MODELS / "pitch_cnn.onnx"
    run = on_terminal("inspect", model, "--details", columns=columns, env={"NO_COLOR": "1"})
    lines = re.sub(r"\x1b\[\d+m|\r", "", run.out).splitlines()
    assert max(map(len, lines)) <= columns
    at = lines.index("    kernel 3x39, stride 1x1, pads 1,1 19,19")
    assert lines[at - 1].startswith("context ")
    assert lines[at + 1].startswith("    width by 8: ")


@pytest.mark.parametrize("columns", [80, 400])
def test_tables_begin_alike_however_wide_the_terminal_is(columns: int) -> None:
    run = on_terminal("inspect", MODELS / "chain.onnx", columns=columns, env={"NO_COLOR": "1"})
    lines = re.sub(r"\x1b\[\d+m|\r", "", run.out).splitlines()
    assert lines[0].startswith("node ")
    assert set(lines[1].strip()) == {"─"}
    assert [at for at, line in enumerate(lines) if not line.strip()] == [len(lines) - 2]


def test_a_terminal_wraps_a_sentence_between_words(tmp_path) -> None:
    path = save(build(), tmp_path / "m.onnx")
    run = on_terminal("verify", path, path, "--no-timing", "--seeds", 1, columns=30)
    assert run.code == 0
    (line,) = (it for it in run.out.replace("\r", "").splitlines() if it.startswith("verdict:"))
    assert line.split()[-1] in ("set,", "sets,", "input", "largest")


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (errno.EPIPE, contextlib.nullcontext()),
        (errno.EINVAL, contextlib.nullcontext()),  # as on Windows
        (errno.ENOSPC, pytest.raises(UsageError, match="No space left")),
    ],
)
def test_a_reader_that_left_is_no_error(
    number: int,
    outcome: contextlib.AbstractContextManager[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(fileno=file.fileno, flush=fail))
        with outcome, printing():
            pass


def test_no_line_begins_like_a_command_to_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    site = SiteReport(
        node="::error file=a::pwned",
        graph="",
        op="Conv",
        status="refused",
        code="already-wide",
        reason="::warning::no",
    )
    counts = OptimizeSummary(folded=0, kept=0, refused=1, bytes_before=1, bytes_after=1)
    report = OptimizeReport(
        model="m", sites=[site], regions=[], summary=counts, written=None, verification=None
    )
    show(described(report))
    say("  ::stop-commands::x")
    out = capsys.readouterr().out
    assert "::error" in out
    assert not [line for line in out.splitlines() if line.lstrip().startswith("::")]
