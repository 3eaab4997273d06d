"""Time a layer against its fold where it runs, and compare what both compute there.

A layer has fixed extents, so `verify` has no size to choose, and its checks of hundreds of MiB
would take longer than all the rest.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.evidence.timing.speed import time_models
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.results import Timing
from widthfold_onnx.runtime.inputs.feeds import random_feeds
from widthfold_onnx.runtime.inputs.sizes import find_shapes
from widthfold_onnx.runtime.session import open_session
from widthfold_onnx.system import load_average

WRONG = 1e-2
"""Largest difference / largest magnitude that rounding to float16 or TF32 explains."""


def timing_of(original: Path, rewritten: Path, options: VerifyOptions) -> Timing:
    """Compare the outputs of two models on one random input, then time both.

    Raises:
        UnverifiedError: a model does not run.
        CheckFailedError: the outputs differ by more than rounding explains.
    """
    sessions = [open_session(path, options, tf32=True) for path in (original, rewritten)]
    feeds = random_feeds(sessions[0].inputs, 0, find_shapes(sessions[0], {}))
    for (name, a), b in zip(
        sessions[0].run(feeds).items(), sessions[1].run(feeds).values(), strict=True
    ):
        expected = a.astype(np.float32)
        apart = float(np.abs(expected - b.astype(np.float32)).max() / np.abs(expected).max())
        if not apart <= WRONG:  # nor if it is no number
            raise CheckFailedError(f"WRONG: output {name} differs by {apart:.1e} of its largest")
    del sessions
    return time_models(load(original), load(rewritten), options, (), load=load_average())
