"""What a search finds for a model: as it is, or written channel by channel where that is faster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import FoldOptions, SearchOptions
from widthfold_onnx.plan.by_channel import (
    Origin,
    candidates,
    joined,
    origins,
    unfolded,
    written,
)
from widthfold_onnx.plan.decisions import Decision, plan
from widthfold_onnx.plan.search import Search
from widthfold_onnx.plan.store import Store
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.results import SearchReport, SiteReport


@dataclass(frozen=True)
class Found:
    """What becomes of a model.

    Attributes:
        document: what the decisions are for.
        decisions: one for every site of it.
        sites: one line for every site of the original.
        origins: what is written channel by channel was, by what it returns; empty where nothing is.
        search: what found it.
        report: of the search.
    """

    document: Document
    decisions: list[Decision]
    sites: list[SiteReport]
    origins: Mapping[str, Origin]
    search: Search
    report: SearchReport


def find(
    loaded: LoadedModel,
    options: FoldOptions,
    search_options: SearchOptions,
    store: Store,
    on_progress: Progress,
) -> Found:
    """Search the model, and where it has small layers and many samples, its rival.

    A layer of which some channel is better not folded is better not written so: the search goes on
    without it.

    Raises:
        UnverifiedError: the runtime cannot be used, or the model does not run.
        UsageError: an option that does not fit.
    """
    deadline = time.monotonic() + search_options.time_budget
    seconds = search_options.time_budget
    found = _search(loaded, {}, options, search_options, seconds, store, on_progress)
    names = candidates(found.document, ((d.site, d.conv) for d in found.decisions), options)
    known = origins(found.document, found.decisions)
    while names and not found.report.interrupted:
        on_progress(Step(f"trying {len(names)} layers channel by channel"))
        left = deadline - time.monotonic()
        rival = _search(loaded, names, options, search_options, left, store, on_progress)
        found, rival = _counted(found, rival), _counted(rival, found)
        missing = unfolded(rival.decisions, names)
        if not missing:
            faster = _is_faster(rival.report, found.report)
            return replace(rival, origins=known) if faster else found
        names = {of: name for of, name in names.items() if of not in missing}
    return found


def _search(
    loaded: LoadedModel,
    names: Mapping[str, str],
    options: FoldOptions,
    search_options: SearchOptions,
    seconds: float,
    store: Store,
    on_progress: Progress,
) -> Found:
    if names:
        loaded = written(loaded, names)
    search = Search(loaded, options, search_options, store, on_progress)
    report = search.run(seconds)
    document = Document(loaded.proto, loaded.folder)
    decisions = plan(document, options, search.choose)
    lines = [(d, d.report(options, search.gain(d.conv))) for d in decisions]
    return Found(document, decisions, joined(lines, names), {}, search, report)


def _counted(found: Found, other: Found) -> Found:
    """With what the other search looked at as well."""
    forms = {**found.search.forms, **other.search.forms}
    report = msgspec.structs.replace(
        found.report,
        layers=len(forms),
        forms=sum(forms.values()),
        measured=found.report.measured + other.report.measured,
        left=len(found.search.left | other.search.left),
        interrupted=found.report.interrupted or other.report.interrupted,
    )
    return replace(found, report=report)


def _is_faster(rival: SearchReport, found: SearchReport) -> bool:
    """Whether a rival that was timed surely gains more than what was found before it."""
    if rival.whole is None or not rival.accepted:
        return False
    return not found.accepted or found.whole is None or rival.whole.low > found.whole.high
