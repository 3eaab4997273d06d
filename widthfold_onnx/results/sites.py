"""Results of `optimize` and `inspect`: every site with its outcome."""

from __future__ import annotations

from typing import Literal

import msgspec

from widthfold_onnx.results.base import AssumedSizes, Gain, Report, Result
from widthfold_onnx.results.evidence import VerifyReport
from widthfold_onnx.results.tuning import SearchReport

OPTIMIZE_SCHEMA = "widthfold.optimize/10"
INSPECT_SCHEMA = "widthfold.inspect/2"

MISFIT = "differs-from-plan"
"""Code of a site that a plan names and that does not fit."""


class SiteReport(Result, kw_only=True, frozen=True):
    """The outcome of one site.

    Attributes:
        node: name of the node, or its op and first output where it has no name.
        graph: where the node is: "" for the main graph, else the path of names to it.
        op: operator type.
        status: folded; kept (foldable, but left alone on request or folded before); refused.
        axis: folded axes of the input, by name, joined by "+"; None unless folded.
        factor: positions per channel that became channels, of the output, or of the input where
            a ConvTranspose has a stride; None unless folded.
        form: view or move, and the kind of fold, e.g. "view blocked"; None unless folded.
        code: stable word for the outcome, e.g. "folded", "already-wide".
        reason: one sentence with the numbers in it.
        flops_ratio: multiply-adds after / before; None unless folded.
        spread: outputs of its sample that an Inf or NaN in one input may reach / the outputs
            that it reached before, in the mean; None unless folded.
        guard: "extents" where the nodes of the original compute at sizes that the fold is not good
            for; else "".
        gain: of its best form, measured alone, or predicted, which it says; None where nothing
            is known.
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
    spread: float | None = None
    guard: str = ""
    gain: Gain | None = None


class Stop(Result, kw_only=True, frozen=True):
    """A node at which a region ends: name, operator, and the reason in a word and a sentence."""

    node: str
    op: str
    code: str
    reason: str


class RegionReport(Result, kw_only=True, frozen=True):
    """Nodes between which nothing is unfolded.

    Attributes:
        graph: where they are: "" for the main graph, else the path of names to it.
        folded: the folded nodes.
        carried: the operators that run on folded tensors, each as its type and its name.
        stops: where it ends, in the order in which the nodes before return.
    """

    graph: str
    folded: list[str]
    carried: list[str]
    stops: list[Stop]


class CompanionReport(Result, kw_only=True, frozen=True):
    """The outcome of a companion: ops that an equal one may replace.

    Attributes:
        name: its name.
        status: exchanged; kept (they could be, but are left alone); refused (none of them can be).
        nodes: names of the nodes that have an equal.
        became: the operators of their equals, one line each.
        refused: the nodes that have none, with the reason.
        reason: why they are kept; else "".
        gain: of the whole model with this companion alone, where that was measured.
        gain_on_smooth: the same on inputs with neighbours alike, where branches cost less.
    """

    name: str
    status: Literal["exchanged", "kept", "refused"]
    nodes: list[str]
    became: list[str]
    refused: list[Stop]
    reason: str = ""
    gain: Gain | None = None
    gain_on_smooth: Gain | None = None


class PaddedChannels(Result, kw_only=True, frozen=True):
    """The output channels of a layer, and these with padding."""

    node: str
    channels: int
    padded: int


class PaddingReport(Result, kw_only=True, frozen=True):
    """Channels that are padded with zeros in whole chains of layers.

    Attributes:
        status: padded; kept (they could be padded, but are left alone).
        multiple: divides the padded channels.
        layers: the layers that make them.
        stops: where channels end that cannot be padded.
        reason: why they are kept; else "".
        gain: of the whole model against the same one without padding, where that was measured.
    """

    status: Literal["padded", "kept"]
    multiple: int
    layers: list[PaddedChannels]
    stops: list[Stop]
    reason: str = ""
    gain: Gain | None = None


class OptimizeSummary(Result, kw_only=True, frozen=True):
    """Counts over all sites, and the size of the model file in bytes.

    Attributes:
        exchanged: nodes that companions replaced.
        frozen: weights that were taken out of the inputs.
        padded: layers whose output channels were padded.
    """

    folded: int
    kept: int
    refused: int
    bytes_before: int
    bytes_after: int
    exchanged: int = 0
    frozen: int = 0
    padded: int = 0

    @property
    def changes(self) -> bool:
        """Check whether the result is another model than the original."""
        return self.folded + self.exchanged + self.frozen + self.padded > 0


class OptimizeReport(Report, kw_only=True, frozen=True):
    """Result of `optimize`.

    Attributes:
        schema: name and version of the JSON report.
        model: the file that was read.
        sites: every node that could be folded, with its outcome.
        regions: nodes between which nothing is unfolded.
        companions: outcomes of the companions that match a node.
        padding: padded channels; None if there are none that could be padded.
        summary: counts over all sites, and sizes of the files.
        assumed: sizes that were assumed; None where nothing was left open.
        search: the measurements and the choice; None at a fixed factor.
        fixed_sizes: sizes of inputs that the model left open and the new one declares.
        values: combinations of values of inputs that choose between parts of the model.
        note: what the caller should know of the plan; "" if there is nothing.
        written: the new file, None where none was written.
        verification: the checks; None where nothing was written or they were off.
    """

    schema: str = OPTIMIZE_SCHEMA
    model: str
    sites: list[SiteReport]
    regions: list[RegionReport]
    companions: list[CompanionReport] = msgspec.field(default_factory=list)
    padding: PaddingReport | None = None
    summary: OptimizeSummary
    assumed: AssumedSizes | None = None
    search: SearchReport | None = None
    fixed_sizes: dict[str, list[int]] = msgspec.field(default_factory=dict)
    values: list[dict[str, list[float]]] = msgspec.field(default_factory=list)
    note: str = ""
    written: str | None
    verification: VerifyReport | None


class FormChoice(Result, kw_only=True, frozen=True):
    """One legal reformulation of a site, with its cost on paper."""

    axis: str
    factor: int
    form: str
    channels: str
    flops_ratio: float
    bytes_ratio: float
    structural_zeros: float


class InspectSite(Result, kw_only=True, frozen=True):
    """The description of a site by `inspect`; None where a shape is not known.

    Attributes:
        choices: the cheapest form along each axis at the factor, the cheapest first.
        refusals: by axis why there is none, or a single reason of "any axis".
        hint: options with which a site without choices folds, each tried; "" where none does.
    """

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
    choices: list[FormChoice]
    refusals: dict[str, str]
    hint: str


class InspectReport(Report, kw_only=True, frozen=True):
    """Result of `inspect`.

    Attributes:
        schema: name and version of the JSON report.
        model: the file that was read.
        opset: version of the default operator set.
        ir_version: version of the file format.
        nodes: how many the model has.
        sites: every node that could be folded, with its forms at the factor.
        companions: outcomes of the companions that match a node.
        padding: channels that could be padded; None if there are none.
        assumed: sizes at which the model runs; None where nothing is open, or none was found.
        values: combinations of values of inputs that choose between parts of the model.
    """

    schema: str = INSPECT_SCHEMA
    model: str
    opset: int
    ir_version: int
    nodes: int
    sites: list[InspectSite]
    companions: list[CompanionReport] = msgspec.field(default_factory=list)
    padding: PaddingReport | None = None
    assumed: AssumedSizes | None = None
    values: list[dict[str, list[float]]] = msgspec.field(default_factory=list)
