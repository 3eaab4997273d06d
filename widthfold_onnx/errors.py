"""Define the errors of widthfold; each class has the exit code that the command line returns.

0: done
1: a check failed: outputs, the proof, or ``--check`` found work to do
2: usage: a wrong option, an input that is not there, an output that cannot be written
3: the model is invalid or uses something widthfold does not support
4: could not verify: a provider, a kernel or usable inputs are missing
5: nothing was changed although ``--require-fold`` was given
70: a fault of widthfold itself
130: interrupted
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class WidthfoldError(Exception):
    """Base of every error that widthfold raises on purpose; the message is one line."""

    exit_code = 70


class CheckFailedError(WidthfoldError):
    """A check did not hold: the new model differs, a plan does not fit, or there is work to do."""

    exit_code = 1


class UsageError(WidthfoldError):
    """An option, a path or an argument that cannot be used as given."""

    exit_code = 2


class InvalidModelError(WidthfoldError):
    """The model is broken, hostile, or uses a feature that is not supported."""

    exit_code = 3


class UnverifiedError(WidthfoldError):
    """The models cannot be judged: provider, kernel, runtime or usable inputs are missing."""

    exit_code = 4


class GivenUpError(UnverifiedError):
    """A search ran out of time; no verdict may rest on what it had found until then."""


class NoKernelError(UnverifiedError):
    """The runtime has no kernel for an operator of a model at its element type."""


class NothingChangedError(WidthfoldError):
    """Nothing of the model was changed, and the caller asked for an error in that case."""

    exit_code = 5


class InternalError(WidthfoldError):
    """An invariant of widthfold is broken: a bug of ours, never of the user's."""

    exit_code = 70


LOG = logging.getLogger("widthfold")


def note_swallowed(consequence: str) -> None:
    """Log the exception being handled, with its traceback; `--debug` shows it.

    A library may raise any exception on a node that it does not know, so such exceptions are
    caught, and a fault of ours may be among them.

    Args:
        consequence: what is done instead of raising an error.
    """
    LOG.debug("%s:", consequence, exc_info=sys.exception())


@contextmanager
def shown_log() -> Iterator[None]:
    """Write what is logged to the standard error of this process."""
    handler, level = logging.StreamHandler(), LOG.level
    LOG.setLevel(logging.DEBUG)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
