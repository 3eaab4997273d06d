"""What a caller may choose: frozen dataclasses and enums, checked where they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from widthfold_onnx.errors import UsageError

Shapes = Mapping[str, tuple[int, ...]]
"""Input name -> shape, to fix dimensions that the model leaves open."""


MAX_FACTOR = 4096

FACTORS = (2, 4, 8, 16, 32)
"""Factors that are tried where none is given."""

MAX_SEEDS = 1000
"""All input sets are in memory at once."""

MAX_TRUTH_BUDGET = 1e6
MAX_THREADS = 1024


FINITE, EXTENTS = "finite", "extents"
"""What guards are for."""


class Layout(StrEnum):
    """The emitted form: which copies the runtime can cancel (docstring of `fold.layout`).

    AUTO measures both; where the factor is fixed it follows the provider (`plan.layouts`).
    """

    AUTO = "auto"
    NCHW = "nchw"
    NHWC = "nhwc"


class NonFinite(StrEnum):
    """What becomes of Inf and NaN in the input of a fold that has structural zeros.

    SPREAD lets them reach more outputs of the same sample, REFUSE makes no such fold, GUARD has
    the original nodes compute where there are any.
    """

    SPREAD = "spread"
    GUARD = "guard"
    REFUSE = "refuse"


class Provider(StrEnum):
    """Where a model runs; AUTO is CUDA where the runtime offers it, else the CPU."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


class AxisName(StrEnum):
    """Axes by name; a number means the axis of the Conv's input, 0 the batch, 2 the first spatial.

    WIDTH is the last spatial axis, HEIGHT the one before it, DEPTH the one before that.
    """

    AUTO = "auto"
    BATCH = "batch"
    HEIGHT = "height"
    WIDTH = "width"
    DEPTH = "depth"


@dataclass(frozen=True, kw_only=True)
class FoldOptions:
    """How `optimize` and `inspect` plan.

    Attributes:
        factor: positions moved into channels, F >= 2; None: chosen for each site by measurement.
        axis: a name, or an index into the Conv's input shape.
        layout: the emitted form.
        ragged: fold extents that the factor does not divide (zero-extend, then cut).
        mix_samples: allow batch folds with structural zeros across samples.
        nonfinite: what a fold may do to Inf and NaN.
        guard_shapes: fold extents that the model leaves open, and have the original nodes compute
            at sizes that the fold is not good for.
        max_channels: a site with at least this many channels on both sides is left alone.
        max_flops_growth: most multiply-adds of the new site, as a multiple of the old.
        max_bytes_growth: most bytes of input, weight and output, as a multiple of the old.
        nodes: glob patterns; if any, only sites whose node name matches one are folded.
        skip: glob patterns of node names to leave alone.
        input_shapes: dimensions assumed for planning; the model's interface keeps its symbols.
    """

    factor: int | None = None
    axis: AxisName | int = AxisName.AUTO
    layout: Layout = Layout.AUTO
    ragged: bool = False
    mix_samples: bool = False
    nonfinite: NonFinite = NonFinite.SPREAD
    guard_shapes: bool = False
    max_channels: int = 32
    max_flops_growth: float = 32.0
    max_bytes_growth: float = 32.0
    nodes: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    input_shapes: Shapes = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.factor, int | None):
            raise UsageError(f"factor is {self.factor!r}; it must be a whole number or None")
        if self.layout not in list(Layout):
            raise UsageError(f"layout is {self.layout!r}, none of {', '.join(Layout)}")
        if self.nonfinite not in list(NonFinite):
            raise UsageError(f"nonfinite is {self.nonfinite!r}, none of {', '.join(NonFinite)}")
        if isinstance(self.axis, str) and self.axis not in list(AxisName):
            raise UsageError(f"axis is {self.axis!r}, none of {', '.join(AxisName)}")
        for name in ("nodes", "skip"):
            if isinstance(getattr(self, name), str):
                raise UsageError(f"{name} takes a tuple of patterns, not one string")
        for name in ("max_flops_growth", "max_bytes_growth"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.factor is not None and not 2 <= self.factor <= MAX_FACTOR:
            raise UsageError(f"factor is {self.factor}; it must lie in 2..{MAX_FACTOR}")
        if self.max_channels < 1:
            raise UsageError(f"max_channels is {self.max_channels}; it must be at least 1")
        if isinstance(self.axis, int) and self.axis not in (0, 2, 3, 4):
            raise UsageError(f"axis {self.axis}: a Conv input folds along 0, 2, 3 or 4")

    @property
    def guards(self) -> str:
        """What folds are guarded for, in words joined by "+"; "" for nothing."""
        asked = {FINITE: self.nonfinite is NonFinite.GUARD, EXTENTS: self.guard_shapes}
        return "+".join(word for word, wanted in asked.items() if wanted)

    @property
    def unguarded(self) -> FoldOptions:
        """The same without guards."""
        nonfinite = NonFinite.SPREAD if self.nonfinite is NonFinite.GUARD else self.nonfinite
        return replace(self, nonfinite=nonfinite, guard_shapes=False)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """|a - b| <= atol + rtol * (largest finite |reference| of that output).

    None means the default of the output's dtype (`evidence.parity.DEFAULT_RTOL`); `per_output`
    overrides rtol for single outputs.
    """

    rtol: float | None = None
    atol: float = 0.0
    per_output: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """How `verify` runs both models.

    Attributes:
        provider: where the models run. A model that runs elsewhere is an error; single nodes that
            do are named where the models are timed (`evidence.placement`).
        provider_options: options of the provider, as the runtime names them.
        seeds: how many made-up input sets are compared; five cover all distributions.
        inputs: stored inputs (``test_data_set_*`` folder, .npz or .npy), compared as well.
        input_shapes: sizes for dimensions that the model leaves open.
        tolerance: what counts as equal.
        truth_budget: seconds that the float64 reference may take; 0 leaves it out.
        exact: run the integer probe on every rewritten site.
        thorough: made-up inputs of several distributions and batches, and a float64 reference;
            otherwise normal numbers only.
        timing: time both models in alternating pairs.
        threads: intra-op threads of the timed sessions.
        time_budget: seconds that timing may take.
        fail_under: least original / rewritten; the verdict is fail where the speed-up is below it
            beyond noise, unverified where that is not known (`evidence.gate`); None asks nothing.

    Raises:
        UsageError: a number out of its range, or `fail_under` without a timing to judge.
    """

    provider: Provider = Provider.AUTO
    provider_options: Mapping[str, str] = field(default_factory=dict)
    seeds: int = 5
    inputs: tuple[str, ...] = ()
    input_shapes: Shapes = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    truth_budget: float = 3.0
    exact: bool = True
    thorough: bool = True
    timing: bool = True
    threads: int = 1
    time_budget: float = 10.0
    fail_under: float | None = None

    def __post_init__(self) -> None:
        if self.seeds > MAX_SEEDS:
            raise UsageError(f"seeds is {self.seeds}; at most {MAX_SEEDS} are compared")
        _check_threads(self.threads)
        if not 0 <= self.truth_budget <= MAX_TRUTH_BUDGET:
            raise UsageError(
                f"truth-budget is {self.truth_budget}; it must lie in 0..{MAX_TRUTH_BUDGET:.0f} s"
            )
        if self.timing:
            _check_time_budget(self.time_budget)
        if self.fail_under is None:
            return
        if not 0 < self.fail_under < math.inf:
            raise UsageError(f"fail-under is {self.fail_under}; it must be a number above 0")
        if not self.timing:
            raise UsageError("fail-under judges the timing, which is switched off")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How `optimize` measures which forms pay.

    Attributes:
        provider: where layers and models run.
        provider_options: options of the provider, as the runtime names them.
        threads: intra-op threads.
        time_budget: seconds that racing the layers may take; deciding comes on top.
        store: file that keeps measurements; None keeps them in memory for this run.
        target: device that is predicted for (`plan.targets`); None: the one that the provider
            suggests.
        measure: run nothing where False: what the store does not hold is predicted.
        inputs: stored inputs, as in `VerifyOptions`: they give the shapes, and whole models are
            timed on them.

    Raises:
        UsageError: a number out of its range.
    """

    provider: Provider = Provider.AUTO
    provider_options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    time_budget: float = 150.0
    store: Path | None = None
    target: str | None = None
    measure: bool = True
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_threads(self.threads)
        _check_time_budget(self.time_budget)


def _check_threads(threads: int) -> None:
    if not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads is {threads}; it must lie in 1..{MAX_THREADS}")


def _check_time_budget(seconds: float) -> None:
    if not seconds > 0:
        raise UsageError(f"time-budget is {seconds}; it must be above 0")
