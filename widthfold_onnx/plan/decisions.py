"""Decide what becomes of every site of a model; nothing is changed here."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import SiteReport
from widthfold_onnx.rewrite.emit import FOLDED_OUTPUT
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.rules.base import ConvSite, Reformulation, Site
from widthfold_onnx.rules.conv import reformulate
from widthfold_onnx.rules.conv_site import read_conv
from widthfold_onnx.text import quoted

KEPT = frozenset({"already-folded", "not-selected"})
"""Codes of sites that are left alone although nothing is wrong with them."""


@dataclass(frozen=True)
class Decision:
    """A site and its outcome. `conv` is None where the site could not even be read."""

    site: Site
    conv: ConvSite | None
    outcome: Reformulation | Refusal

    def report(self) -> SiteReport:
        """The line of the report."""
        node, graph, op = self.site.name, self.site.scope.path, self.site.op
        if isinstance(self.outcome, Refusal):
            return SiteReport(
                node=node,
                graph=graph,
                op=op,
                status="kept" if self.outcome.code in KEPT else "refused",
                code=self.outcome.code,
                reason=self.outcome.reason,
            )
        assert self.conv is not None
        inputs, outputs = self.conv.channels
        fold = self.outcome.fold
        return SiteReport(
            node=node,
            graph=graph,
            op=op,
            status="folded",
            axis=self.outcome.axis,
            factor=self.outcome.factor,
            form=self.outcome.form,
            code="folded",
            reason=f"{inputs} -> {outputs} channels became {inputs * fold.in_factor} -> "
            f"{outputs * fold.out_factor}",
            flops_ratio=round(self.outcome.flops_ratio, 4),
        )


def plan(document: Document, options: FoldOptions) -> list[Decision]:
    """One decision for every site of the model, in graph order.

    Raises:
        UsageError: a node pattern matches no site, or an assumed input shape does not fit.
    """
    static = ShapeTable(document.proto, {})
    planned = ShapeTable(document.proto, options.input_shapes) if options.input_shapes else static
    sites = find_sites(document, options)
    decisions = []
    for site in sites:
        conv: ConvSite | None = None
        outcome: Reformulation | Refusal
        if was_folded(site.node):
            outcome = Refusal("already-folded", "an earlier run folded this node")
        elif not _selected(site.name, options):
            outcome = Refusal("not-selected", "left alone by --nodes or --skip")
        else:
            read = read_conv(document, site, static, planned)
            if isinstance(read, Refusal):
                outcome = read
            else:
                conv, outcome = read, reformulate(read, options)
                if isinstance(outcome, Reformulation):
                    outcome = _finite(document, read) or outcome
        decisions.append(Decision(site, conv, outcome))
    return decisions


def was_folded(node: Node) -> bool:
    """Whether an earlier run folded a Conv.

    Its metadata says so; where another tool dropped that, the name of its output does.
    """
    return FOLD_KEY in node.metadata_props or bool(FOLDED_OUTPUT.search(node.outputs[0].name or ""))


def find_sites(document: Document, options: FoldOptions) -> list[Site]:
    """Every Conv, in the main graph, in bodies and in functions; nameless ones get a name.

    Raises:
        UsageError: a node pattern matches none.
    """
    sites = [
        Site(node, scope, node.name or f"{node.op_type} -> {node.outputs[0].name}", node.op_type)
        for scope, node in document.nodes("Conv")
    ]
    for pattern in (*options.nodes, *options.skip):
        if not any(fnmatchcase(site.name, pattern) for site in sites):
            raise UsageError(f"no Conv is named {quoted(pattern)}; `inspect` lists the names")
    return sites


def _finite(document: Document, conv: ConvSite) -> Refusal | None:
    """Refuse a weight with NaN or Inf.

    Such a weight turns padding into NaN, and which products with padding are formed at all
    differs between kernels of a runtime, and between a Conv and its fold.
    """
    if np.isfinite(document.read(conv.weight)).all():
        return None
    return Refusal("weight-not-finite", "the weight holds NaN or Inf")


def _selected(name: str, options: FoldOptions) -> bool:
    wanted = not options.nodes or any(fnmatchcase(name, p) for p in options.nodes)
    return wanted and not any(fnmatchcase(name, p) for p in options.skip)
