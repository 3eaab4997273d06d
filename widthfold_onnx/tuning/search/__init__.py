"""Search the forms that make the model faster: measure layer by layer, decide by the whole model.

This page is the search. A stage is a function from draft to draft, in a file of its name: it
measures, decides, and leaves in the draft what it decided and the evidence. `session` has both
arguments of a stage. `level_race` and `agreement` choose the forms of layers; `trials` times whole
models by `timers`; `report` shows the draft at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from widthfold_onnx.decide.outcomes import Decided
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import FoldOptions, SearchOptions
from widthfold_onnx.progress import Step, progress, progress_to
from widthfold_onnx.tuning.measurement import Measurement
from widthfold_onnx.tuning.search.exchange import exchange
from widthfold_onnx.tuning.search.pad import pad
from widthfold_onnx.tuning.search.race import race
from widthfold_onnx.tuning.search.report import decided
from widthfold_onnx.tuning.search.session import SearchDraft, SearchSession, open_session
from widthfold_onnx.tuning.search.settle import settle
from widthfold_onnx.tuning.search.trials import final_trials, gains_over_sizes
from widthfold_onnx.tuning.store import Store


def search(
    model: LoadedModel, fold_options: FoldOptions, search_options: SearchOptions, store: Store
) -> Decided:
    """Measure, choose, try, and return the draft with the outcome of every layer.

    1. `exchange`: every companion that matches is timed with the whole model; companions that
       surely help are taken.
    2. `race`: the model is timed at the levels of the runtime. At promising levels every layer
       races in its forms; its best form is taken if it is surely faster. The level that promises
       the fastest model comes first.
    3. `settle`: the forms in which neighbours agree on layouts at least cost are timed with the
       whole model, at each level. Then the model is timed without each form; what does not help in
       its place is dropped.
    4. `pad`: the model is timed with the channels of whole chains padded.
    5. `confirm`: the rest is timed against the original at its strongest setting, at every size of
       the inputs. It must be faster beyond the noise at one size, and slower at none; else nothing
       is changed.

    If nothing is to be measured, they use the store, and `tuning.cost` for layers without a stored
    measurement; a companion without one is not taken.

    Args:
        model: the model.
        fold_options: which layers may be folded, and limits.
        search_options: where and how long to measure.
        store: the known measurements; new ones are added to it.

    Raises:
        UnverifiedError: the runtime cannot be used, or the model does not run.
        UsageError: an option does not fit.
    """
    with open_session(model, fold_options, search_options, store) as session:
        draft = SearchDraft.first(model, fold_options)
        for stage in STAGES:
            with progress_to(_named(stage)):
                draft = stage(session, draft)
        return decided(session, draft)


def confirm(session: SearchSession, draft: SearchDraft) -> SearchDraft:
    """Return the draft if it makes the model faster beyond noise, else one that changes nothing."""
    finals: Sequence[Measurement | None] = [None] * len(session.sizes)
    if draft.is_changing:
        progress(Step("timing the whole model"))
        # The levels were timed with companions, so they say nothing of the original then.
        level = None if draft.frozen or draft.companions else draft.level
        finals = final_trials(session, draft, level)
    draft = replace(draft, finals=finals)
    if gains_over_sizes(finals):
        return draft
    return replace(draft, frozen=(), companions=(), padding=None, forms={}, specs={})


Stage = Callable[[SearchSession, SearchDraft], SearchDraft]

STAGES: Sequence[Stage] = (exchange, race, settle, pad, confirm)


def _named(stage: Stage) -> Callable[[Step], None]:
    """Return a listener that puts the name of a stage before its steps."""
    return lambda step: progress(replace(step, text=f"{stage.__name__}: {step.text}"))
