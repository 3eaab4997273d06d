"""Fold models in memory and files, as tests need it: with the outcome of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from widthfold_onnx import evidence, pipeline
from widthfold_onnx.decide.decisions import Choose, decisions_of, forms_of
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.decide.inspection import inspect_model
from widthfold_onnx.decide.match import match, read_for
from widthfold_onnx.evidence.delivery import IntoFile
from widthfold_onnx.model.check import checked
from widthfold_onnx.model.document import Document
from widthfold_onnx.model.loader import Model, load
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import (
    Companion,
    DeliveryOptions,
    FoldOptions,
    RuntimeOptions,
    SearchOptions,
    VerifyOptions,
)
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import InspectReport, OptimizeReport, SiteReport, VerifyReport
from widthfold_onnx.rewrite.draft import Draft
from widthfold_onnx.rewrite.exchange import Match, exchanged, find_matches
from widthfold_onnx.rewrite.plan import Plan
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.rewriting import Rewriting, rewrite

FOR_DELIVERY = DeliveryOptions()
BY_DEFAULT = SearchOptions()


def fold_model(
    proto: onnx.ModelProto, options: FoldOptions, folder: Path | None = None
) -> tuple[onnx.ModelProto, list[SiteReport]]:
    """Fold a model in memory at a fixed factor, without a proof; `proto` if nothing changes."""
    proto = checked(proto, folder)
    reading, draft, outcomes = decide_fixed(Model(proto, folder), options)
    if not draft.is_changing:
        return proto, list(outcomes.sites)
    return rewrite(reading, draft.forms).carry_out(), list(outcomes.sites)


def rewriting_by_plan(model: onnx.ModelProto, plan: Plan) -> Rewriting:
    """Return the rewriting that carries a plan out, as far as it fits."""
    reading = read_for(Model(model, None), plan)
    return rewrite(reading, match(reading, plan)[0].forms)


def exchange_all(
    proto: onnx.ModelProto, names: Sequence[Companion]
) -> tuple[onnx.ModelProto, list[Match]]:
    """Return a model in which companions replace all nodes that have an equal, and all matches."""
    matches = find_matches(proto, None, names)
    nodes = [(m.companion, m.name) for m in matches if not isinstance(m.replacements, Refusal)]
    return exchanged(proto, None, nodes)[0], matches


def read(model: onnx.ModelProto, options: FoldOptions) -> Reading:
    """Read a copy of a model, as it is, at the assumed sizes of the options."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    return Reading(Document(copy, None, OPERATORS), Draft.unchanged(options))


def rewriting(reading: Reading, options: FoldOptions, choose: Choose) -> Rewriting:
    """Settle on the forms that `choose` returns; layers that it refuses stay."""
    return rewrite(reading, forms_of(decisions_of(reading, options.selection, choose)))


def rewritten(model: onnx.ModelProto, options: FoldOptions, choose: Choose) -> onnx.ModelProto:
    """Return a model in which layers take the forms that `choose` returns."""
    return rewriting(read(model, options), options, choose).carry_out()


def optimize(
    model: Path,
    out: Path | None,
    options: FoldOptions,
    verify_options: VerifyOptions | None = FOR_DELIVERY,
    search_options: SearchOptions = BY_DEFAULT,
    **keywords: Any,
) -> OptimizeReport:
    """Return the report of `pipeline.optimize` for a file."""
    loaded = load(model)
    target = None if out is None else IntoFile(loaded, out, verify_options)
    return pipeline.optimize(loaded, options, search_options, target, **keywords).report


def verify(original: Path, rewritten: Path, *arguments: Any, **options: Any) -> VerifyReport:
    """Return the report of `evidence.verify` for two files."""
    return evidence.verify(load(original), load(rewritten), *arguments, **options)


def inspect(
    model: Path, options: FoldOptions, runtime_options: RuntimeOptions | None = None
) -> InspectReport:
    """Return the report of `inspect` for a file."""
    return inspect_model(load(model), options, runtime_options or RuntimeOptions())
