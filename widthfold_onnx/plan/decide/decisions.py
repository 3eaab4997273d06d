"""Decide what every site of a model becomes; the graph is not changed here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.graph.names import shown_name
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.results import Gain, SiteReport
from widthfold_onnx.rewrite.record import carries_folds
from widthfold_onnx.rewrite.rewriting import Rewriting, spread_of
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.forms.open_extents import EXTENTS, needed_extents
from widthfold_onnx.rules.match.quantized import Extents
from widthfold_onnx.rules.match.reading import read_site
from widthfold_onnx.rules.match.site import LinearSite, Site
from widthfold_onnx.text import quoted

Choose = Callable[[LinearSite], Reformulation | Refusal]

ALREADY_FOLDED = Refusal(
    Code.ALREADY_FOLDED, "the model carries folds of an earlier run; fold the original instead"
)
KEPT = frozenset({Code.ALREADY_FOLDED, Code.NOT_SELECTED, Code.NO_STRIDES, Code.NO_GAIN})
"""Codes of sites that are left alone without a fault."""


@dataclass(frozen=True)
class Decision:
    """A site and its outcome.

    Attributes:
        linear: the same site as it was read; None where it could not or need not be read.
    """

    site: Site
    linear: LinearSite | None
    outcome: Reformulation | Refusal

    def report(self, options: FoldOptions, hint: str, gain: Gain | None = None) -> SiteReport:
        """Return the line of the report.

        Args:
            options: tell which extents were to be guarded.
            hint: options that would fold the site if it is refused (`plan.decide.hints`), or "".
            gain: the measured gain of the site alone.
        """
        node, graph, op = self.site.name, self.site.scope.path, self.site.op
        if isinstance(self.outcome, Refusal):
            return SiteReport(
                node=node,
                graph=graph,
                op=op,
                status="kept" if self.outcome.code in KEPT else "refused",
                code=self.outcome.code.value,
                reason="; ".join(filter(None, (self.outcome.reason, hint))),
                gain=gain,
            )
        assert self.linear is not None
        inputs, outputs = self.linear.channels
        guard = EXTENTS if needed_extents(self.linear, self.outcome, options) else ""
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
            spread=spread_of(self.linear, self.outcome),
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
    return [
        Decision(site, None, linear)
        if isinstance(linear, Refusal)
        else Decision(site, linear, choose(linear))
        for site, linear in read_sites(document, options)
    ]


def rewriting(document: Document, decisions: Iterable[Decision], options: FoldOptions) -> Rewriting:
    """Return what the decisions do with a document, which is not changed yet."""
    chosen = [
        (decision.linear, decision.outcome)
        for decision in decisions
        if decision.linear is not None and isinstance(decision.outcome, Reformulation)
    ]
    return Rewriting.of(document, chosen, options)


def read_sites(
    document: Document, options: FoldOptions
) -> Iterator[tuple[Site, LinearSite | Refusal]]:
    """Yield every site in graph order, read or refused.

    All sites of a model that carries folds are refused: its moves between packed tensors look like
    any others, and what was assumed for planning looks like a fact.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    planned = planned_shapes(document, options)
    is_folded = carries_folds(document.proto)
    for site in find_sites(document, options):
        if is_folded:
            yield site, ALREADY_FOLDED
        elif not _selected(site.name, options):
            yield site, Refusal(Code.NOT_SELECTED, "left alone by --nodes or --skip")
        else:
            yield site, read_at(document, site, planned)


def read_at(document: Document, site: Site, planned: ShapeTable) -> LinearSite | Refusal:
    """Read a site at the extents that are planned with."""

    def extents(table: ShapeTable) -> Extents:
        return lambda value: table.get(site.scope.path, value.name or "")

    return read_site(document, site, extents(document.shapes), extents(planned))


def planned_shapes(document: Document, options: FoldOptions) -> ShapeTable:
    """Return the shapes of all values under the assumed input shapes.

    Raises:
        UsageError: an assumed input shape does not fit.
    """
    given = options.input_shapes
    return ShapeTable(document.proto, given) if given else document.shapes


def find_sites(document: Document, options: FoldOptions) -> list[Site]:
    """Return every linear node of the main graph, bodies and functions; nameless ones get a name.

    Raises:
        UsageError: a node pattern matches none.
    """
    sites = [
        Site(node, scope, shown_name(node), node.op_type)
        for scope, node in document.nodes(OPERATORS)
    ]
    for pattern in (*options.nodes, *options.skip):
        if not any(fnmatchcase(site.name, pattern) for site in sites):
            raise UsageError(f"no layer is named {quoted(pattern)}; `inspect` lists them")
    return sites


def _selected(name: str, options: FoldOptions) -> bool:
    wanted = not options.nodes or any(fnmatchcase(name, p) for p in options.nodes)
    return wanted and not any(fnmatchcase(name, p) for p in options.skip)
