"""Apply a plan to a model; every change of a model begins with `fit`.

Weights are frozen, companions take the place of nodes, and the nodes are linked (`Reading`). The
layers of the plan are found and read, and each is replaced by its form (`rewrite.rewriting`).
Deciders read a model in the same way, under a plan that has no layers yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import onnx

from widthfold_onnx.errors import CheckFailedError, UsageError
from widthfold_onnx.model.document import Document
from widthfold_onnx.model.messages import NodeName, shown_name
from widthfold_onnx.model.proto.dims import declare
from widthfold_onnx.model.proto.walk import copy_of, frozen, overridable
from widthfold_onnx.model.shapes.table import ShapeTable, inputs_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import ANY_SIZE, Companion, FoldOptions, Sizes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.exchange import Match, exchanged
from widthfold_onnx.rewrite.padding import padded_model
from widthfold_onnx.rewrite.plan import (
    CompanionPlan,
    LayerPlan,
    PaddedLayer,
    PaddingPlan,
    Plan,
    differences,
    structure_of,
)
from widthfold_onnx.rewrite.record import carries_folds
from widthfold_onnx.rewrite.rewriting import Rewriting
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer, Site
from widthfold_onnx.rules.quantization import ExtentsOf
from widthfold_onnx.rules.reading import read_layer
from widthfold_onnx.text import printable

ALREADY_FOLDED = Refusal(
    Code.ALREADY_FOLDED, "the model carries folds of an earlier run; fold the original instead"
)


@dataclass(frozen=True, eq=False)
class Reading:
    """A model whose nodes are linked, and whose layers can be read.

    Attributes:
        document: the model, which a rewriting consumes.
        sizes: assumed shapes of inputs; layers are planned at the first ones.
        is_folded: whether the model carries folds. Its moves between packed tensors look like any
            others, and sizes that were assumed for planning look like facts. So its layers are not
            folded again.
        matches: the nodes that companions match, with the equal nodes or the refusal.
        padding_misfits: layers of the plan whose channels cannot be padded, and why.
    """

    document: Document
    sizes: Sizes = ANY_SIZE
    is_folded: bool = False
    matches: Sequence[Match] = ()
    padding_misfits: Mapping[PaddedLayer, str] = field(default_factory=dict)

    @classmethod
    def of(cls, proto: onnx.ModelProto, folder: Path | None, plan: Plan) -> Reading:
        """Freeze the weights of a plan, put its companions and its padding in place, and link all.

        Args:
            proto: a checked model; it stays as it is.
            folder: where its external data lies.
            plan: its frozen weights, companions, padding and sizes count.

        Raises:
            InvalidModelError: the graph library cannot read the model.
        """
        frozen_proto = frozen(proto, retained=overridable(proto) - set(plan.frozen))
        nodes = {(part.companion, part.name) for part in plan.companions}
        names = {companion for companion, _ in nodes}
        exchanged_proto, matches = exchanged(frozen_proto, folder, names, nodes)
        is_folded = carries_folds(exchanged_proto)
        misfits: Mapping[PaddedLayer, str] = {}
        if plan.padding is not None and not is_folded:
            copy, misfits = padded_model(exchanged_proto, folder, plan.padding)
        else:
            copy = copy_of(exchanged_proto)
        if plan.limits.fixed_shapes:
            declare(copy.graph.input, plan.sizes[0])
        return cls(Document(copy, folder, OPERATORS), plan.sizes, is_folded, matches, misfits)

    @cached_property
    def sites(self) -> Sequence[Site]:
        """Every linear node of the main graph, bodies and functions, in graph order.

        Names may repeat: bodies of nodes that have neither name nor outputs have one path.
        """
        return [
            Site(node, scope, shown_name(node), node.op_type)
            for scope, node in self.document.nodes(OPERATORS)
        ]

    @cached_property
    def site_of(self) -> Mapping[NodeName, Site]:
        """The linear nodes by name; layers of one name have no known shapes, so no form."""
        return {site.node_name: site for site in self.sites}

    @cached_property
    def planned(self) -> ShapeTable:
        """The shapes of all values at the first of the assumed sizes.

        Raises:
            UsageError: an assumed input shape does not fit.
        """
        first, *other_sizes = self.sizes
        for shapes in other_sizes:
            inputs_of(self.document.proto, shapes)
        return ShapeTable(self.document.proto, first) if first else self.document.shapes

    def layer(self, site: Site, shapes: ShapeTable | None = None) -> Layer | Refusal:
        """Read a layer at the planned extents, or at the extents of another table."""

        def extents(table: ShapeTable) -> ExtentsOf:
            return lambda value: table.get(site.scope.path, value.name or "")

        planned_extents = extents(self.planned if shapes is None else shapes)
        return read_layer(self.document, site, extents(self.document.shapes), planned_extents)


@dataclass(frozen=True)
class Misfit:
    """A part of a plan that does not fit a model.

    Attributes:
        name: a layer, a node of a companion, or a weight of the main graph.
        op: operator of the layer, or name of the companion; "" for a weight.
        reason: the missing part, or the difference.
    """

    name: NodeName
    op: str
    reason: str

    def __str__(self) -> str:
        """Return the misfit for messages."""
        return f"{printable(str(self.name))}: {self.reason}"


@dataclass(frozen=True, eq=False)
class FittedPlan:
    """A plan that was matched to a model; no layer is replaced yet.

    Attributes:
        plan: the parts of the plan that fit.
        reading: the model.
        layers: the layers that are replaced, each with its form.
        misfits: the other parts of the plan.
        rewriting: regions and guards of the layers that are replaced.
    """

    plan: Plan
    reading: Reading
    layers: Sequence[tuple[Layer, Form]]
    misfits: Sequence[Misfit]
    rewriting: Rewriting


def fit(
    proto: onnx.ModelProto, folder: Path | None, plan: Plan, reading: Reading | None = None
) -> FittedPlan:
    """Match the parts of a plan to a model.

    Args:
        proto: a checked model; it stays as it is.
        folder: where its external data lies.
        plan: the plan.
        reading: the model as it was read to decide the plan; None reads it.

    Raises:
        InvalidModelError: the graph library cannot read the model.
        CheckFailedError: the model carries folds, or a size of the plan does not fit an input.
    """
    reading = reading or Reading.of(proto, folder, plan)
    if plan.changes and reading.is_folded:
        raise CheckFailedError(ALREADY_FOLDED.reason)
    try:
        shapes = reading.planned
    except UsageError as error:
        raise CheckFailedError(f"the sizes of the plan do not fit the model: {error}") from error
    weights = {name: _weight_misfit(name, overridable(proto)) for name in plan.frozen}
    matches = {(match.companion, match.name): match.outcome for match in reading.matches}
    nodes = {part: _companion_misfit(part, matches) for part in plan.companions}
    misfits = {
        layer: Misfit(layer.name, _op_of(reading, layer.name), reason)
        for layer, reason in reading.padding_misfits.items()
    }
    options = plan.options
    layers = [(part, _layer(reading, shapes, part, options)) for part in plan.layers]
    outcomes = [
        *weights.values(),
        *nodes.values(),
        *misfits.values(),
        *(outcome for _, outcome in layers),
    ]
    replaced = [outcome for _, outcome in layers if not isinstance(outcome, Misfit)]
    return FittedPlan(
        plan=msgspec.structs.replace(
            plan,
            frozen=tuple(name for name, misfit in weights.items() if misfit is None),
            companions=tuple(part for part, misfit in nodes.items() if misfit is None),
            padding=_padding(plan.padding, reading.padding_misfits),
            layers=tuple(part for part, outcome in layers if not isinstance(outcome, Misfit)),
        ),
        reading=reading,
        layers=replaced,
        misfits=[outcome for outcome in outcomes if isinstance(outcome, Misfit)],
        rewriting=Rewriting.of(
            reading.document, replaced, plan.origin.runtime if plan.origin else ""
        ),
    )


def apply(proto: onnx.ModelProto, folder: Path | None, plan: Plan) -> onnx.ModelProto:
    """Return the model that a plan makes of a model.

    Args:
        proto: a checked model; it stays as it is.
        folder: where its external data lies.
        plan: the plan.

    Raises:
        CheckFailedError: a part of the plan does not fit.
        InvalidModelError: the graph library cannot read the model.
    """
    fitted_plan = fit(proto, folder, plan)
    if fitted_plan.misfits:
        raise CheckFailedError(misfit_text(fitted_plan.misfits))
    return fitted_plan.rewriting.carry_out()


def misfit_text(misfits: Sequence[Misfit]) -> str:
    """Return one line that names every part of a plan that does not fit."""
    return f"the plan does not fit the model: {'; '.join(map(str, misfits))}"


def _weight_misfit(name: str, weights: Collection[str]) -> Misfit | None:
    reason = "no weight of this name is an input"
    return None if name in weights else Misfit(NodeName("", name), "", reason)


def _op_of(reading: Reading, name: NodeName) -> str:
    """Return the operator of a layer of a plan; "" if the model has no such layer."""
    site = reading.site_of.get(name)
    return "" if site is None else site.op


def _companion_misfit(
    part: CompanionPlan,
    matches: Mapping[tuple[Companion, NodeName], Sequence[str] | Refusal],
) -> Misfit | None:
    """Return why a node cannot be replaced; `matches` has every node that matches."""
    outcome = matches.get((part.companion, part.name))
    if outcome is not None and not isinstance(outcome, Refusal):
        return None
    reason = "no node of this name matches" if outcome is None else outcome.reason
    kind = part.companion.value
    return Misfit(part.name, kind, f"companion {kind}: {reason}")


def _padding(plan: PaddingPlan | None, misfits: Collection[PaddedLayer]) -> PaddingPlan | None:
    """Return the part of the padding of a plan that fits."""
    if plan is None:
        return None
    layers = tuple(layer for layer in plan.layers if layer not in misfits)
    return msgspec.structs.replace(plan, layers=layers) if layers else None


def _layer(
    reading: Reading, shapes: ShapeTable, layer_plan: LayerPlan, options: FoldOptions
) -> tuple[Layer, Form] | Misfit:
    """Return a layer of a plan with its form at planned shapes, or why it does not fit."""
    name, op = layer_plan.name, str(layer_plan.structure.get("op", ""))
    site = reading.site_of.get(name)
    if site is None:
        return Misfit(name, op, "the model has no such layer")
    layer = reading.layer(site, shapes)
    if isinstance(layer, Refusal):
        return Misfit(name, op, layer.reason)
    if changes := differences(layer_plan.structure, structure_of(layer)):
        return Misfit(name, op, "; ".join(changes))
    form = form_of(layer, layer_plan.form, options)
    return Misfit(name, op, form.reason) if isinstance(form, Refusal) else (layer, form)
