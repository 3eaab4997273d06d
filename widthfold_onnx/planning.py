"""Decides the form of every site of a model, by measurement or at a fixed factor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import onnx

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.proto.frozen import overridable
from widthfold_onnx.model.read.check import check_model
from widthfold_onnx.model.read.loader import LoadedModel
from widthfold_onnx.model.write.writer import copy_model
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions, SearchOptions
from widthfold_onnx.plan.decide.companions import prepared
from widthfold_onnx.plan.decide.decisions import Choose, Decision, plan, rewriting
from widthfold_onnx.plan.decide.hints import Hints
from widthfold_onnx.plan.decide.layouts import decide_layout
from widthfold_onnx.plan.search.search import search
from widthfold_onnx.plan.store.store import Store
from widthfold_onnx.progress import Progress, Step
from widthfold_onnx.results import Gain, OptimizeReport, OptimizeSummary, SiteReport
from widthfold_onnx.rewrite.region_report import region_reports
from widthfold_onnx.rewrite.rewriting import Rewriting
from widthfold_onnx.rules.match.site import LinearSite
from widthfold_onnx.rules.selection import reformulate


@dataclass(frozen=True)
class Planned:
    """A model and the decisions on its sites; nothing has been written yet.

    Attributes:
        loaded: the model.
        options: those of the caller, with the layout decided.
        rewriting: what is to be done with its graph, which is unchanged.
        report: the report on all sites.
    """

    loaded: LoadedModel
    options: FoldOptions
    rewriting: Rewriting
    report: OptimizeReport

    def copy(self, out: Path) -> None:
        """Write the model as it was, byte for byte."""
        copy_model(self.loaded.path, out, proto=self.loaded.proto)


def planned_of(
    loaded: LoadedModel,
    options: FoldOptions,
    search_options: SearchOptions,
    on_progress: Progress,
    left: Mapping[str, str],
) -> Planned:
    """Decide the form of every site: as measured, or at a fixed factor whatever is legal.

    Args:
        loaded: the model.
        options: those of the caller.
        search_options: how candidates are measured.
        on_progress: called with every step.
        left: by name, reasons for skipped sites that the caller did not ask to skip.

    Raises:
        UsageError: an option that does not fit.
        InvalidModelError: the graph library cannot read the model.
        UnverifiedError: nothing can be measured, for want of a runtime or of usable inputs.
    """
    options = decide_layout(options, search_options)
    on_progress(Step("planning"))
    found, inputs = None, overridable(loaded.proto)
    if options.fixed is None:
        with Store(search_options.store) as store:
            found = search(loaded, options, search_options, store, on_progress)
            document, companions = found.document, found.companions
            decisions, sites = _decided(document, options, found.choose, found.gain)
    else:
        proto, companions = prepared(loaded.proto, loaded.folder, options)
        document = Document(proto, loaded.folder, OPERATORS)
        choose = partial(reformulate, options=options, factor=options.fixed)
        decisions, sites = _decided(document, options, choose)
    sites = [msgspec.structs.replace(s, reason=left.get(s.node, s.reason)) for s in sites]
    size = loaded.path.stat().st_size
    whole = rewriting(document, decisions, options)
    report = OptimizeReport(
        model=loaded.path.name,
        sites=sites,
        regions=region_reports(whole, {one.site.node: one.site.name for one in decisions}),
        companions=companions,
        summary=OptimizeSummary(
            folded=sum(site.status == "folded" for site in sites),
            kept=sum(site.status == "kept" for site in sites),
            refused=sum(site.status == "refused" for site in sites),
            bytes_before=size,
            bytes_after=size,
            exchanged=sum(len(c.nodes) for c in companions if c.status == "exchanged"),
            frozen=len(inputs - overridable(document.proto)),
        ),
        search=None if found is None else found.report,
        written=None,
        verification=None,
    )
    return Planned(loaded, options, whole, report)


def _decided(
    document: Document,
    options: FoldOptions,
    choose: Choose,
    gain: Callable[[LinearSite | None], Gain | None] = lambda site: None,
) -> tuple[list[Decision], list[SiteReport]]:
    """Return the decisions on all sites, and their lines of the report."""
    decisions, hints = plan(document, options, choose), Hints(document, options)
    return decisions, [one.report(options, hints.of(one), gain(one.linear)) for one in decisions]


def fold_model(
    proto: onnx.ModelProto, options: FoldOptions, folder: Path | None = None
) -> tuple[onnx.ModelProto, list[SiteReport]]:
    """Fold a model in memory, without running it.

    Args:
        proto: the model; it stays as it is.
        options: which sites, in which form; a factor must be given, or form strides.
        folder: where its external data lies.

    Returns:
        The folded model, `proto` itself if nothing is changed, and the outcome of every site.

    Raises:
        UsageError: an option that does not fit.
        InvalidModelError: the model is broken or not supported.
    """
    if options.fixed is None:
        raise UsageError("fold_model runs nothing, so it takes a factor, or form strides")
    check_model(proto, folder)
    exchanged, _ = prepared(proto, folder, options)
    copy = onnx.ModelProto()
    copy.CopyFrom(exchanged)
    document = Document(copy, folder, OPERATORS)
    choose = partial(reformulate, options=options, factor=options.fixed)
    decisions, sites = _decided(document, options, choose)
    if not any(site.status == "folded" for site in sites):
        return exchanged, sites
    return rewriting(document, decisions, options).carry_out(), sites
