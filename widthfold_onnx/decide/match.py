"""Fit a plan to a model that was read; every rewriting of layers begins with `fit`.

Weights are frozen, and companions and padding are in place then (`rewrite.reading`). The layers of
the plan are looked up, and each is replaced by its form (`rewrite.rewriting`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from widthfold_onnx.errors import CheckFailedError, UsageError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.options import Companion, FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.draft import CompanionPlan, PaddedLayer, PaddingPlan
from widthfold_onnx.rewrite.plan import LayerPlan, Plan, differences
from widthfold_onnx.rewrite.reading import ALREADY_FOLDED, Reading
from widthfold_onnx.rewrite.rewriting import Rewriting
from widthfold_onnx.rules.companions import COMPANIONS
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Form
from widthfold_onnx.rules.layers import Layer
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


@dataclass(frozen=True, eq=False)
class FittedPlan:
    """A plan that was matched to a model; no layer is replaced yet.

    Attributes:
        plan: the parts of the plan that fit.
        reading: the model.
        misfits: the other parts of the plan.
        rewriting: the layers that are replaced, with their forms, regions and guards.
    """

    plan: Plan
    reading: Reading
    misfits: Sequence[Misfit]
    rewriting: Rewriting


def fit(model: Model | Reading, plan: Plan) -> FittedPlan:
    """Match the parts of a plan to a model, which may have been read under the plan or its draft.

    Raises:
        CheckFailedError: the model contains folds, or a size of the plan does not fit an input.
    """
    problems = {
        part: problem
        for part in plan.companions
        if (problem := COMPANIONS[part.companion].runtime_problem()) is not None
    }
    if isinstance(model, Reading):
        reading = model
    else:
        companions = tuple(part for part in plan.companions if part not in problems)
        reading = Reading.of(model, replace(plan.as_draft, companions=companions))
    if plan.is_changing and reading.is_folded:
        raise CheckFailedError(ALREADY_FOLDED.reason)
    try:
        reading.check_sizes()
    except UsageError as error:
        raise CheckFailedError(f"the sizes of the plan do not fit the model: {error}") from error
    weight_misfits = {
        name: Misfit(NodeName("", name), "", "no weight of this name is an input")
        for name in plan.frozen
        if name in reading.missing_weights
    }
    matches = {(match.companion, match.name): match.replacements for match in reading.matches}
    matches |= {(part.companion, part.name): problem for part, problem in problems.items()}
    companion_misfits = {
        part: misfit
        for part in plan.companions
        if (misfit := _companion_misfit(part, matches)) is not None
    }
    padding_misfits = [
        Misfit(layer.name, _op_of(reading, layer.name), reason)
        for layer, reason in reading.padding_misfits.items()
    ]
    options = plan.options
    layers = [(part, _fitted_layer(reading, part, options)) for part in plan.layers]
    layer_misfits = [misfit for _, misfit in layers if isinstance(misfit, Misfit)]
    forms = [layer for _, layer in layers if not isinstance(layer, Misfit)]
    return FittedPlan(
        plan=msgspec.structs.replace(
            plan,
            frozen=tuple(name for name in dict.fromkeys(plan.frozen) if name not in weight_misfits),
            companions=tuple(
                part for part in dict.fromkeys(plan.companions) if part not in companion_misfits
            ),
            padding=_fitted_padding(plan.padding, reading.padding_misfits),
            layers=tuple(part for part, layer in layers if not isinstance(layer, Misfit)),
        ),
        reading=reading,
        misfits=[
            *weight_misfits.values(),
            *companion_misfits.values(),
            *padding_misfits,
            *layer_misfits,
        ],
        rewriting=Rewriting.of(reading.document, forms, plan.runtime),
    )


def misfit_text(misfits: Sequence[Misfit]) -> str:
    """Return one line that names every part of a plan that does not fit."""
    return f"the plan does not fit the model: {'; '.join(map(str, misfits))}"


def _op_of(reading: Reading, name: NodeName) -> str:
    """Return the operator of a layer of a plan; "" if the model has no such layer."""
    site = reading.site_of.get(name)
    return "" if site is None else site.op


def _companion_misfit(
    part: CompanionPlan,
    matches: Mapping[tuple[Companion, NodeName], tuple[str, ...] | Refusal],
) -> Misfit | None:
    """Return why a node cannot be replaced; `matches` has every node that matches."""
    replacements = matches.get((part.companion, part.name))
    if isinstance(replacements, tuple):
        return None
    reason = "no node of this name matches" if replacements is None else replacements.reason
    kind = part.companion.value
    return Misfit(part.name, kind, f"companion {kind}: {reason}")


def _fitted_padding(
    plan: PaddingPlan | None, misfits: Collection[PaddedLayer]
) -> PaddingPlan | None:
    """Return the part of the padding of a plan that fits."""
    if plan is None:
        return None
    layers = tuple(layer for layer in plan.layers if layer not in misfits)
    return msgspec.structs.replace(plan, layers=layers) if layers else None


def _fitted_layer(
    reading: Reading, layer_plan: LayerPlan, options: FoldOptions
) -> tuple[Layer, Form] | Misfit:
    """Return a layer of a plan with its form at planned shapes, or why it does not fit."""
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
    return Misfit(name, op, answer.reason) if isinstance(answer, Refusal) else (layer, answer)
