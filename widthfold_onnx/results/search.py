"""Results of the search for the fastest forms."""

from __future__ import annotations

from typing import Literal

from widthfold_onnx.results.base import Result

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


class SearchReport(Result, kw_only=True, frozen=True):
    """The search that chose the forms.

    Attributes:
        provider: where everything ran.
        threads: intra-op threads.
        target: the device that was predicted for, be it only to try the best forms first.
        sizes: the whole model at each size; layers were measured at the first.
        layers: different layers that can be reformulated.
        forms: reformulations of all of them together.
        measured: how many measurements this run took; the others were in the store.
        left: layers that were to be measured, of which something is still not known.
        predicted: how many of the layers were judged by prediction, for want of measurements.
        interrupted: whether measuring was ended by hand.
        store_read_only: whether the store may only be read, so that nothing measured is kept.
        whole: the whole model, folded where that pays, against the original at its strongest
            setting, at the first size; None where no layer gained, or nothing was to be measured.
        control: deviation from 1 of the sessions of the original against each other in that trial.
        bar: ratio that the low end of `whole` must exceed, as noise counts up to it.
        failure: the model that did not run in that trial, and why; "" where both did.
        note: what else was seen of the original at its settings.
        original_setting: of the runtime, such as its level, at which the original is fastest; ""
            where that was not timed.
        folded_setting: the same for the folded model.
        accepted: whether that is faster beyond the noise at one size and slower at none, or was
            not timed; if not, nothing is folded.
    """

    provider: str
    threads: int
    target: str
    sizes: list[SizeGain]
    layers: int
    forms: int
    measured: int
    left: int
    predicted: int
    interrupted: bool
    store_read_only: bool
    whole: Gain | None
    accepted: bool
    control: float = 0.0
    bar: float = 0.0
    failure: str = ""
    note: str = ""
    original_setting: str = ""
    folded_setting: str = ""
