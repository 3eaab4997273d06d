"""Define the options of the caller: frozen dataclasses and enums that check themselves.

`FoldOptions` say what to fold, `RuntimeOptions` where models run; `VerifyOptions` and
`SearchOptions` add checks and measurements. `keywords` mirrors all options for Python calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from widthfold_onnx.errors import UsageError

Shapes = Mapping[str, tuple[int, ...]]
"""Input name -> shape, to fix dimensions that the model leaves open."""

Sizes = tuple[Shapes, ...]
"""One or more assignments of shapes to inputs; the first is primary: layers are planned with it."""

ANY_SIZE: Sizes = ({},)
"""A single assignment that fixes no shape."""

MAX_SIZES = 8
"""Most assignments that a caller may give: the models are run, proved and timed at each."""

Values = Mapping[str, tuple[float, ...]]
"""Input name -> all of its elements, or one value for all of them."""

MIN_FACTOR = 2
MAX_FACTOR = 4096
DEFAULT_FACTOR = 8
"""Bounds of the factor, and the factor of commands that measure nothing unless one is given."""

MAX_MULTIPLE = 1024
"""Largest multiple to which channels are padded."""

FACTORS = (2, 4, 8, 16, 32)
"""Factors that are tried where none is given."""


class Layout(StrEnum):
    """The order of the axes around a folded node: it decides which copies the runtime can cancel.

    `algebra.packing` shows the moves of both.

    Attributes:
        AUTO: both are measured; where the factor is fixed it follows the provider
            (`decide.fixed`).
        NCHW: channels first.
        NHWC: channels last.
    """

    AUTO = "auto"
    NCHW = "nchw"
    NHWC = "nhwc"


class FormName(StrEnum):
    """What is folded (`--form`).

    Attributes:
        FOLD: positions of an axis, by the factor.
        STRIDES: only strides: of the output of a ConvTranspose, of the input of any other Conv.
            Nothing is measured.
    """

    FOLD = "fold"
    STRIDES = "strides"


class NonFinite(StrEnum):
    """Policies for Inf and NaN in the input of a fold that has structural zeros.

    Attributes:
        SPREAD: they may reach more outputs of the same sample.
        REFUSE: no such fold is made.
    """

    SPREAD = "spread"
    REFUSE = "refuse"


class AxisName(StrEnum):
    """Names of axes of the Conv's input. By number, 0 is the batch and 2 the first spatial axis.

    Attributes:
        AUTO: whichever axes give the cheapest fold.
        BATCH: the samples.
        HEIGHT: the spatial axis before the last.
        WIDTH: the last spatial axis.
        DEPTH: the spatial axis before HEIGHT.
    """

    AUTO = "auto"
    BATCH = "batch"
    HEIGHT = "height"
    WIDTH = "width"
    DEPTH = "depth"


class Companion(StrEnum):
    """Companions of the fold by name (`rules.companions`).

    Attributes:
        NONE: do without any.
        CROP: a Slice behind a Conv becomes smaller pads, a Pad before it larger ones.
        PRELU: PRelu becomes ops that run faster.
        SCALAR: a number in arithmetic gets extents with which it runs faster.
        SPLIT: a Conv whose channels are split becomes one Conv for each part.
    """

    NONE = "none"
    CROP = "crop"
    PRELU = "prelu"
    SCALAR = "scalar"
    SPLIT = "split"


def sizes_of(assignments: Shapes | Iterable[Shapes]) -> Sizes:
    """Return sizes: one assignment of shapes to inputs, or several, each once.

    Raises:
        UsageError: there are more than `MAX_SIZES`, or an extent is negative.
    """
    named = (assignments,) if isinstance(assignments, Mapping) else tuple(assignments)
    sizes = tuple(shapes for i, shapes in enumerate(named) if shapes not in named[:i])
    most = f"name at most {MAX_SIZES}"
    require(len(sizes) <= MAX_SIZES, "input-shape", f"{len(sizes)} sizes", most)
    least = min((n for shapes in sizes for shape in shapes.values() for n in shape), default=0)
    require(least >= 0, "input-shape", f"{least} along an axis", "be at least 0")
    return sizes or ANY_SIZE


W = TypeVar("W", bound=StrEnum)


def word(name: str, value: str, kind: type[W]) -> W:
    """Convert a string, or a member itself, to a member of an enumeration.

    Raises:
        UsageError: the enumeration has no such word.
    """
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name} is {value!r}, none of {', '.join(kind)}") from None


def require(fits: bool, name: str, value: object, rule: str) -> None:
    """Refuse the value of an option that does not fit its rule.

    Raises:
        UsageError: names the option, its value and the rule, as words that follow "it must".
    """
    if not fits:
        raise UsageError(f"{name} is {value}; it must {rule}")


class Selection(NamedTuple):
    """The nodes that may be changed, by patterns of their names.

    >>> Selection(nodes=("enc/*",), skip=("*head",)).includes("enc/head")
    False

    Attributes:
        nodes: these nodes; every node if there is no pattern.
        skip: but not these.
    """

    nodes: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def includes(self, name: str) -> bool:
        """Check whether a node may be changed."""
        is_named = not self.nodes or any(fnmatchcase(name, pattern) for pattern in self.nodes)
        return is_named and not any(fnmatchcase(name, pattern) for pattern in self.skip)


EVERYTHING = Selection()


@dataclass(frozen=True, kw_only=True)
class FoldOptions:
    """Options that decide which layers are folded, how far and in which form.

    Attributes:
        factor: positions moved into channels, F >= 2. None: measurement chooses a factor for each
            layer; with form strides there is no factor.
        form: what is folded: positions by the factor, or only strides.
        axis: a name, or an index into the Conv's input shape.
        layout: the order of the axes around folded nodes.
        ragged: fold extents that the factor does not divide (zero-extend, then cut).
        mix_samples: allow batch folds with structural zeros across samples.
        nonfinite: what a fold may do to Inf and NaN.
        fixed_shapes: declare the single assignment of `input_shapes` in the new model, as its only
            sizes.
        max_channels: a layer is left alone if its input and its output have at least this many
            channels in every group.
        max_flops_growth: most multiply-adds of a form, as a multiple of the layer's.
        max_bytes_growth: most bytes of input, weight and output, as a multiple of the old.
        nodes: glob patterns; if any, only layers whose node name matches one are folded.
        skip: glob patterns of node names to leave alone.
        input_shapes: sizes assumed for planning; the model's interface keeps its symbols, except
            under `fixed_shapes`.
        companions: where forms are measured: the companions to measure, by default all. At a fixed
            factor or with form strides: the companions to exchange, by default none.
        pad_channels: the multiple to which channels of chains are padded; 0 pads none. None: the
            padding is measured, and nothing is padded where nothing is measured.
        freeze_weights: take weights that are also inputs out of the inputs, which changes the
            interface.
    """

    factor: int | None = None
    form: FormName = FormName.FOLD
    axis: AxisName | int = AxisName.AUTO
    layout: Layout = Layout.AUTO
    ragged: bool = False
    mix_samples: bool = False
    nonfinite: NonFinite = NonFinite.SPREAD
    fixed_shapes: bool = False
    max_channels: int = 32
    max_flops_growth: float = 32.0
    max_bytes_growth: float = 32.0
    nodes: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    input_shapes: Sizes = ANY_SIZE
    companions: tuple[Companion, ...] = ()
    pad_channels: int | None = None
    freeze_weights: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shapes", sizes_of(self.input_shapes))
        if self.fixed_shapes and len(self.input_shapes) > 1:
            raise UsageError(
                "--fixed-shapes declares one size of each input, and --input-shape gives "
                f"{len(self.input_shapes)}: give one"
            )
        numeric = isinstance(self.factor, int | None)
        require(numeric, "factor", repr(self.factor), "be a whole number or None")
        words: dict[str, type[StrEnum]] = {
            "form": FormName,
            "layout": Layout,
            "nonfinite": NonFinite,
        }
        if not isinstance(self.axis, int):
            words["axis"] = AxisName
        for name, kind in words.items():
            object.__setattr__(self, name, word(name, getattr(self, name), kind))
        is_limited = self.factor is not None or self.axis != AxisName.AUTO
        if self.form == FormName.STRIDES and is_limited:
            raise UsageError("form strides folds every axis by its stride: give no factor, no axis")
        for name in ("nodes", "skip", "companions"):
            if isinstance(getattr(self, name), str):
                raise UsageError(f"{name} takes a tuple of words, not one string")
        companions = tuple(word("companion", name, Companion) for name in self.companions)
        object.__setattr__(self, "companions", companions)
        if Companion.NONE in self.companions and len(set(self.companions)) > 1:
            raise UsageError("companion none means that no other is wanted: name it alone")
        for name in ("max_flops_growth", "max_bytes_growth"):
            require(getattr(self, name) > 0, name, getattr(self, name), "be above 0")
        in_range = self.factor is None or MIN_FACTOR <= self.factor <= MAX_FACTOR
        require(in_range, "factor", self.factor, f"lie in {MIN_FACTOR}..{MAX_FACTOR}")
        multiple = self.pad_channels
        numeric = isinstance(multiple, int | None) and not isinstance(multiple, bool)
        require(numeric, "pad_channels", repr(multiple), "be a whole number or None")
        fits = not multiple or 2 <= multiple <= MAX_MULTIPLE
        require(fits, "pad_channels", multiple, f"be 0 or lie in 2..{MAX_MULTIPLE}")
        require(self.max_channels >= 1, "max_channels", self.max_channels, "be at least 1")
        if isinstance(self.axis, int) and self.axis not in (0, 2, 3, 4):
            raise UsageError(f"axis {self.axis}: a Conv input folds along 0, 2, 3 or 4")

    @property
    def selection(self) -> Selection:
        """The nodes that may be changed."""
        return Selection(self.nodes, self.skip)

    @property
    def is_measured(self) -> bool:
        """True if forms are chosen by measurement: no factor is given, nor form strides."""
        return self.factor is None and self.form is FormName.FOLD

    @property
    def active_companions(self) -> tuple[Companion, ...]:
        """The companions to exchange where nothing is measured, or else to measure."""
        names = self.companions or (tuple(Companion) if self.is_measured else ())
        return tuple(name for name in dict.fromkeys(names) if name is not Companion.NONE)


MAX_SEEDS = 1000
"""Most random input sets: all of them are in memory at once."""

MAX_TRUTH_WORK = 1e6
MAX_THREADS = 1024

Kind = TypeVar("Kind", bound="RuntimeOptions")

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
        provider = str.__new__(cls, value)
        provider._name_ = provider._value_ = value
        return provider


class Effort(StrEnum):
    """How much a search measures before it decides (`tuning.effort`).

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
        """Return the rtol of an output.

        A default of 0, that of integers, is overridden by `per_output` only.
        """
        general = default if self.rtol is None or not default else self.rtol
        return self.per_output.get(output, general)


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Options with which ONNX Runtime runs a model.

    Attributes:
        provider: where it runs. A model that runs elsewhere is an error; single nodes that do are
            named where models are timed (`evidence.timing.profile`).
        provider_options: options of the provider, as the runtime names them.
        session_options: entries of the session's configuration, as the runtime names them.
        threads: intra-op threads.
        inputs: stored inputs (``test_data_set_*`` folder, .npz or .npy). They give the sizes where
            the caller names none. Whole models are compared and timed on them.
        values: values of control inputs, such as a rate, in all runs.
        cases: combinations of values of control inputs, `values` included in each
            (`runtime.inputs.cases`). Outputs are compared in every case; the first is timed.
        index_limits: by input that holds indices or sizes: an exclusive upper bound of its elements
            (`model.proto.indices`).
        weight_extents: the extents of open dimensions that weights fix (`model.shapes.weights`).

    Raises:
        UsageError: an unknown provider, or a number of threads out of range.
    """

    provider: Provider = Provider.AUTO
    provider_options: Mapping[str, str] = field(default_factory=dict)
    session_options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    inputs: tuple[str, ...] = ()
    values: Values = field(default_factory=dict)
    cases: tuple[Values, ...] = ({},)
    index_limits: Mapping[str, int] = field(default_factory=dict)
    weight_extents: Mapping[str | tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "provider", word("provider", self.provider, Provider))
        in_range = 1 <= self.threads <= MAX_THREADS
        require(in_range, "threads", self.threads, f"lie in 1..{MAX_THREADS}")

    @property
    def files(self) -> list[Path]:
        """The files that these options name, which no result may replace."""
        paths = [Path(path) for path in self.inputs]
        patterns = "*.pb", "test_data_set_*/*.pb"
        return [*paths, *(file for path in paths for name in patterns for file in path.glob(name))]

    def to(self, kind: type[Kind], **values: Any) -> Kind:
        """Return options of another kind with the same fields of `RuntimeOptions`.

        Args:
            kind: the dataclass.
            values: values of its other fields.
        """
        common = {item.name: getattr(self, item.name) for item in fields(RuntimeOptions)}
        return kind(**common, **values)


@dataclass(frozen=True, kw_only=True)
class TimingOptions(RuntimeOptions):
    """Options with which whole models are timed.

    Attributes:
        seeds: number of random input sets to compare; five cover all distributions. With 0, models
            are compared and timed on stored inputs only.
        input_shapes: sizes for dimensions that the model leaves open; models are compared, proved
            and timed at each of them.
        time_budget: seconds that timing may take.

    Raises:
        UsageError: a number out of its range.
    """

    seeds: int = 5
    input_shapes: Sizes = ANY_SIZE
    time_budget: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "input_shapes", sizes_of(self.input_shapes))
        if self.seeds > MAX_SEEDS:
            raise UsageError(f"seeds is {self.seeds}; at most {MAX_SEEDS} are compared")
        if self.seeds < (0 if self.inputs else 1):
            raise UsageError(f"seeds is {self.seeds}; without inputs it must be at least 1")
        require(self.time_budget > 0, "time-budget", self.time_budget, "be above 0")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(TimingOptions):
    """Options for `verify`, and for the check of a model that was just folded.

    Attributes:
        tolerance: what counts as equal.
        truth_work: limit for the truth, the runs of the original in float64, in millions of
            elements that its nodes compute (`evidence.parity.truth`); 0: no such runs.
        freeze_weights: accept a rewritten model in which overridable initializers became constants;
            both models are compared with the original's values.
        needs_proof: True: only a proved model passes, as after a fold, which rounds nothing. False:
            outputs decide what the proof leaves open.
        timing: time both models in alternating pairs.
        baseline: JSON report of an earlier `verify`; `fail_under` then bounds this speed-up / the
            saved one.
        fail_under: required speed-up, original / rewritten. The verdict is fail if the speed-up is
            below it beyond noise, unverified if its interval is too wide to tell
            (`evidence.timing.requirement`). None: no requirement.

    Raises:
        UsageError: a number out of its range, or `fail_under` without a timing to judge.
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    truth_work: float = 300.0
    freeze_weights: bool = False
    needs_proof: bool = False
    timing: bool = True
    baseline: Path | None = None
    fail_under: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range = 0 <= self.truth_work <= MAX_TRUTH_WORK
        rule = f"lie in 0..{MAX_TRUTH_WORK:.0f} million elements"
        require(in_range, "truth-work", self.truth_work, rule)
        least = 1.0 if self.fail_under is None else self.fail_under
        require(0 < least < math.inf, "fail-under", least, "be a number above 0")
        for name, value in (("a baseline", self.baseline), ("fail-under", self.fail_under)):
            if value is not None and not self.timing:
                raise UsageError(f"{name} judges the timing, which is switched off")


@dataclass(frozen=True, kw_only=True)
class DeliveryOptions(VerifyOptions):
    """Options for the check of a model that was just folded.

    Outputs are compared as in `verify`, so that both say the same of a pair, but nothing is timed.
    """

    timing: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchOptions(RuntimeOptions):
    """Options for the measurements of `optimize` and `tune`.

    Attributes:
        effort: how many forms and layers are timed, and for how long.
        time_budget: seconds for measuring layers; timing the whole model comes on top. None: by
            effort.
        store: file that keeps measurements; None keeps them in memory for this run.
        target: device that is predicted for (`tuning.targets`); None: the target that
            the provider suggests.
        measure: False: nothing is run; times that the store lacks are predicted.

    Raises:
        UsageError: a number out of its range.
    """

    effort: Effort = Effort.DEFAULT
    time_budget: float | None = None
    store: Path | None = None
    target: str | None = None
    measure: bool = True

    @property
    def files(self) -> list[Path]:
        """The files that these options name, the store as well."""
        return [*super().files, *([] if self.store is None else [self.store])]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "effort", word("effort", self.effort, Effort))
        seconds = 1.0 if self.time_budget is None else self.time_budget
        require(seconds > 0, "time-budget", seconds, "be above 0")
