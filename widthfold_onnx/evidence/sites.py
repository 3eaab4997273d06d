"""The folded sites of a model, and what the values before and behind them are.

The values before and behind a folded Conv are there under their names, or packed in a tensor that
says so (`rewrite.record`). A model is made to return those as well, in a copy that lies in a folder
of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import onnx

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.claims import state_record
from widthfold_onnx.evidence.rounds import opened
from widthfold_onnx.evidence.rows import Outputs
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.walk import all_nodes, subgraphs
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY, STATE_KEY
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.runtime.ports import Array
from widthfold_onnx.runtime.session import Level
from widthfold_onnx.runtime.stored import InputSet
from widthfold_onnx.text import printable

MAX_BYTES = 1 << 30
"""Largest model that is copied; a protobuf holds twice that at most."""


@dataclass(frozen=True)
class FoldedSite:
    """A folded node of the main graph: its name, the values that it reads, and what it returns."""

    name: str
    inputs: tuple[str, ...]
    output: str


def folded_sites(before: onnx.GraphProto, after: onnx.GraphProto) -> list[FoldedSite]:
    """The folded sites of the main graph, in the order of the original."""
    folded = {}
    for node in after.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        if FOLD_KEY in metadata:
            folded[metadata.get(ORIGIN_KEY, "")] = printable(node.name)
    sites = []
    for node in before.node:
        if node.op_type in LINEAR and node.output[0] in folded:
            name = folded[node.output[0]] or f"{node.op_type} -> {printable(node.output[0])}"
            sites.append(FoldedSite(name, tuple(node.input), node.output[0]))
    return sites


def hidden_sites(graph: onnx.GraphProto) -> int:
    """How many folded sites lie in subgraphs."""
    bodies = (body.node for node in graph.node for body in subgraphs(node))
    return sum(
        entry.key == FOLD_KEY
        for body in bodies
        for node in all_nodes(body)
        for entry in node.metadata_props
    )


def values_at(graph: onnx.GraphProto, sites: Iterable[FoldedSite]) -> set[str]:
    """Which of the values before and behind the sites a graph computes."""
    computed = {name for node in graph.node for name in node.output}
    return computed & {name for site in sites for name in (*site.inputs, site.output)}


class Held(NamedTuple):
    """A tensor that holds a value of the original.

    Attributes:
        name: of the tensor.
        state: how it is packed; None where it is natural.
        shape: its natural extents where it is packed, as far as they are known.
    """

    name: str
    state: State | None = None
    shape: Dims = ()


def tensors_of(graph: onnx.GraphProto) -> dict[str, Held]:
    """Values of the original that a graph holds.

    Raises:
        Mismatch: a record cannot be read.
    """
    tensors: dict[str, Held] = {}
    for node in graph.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        if STATE_KEY in metadata and node.output:
            record = state_record(metadata[STATE_KEY])
            shape = tuple(record.shapes[0])
            tensors[metadata.get(ORIGIN_KEY, "")] = Held(node.output[0], record.state, shape)
    return tensors | {name: Held(name) for node in graph.node for name in node.output}


def natural(outputs: Outputs, held: Held) -> Array:
    """A tensor as the original has it.

    Raises:
        UnverifiedError: it is not packed as it says.
    """
    array = outputs[held.name]
    if held.state is None:
        return array
    problem = f"{printable(held.name)} is not packed as it says"
    if not held.state.fits(held.shape):
        raise UnverifiedError(problem)
    try:
        return held.state.unpacked(array, held.shape)
    except ValueError as error:
        raise UnverifiedError(problem) from error


def run_with(
    model: onnx.ModelProto,
    wanted: Iterable[str],
    items: Iterable[InputSet],
    options: VerifyOptions,
) -> list[Outputs]:
    """Run a model that returns more of its values, without the runtime's optimizations.

    Args:
        model: with all its data inside; it is changed.
        wanted: names of values of its main graph.
        items: the input sets.
        options: where it runs.

    Returns:
        Per input set its outputs and the wanted values.

    Raises:
        UnverifiedError: it does not run.
    """
    known = {value.name for value in model.graph.output}
    for name in sorted(set(wanted) - known):
        model.graph.output.add().name = name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        session = opened(path, options, Level.DISABLED)
        return [session.run(item.feeds) for item in items]
