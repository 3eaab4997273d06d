"""Match a plan to a model: the only place where specs of a file become forms."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import msgspec

from widthfold_onnx.errors import CheckFailedError, UsageError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.draft import CompanionPlan, Draft, PaddedLayer, PaddingPlan
from widthfold_onnx.rewrite.plan import LayerPlan, Plan, differences
from widthfold_onnx.rewrite.reading import ALREADY_FOLDED, Reading
from widthfold_onnx.rules.companions import COMPANIONS
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Form
from widthfold_onnx.text import printable


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


def read_for(model: Model, plan: Plan) -> Reading:
    """Read a model as a plan prepares it, without companions that the runtime computes otherwise.

    Raises:
        InvalidModelError: the graph library cannot read the model.
    """
    companions = tuple(
        c for c in plan.companions if COMPANIONS[c.companion].runtime_problem() is None
    )
    return Reading.of(model, replace(plan.draft, companions=companions))


def match(reading: Reading, plan: Plan) -> tuple[Draft, list[Misfit]]:
    """Find the parts of a plan in a model, and make the forms of its layers.

    Args:
        reading: the model, as `read_for` reads it.
        plan: the plan.

    Returns:
        The parts that fit, as a draft, and the others.

    Raises:
        CheckFailedError: the model contains folds, or a size of the plan does not fit an input.
    """
    if plan.is_changing and reading.is_folded:
        raise CheckFailedError(ALREADY_FOLDED.reason)
    try:
        reading.check_sizes()
    except UsageError as error:
        raise CheckFailedError(f"the sizes of the plan do not fit the model: {error}") from error
    weights, companions = _weight_misfits(reading, plan), _companion_misfits(reading, plan)
    options = plan.options
    layers = {part.name: _form_or_misfit(reading, part, options) for part in plan.layers}
    draft = replace(
        plan.draft,
        frozen=tuple(name for name in dict.fromkeys(plan.frozen) if name not in weights),
        companions=tuple(c for c in dict.fromkeys(plan.companions) if c not in companions),
        padding=_fitting_padding(plan.padding, reading.padding_misfits),
        forms={name: form for name, form in layers.items() if isinstance(form, Form)},
    )
    padding = [
        Misfit(layer.name, _op_of(reading, layer.name), reason)
        for layer, reason in reading.padding_misfits.items()
    ]
    misfits = [misfit for misfit in layers.values() if isinstance(misfit, Misfit)]
    return draft, [*weights.values(), *companions.values(), *padding, *misfits]


def _op_of(reading: Reading, name: NodeName) -> str:
    """Return the operator of a layer of a plan; "" if the model has no such layer."""
    site = reading.site_of.get(name)
    return "" if site is None else site.op


def _weight_misfits(reading: Reading, plan: Plan) -> dict[str, Misfit]:
    return {
        name: Misfit(NodeName("", name), "", "no weight of this name is an input")
        for name in plan.frozen
        if name in reading.missing_weights
    }


def _companion_misfits(reading: Reading, plan: Plan) -> dict[CompanionPlan, Misfit]:
    """Return the nodes that cannot be replaced; the reading has every node that matches."""
    matches = {(match.companion, match.name): match.replacements for match in reading.matches}
    misfits = {}
    for part in plan.companions:
        found = COMPANIONS[part.companion].runtime_problem() or matches.get(
            (part.companion, part.name)
        )
        if not isinstance(found, tuple):
            reason = "no node of this name matches" if found is None else found.reason
            name = part.companion.value
            misfits[part] = Misfit(part.name, name, f"companion {name}: {reason}")
    return misfits


def _fitting_padding(
    plan: PaddingPlan | None, misfits: Collection[PaddedLayer]
) -> PaddingPlan | None:
    """Return the part of the padding of a plan that fits."""
    if plan is None:
        return None
    layers = tuple(layer for layer in plan.layers if layer not in misfits)
    return msgspec.structs.replace(plan, layers=layers) if layers else None


def _form_or_misfit(reading: Reading, layer_plan: LayerPlan, options: FoldOptions) -> Form | Misfit:
    """Return the form of a layer of a plan at planned shapes, or why it does not fit."""
    name, op = layer_plan.name, str(layer_plan.structure.get("op", ""))
    site = reading.site_of.get(name)
    if site is None:
        return Misfit(name, op, "the model has no such layer")
    layer = reading.layer(site)
    if isinstance(layer, Refusal):
        return Misfit(name, op, layer.reason)
    if changes := differences(layer_plan.structure, layer.structure):
        return Misfit(name, op, "; ".join(changes))
    answer = form_of(layer, layer_plan.form, options)
    return Misfit(name, op, answer.reason) if isinstance(answer, Refusal) else answer
