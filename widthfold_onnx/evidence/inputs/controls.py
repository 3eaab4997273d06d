"""Finds values of small inputs with which a model shows something.

Scalars and small vectors are often limits, thresholds, rates or switches: drawn at random they may
mask every output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.parity.outputs import says_nothing
from widthfold_onnx.evidence.parity.runs import Outputs
from widthfold_onnx.runtime.sessions.session import Session

SMALL = 4
"""Scalars and vectors of at most so many elements are tried."""

VALUES = (0.0, 1.0, 0.1, 10.0, 100.0, 1e4, 1e6)
"""Values of an element; all pairs are tried, so two scalars come in both orders."""

TRIES = 64
"""Combinations that are tried, chosen at random where there are more."""


def shown(outputs: Outputs) -> int:
    """Count the outputs that show something."""
    return sum(not says_nothing(value) for value in outputs.values())


def controls(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return values of the small inputs with which most outputs show something, {} if none does.

    Args:
        session: of the original.
        feeds: a random input set.
    """
    chosen = {port.name for port in session.inputs if port.value}
    small = {
        name: x
        for name, x in feeds.items()
        if name not in chosen and x.ndim <= 1 and x.size <= SMALL and x.dtype.kind in "fiub"
    }
    best: dict[str, Array] = {}
    most = 0
    for values in _combinations(sum(x.size for x in small.values())) if small else ():
        rest = iter(values)
        tried = {
            name: np.array([next(rest) for _ in range(x.size)]).reshape(x.shape).astype(x.dtype)
            for name, x in small.items()
        }
        try:
            outputs = session.run({**feeds, **tried})
        except UnverifiedError:
            continue
        if shown(outputs) > most:
            best, most = tried, shown(outputs)
        if most == len(outputs):
            break
    return best


def _combinations(count: int) -> Iterator[tuple[float, ...]]:
    if len(VALUES) ** count <= TRIES:
        yield from product(VALUES, repeat=count)
        return
    rng = np.random.default_rng(count)
    for _ in range(TRIES):
        yield tuple(rng.choice(VALUES, count))
