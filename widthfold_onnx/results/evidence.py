"""Results of `verify`: outputs compared, models proved equal; times are in `results.timing`.

Numbers that can be infinite or undefined are None in that case: JSON has no NaN.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from widthfold_onnx.results.base import AssumedSizes, Report, Result, Verdict
from widthfold_onnx.results.timing import Timing

VERIFY_SCHEMA = "widthfold.verify/7"


class WorstElement(Result, kw_only=True, frozen=True):
    """The element with the largest finite difference."""

    index: list[int]
    original: float
    rewritten: float


LevelName = Literal["disabled", "all"]
"""Optimization levels at which outputs are compared."""

Caveat = Literal["", "meaningless", "ill-conditioned", "unsteady"]
"""Why a comparison shows less than it seems to; "" where it does not.

Meaningless: the values can show nothing. Ill-conditioned: the output is beyond the tolerance, and
rounding moves the original as far. Unsteady: the original does not repeat its values, so there is
nothing to compare with.
"""


class OutputParity(Result, kw_only=True, frozen=True):
    """The comparison of one output on the input set on which it is nearest to failing.

    Attributes:
        max_abs: largest |a - b| over elements finite in both; a is the reference, in float64 where
            that is known.
        mean_abs: mean |a - b| over the same elements.
        max_rel: `max_abs` over the largest finite |reference| of the output.
        nonfinite_match: same NaN positions, same Inf positions and signs.
        worst: the element that differs most, None where none differs.
        movement: how far rounding moves the original, relative like `max_rel`; None where that was
            not measured.
        tolerance: the largest `max_rel` that was allowed.
        note: what else was seen, for people; `caveat` is for programs.
    """

    name: str
    dtype: str
    level: LevelName
    max_abs: float | None
    mean_abs: float | None
    max_rel: float | None
    nonfinite_match: bool
    worst: WorstElement | None
    movement: float | None
    tolerance: float
    passed: bool
    note: str = ""
    caveat: Caveat = ""


class AxisPattern(Result, kw_only=True, frozen=True):
    """The fold of one axis of a site, for drawing.

    Attributes:
        axis: batch, depth, height or width; rows or columns of a product of matrices.
        in_tile: input positions per folded position, P.
        out_tile: output positions per folded position, F.
        blocked: the tile is the outer part of the index.
        in_length: input extent that was planned with, extended as the fold needs; None where any
            will do.
        original_kernel: taps of the original.
        kernel: taps of the folded Conv.
        stride: of the folded Conv.
        taps: for every placed weight its place in the output tile and in the input tile, its
            kernel position, and the original tap; none where there are too many to record.
    """

    axis: str
    in_tile: int
    out_tile: int
    blocked: bool
    in_length: int | None
    original_kernel: int
    kernel: int
    stride: int
    taps: list[tuple[int, int, int, int]]


class FoldedNode(Result, kw_only=True, frozen=True):
    """The record of a folded node: the HTML report draws it, and the proof ignores it.

    Attributes:
        node: name of the node.
        form: axes, factor and kind, e.g. "width by 8, view blocked"; "unreadable" if the record
            cannot be read.
        channels: of the original and of the folded node, e.g. "8 -> 8, folded 64 -> 64".
        axes: the folded axes.
    """

    node: str
    form: str
    channels: str = ""
    axes: list[AxisPattern] = msgspec.field(default_factory=list)


class Proof(Result, kw_only=True, frozen=True):
    """The verdict of the proof that both models are the same function (docs/verification.md).

    Attributes:
        verdict: equal; different; not provable, where the new model rounds what the original
            computes; or skipped, where the original cannot be evaluated.
        reason: where they differ, or why nothing can be said; "" where they are equal.
        values: how many values that both models name were found equal.
        error_bits: the probability that `equal` is wrong is below 2^-error_bits.
        primes: one draw of random elements was made modulo each.
        functions: operators that were taken for unknown functions of all that they read.
        extents: of the inputs, for each evaluation.
        unseen: first outputs of Ifs whose choice is not known, or whose new branch was computed at
            no extents.
    """

    verdict: Literal["equal", "different", "not provable", "skipped"]
    reason: str = ""
    values: int = 0
    error_bits: int = 0
    primes: list[int] = msgspec.field(default_factory=list)
    functions: list[str] = msgspec.field(default_factory=list)
    extents: list[dict[str, list[int]]] = msgspec.field(default_factory=list)
    unseen: list[str] = msgspec.field(default_factory=list)


class IntegerRun(Result, kw_only=True, frozen=True):
    """The linear nodes that changed, run by the runtime on small integers.

    Attributes:
        verdict: exact, where every result equals the node's definition, bit for bit; different;
            or skipped, where some could not be run.
        reason: where one differs, or why one was not run.
        nodes: how many were run and are exact.
    """

    verdict: Literal["exact", "different", "skipped"]
    reason: str = ""
    nodes: int = 0


class Environment(Result, kw_only=True, frozen=True):
    """The machine, versions and settings that a figure depends on.

    Attributes:
        provider_options: options that the caller chose; `Side.level` names the timed level.
        session_options: entries of the session's configuration that the caller chose.
        u8s8_error: how many steps of 255 a product of the largest unsigned data and signed weights
            is off on this CPU; None where neither model holds integers of 8 bits.
        mhz_before: mean clock of the cores before the work, None where the system does not say.
        mhz_after: the same afterwards.
        command: the command line that repeats the run, "" from Python.
    """

    widthfold: str
    onnx: str
    onnxruntime: str
    python: str
    provider: str
    provider_options: dict[str, str]
    session_options: dict[str, str]
    u8s8_error: int | None
    machine: str
    cores: int
    load_before: float
    load_after: float
    mhz_before: float | None
    mhz_after: float | None
    command: str


class VerifyReport(Report, kw_only=True, frozen=True):
    """Result of `verify`.

    Attributes:
        schema: name and version of the JSON report.
        original: the file before.
        rewritten: the file after.
        outputs: the comparison of each output, at each level.
        proof: None where it was not asked for.
        integers: the same of the run on small integers.
        folds: the nodes that say of themselves that they are folded.
        timing: None where nothing was timed.
        assumed: sizes that were assumed; None where nothing was left open.
        verdict: what the exit code says.
        reasons: why, where it is not pass.
        input_sets: how many were compared.
        environment: machine, versions and settings.
        saturates_further: the rewritten model is further from its definition than the original, on
            a CPU whose 8-bit kernels saturate.
        unrun: why the runtime runs neither model, where it lacks a kernel and both were proved
            equal without; else "".
        note: what the caller should know of the plan of the rewritten model; "" if nothing.
        values: combinations of values of inputs that choose between parts of the models.
    """

    schema: str = VERIFY_SCHEMA
    original: str
    rewritten: str
    outputs: list[OutputParity]
    proof: Proof | None
    integers: IntegerRun | None
    folds: list[FoldedNode]
    timing: Timing | None
    verdict: Verdict
    reasons: list[str]
    input_sets: int
    environment: Environment
    assumed: AssumedSizes | None = None
    saturates_further: bool = False
    unrun: str = ""
    note: str = ""
    values: list[dict[str, list[float]]] = msgspec.field(default_factory=list)
