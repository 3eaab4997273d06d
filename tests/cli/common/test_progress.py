"""The status line: a bar with the time left on a terminal, nothing in a pipe."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from widthfold_onnx.cli import common
from widthfold_onnx.cli.common import StatusLine, status_line
from widthfold_onnx.progress import Step, progress


def drawn(item: object) -> str:
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=80, color_system="standard").print(item)
    return re.sub(r"\x1b\[0?m", "", stream.getvalue()).rstrip("\n ")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(common, "time", clock)
    return clock


def test_what_is_not_counted_is_its_text(clock: SimpleNamespace) -> None:
    assert drawn(StatusLine(Step("writing"))) == "writing"
    assert "\x1b[2J" not in drawn(StatusLine(Step("a\x1b[2Jb\nc")))


def test_what_is_counted_has_a_bar_and_the_time_that_is_left_runs_down(
    clock: SimpleNamespace,
) -> None:
    shown = StatusLine(Step("measuring layer 4 of 4", 3, 4, 9.4))
    line = drawn(shown)
    assert line.startswith("measuring layer 4 of 4 ")
    assert line.endswith(" 9 s left")
    assert line.count("━") == common._STATUS_BAR - 1  # and half a sign between both parts
    done = re.search("\x1b\\[91m(━+)", line)
    assert done is not None
    assert len(done[1]) == common._STATUS_BAR * 3 / 4
    clock.now = 5.0
    assert drawn(shown).endswith(" 4 s left")
    clock.now = 50.0
    assert drawn(shown).endswith(" 0 s left")
    assert not drawn(StatusLine(Step("x", 1, 2))).endswith("left")


def test_a_pipe_gets_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with status_line():
        progress(Step("measuring", 1, 2, 3.0))
    assert capfd.readouterr() == ("", "")
