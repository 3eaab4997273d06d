"""Options for running, comparing and measuring models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options.folding import ANY_SIZE, Sizes, Values, require, sizes_of, word

MAX_SEEDS = 1000
"""All input sets are in memory at once."""

MAX_TRUTH_BUDGET = 1e6
MAX_THREADS = 1024

_RUNTIME_NAME = re.compile(r"(\w+)ExecutionProvider", re.ASCII)


class Provider(StrEnum):
    """Execution providers; AUTO is CUDA where the runtime offers it, else the CPU.

    Any other one has the name that the runtime gives it.

    Examples:
        >>> Provider("CPUExecutionProvider"), Provider("FooExecutionProvider")
        (<Provider.CPU: 'cpu'>, <Provider.FooExecutionProvider: 'FooExecutionProvider'>)
    """

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"
    OPENVINO = "openvino"
    MIGRAPHX = "migraphx"
    DML = "dml"
    COREML = "coreml"
    QNN = "qnn"
    WEBGPU = "webgpu"
    XNNPACK = "xnnpack"

    @classmethod
    def _missing_(cls, value: object) -> Provider | None:
        """Return the provider with a name of the runtime."""
        if not (isinstance(value, str) and (name := _RUNTIME_NAME.fullmatch(value))):
            return None
        for member in cls:
            if member == name[1].lower():
                return member
        other = str.__new__(cls, value)
        other._name_ = other._value_ = value
        return other


class Effort(StrEnum):
    """The amounts that a search measures before it decides (`tuning.measure.effort`).

    Attributes:
        QUICK: the few most promising forms of each layer.
        DEFAULT: more forms, and more runs of the better ones.
        THOROUGH: every form of every layer.
    """

    QUICK = "quick"
    DEFAULT = "default"
    THOROUGH = "thorough"


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The bounds within which outputs count as equal: `|a - b| <= atol + rtol * largest`.

    `largest` is the largest finite |reference| of that output.

    Attributes:
        rtol: None means the default of the output's dtype (`evidence.parity.outputs`).
        atol: the absolute difference that is allowed beside it.
        per_output: rtol of single outputs, by name.
    """

    rtol: float | None = None
    atol: float = 0.0
    per_output: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bounds = [("rtol", self.rtol or 0.0), ("atol", self.atol)]
        bounds += [(f"rtol of {name}", bound) for name, bound in self.per_output.items()]
        for name, bound in bounds:
            require(0 <= bound < math.inf, name, bound, "be 0 or a number above")

    def is_chosen(self, output: str) -> bool:
        """Check whether the caller chose the tolerance of an output."""
        return self.rtol is not None or bool(self.atol) or output in self.per_output

    def rtol_of(self, output: str, default: float) -> float:
        """Return the rtol of an output; a default of 0, of integers, is replaced by name only."""
        general = default if self.rtol is None or not default else self.rtol
        return self.per_output.get(output, general)


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Options of ONNX Runtime, with which a model runs.

    Attributes:
        provider: where it runs. A model that runs elsewhere is an error; single nodes that do are
            named where models are timed (`evidence.timing.profile`).
        provider_options: options of the provider, as the runtime names them.
        session_options: entries of the session's configuration, as the runtime names them.
        threads: intra-op threads.
        values: values of inputs that are no signals, such as a rate, in all runs.
        cases: combinations of values that choose between parts of the model, with `values` in each
            (`runtime.inputs.cases`). All of them are compared, the first is timed.

    Raises:
        UsageError: no provider has that name, or a number of threads that is none.
    """

    provider: Provider = Provider.AUTO
    provider_options: Mapping[str, str] = field(default_factory=dict)
    session_options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    values: Values = field(default_factory=dict)
    cases: tuple[Values, ...] = ({},)

    def __post_init__(self) -> None:
        object.__setattr__(self, "provider", word("provider", self.provider, Provider))
        in_range = 1 <= self.threads <= MAX_THREADS
        require(in_range, "threads", self.threads, f"lie in 1..{MAX_THREADS}")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(RuntimeOptions):
    """Options for `verify`; `threads` counts threads of the timed sessions.

    Attributes:
        seeds: how many random input sets are compared; five cover all distributions.
        inputs: stored inputs (``test_data_set_*`` folder, .npz or .npy), compared as well.
        input_shapes: sizes for dimensions that the model leaves open; all of them are compared,
            proved and timed.
        tolerance: what counts as equal.
        truth_budget: seconds that the float64 reference may take; 0 leaves it out.
        freeze_weights: initializers that callers of the original may replace may be constants of
            the rewritten model; both are compared with the original's own.
        exact: prove that both models are the same function.
        needs_proof: do not pass an unproved result, as a model that was just folded must be: a fold
            rounds nothing. Else what cannot be proved is left to the comparison of outputs.
        thorough: random inputs of several distributions and batches, and a float64 reference;
            otherwise normal numbers only.
        timing: time both models in alternating pairs.
        time_budget: seconds that timing may take.
        baseline: JSON report of an earlier `verify`; `fail_under` then judges the speed-up / that.
        fail_under: least original / rewritten; the verdict is fail where the speed-up is below it
            beyond noise, unverified where that is not known; None asks nothing
            (`evidence.timing.requirement`).

    Raises:
        UsageError: a number out of its range, or `fail_under` without a timing to judge.
    """

    seeds: int = 5
    inputs: tuple[str, ...] = ()
    input_shapes: Sizes = ANY_SIZE
    tolerance: Tolerance = field(default_factory=Tolerance)
    truth_budget: float = 3.0
    freeze_weights: bool = False
    exact: bool = True
    needs_proof: bool = False
    thorough: bool = True
    timing: bool = True
    time_budget: float = 10.0
    baseline: Path | None = None
    fail_under: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "input_shapes", sizes_of(self.input_shapes))
        if self.seeds > MAX_SEEDS:
            raise UsageError(f"seeds is {self.seeds}; at most {MAX_SEEDS} are compared")
        if self.seeds < (0 if self.inputs else 1):
            raise UsageError(f"seeds is {self.seeds}; without inputs it must be at least 1")
        in_range = 0 <= self.truth_budget <= MAX_TRUTH_BUDGET
        rule = f"lie in 0..{MAX_TRUTH_BUDGET:.0f} s"
        require(in_range, "truth-budget", self.truth_budget, rule)
        require(self.time_budget > 0, "time-budget", self.time_budget, "be above 0")
        least = 1.0 if self.fail_under is None else self.fail_under
        require(0 < least < math.inf, "fail-under", least, "be a number above 0")
        for name, value in (("a baseline", self.baseline), ("fail-under", self.fail_under)):
            if value is not None and not self.timing:
                raise UsageError(f"{name} judges the timing, which is switched off")


@dataclass(frozen=True, kw_only=True)
class SearchOptions(RuntimeOptions):
    """Options for the measurements of `optimize` and `tune`.

    Attributes:
        effort: number of timed forms and layers, and seconds.
        time_budget: seconds that racing the layers may take; deciding comes on top. None: what the
            effort takes.
        store: file that keeps measurements; None keeps them in memory for this run.
        target: device that is predicted for (`tuning.targets`); None: the target that
            the provider suggests.
        measure: run nothing where False: what the store does not hold is predicted.
        inputs: stored inputs, as in `VerifyOptions`: they give the shapes, and whole models are
            timed on them.

    Raises:
        UsageError: a number out of its range.
    """

    effort: Effort = Effort.DEFAULT
    time_budget: float | None = None
    store: Path | None = None
    target: str | None = None
    measure: bool = True
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "effort", word("effort", self.effort, Effort))
        seconds = 1.0 if self.time_budget is None else self.time_budget
        require(seconds > 0, "time-budget", seconds, "be above 0")
