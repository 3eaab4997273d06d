"""Defines the options of what runs models: `verify`, `tune`, and `optimize`, which does both."""

from __future__ import annotations

import math
from typing import Any

import click

from widthfold_onnx.cli.options import Help
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider, Tolerance, VerifyOptions
from widthfold_onnx.text import printable

VALUE: Help = {
    "--value NAME=VALUE": "Value of an input that is no signal, such as a rate, e.g. sr=16000, or "
    "limits=0.1,0.9. Default for small inputs: what the model compares them with, else random.",
}
PROVIDER: Help = {
    "--provider NAME": f"Execution provider: {', '.join(Provider)}, or any other one as the "
    "runtime names it, ...ExecutionProvider; exit 4 if it cannot be used. auto: CUDA where that "
    "works, else the CPU. Single nodes that run on another provider are named.",
    "--provider-option NAME=VALUE": "Option of the execution provider, as ONNX Runtime names it, "
    "e.g. prefer_nhwc=1.",
    **VALUE,
    "--session-option NAME=VALUE": "Session config entry that you deploy with, as ONNX Runtime "
    "names it, e.g. session.x64quantprecision=1.",
}
VERIFYING: Help = {
    **PROVIDER,
    "--seeds": "Number of random input sets to compare.",
    "--inputs PATH": "Stored inputs to use as well: a test_data_set_* folder, .npz or .npy.",
    "--rtol [OUT:]TOL": {
        "multiple": True,
        "help": "Tolerance relative to the largest magnitude of an output, for all outputs or for "
        "OUT. Default: by dtype.",
    },
    "--atol": {
        "type": click.FLOAT,
        "default": Tolerance.atol,
        "show_default": True,
        "help": "Absolute tolerance.",
    },
}
"""Options of `VerifyOptions` for both commands that verify."""

SEARCHING: Help = {
    "--threads": "Threads of one operator (intra-op) while measuring; the fastest forms depend on "
    "it.",
    "--effort": "quick: time the forms that are predicted to be fastest, once, in about 20 s. "
    "default: time more of them, in under a minute. thorough: time every form of every layer, for "
    "minutes.",
    "--store": "File that keeps measurements. Default: $WIDTHFOLD_STORE, else a file in the user's "
    "cache.",
}
"""Options of `SearchOptions` for both commands that measure layers."""


def verify_options(*, rtol: tuple[str, ...], atol: float, **fields: Any) -> VerifyOptions:
    """Return the options of the verifier, given the others by field.

    Raises:
        UsageError: a tolerance that is none, or what the options refuse.
    """
    pairs = [_tolerance(text) for text in rtol]
    everywhere = [value for name, value in pairs if name is None]
    tolerance = Tolerance(
        rtol=everywhere[-1] if everywhere else None,
        atol=atol,
        per_output={name: value for name, value in pairs if name is not None},
    )
    return VerifyOptions(tolerance=tolerance, **fields)


def _tolerance(text: str) -> tuple[str | None, float]:
    """Read ``1e-4`` as (None, 1e-4), and ``out:1e-4`` as ("out", 1e-4).

    Raises:
        UsageError: no number, or a negative one.
    """
    name, colon, number = text.rpartition(":")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not (value >= 0 and math.isfinite(value)):
        raise UsageError(f"{printable(text)!r} is not a tolerance like 1e-4 or OUTPUT:1e-4")
    return (name if colon else None), value
