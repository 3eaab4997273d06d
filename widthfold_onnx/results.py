"""What each verb returns. The same structs are the JSON reports; `schemas/` holds their schema.

Numbers that can be infinite or undefined are None in that case: JSON has no NaN.
"""

from __future__ import annotations

from typing import Literal

import msgspec

OPTIMIZE_SCHEMA = "widthfold.optimize/1"
VERIFY_SCHEMA = "widthfold.verify/1"
INSPECT_SCHEMA = "widthfold.inspect/1"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results: frozen, keywords only."""


class SiteReport(Result, kw_only=True, frozen=True):
    """What became of one site.

    Attributes:
        node: name of the node, or its op and first output where it has no name.
        graph: where the node is: "" for the main graph, else the path of names to it.
        op: operator type.
        status: folded; kept (foldable, but left alone on request or folded before); refused.
        axis: folded axes of the input, by name, joined by "+"; None unless folded.
        factor: output channels after / before; None unless folded.
        form: view or move, and the kind of fold, e.g. "view blocked"; None unless folded.
        code: stable word for the outcome, e.g. "folded", "already-wide".
        reason: one sentence with the numbers in it.
        flops_ratio: multiply-adds after / before; None unless folded.
    """

    node: str
    graph: str
    op: str
    status: Literal["folded", "kept", "refused"]
    axis: str | None = None
    factor: int | None = None
    form: str | None = None
    code: str
    reason: str
    flops_ratio: float | None = None


class OptimizeSummary(Result, kw_only=True, frozen=True):
    """Counts over all sites, and the size of the model file in bytes."""

    folded: int
    kept: int
    refused: int
    bytes_before: int
    bytes_after: int


class OutputParity(Result, kw_only=True, frozen=True):
    """The comparison of one output over all input sets; the worst figure of each kind.

    Attributes:
        max_abs: largest |a - b| over elements finite in both.
        max_rel: `max_abs` over the largest finite |reference| of the output.
        ulp: largest distance in units in the last place, None for non-float outputs.
        cosine: smallest cosine similarity, None where a side is all zero or not finite.
        nonfinite_match: same NaN positions, same Inf positions and signs.
        tolerance: the rtol that was applied to `max_rel`.
    """

    name: str
    dtype: str
    level: Literal["disabled", "all"]
    max_abs: float | None
    max_rel: float | None
    ulp: int | None
    cosine: float | None
    nonfinite_match: bool
    tolerance: float
    passed: bool
    note: str = ""


class ExactSite(Result, kw_only=True, frozen=True):
    """The integer probe of one rewritten site."""

    node: str
    verdict: Literal["exact", "different", "skipped"]
    reason: str


class Timing(Result, kw_only=True, frozen=True):
    """Paired timing of both models; `speedup` is original / rewritten, so above 1 is faster.

    Attributes:
        speedup: exp of the median log ratio of the pairs.
        low: lower end of the bootstrap 95 % interval of `speedup`.
        high: upper end.
        control: largest deviation from 1 that the A/A control showed in the same run.
        pairs: how many pairs were run.
        original_ms: median wall time of one run of the original.
        rewritten_ms: median wall time of one run of the rewritten model.
        verdict: faster or slower beyond the control, no difference, or inconclusive.
    """

    provider: str
    threads: int
    level: str
    pairs: int
    original_ms: float
    rewritten_ms: float
    speedup: float
    low: float
    high: float
    control: float
    verdict: Literal["faster", "slower", "no difference", "inconclusive"]


class Environment(Result, kw_only=True, frozen=True):
    """What a figure depends on."""

    widthfold: str
    onnxruntime: str
    provider: str
    machine: str
    cores: int
    load_before: float
    load_after: float


class VerifyReport(Result, kw_only=True, frozen=True):
    """Result of `verify`; `verdict` is what the exit code says."""

    schema: str = VERIFY_SCHEMA
    original: str
    rewritten: str
    outputs: list[OutputParity]
    exact: list[ExactSite]
    timing: Timing | None
    verdict: Literal["pass", "fail", "unverified"]
    reasons: list[str]
    input_sets: int
    environment: Environment


class OptimizeReport(Result, kw_only=True, frozen=True):
    """Result of `optimize`; `verification` is None where nothing was written or it was off."""

    schema: str = OPTIMIZE_SCHEMA
    model: str
    sites: list[SiteReport]
    summary: OptimizeSummary
    written: str | None
    verification: VerifyReport | None


class Choice(Result, kw_only=True, frozen=True):
    """One legal reformulation of a site, with its cost on paper."""

    axis: str
    factor: int
    form: str
    channels: str
    flops_ratio: float
    bytes_ratio: float
    structural_zeros: float


class InspectSite(Result, kw_only=True, frozen=True):
    """All that `inspect` knows about a site; None where a shape is not known."""

    node: str
    graph: str
    op: str
    input_shape: list[int | str] | None
    weight_shape: list[int] | None
    output_shape: list[int | str] | None
    attributes: str
    channels: str
    alignment: str
    flops: int | None
    folded_as: str | None
    choices: list[Choice]
    refusals: dict[str, str]


class InspectReport(Result, kw_only=True, frozen=True):
    """Result of `inspect`."""

    schema: str = INSPECT_SCHEMA
    model: str
    opset: int
    ir_version: int
    nodes: int
    sites: list[InspectSite]
