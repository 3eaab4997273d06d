"""Defines the options of what runs models: `verify`, and `optimize` where it verifies."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from widthfold_onnx.cli.common import Word
from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider, Shapes, Tolerance, VerifyOptions
from widthfold_onnx.text import printable, quoted


@dataclass(frozen=True)
class VerifyArguments:
    """The arguments as typed."""

    provider: Provider
    seeds: int
    inputs: tuple[str, ...]
    rtol: tuple[str, ...]
    atol: float
    provider_options: tuple[str, ...]
    session_options: tuple[str, ...]

    def options(
        self,
        shapes: Shapes,
        *,
        thorough: bool,
        truth_budget: float = 0.0,
        threads: int = 1,
        streams: int = 1,
        time_budget: float = 0.0,
        baseline: Path | None = None,
        fail_under: float | None = None,
        freeze_weights: bool = False,
    ) -> VerifyOptions:
        """Convert to options of the verifier; a time budget of 0 skips timing.

        Raises:
            UsageError: a tolerance or an assignment that is none, no input set, or a required
                speed without timing.
        """
        pairs = [_tolerance(text) for text in self.rtol]
        everywhere = [value for name, value in pairs if name is None]
        if not (self.atol >= 0 and math.isfinite(self.atol)):
            raise UsageError(f"--atol {self.atol} is no tolerance")
        if self.seeds < (0 if self.inputs else 1):
            raise UsageError("--seeds must be at least 1 unless --inputs are given")
        return VerifyOptions(
            provider=self.provider,
            provider_options=assignments(self.provider_options, "--provider-option"),
            session_options=assignments(self.session_options, "--session-option"),
            seeds=self.seeds,
            inputs=self.inputs,
            input_shapes=shapes,
            freeze_weights=freeze_weights,
            tolerance=Tolerance(
                rtol=everywhere[-1] if everywhere else None,
                atol=self.atol,
                per_output={name: value for name, value in pairs if name is not None},
            ),
            truth_budget=truth_budget,
            thorough=thorough,
            timing=time_budget != 0,
            threads=threads,
            streams=streams,
            time_budget=time_budget,
            baseline=baseline,
            fail_under=fail_under,
        )


PROVIDER = click.option(
    "--provider",
    type=Word(Provider),
    default="auto",
    show_default=True,
    help="Execution provider; exit 4 if it cannot be used. auto: CUDA where that works, else "
    "the CPU. Single nodes that run on another provider are named.",
)
PROVIDER_OPTIONS = click.option(
    "--provider-option",
    "provider_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the execution provider, as ONNX Runtime names it, e.g. prefer_nhwc=1.",
)
SESSION_OPTIONS = click.option(
    "--session-option",
    "session_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Session config entry that you deploy with, as ONNX Runtime names it, e.g. "
    "session.x64quantprecision=1.",
)


def verify_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options; the command gets one `running` argument of type VerifyArguments."""

    @functools.wraps(command)
    def collect(**arguments: Any) -> Any:
        names = [field.name for field in dataclasses.fields(VerifyArguments)]
        running = VerifyArguments(**{name: arguments.pop(name) for name in names})
        return command(running=running, **arguments)

    decorators = [
        PROVIDER,
        PROVIDER_OPTIONS,
        SESSION_OPTIONS,
        click.option(
            "--seeds",
            type=int,
            default=5,
            show_default=True,
            help="Number of random input sets to compare.",
        ),
        click.option(
            "--inputs",
            multiple=True,
            metavar="PATH",
            help="Stored inputs to use as well: a test_data_set_* folder, .npz or .npy.",
        ),
        click.option(
            "--rtol",
            multiple=True,
            metavar="[OUT:]TOL",
            help="Tolerance relative to the largest magnitude of an output, for all outputs or "
            "for OUT. Default: by dtype.",
        ),
        click.option(
            "--atol", type=float, default=0.0, show_default=True, help="Absolute tolerance."
        ),
    ]
    for decorator in reversed(decorators):
        collect = decorator(collect)
    return collect


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


def assignments(texts: Iterable[str], option: str) -> dict[str, str]:
    """Read the values of an option of the form NAME=VALUE.

    Raises:
        UsageError: one has no name, or no "="; or two give one name other values.
    """
    given: dict[str, str] = {}
    for name, value in (_assignment(text, option) for text in texts):
        if given.setdefault(name, value) != value:
            both = " and ".join(quoted(f"{name}={item}") for item in (given[name], value))
            raise UsageError(f"{option} is given {both}")
    return given


def _assignment(text: str, option: str) -> tuple[str, str]:
    """Read ``prefer_nhwc=1`` as ("prefer_nhwc", "1"); the value may hold "=" and may be empty.

    Raises:
        UsageError: no name, or no "=".
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} {quoted(text)} is not of the form NAME=VALUE")
    return name, value
