"""Report the steps of the running command to its caller.

    with progress_to(print):
        progress(Step("planning"))  # also from any function that the block calls

A listener that raises ends the command at that step. It belongs to the block, not to the process:
two commands in two threads have two listeners. A thread or process that is started in the block
has no listener; it opens a block of its own, whose listener passes the steps on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A step that has begun.

    Attributes:
        text: one line, with names of a model as they are.
        done: how many of `total` are done.
        total: 0 if unknown.
        seconds_left: upper bound of the remaining time; None where there is none.
    """

    text: str
    done: int = 0
    total: int = 0
    seconds_left: float | None = None


READING = Step("reading the model")
"""The first step of a command. `load` does not report it, as it also reads files that we wrote."""

Listener = Callable[[Step], None]
"""A function of the caller, which gets each step."""


def silent(step: Step) -> None:
    """Ignore a step."""


_listener: ContextVar[Listener] = ContextVar("listener", default=silent)


def progress(step: Step) -> None:
    """Call the listener with a step that begins; an exception of the listener passes through."""
    _listener.get()(step)


@contextmanager
def progress_to(listener: Listener) -> Iterator[None]:
    """Call a function with every step that the block reports.

    Steps that the function itself reports go to the listener of the enclosing block. So it can
    pass steps on: ``progress_to(lambda step: progress(replace(step, text=...)))``.
    """
    around = _listener.get()

    def hear(step: Step) -> None:
        with _bound(around):
            listener(step)

    with _bound(hear):
        yield


@contextmanager
def _bound(listener: Listener) -> Iterator[None]:
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
