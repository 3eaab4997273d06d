"""Decide what every site of a model becomes; the graph is not changed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import onnx

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.plan.guardable import guard_problem
from widthfold_onnx.plan.hints import Hints
from widthfold_onnx.plan.nonfinite import note_spread, spread_of
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import Gain, SiteReport
from widthfold_onnx.rewrite.engine import Engine
from widthfold_onnx.rewrite.record import carries_folds
from widthfold_onnx.rules import reading
from widthfold_onnx.rules.form import Reformulation
from widthfold_onnx.rules.guarding import EXTENTS, needed_extents
from widthfold_onnx.rules.site import Extents, LinearSite, Site
from widthfold_onnx.text import quoted

Choose = Callable[[LinearSite], Reformulation | Refusal]

ALREADY_FOLDED = Refusal(
    "already-folded", "the model carries folds of an earlier run; fold the original instead"
)
KEPT = frozenset({"already-folded", "not-selected", "no-gain"})
"""Codes of sites that are left alone without a fault."""


@dataclass(frozen=True)
class Decision:
    """A site and its outcome.

    Attributes:
        conv: the same site as it was read; None where it could not or need not be read.
        hint: options that would fold a refused site (`plan.hints`), "" where none that was tried
            does.
    """

    site: Site
    conv: LinearSite | None
    outcome: Reformulation | Refusal
    hint: str = ""

    def report(self, options: FoldOptions, gain: Gain | None = None) -> SiteReport:
        """Return the line of the report.

        Args:
            options: tell which extents were to be guarded.
            gain: the measured gain of the site alone.
        """
        node, graph, op = self.site.name, self.site.scope.path, self.site.op
        if isinstance(self.outcome, Refusal):
            return SiteReport(
                node=node,
                graph=graph,
                op=op,
                status="kept" if self.outcome.code in KEPT else "refused",
                code=self.outcome.code,
                reason="; ".join(filter(None, (self.outcome.reason, self.hint))),
                gain=gain,
            )
        assert self.conv is not None
        inputs, outputs = self.conv.channels
        guard = EXTENTS if needed_extents(self.conv, self.outcome, options) else ""
        return SiteReport(
            node=node,
            graph=graph,
            op=op,
            status="folded",
            axis=self.outcome.axis,
            factor=self.outcome.factor,
            form=self.outcome.form,
            code="folded",
            reason=f"{inputs} -> {outputs} channels became {self.outcome.became(inputs, outputs)}"
            + (f", guarded ({guard})" if guard else ""),
            flops_ratio=round(self.outcome.flops_ratio, 4),
            spread=spread_of(self.conv, self.outcome),
            guard=guard,
            gain=gain,
        )


def plan(document: Document, options: FoldOptions, choose: Choose) -> list[Decision]:
    """Return one decision for every site of the model, in graph order.

    Args:
        document: the model.
        options: which sites, and the shapes to assume.
        choose: returns the form or refusal of a site that can be read.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    decisions = []
    hints = Hints(document, options)
    for site, conv in read_sites(document, options):
        if isinstance(conv, Refusal):
            decisions.append(Decision(site, None, conv, hints.of(site, None, conv)))
            continue
        outcome = choose(conv)
        if isinstance(outcome, Refusal):
            decisions.append(Decision(site, conv, outcome, hints.of(site, conv, outcome)))
            continue
        problem = guard_problem(conv, outcome, options, document.opset)
        decisions.append(Decision(site, conv, _finite(document, conv) or problem or outcome))
    return decisions


def applied(
    document: Document, decisions: Sequence[Decision], options: FoldOptions
) -> onnx.ModelProto:
    """Return the model with every decision applied, guarded as asked; the document is consumed."""
    model = engine_of(document, decisions, options).finish()
    spreads = [
        spread_of(d.conv, d.outcome)
        for d in decisions
        if d.conv is not None and isinstance(d.outcome, Reformulation)
    ]
    note_spread(model, max(spreads, default=1.0))
    return model


def engine_of(document: Document, decisions: Sequence[Decision], options: FoldOptions) -> Engine:
    """Return an engine that holds every decision; the graph is not changed yet."""
    engine = Engine(document, options)
    for decision in decisions:
        if decision.conv is not None and isinstance(decision.outcome, Reformulation):
            engine.apply(decision.conv, decision.outcome)
    return engine


def read_sites(
    document: Document, options: FoldOptions
) -> Iterator[tuple[Site, LinearSite | Refusal]]:
    """Yield every site in graph order, read or refused.

    All sites of a model that carries folds are refused: its moves between packed tensors look like
    any others, and what was assumed for planning looks like a fact.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    static = document.shapes
    planned = ShapeTable(document.proto, options.input_shapes) if options.input_shapes else static
    is_folded = carries_folds(document.proto)
    for site in find_sites(document, options):
        if is_folded:
            yield site, ALREADY_FOLDED
        elif not _selected(site.name, options):
            yield site, Refusal("not-selected", "left alone by --nodes or --skip")
        else:
            yield site, read_site(document, site, static, planned)


def read_site(
    document: Document, site: Site, static: ShapeTable, planned: ShapeTable
) -> LinearSite | Refusal:
    """Read a site at the extents that two tables give its values."""

    def extents(table: ShapeTable) -> Extents:
        return lambda value: table.get(site.scope.path, value.name or "")

    return reading.read_site(document, site, extents(static), extents(planned))


def find_sites(document: Document, options: FoldOptions) -> list[Site]:
    """Return every linear node of the main graph, bodies and functions; nameless ones get a name.

    Raises:
        UsageError: a node pattern matches none.
    """
    sites = [
        Site(node, scope, node.name or f"{node.op_type} -> {node.outputs[0].name}", node.op_type)
        for scope, node in document.nodes(OPERATORS)
    ]
    for pattern in (*options.nodes, *options.skip):
        if not any(fnmatchcase(site.name, pattern) for site in sites):
            raise UsageError(f"no linear node is named {quoted(pattern)}; `inspect` lists them")
    return sites


def _finite(document: Document, conv: LinearSite) -> Refusal | None:
    """Refuse a weight with NaN or Inf.

    Such a weight turns padding into NaN, and kernels of a runtime differ in which products with
    padding they form, as do a Conv and its fold.
    """
    if np.isfinite(document.read(conv.weight)).all():
        return None
    return Refusal("weight-not-finite", "the weight holds NaN or Inf")


def _selected(name: str, options: FoldOptions) -> bool:
    wanted = not options.nodes or any(fnmatchcase(name, p) for p in options.nodes)
    return wanted and not any(fnmatchcase(name, p) for p in options.skip)
