"""Which folded site is to blame: the first whose output differs although its input agrees.

A fold keeps the names of the values before and behind the Conv that it replaces. Both models are
made to return those as well, in copies that lie in a folder of their own, and the pairs are
compared in the order of the original graph.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.inline import inlined
from widthfold_onnx.evidence.parity import compare
from widthfold_onnx.evidence.rows import Outputs, figure
from widthfold_onnx.model.walk import all_nodes, subgraphs
from widthfold_onnx.options import Tolerance, VerifyOptions
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY
from widthfold_onnx.runtime.session import Level, open_session
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable

MAX_BYTES = 1 << 30
"""Largest model that is copied; a protobuf holds twice that at most."""


@dataclass(frozen=True)
class _Site:
    """A folded Conv of the main graph: its name, and the values before and behind it."""

    name: str
    data: str
    output: str


def first_difference(
    original: Path,
    rewritten: Path,
    item: InputSet,
    options: VerifyOptions,
    report: Callable[[str], None],
) -> str:
    """Name the first folded site that differs, or say why none is named.

    Args:
        original: model file.
        rewritten: model file.
        item: inputs on which the models differ.
        options: where both run, without the runtime's optimizations, and what counts as equal.
        report: gets a line of text before each run.
    """
    try:
        before, after = inlined(original, MAX_BYTES), inlined(rewritten, MAX_BYTES)
        sites = _sites(before.graph, after.graph)
        hidden = _hidden(after.graph)
        if not sites:
            return f"not bisected: {hidden or 'no'} folded sites, none of them in the main graph"
        wanted = _values(before.graph, sites) & _values(after.graph, sites)
        report(f"bisecting {len(sites)} folded sites")
        reference = _run(before, wanted, item, options)
        candidate = _run(after, wanted, item, options)
    except UnverifiedError as error:
        return f"not bisected: {error}"
    beyond = f"; {hidden} folded sites in subgraphs were not compared" if hidden else ""
    for site in sites:
        if site.output not in wanted:
            return f"first differs at {site.name}: its output {site.output} is gone"
        if site.data in wanted and _difference(site.data, reference, candidate, options.tolerance):
            continue  # it only hands on what an earlier node did
        found = _difference(site.output, reference, candidate, options.tolerance)
        if found:
            return f"first differs at {site.name}: {found} on {item.label}"
    return f"no folded site differs by itself: the cause lies elsewhere{beyond}"


def _sites(before: onnx.GraphProto, after: onnx.GraphProto) -> list[_Site]:
    """The folded sites of the main graph, in the order of the original."""
    folded = {}
    for node in after.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        if FOLD_KEY in metadata:
            folded[metadata.get(ORIGIN_KEY, "")] = printable(node.name)
    sites = []
    for node in before.node:
        if node.op_type == "Conv" and node.output[0] in folded:
            name = folded[node.output[0]] or f"Conv -> {printable(node.output[0])}"
            sites.append(_Site(name, node.input[0], node.output[0]))
    return sites


def _hidden(graph: onnx.GraphProto) -> int:
    """How many folded sites lie in subgraphs."""
    bodies = (body.node for node in graph.node for body in subgraphs(node))
    return sum(
        entry.key == FOLD_KEY
        for body in bodies
        for node in all_nodes(body)
        for entry in node.metadata_props
    )


def _values(graph: onnx.GraphProto, sites: Iterable[_Site]) -> set[str]:
    """Which of the values before and behind the sites a graph computes."""
    computed = {name for node in graph.node for name in node.output}
    return computed & {name for site in sites for name in (site.data, site.output)}


def _run(
    model: onnx.ModelProto, wanted: Iterable[str], item: InputSet, options: VerifyOptions
) -> Outputs:
    known = {value.name for value in model.graph.output}
    for name in sorted(set(wanted) - known):
        model.graph.output.add().name = name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        session = open_session(
            path,
            options.provider,
            Level.DISABLED,
            provider_options=options.provider_options,
        )
        return session.run(item.feeds)


def _difference(name: str, reference: Outputs, candidate: Outputs, tolerance: Tolerance) -> str:
    row = compare(name, reference[name], candidate[name], tolerance)
    if row.passed:
        return ""
    if row.max_rel is None or not row.nonfinite_match:
        return row.note or "values differ"
    return f"max_rel {figure(row.max_rel)}, allowed {row.tolerance:g}"
