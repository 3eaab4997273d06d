"""Shows a status line on a terminal, with a bar if the amount of work is known."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.text import printable

_BAR = 24
_TEXT = 100


@contextlib.contextmanager
def status() -> Iterator[Progress]:
    """Show steps on standard error, which is a terminal."""
    with Console(stderr=True).status("") as line:
        yield lambda step: line.update(_shown(step))


def _shown(step: Step) -> RenderableType:
    text = Text(printable(step.text, _TEXT))
    return _Counted(step, text) if step.total else text


class _Counted:
    """A step with its bar; the time left runs down between steps."""

    def __init__(self, step: Step, text: Text) -> None:
        self._step = step
        self._text = text
        self._start = time.monotonic()

    def __rich__(self) -> Table:
        bar = ProgressBar(total=self._step.total, completed=self._step.done, width=_BAR)
        line = Table.grid(padding=(0, 1))
        line.add_row(self._text, bar, *self._left())
        return line

    def _left(self) -> Iterator[Text]:
        if self._step.seconds_left is not None:
            left = self._step.seconds_left - (time.monotonic() - self._start)
            yield Text(f"{max(left, 0):.0f} s left")
