"""Define the draft: what is done to a model so far.

A draft passes from step to step of one process, and holds the forms of layers themselves. Its
file is a plan (`rewrite.plan`), which holds their specs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

import msgspec

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.model.proto.walk import frozen, weights_among_inputs
from widthfold_onnx.options import ANY_SIZE, Companion, FoldOptions, NonFinite, Sizes
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.exchange import Match, find_matches
from widthfold_onnx.rules.form import Form

Name = Annotated[str, msgspec.Meta(max_length=10_000)]
Extent = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Limit = Annotated[float, msgspec.Meta(gt=0)]


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the parts of a draft that a plan file holds as they are."""


class NodePart(Part, frozen=True, kw_only=True, forbid_unknown_fields=True, order=True):
    """A part that is about one node.

    Attributes:
        graph: path of its graph, "" for the main graph.
        node: its name there.
    """

    graph: Name = ""
    node: Name

    @property
    def name(self) -> NodeName:
        """The name of the node."""
        return NodeName(self.graph, self.node)


class CompanionPlan(NodePart, frozen=True, kw_only=True):
    """A node that a companion replaces."""

    companion: Companion

    def __post_init__(self) -> None:
        if self.companion is Companion.NONE:
            raise ValueError("companion none replaces no node")


class PaddedLayer(NodePart, frozen=True, kw_only=True):
    """A layer whose output channels are padded.

    Attributes:
        channels: output channels of the layer.
        padded: output channels with padding.
    """

    channels: Extent
    padded: Extent


class PaddingPlan(Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers of one chain or several, whose channels are padded before any layer takes a form.

    Attributes:
        multiple: divides the padded channels of every segment (`rules.padding.channels`).
        layers: all layers that make such channels, sorted.
    """

    multiple: Annotated[int, msgspec.Meta(ge=2, le=1024)]
    layers: tuple[PaddedLayer, ...]


class Limits(Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a fold that decide whether and how a form can be made again.

    Attributes:
        fixed_shapes: whether OUT declares the sizes of the plan in its inputs.
        mix_samples: whether a fold may join samples of a batch.
        nonfinite: what a fold may do to Inf and NaN.
        max_flops_growth: most multiply-adds of a form / multiply-adds of the layer.
        max_bytes_growth: most bytes of input, weight and output of a form / bytes of the layer.
    """

    fixed_shapes: bool = False
    mix_samples: bool = False
    nonfinite: NonFinite = NonFinite.SPREAD
    max_flops_growth: Limit = FoldOptions.max_flops_growth
    max_bytes_growth: Limit = FoldOptions.max_bytes_growth

    @classmethod
    def of(cls, options: FoldOptions) -> Limits:
        """Return the limits that options give."""
        return cls(**{name: getattr(options, name) for name in cls.__struct_fields__})


@dataclass(frozen=True)
class Draft:
    """What is done to a model so far.

    Attributes:
        frozen: weights that are taken out of the inputs, sorted.
        companions: nodes that companions replace, sorted.
        padding: channels that are padded before layers take forms; None for none.
        sizes: assumed shapes of inputs whose sizes the model leaves open, one or more assignments;
            forms are planned at the first.
        limits: options that decide whether a form can be made.
        forms: the forms that replace layers.
    """

    frozen: tuple[str, ...] = ()
    companions: tuple[CompanionPlan, ...] = ()
    padding: PaddingPlan | None = None
    sizes: Sizes = ANY_SIZE
    limits: Limits = field(default_factory=Limits)
    forms: Mapping[NodeName, Form] = field(default_factory=dict)

    @classmethod
    def unchanged(cls, options: FoldOptions) -> Self:
        """Return the draft that does nothing, with the sizes and limits of options."""
        return cls(sizes=tuple(map(dict, options.input_shapes)), limits=Limits.of(options))

    @classmethod
    def first(cls, model: Model, options: FoldOptions) -> Self:
        """Return the draft that freezes weights if the options ask for it, and does nothing else.

        Raises:
            UsageError: sizes are to be fixed, and none are given.
        """
        if options.fixed_shapes and not any(options.input_shapes):
            raise UsageError("--fixed-shapes declares the sizes of --input-shape: give them")
        weights = weights_among_inputs(model.proto) if options.freeze_weights else ()
        return replace(cls.unchanged(options), frozen=tuple(sorted(weights)))

    @property
    def is_changing(self) -> bool:
        """True if anything is done."""
        return bool(self.frozen or self.companions or self.padding or self.forms)

    def matches(self, model: Model, names: Collection[Companion]) -> list[Match]:
        """Return the nodes that companions match, in a model with the frozen weights."""
        return find_matches(frozen(model.proto, self.frozen), model.folder, names)

    def with_companions(self, matches: Sequence[Match]) -> Self:
        """Return the draft in which companions replace all matched nodes that can be exchanged.

        Args:
            matches: the matches of these companions and no others: a companion may inline
                functions, and so rename the nodes of another.
        """
        companions = [
            CompanionPlan(graph=match.name.graph, node=match.name.node, companion=match.companion)
            for match in matches
            if not isinstance(match.replacements, Refusal)
        ]
        return replace(self, companions=tuple(sorted(companions)))

    def with_forms(self, forms: Mapping[NodeName, Form]) -> Self:
        """Return the draft with other forms."""
        return replace(self, forms=forms)

    def without(self, names: Collection[NodeName]) -> Self:
        """Return the draft without the forms of some layers."""
        return self.with_forms({n: form for n, form in self.forms.items() if n not in names})
