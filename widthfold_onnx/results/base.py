"""Parts that several results share. Results are frozen structs, and are also the JSON reports."""

from __future__ import annotations

from importlib import import_module
from typing import Literal

import msgspec

Verdict = Literal["pass", "fail", "unverified"]
"""What a check says: it holds, it does not, or that is not known."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results: frozen, keywords only."""


class Report(Result, kw_only=True, frozen=True):
    """Base of the result of a command, which a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        """Return the report as a part of a page: summary, tables, and pictures of times."""
        # By name: a notebook asks for it, and `reports` lies above the results that it renders.
        html = import_module("widthfold_onnx.reports.page.html")
        return str(html.part(self))


SpeedVerdict = Literal["faster", "slower", "no difference", "inconclusive"]
"""What an interval of original / rewritten says (`runtime.intervals.judge`)."""


class Gain(Result, kw_only=True, frozen=True):
    """Time as it is / time rewritten, with its bootstrap 95 % interval, from so many pairs.

    Where it is `predicted` nothing was timed: there are no pairs and no interval.
    """

    ratio: float
    low: float
    high: float
    pairs: int
    predicted: bool = False


class SizeGain(Result, kw_only=True, frozen=True):
    """The gain of the whole model at one size.

    Attributes:
        shapes: of every input.
        gain: None where the models were not timed at this size, or did not run.
        verdict: what the interval says beyond noise.
        original_ms: time of one run of the original; None where it was not timed.
        note: why there is no gain.
    """

    shapes: dict[str, list[int]]
    gain: Gain | None = None
    verdict: SpeedVerdict | None = None
    original_ms: float | None = None
    note: str = ""


class AssumedSizes(Result, kw_only=True, frozen=True):
    """Sizes that a run assumed where the model and the caller leave them open.

    Attributes:
        open: by input the open dimensions: the symbol of each, or its axis where it has none.
        sizes: shapes of these inputs, one or more assignments.
    """

    open: dict[str, list[str]]
    sizes: list[dict[str, list[int]]]
