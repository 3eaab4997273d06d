"""Outside the folded sites nothing changed: what the proofs of the sites add up to rests on that.

Nodes are compared as messages, without the graphs that they hold, which are compared themselves;
constants as bytes. Left out are constants that only an original Conv read or only a new one reads,
and what computes them from others.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx
from onnx import numpy_helper

from widthfold_onnx.model.graph import Document
from widthfold_onnx.model.messages import Scope
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.text import quoted

Place = tuple[str, str]
"""Path of a graph, and name of a node's first output."""


def first_change(
    old: Document, new: Document, replaced: Collection[Place], added: Collection[Place]
) -> str:
    """Where the models differ beside what was rewritten, "" if nowhere.

    Args:
        old: the original.
        new: the rewritten model.
        replaced: nodes of the original for which new ones stand.
        added: the new nodes.
    """
    if _functions(old.proto) != _functions(new.proto):
        return "the functions"
    scopes = [{s.path: s for s in d.scopes if s.proto is not None} for d in (old, new)]
    if scopes[0].keys() != scopes[1].keys():
        return "the subgraphs"
    for path, before in scopes[0].items():
        changed = _in_graph(old, before, new, scopes[1][path], replaced, added)
        if changed:
            return changed
    return ""


def _in_graph(
    old: Document,
    before: Scope,
    new: Document,
    after: Scope,
    replaced: Collection[Place],
    added: Collection[Place],
) -> str:
    assert before.proto is not None
    assert after.proto is not None
    gone, fresh = _constants_of(old, before, after), _constants_of(new, after, before)
    second = [
        node
        for node in after.proto.node
        if (after.path, _first(node)) not in added and _first(node) not in fresh
    ]
    # What new nodes stand for in another state may be there as well, as it was.
    still = {_first(node) for node in second}
    first = [
        node
        for node in before.proto.node
        if ((before.path, _first(node)) not in replaced or _first(node) in still)
        and _first(node) not in gone
    ]
    # By what they return, not by their order: a graph may be written in several.
    known = {tuple(node.output): node for node in first}
    for node in second:
        if tuple(node.output) not in known or _bare(known[tuple(node.output)]) != _bare(node):
            return f"node {quoted(node.name or ', '.join(node.output))}"
    if len(first) != len(second):
        return f"{len(second)} nodes instead of {len(first)}"
    return _constants(old, before.proto, new, after.proto, second)


def _constants_of(document: Document, scope: Scope, other: Scope) -> set[str | None]:
    """What the nodes of a graph compute of constants alone under names that another lacks.

    What is read by nodes that are the same in both has its name in both.
    """
    assert other.proto is not None
    computed = {name for node in other.proto.node for name in node.output}
    return {
        value.name
        for node in scope.graph
        for value in node.outputs[:1]
        if value.name not in computed and not isinstance(document.constant(value), Refusal)
    }


def _constants(
    old: Document,
    before: onnx.GraphProto,
    new: Document,
    after: onnx.GraphProto,
    nodes: Collection[onnx.NodeProto],
) -> str:
    known = {tensor.name: tensor for tensor in before.initializer}
    read = {name for node in nodes for name in node.input} | {v.name for v in after.output}
    for tensor in after.initializer:
        if tensor.name in known:
            same = _same(known[tensor.name], old.folder, tensor, new.folder)
        else:
            same = tensor.name not in read
        if not same:
            return f"constant {quoted(tensor.name)}"
    for name in read & (known.keys() - {tensor.name for tensor in after.initializer}):
        return f"constant {quoted(name)}"
    sparse = [
        {t.values.name: t.SerializeToString() for t in graph.sparse_initializer}
        for graph in (before, after)
    ]
    kept = {name: data for name, data in sparse[0].items() if name in sparse[1] or name in read}
    return "" if kept == sparse[1] else "the sparse constants"


def _same(
    one: onnx.TensorProto, folder: Path | None, other: onnx.TensorProto, other_folder: Path | None
) -> bool:
    if onnx.TensorProto.EXTERNAL not in (one.data_location, other.data_location):
        return one == other
    arrays = [
        numpy_helper.to_array(tensor, base_dir=str(base))
        for tensor, base in ((one, folder), (other, other_folder))
    ]
    kinds = [(one.data_type, arrays[0].shape), (other.data_type, arrays[1].shape)]
    return kinds[0] == kinds[1] and arrays[0].tobytes() == arrays[1].tobytes()


def _first(node: onnx.NodeProto) -> str:
    return next(iter(node.output), "")


def _bare(node: onnx.NodeProto) -> bytes:
    """A node without the graphs that it holds."""
    if any(a.HasField("g") or a.graphs for a in node.attribute):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for attribute in copy.attribute:
            attribute.ClearField("g")
            attribute.ClearField("graphs")
        node = copy
    return bytes(node.SerializeToString(deterministic=True))


def _functions(model: onnx.ModelProto) -> list[bytes]:
    return [f.SerializeToString(deterministic=True) for f in model.functions]
