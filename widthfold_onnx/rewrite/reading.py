"""Read a model as a plan prepares it: weights frozen, companions and padding in place.

Deciders read a model under a draft, a plan that has no layers yet. To apply a plan, the model is
read under all of it, and `rewrite.fit` fits the plan to the reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from widthfold_onnx.model.document import Document
from widthfold_onnx.model.linking import NodeName, shown_name
from widthfold_onnx.model.loader import Model
from widthfold_onnx.model.proto.dims import declare
from widthfold_onnx.model.proto.walk import copy_of, frozen, weights_among_inputs
from widthfold_onnx.model.shapes.table import ShapeTable, inputs_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import ANY_SIZE, Sizes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.exchange import Match, exchanged
from widthfold_onnx.rewrite.padding import padded_model
from widthfold_onnx.rewrite.plan import PaddedLayer, Plan
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
        sizes: assumed shapes of inputs; layers are planned at the first ones.
        is_folded: whether the model contains folds. Its moves between packed tensors look like any
            others, and sizes that were assumed for planning look like facts. So its layers are not
            folded again.
        missing_weights: frozen weights of the plan that are no inputs of the model.
        matches: the nodes that companions match, with the equal nodes or the refusal.
        padding_misfits: layers of the plan whose channels cannot be padded, and why.
    """

    document: Document
    sizes: Sizes = ANY_SIZE
    is_folded: bool = False
    missing_weights: Collection[str] = frozenset()
    matches: Sequence[Match] = ()
    padding_misfits: Mapping[PaddedLayer, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, plan: Plan) -> Reading:
        """Freeze the weights of a plan, put its companions and its padding in place, and link all.

        Args:
            model: the model.
            plan: its frozen weights, companions, padding and sizes count.

        Raises:
            InvalidModelError: the graph library cannot read the model.
        """
        frozen_proto = frozen(model.proto, plan.frozen)
        nodes = {(part.companion, part.name) for part in plan.companions}
        exchanged_proto, matches = exchanged(frozen_proto, model.folder, nodes)
        is_folded = contains_folds(exchanged_proto)
        misfits: Mapping[PaddedLayer, str] = {}
        if plan.padding is not None and not is_folded:
            copy, misfits = padded_model(exchanged_proto, model.folder, plan.padding)
        else:
            copy = copy_of(exchanged_proto)
        if plan.limits.fixed_shapes:
            declare(copy.graph.input, plan.sizes[0])
        return cls(
            document=Document(copy, model.folder, OPERATORS),
            sizes=plan.sizes,
            is_folded=is_folded,
            missing_weights=set(plan.frozen) - weights_among_inputs(model.proto),
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
        for shapes in self.sizes:
            inputs_of(self.document.proto, shapes)

    @cached_property
    def planned_shapes(self) -> ShapeTable:
        """The shapes of all values at the first of the assumed sizes.

        Raises:
            UsageError: an assumed input shape does not fit.
        """
        self.check_sizes()
        first = self.sizes[0]
        return ShapeTable(self.document.proto, first) if first else self.document.shapes

    def layer(
        self, site: Site, shapes: ShapeTable | None = None, *, is_fixed: bool = False
    ) -> Layer | Refusal:
        """Read a layer at the planned extents, or at the extents of another table.

        Sites of one name are refused, as a plan could not tell them apart. `is_fixed` reads the
        layer as if the model took no other extents.
        """
        if self._site_counts[site.node_name] > 1:
            return SAME_NAME

        def extents(table: ShapeTable) -> ExtentsOf:
            return lambda value: table.get(site.scope.path, value.name or "")

        planned_extents = extents(self.planned_shapes if shapes is None else shapes)
        fixed_extents = planned_extents if is_fixed else extents(self.document.shapes)
        return read_layer(self.document, site, fixed_extents, planned_extents)
