"""Shows the current step, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from widthfold_onnx.progress import Progress, silent


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Show steps on standard error if that is a terminal; show nothing anywhere else."""
    if not sys.stderr.isatty():
        yield silent
        return
    from widthfold_onnx.cli.status import status

    with status() as show:
        yield show
