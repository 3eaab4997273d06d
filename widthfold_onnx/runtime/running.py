"""Finds the provider and the shapes at which a model runs, by running it.

It runs in a child process, so it imports nothing that only rewriting needs: that would take longer
than most models take to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from widthfold_onnx.options import Provider, RuntimeOptions, Shapes
from widthfold_onnx.runtime.inputs.recorded import stored_feeds
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.sessions.session import open_session


def running(
    model: Path, provider: Provider, fixed: Shapes, inputs: Sequence[str] = ()
) -> tuple[Provider, Shapes]:
    """Return the provider and the shapes of a model: those of stored inputs, else found by trying.

    Meant to run in `runtime.child.isolated`.

    Raises:
        UnverifiedError: the provider cannot be used, or no shapes were found.
        UsageError: stored inputs that the model does not take.
    """
    session = open_session(model, RuntimeOptions(provider=provider))
    if not inputs:
        return session.provider, dict(find_shapes(session, fixed))
    first, *_ = stored_feeds(Path(inputs[0]), session.inputs)
    return session.provider, {name: array.shape for name, array in first.feeds.items()}
