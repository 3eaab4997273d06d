"""Define a decided plan: a plan with its outcomes, which later checks may make smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from widthfold_onnx.decide.match import FittedPlan, fit, misfit_text
from widthfold_onnx.decide.outcomes import Outcomes
from widthfold_onnx.errors import InternalError
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.loader import Model
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import SearchReport, SizeGain
from widthfold_onnx.rewrite.plan import Plan, PlanTimes
from widthfold_onnx.rewrite.reading import Reading


@dataclass(frozen=True)
class DecidedPlan:
    """A plan with its outcomes.

    Attributes:
        plan: the plan.
        reading: the model as it was read under the plan.
        outcomes: of the plan.
    """

    plan: Plan
    reading: Reading
    outcomes: Outcomes

    def fit(self) -> FittedPlan:
        """Match the plan to the model for which it was decided.

        Raises:
            InternalError: a part of the plan does not fit: a fault of widthfold.
        """
        fitted_plan = fit(self.reading, self.plan)
        if fitted_plan.misfits:
            raise InternalError(misfit_text(fitted_plan.misfits))
        return fitted_plan

    def with_refusals(self, refusals: Mapping[NodeName, Refusal]) -> DecidedPlan:
        """Return the same with the refusals of layers that the plan does not fold."""
        return replace(self, outcomes=self.outcomes.with_refusals(refusals))

    def without_unproved(self, refusals: Mapping[NodeName, Refusal], model: Model) -> DecidedPlan:
        """Return the same without layers whose folds are not proved; the model is read anew.

        The search timed another model, so its figures of the whole model are left out.
        """
        plan = self.plan.with_layers(part for part in self.plan.layers if part.name not in refusals)
        plan = msgspec.structs.replace(plan, measured=PlanTimes(sizes=plan.measured.sizes))
        search = self.outcomes.search and _untimed(self.outcomes.search, accepted=plan.is_changing)
        outcomes = replace(self.outcomes, search=search)
        reading = Reading.of(model, plan.as_draft)
        return DecidedPlan(plan, reading, outcomes.with_refusals(refusals))


def _untimed(search: SearchReport, *, accepted: bool) -> SearchReport:
    """Return the report of a search without figures of the whole model."""
    figures = {
        field.name: field.default
        for field in msgspec.structs.fields(SearchReport)
        if field.default is not msgspec.NODEFAULT
    }
    sizes = [SizeGain(shapes=row.shapes) for row in search.sizes]
    return msgspec.structs.replace(search, **figures, whole=None, sizes=sizes, accepted=accepted)
