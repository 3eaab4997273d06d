"""Defines the options of the search for the fastest forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from widthfold_onnx.cli.common import Word
from widthfold_onnx.options import Effort, SearchOptions, VerifyOptions


@dataclass(frozen=True)
class SearchArguments:
    """The arguments as typed."""

    threads: int
    effort: Effort
    time_budget: float | None
    store: Path | None
    target: str | None
    no_measure: bool

    def options(self, running: VerifyOptions) -> SearchOptions:
        """Convert to options of the search, which measures where the result is verified."""
        from widthfold_onnx.plan.predict.targets import target
        from widthfold_onnx.plan.store.store import default_path

        if self.target is not None:
            target(self.target)  # refuse a wrong name at a fixed factor too
        return SearchOptions(
            provider=running.provider,
            provider_options=running.provider_options,
            session_options=running.session_options,
            threads=self.threads,
            effort=self.effort,
            time_budget=self.time_budget,
            store=self.store or default_path(),
            target=self.target,
            measure=not self.no_measure,
            inputs=running.inputs,
        )


THREADS = click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads of one operator (intra-op) while measuring; the fastest forms depend on it.",
)
EFFORT = click.option(
    "--effort",
    type=Word(Effort),
    default="default",
    show_default=True,
    help="quick: time the forms that are predicted to be fastest, once, in about 20 s. default: "
    "time more of them, in under a minute. thorough: time every form of every layer, for minutes.",
)
STORE = click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="File that keeps measurements. Default: $WIDTHFOLD_STORE, else a file in the user's "
    "cache.",
)


def search_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets one `searching` argument of type SearchArguments."""

    @functools.wraps(command)
    def collect(**arguments: Any) -> Any:
        names = ("threads", "effort", "time_budget", "store", "target", "no_measure")
        searching = SearchArguments(**{name: arguments.pop(name) for name in names})
        return command(searching=searching, **arguments)

    decorators = [
        THREADS,
        EFFORT,
        click.option(
            "--time-budget",
            type=click.FloatRange(min=0, min_open=True),
            help="Seconds for measuring layers; timing the whole model comes on top. Default: by "
            "--effort. Ctrl-C ends measuring early, with exit code 130.",
        ),
        STORE,
        click.option(
            "--target",
            metavar="NAME",
            help="Device to predict times for: cpu-avx512, cpu-avx2, a100, h100 or h200. "
            "Predictions order the measurements, or replace them (--no-measure). Default: by this "
            "machine's CPU.",
        ),
        click.option(
            "--no-measure",
            is_flag=True,
            help="Measure nothing: decide by the store, else fold where at least 1.25x is "
            "predicted.",
        ),
    ]
    for decorator in reversed(decorators):
        collect = decorator(collect)
    return collect
