"""Read a model under a draft: weights frozen, companions and padding in place, nodes linked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from widthfold_onnx.model.document import Document
from widthfold_onnx.model.linking import NodeName, shown_name
from widthfold_onnx.model.loader import Model
from widthfold_onnx.model.proto.dims import declare
from widthfold_onnx.model.proto.walk import copy_of, frozen, weights_among_inputs
from widthfold_onnx.model.shapes.table import ShapeTable, inputs_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.draft import Draft, PaddedLayer
from widthfold_onnx.rewrite.exchange import Match, exchanged
from widthfold_onnx.rewrite.padding import padded_model
from widthfold_onnx.rewrite.record import contains_folds
from widthfold_onnx.rules.layer_reading import read_layer
from widthfold_onnx.rules.layers import Layer, Site
from widthfold_onnx.rules.op import SAME_NAME
from widthfold_onnx.rules.quantization import ExtentsOf

ALREADY_FOLDED = Refusal(
    Code.ALREADY_FOLDED, "the model carries folds of an earlier run; fold the original instead"
)


@dataclass(frozen=True, eq=False)
class Reading:
    """A model whose nodes are linked, and whose sites can be read as layers.

    Attributes:
        document: the model, which a rewriting consumes.
        draft: what was done to the model. Layers are planned at the first of its sizes.
        is_folded: whether the model contains folds. Its moves between packed tensors look like any
            others, and sizes that were assumed for planning look like facts. So its layers are not
            folded again.
        missing_weights: frozen weights of the draft that are no inputs of the model.
        matches: the nodes that companions match, with the equal nodes or the refusal.
        padding_misfits: padded layers of the draft whose channels cannot be padded, and why.
    """

    document: Document
    draft: Draft = field(default_factory=Draft)
    is_folded: bool = False
    missing_weights: Collection[str] = frozenset()
    matches: Sequence[Match] = ()
    padding_misfits: Mapping[PaddedLayer, str] = field(default_factory=dict)
    _layers: dict[Site, Layer | Refusal] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, model: Model, draft: Draft) -> Self:
        """Freeze the weights of a draft, put its companions and padding in place, and link all.

        Args:
            model: the model.
            draft: what is done; its forms do not count.

        Raises:
            InvalidModelError: the graph library cannot read the model.
        """
        frozen_proto = frozen(model.proto, draft.frozen)
        nodes = {(part.companion, part.name) for part in draft.companions}
        exchanged_proto, matches = exchanged(frozen_proto, model.folder, nodes)
        is_folded = contains_folds(exchanged_proto)
        misfits: Mapping[PaddedLayer, str] = {}
        if draft.padding is not None and not is_folded:
            copy, misfits = padded_model(exchanged_proto, model.folder, draft.padding)
        else:
            copy = copy_of(exchanged_proto)
        if draft.limits.fixed_shapes:
            declare(copy.graph.input, draft.sizes[0])
        return cls(
            document=Document(copy, model.folder, OPERATORS),
            draft=draft,
            is_folded=is_folded,
            missing_weights=set(draft.frozen) - weights_among_inputs(model.proto),
            matches=matches,
            padding_misfits=misfits,
        )

    @cached_property
    def sites(self) -> Sequence[Site]:
        """Every linear node of the main graph, bodies and functions, in graph order.

        Names may repeat: an unnamed Conv with the output y is shown as ``Conv -> y``, which may be
        the name of another one, and bodies of nodes without name and outputs have one path.
        """
        return [
            Site(node, scope, shown_name(node), node.op_type)
            for scope, node in self.document.nodes(OPERATORS)
        ]

    @cached_property
    def site_of(self) -> Mapping[NodeName, Site]:
        """The linear nodes by name; sites of one name are refused (`layer`)."""
        return {site.node_name: site for site in self.sites}

    @cached_property
    def _site_counts(self) -> Counter[NodeName]:
        """How many sites have a name."""
        return Counter(site.node_name for site in self.sites)

    def check_sizes(self) -> None:
        """Check that the assumed sizes fit the inputs.

        Raises:
            UsageError: an assumed input shape does not fit.
        """
        for shapes in self.draft.sizes:
            inputs_of(self.document.proto, shapes)

    @cached_property
    def planned_shapes(self) -> ShapeTable:
        """The shapes of all values at the first of the assumed sizes.

        Raises:
            UsageError: an assumed input shape does not fit.
        """
        self.check_sizes()
        first = self.draft.sizes[0]
        return ShapeTable(self.document.proto, first) if first else self.document.shapes

    def layer(self, site: Site) -> Layer | Refusal:
        """Return a layer at the planned extents, read on first use.

        Sites of one name are refused, as a plan could not tell them apart.
        """
        if site not in self._layers:
            self._layers[site] = self.layer_at(site, self.planned_shapes)
        return self._layers[site]

    def layer_at(
        self, site: Site, shapes: ShapeTable, *, is_fixed: bool = False
    ) -> Layer | Refusal:
        """Read a layer at the extents of a table.

        `is_fixed` reads the layer as if the model took no other extents.
        """
        if self._site_counts[site.node_name] > 1:
            return SAME_NAME

        def extents(table: ShapeTable) -> ExtentsOf:
            return lambda value: table.get(site.scope.path, value.name or "")

        fixed_extents = extents(shapes if is_fixed else self.document.shapes)
        return read_layer(self.document, site, fixed_extents, extents(shapes))
