"""Fields in which a folded model may differ from the original."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx
from google.protobuf.message import Message

from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.rewrite.record import NONFINITE_KEY, ORIGIN_KEY
from widthfold_onnx.rules.propagation import PROPAGATION


def wire(message: Message, *without: str) -> bytes:
    """All fields of a message, unknown ones too, but for some."""
    copy = type(message)()
    copy.CopyFrom(message)
    for field in without:
        copy.ClearField(field)
    return copy.SerializeToString(deterministic=True)


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else list(a.graphs))]


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def origin(node: onnx.NodeProto) -> str | None:
    return next((p.value for p in node.metadata_props if p.key == ORIGIN_KEY), None)


def read_names(model: onnx.ModelProto) -> set[str]:
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    return {name for node in nodes for name in node.input}


COMPUTES = ("Constant", "Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze")
"""What may have computed the weight of a folded node, and go with it."""


def assert_only_folded(before: onnx.ModelProto, after: onnx.ModelProto) -> list[str]:
    """Check that Convs, their operands and new nodes alone differ; return new names."""
    spread = [entry for entry in after.metadata_props if entry.key == NONFINITE_KEY]
    assert len(spread) <= 1  # a fold without structural zeros says nothing
    assert all(float(entry.value.removeprefix("spread:")) > 1 for entry in spread)
    rest = onnx.ModelProto()
    rest.CopyFrom(after)
    for entry in spread:
        rest.metadata_props.remove(entry)
    assert wire(before, "graph") == wire(rest, "graph")
    added: list[str] = []
    _assert_graph(before.graph, after.graph, read_names(after), before.ir_version, added)
    names_before = [name for graph in graphs(before.graph) for name in _names(graph)]
    assert len(set(added)) == len(added)
    assert not set(added) & set(names_before)
    return added


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (v.name for v in (*graph.input, *graph.initializer))
    yield from (t.values.name for t in graph.sparse_initializer)
    for node in graph.node:
        yield from (node.name, *node.output)


def _assert_graph(
    before: onnx.GraphProto, after: onnx.GraphProto, read: set[str], ir: int, added: list[str]
) -> None:
    lists = ("node", "initializer", "value_info", "input")
    assert wire(before, *lists) == wire(after, *lists)
    inputs = {value.name for value in before.input}
    extra = [value.name for value in after.input if value.name not in inputs]
    assert not extra or ir < 4
    _assert_list(before.input, after.input, lambda name: name in inputs and ir < 4, extra)
    constants = {tensor.name for tensor in before.initializer}
    new = [tensor.name for tensor in after.initializer if tensor.name not in constants]
    assert not set(extra) - set(new)
    added += new
    _assert_list(before.initializer, after.initializer, lambda name: name not in read, new)
    gone = _assert_nodes(before, after, read, ir, added)
    gone |= constants - {tensor.name for tensor in after.initializer}
    _assert_list(before.value_info, after.value_info, lambda name: name in gone, [])
    assert not gone & {value.name for value in after.value_info}


def _assert_list(
    before: Sequence[Message],
    after: Sequence[Message],
    may_go: Callable[[str], bool],
    new: Sequence[str],
) -> None:
    """The lists hold the same messages in the same order.

    Messages whose names `may_go` accepts may be missing. The new messages come last.
    """
    others = [item for item in after if item.name not in new]
    assert [item.name for item in after[len(others) :]] == list(new)
    names = {item.name for item in others}
    missing = [item.name for item in before if item.name not in names]
    assert all(may_go(name) for name in missing), missing
    assert [wire(i) for i in before if i.name in names] == [wire(i) for i in others]


def _assert_nodes(
    before: onnx.GraphProto, after: onnx.GraphProto, read: set[str], ir: int, added: list[str]
) -> set[str]:
    """Nodes in order: each the same, or the chain in its place, or a constant no longer read."""
    rest = list(after.node)
    gone: set[str] = set()
    for node in before.node:
        chain = []
        while rest and _stands_for(rest[0], node):
            chain.append(rest.pop(0))
        if chain:
            gone |= _assert_chain(node, chain, added)
        elif rest and list(rest[0].output) == list(node.output):
            _assert_same_node(node, rest.pop(0), read, ir, added)
        else:
            assert node.op_type in COMPUTES, f"{node.op_type} is gone"
            assert not set(node.output) & read
            gone.update(node.output)
    assert not rest, f"{rest[0].op_type} came out of nothing"
    return gone


def _stands_for(new: onnx.NodeProto, node: onnx.NodeProto) -> bool:
    if origin(new) is None or origin(node) is not None:
        return False
    moved = new.name.startswith(f"{node.name or node.output[0]}/widthfold/")
    return moved or (new.name == node.name and origin(new) == node.output[0])


def _assert_chain(node: onnx.NodeProto, chain: list[onnx.NodeProto], added: list[str]) -> set[str]:
    """One node is the Conv, or an op that was carried; return the outputs that no longer are.

    A node that slides a window becomes a Conv.
    """
    (heir,) = [new for new in chain if new.name == node.name]
    assert operator_of(node) in OPERATORS or node.op_type in PROPAGATION
    op = "Conv" if node.op_type == "ConvTranspose" else node.op_type
    assert (heir.op_type, heir.doc_string) == (op, node.doc_string)
    assert {p.key: p.value for p in node.metadata_props}.items() <= {
        p.key: p.value for p in heir.metadata_props
    }.items()
    if operator_of(node) not in OPERATORS:
        assert [wire(a) for a in heir.attribute] == [wire(a) for a in node.attribute]
    for new in chain:
        if new is not heir:
            assert new.op_type in ("Reshape", "Transpose", "Pad", "Slice", "DepthToSpace")
            assert new.domain == ""
            added.append(new.name)
        added += [name for name in new.output if name not in (new.name, *node.output)]
    outputs = {name for new in chain for name in new.output}
    return set(node.output) - outputs


def _assert_same_node(
    before: onnx.NodeProto, after: onnx.NodeProto, read: set[str], ir: int, added: list[str]
) -> None:
    if not bodies(before):
        assert wire(before) == wire(after)
        return
    assert wire(before, "attribute") == wire(after, "attribute")
    for old, new in zip(before.attribute, after.attribute, strict=True):
        assert wire(old, "g", "graphs") == wire(new, "g", "graphs")
    for old_body, new_body in zip(bodies(before), bodies(after), strict=True):
        _assert_graph(old_body, new_body, read, ir, added)
