"""The exact proof of every folded Conv: is the rewritten graph the original, bit for bit?

Every tensor that a new node returns claims to be a value of the original, perhaps packed
(`evidence.rewritten`). The folded Convs are proved by `evidence.folded`, the folded products by
`evidence.folded_product`, the ops between them by `evidence.carried`, the moves by
`evidence.conversions`; a fault of an op or a move counts to the folded node that it belongs to.
Where guards choose between folded and original nodes, all this is said of the model in which they
chose the folded ones; that they choose well is shown by `evidence.guarded`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.branches import FOLDED, choices, taken
from widthfold_onnx.evidence.by_channel import by_channel
from widthfold_onnx.evidence.carried import check_passenger
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.conversions import check_conversion
from widthfold_onnx.evidence.elsewhere import Place, first_change
from widthfold_onnx.evidence.folded import check_conv
from widthfold_onnx.evidence.folded_product import check_product
from widthfold_onnx.evidence.guarded import check_guards
from widthfold_onnx.evidence.rewritten import Rewritten, label
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.emit import FOLDED_OUTPUT
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.quantized_product import PRODUCT_INPUTS

CHECKS = dict.fromkeys(PRODUCT_INPUTS, check_product)
"""By operator of the folded node what proves it; every other is to be a Conv."""

WORST = ("different", "skipped", "proved", "exact")


def probe_sites(
    original: Path, rewritten: Path, options: VerifyOptions, report: Callable[[str], None]
) -> tuple[list[ExactSite], list[str]]:
    """Prove every site that the rewritten model says was folded.

    Args:
        original: the model before.
        rewritten: the model after.
        options: where the integers are run.
        report: gets a line of text per site.

    Returns:
        The sites, and what limits the statement: folds whose record another tool removed, and
        changes outside the folds.
    """
    before, after = load(original), load(rewritten)
    guarded = any(True for _ in choices(after.proto.graph))
    try:
        new = Document(taken(after.proto, FOLDED) if guarded else after.proto, after.folder)
    except Mismatch as error:
        return [ExactSite(node="guards", verdict="different", reason=str(error), guard=True)], []
    source, sites = by_channel(before.proto, new, before.folder, options, report)
    old = Document(source, before.folder)
    graphs = {scope.path: scope for scope in old.scopes}
    rewritten_graphs: dict[str, Rewritten] = {}
    limits: list[str] = []
    replaced: set[Place] = set()
    added: set[Place] = set()
    for scope in new.scopes:
        if scope.proto is not None:
            graph = Rewritten(old, new, graphs.get(scope.path), scope)
            rewritten_graphs[scope.path] = graph
            sites += _graph_sites(graph, options, report)
            added |= {(scope.path, node.outputs[0].name or "") for node in graph.nodes}
            replaced |= {(scope.path, name) for name in graph.replaced}
    for _, conv in new.nodes(LINEAR):
        lost = FOLD_KEY not in conv.metadata_props
        if lost and FOLDED_OUTPUT.search(conv.outputs[0].name or ""):
            limits.append(f"{conv.name} lost the record of its fold: compared by values only")
    changed = first_change(old, new, replaced, added) if sites else ""
    if changed:
        limits.append(f"the models differ outside the folds ({changed}): compared by values only")
    if guarded:
        report("exact check of the guards")
    if sites or guarded:
        sites += check_guards(old, after.proto, after.folder, rewritten_graphs)
    return sites, limits


def _graph_sites(
    graph: Rewritten, options: VerifyOptions, report: Callable[[str], None]
) -> list[ExactSite]:
    """One result per folded Conv, with the first fault of all nodes that belong to it."""
    results: dict[Node, ExactSite] = {}
    for node in graph.nodes:
        owner = node
        try:
            graph.check_readers(node)
            if FOLD_KEY in node.metadata_props:
                report(f"exact probe of {label(node)}")
                check = CHECKS.get(node.op_type, check_conv)
                result = check(graph, node, options)
            elif graph.is_passenger(node):
                check_passenger(graph, node, options)
                continue
            else:
                check_conversion(graph, node)
                continue
        except Mismatch as error:
            owner = graph.owner(node)
            what = "" if owner is node else f"{label(node)}: "
            result = ExactSite(node=label(owner), verdict="different", reason=f"{what}{error}")
        except UnverifiedError as error:
            owner = graph.owner(node)
            result = ExactSite(node=label(owner), verdict="skipped", reason=str(error))
        known = results.get(owner)
        if known is None or WORST.index(known.verdict) > WORST.index(result.verdict):
            results[owner] = result
    return [results[node] for node in graph.nodes if node in results]
