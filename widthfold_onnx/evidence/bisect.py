"""Which folded site is to blame: the first whose output differs although its input agrees.

The values before and behind a folded Conv are there under their names, or packed in a tensor that
says so (`rewrite.record`). Both models are made to return those as well, in copies that lie in a
folder of their own, and the pairs are compared in the order of the original graph.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.inline import inlined
from widthfold_onnx.evidence.parity import compare
from widthfold_onnx.evidence.rows import Outputs, figure
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.walk import all_nodes, subgraphs
from widthfold_onnx.options import Provider, Tolerance
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY, STATE_KEY, read_state
from widthfold_onnx.runtime.session import Level, open_session
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]

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
    provider: Provider,
    tolerance: Tolerance,
    report: Callable[[str], None],
) -> str:
    """Name the first folded site that differs, or say why none is named.

    Args:
        original: model file.
        rewritten: model file.
        item: inputs on which the models differ.
        provider: where both run, without the runtime's optimizations.
        tolerance: what counts as equal.
        report: gets a line of text before each run.
    """
    try:
        before, after = inlined(original, MAX_BYTES), inlined(rewritten, MAX_BYTES)
        sites = _sites(before.graph, after.graph)
        hidden = _hidden(after.graph)
        if not sites:
            return f"not bisected: {hidden or 'no'} folded sites, none of them in the main graph"
        tensors = _tensors(after.graph)
        names = {name for site in sites for name in (site.data, site.output)}
        wanted = names & _computed(before.graph) & tensors.keys()
        report(f"bisecting {len(sites)} folded sites")
        reference = _run(before, wanted, item, provider)
        returned = _run(after, {tensors[name][0] for name in wanted}, item, provider)
        candidate = {name: _natural(returned, *tensors[name]) for name in wanted}
    except UnverifiedError as error:
        return f"not bisected: {error}"
    beyond = f"; {hidden} folded sites in subgraphs were not compared" if hidden else ""
    for site in sites:
        if site.output not in wanted:
            return f"first differs at {site.name}: its output {site.output} is gone"
        if site.data in wanted and _difference(site.data, reference, candidate, tolerance):
            continue  # it only hands on what an earlier node did
        found = _difference(site.output, reference, candidate, tolerance)
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


def _computed(graph: onnx.GraphProto) -> set[str]:
    return {name for node in graph.node for name in node.output}


def _tensors(graph: onnx.GraphProto) -> dict[str, tuple[str, State | None]]:
    """Values of the original that a graph holds: the tensor, and how it is packed."""
    tensors: dict[str, tuple[str, State | None]] = {}
    for node in graph.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        if STATE_KEY in metadata and node.output:
            record = read_state(metadata[STATE_KEY])
            state = State(record.batch, tuple(record.digits))
            tensors[metadata.get(ORIGIN_KEY, "")] = (node.output[0], state)
    return tensors | {name: (name, None) for name in _computed(graph)}


def _natural(outputs: Outputs, tensor: str, state: State | None) -> Array:
    try:
        return outputs[tensor] if state is None else state.unpacked(outputs[tensor])
    except (ValueError, ZeroDivisionError) as error:
        raise UnverifiedError(f"{printable(tensor)} is not packed as it says") from error


def _run(
    model: onnx.ModelProto, wanted: Iterable[str], item: InputSet, provider: Provider
) -> Outputs:
    known = {value.name for value in model.graph.output}
    for name in sorted(set(wanted) - known):
        model.graph.output.add().name = name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return open_session(path, provider, Level.DISABLED).run(item.feeds)


def _difference(name: str, reference: Outputs, candidate: Outputs, tolerance: Tolerance) -> str:
    row = compare(name, reference[name], candidate[name], tolerance)
    if row.passed:
        return ""
    if row.max_rel is None or not row.nonfinite_match:
        return row.note or "values differ"
    return f"max_rel {figure(row.max_rel)}, allowed {row.tolerance:g}"
