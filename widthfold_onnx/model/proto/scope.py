"""Read graphs as scopes: nodes in an order that can run, and names captured from outside.

Nodes may stand in any order in a file; runtimes sort them, and real models rely on it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import onnx

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.walk import StoredTensor, initializers, subgraphs
from widthfold_onnx.text import printable, quoted


@dataclass(frozen=True, eq=False)
class NameScope:
    """The nodes of a graph or of a local function, and the scopes of the subgraphs in them.

    Attributes:
        graph: the graph; None for a function.
        declared: names of inputs and initializers, in the order of the file; a name that is
            both stands here once.
        nodes: the nodes in an order that can run; the order of the file if that can run.
        inner: for each node with subgraphs, by its position in `nodes`: their places
            (`walk.subgraphs`) and scopes.
        writers: for each value, the position in `nodes` of the node that writes it.
        reads: for each node, the names that it and the graphs in it read.
        captured: each name that is read here and written outside, with its first reader.
    """

    graph: onnx.GraphProto | None
    declared: tuple[str, ...]
    nodes: tuple[onnx.NodeProto, ...]
    inner: dict[int, tuple[tuple[str, NameScope], ...]]
    writers: dict[str, int]
    reads: list[list[str]]
    captured: dict[str, str]

    @cached_property
    def initializers(self) -> dict[str, StoredTensor]:
        """Stored tensors by name."""
        return initializers(self.graph) if self.graph else {}

    def writer(self, name: str) -> onnx.NodeProto | None:
        """Return the node that writes a value, None if no node of the scope does."""
        index = self.writers.get(name)
        return None if index is None else self.nodes[index]

    def ancestors(self, names: Iterable[str], stops: Container[str] = ()) -> list[int]:
        """Return the positions of the nodes that values are computed from, in running order.

        Args:
            names: the values.
            stops: values behind which no node is sought.
        """
        stack, positions = list(names), set[int]()
        while stack:
            index = self.writers.get(stack.pop())
            if index is not None and index not in positions:
                positions.add(index)
                stack += [name for name in self.reads[index] if name not in stops]
        return sorted(positions)


def describe_node(node: onnx.NodeProto) -> str:
    """Name a node in a message: by its name, else by its operator and first output."""
    if node.name:
        return f"node {quoted(node.name)}"
    first = node.output[0] if node.output else ""
    return f"{printable(node.op_type)} node of {quoted(first)}"


def checked_text(value: str, kind: str) -> str:
    """Return a name of the model, if it is text: a parser returns other names as bytes.

    Args:
        value: the name.
        kind: of the name, for the message.

    Raises:
        InvalidModelError: the name is not text.
    """
    if type(value) is str:
        return value
    raise InvalidModelError(f"{kind} {quoted(value)} is not UTF-8")


def is_text(data: bytes) -> bool:
    """Check whether bytes of a model are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def graph_scope(graph: onnx.GraphProto) -> NameScope:
    """Build the scope of a graph and of all graphs in it.

    Raises:
        InvalidModelError: two inputs, two initializers or two outputs of nodes share a name; an
            input or initializer has the name of a node's output; nodes depend on each other.
    """
    checked_text(graph.name, "graph name")
    inputs = _unique((value.name for value in graph.input), "graph input")
    dense = (tensor.name for tensor in graph.initializer)
    sparse = (tensor.values.name for tensor in graph.sparse_initializer)
    initializers = _unique([*dense, *sparse], "initializer")
    outputs = [value.name for value in graph.output]
    return _scope(graph, {**inputs, **initializers}, graph.node, outputs)


def function_scope(function: onnx.FunctionProto) -> NameScope:
    """Build the scope of a local function; raises the errors of `graph_scope`."""
    inputs = _unique(function.input, "function input")
    return _scope(None, inputs, function.node, function.output)


def _unique(names: Iterable[str], subject: str) -> dict[str, None]:
    unique_names: dict[str, None] = {}
    for name in names:
        if checked_text(name, subject) in unique_names:
            raise InvalidModelError(f"two {subject}s are named {quoted(name)}")
        unique_names[name] = None
    return unique_names


def _scope(
    graph: onnx.GraphProto | None,
    declared: dict[str, None],
    nodes: Iterable[onnx.NodeProto],
    outputs: Iterable[str],
) -> NameScope:
    node_list = list(nodes)
    writers = _writers(node_list, declared)
    inner: dict[int, tuple[tuple[str, NameScope], ...]] = {}
    reads: list[list[str]] = []
    captured: dict[str, str] = {}
    in_order = True
    for index, node in enumerate(node_list):
        readers: dict[str, str] = {}
        if scopes := tuple((place, graph_scope(g)) for place, g in subgraphs(node.attribute)):
            inner[index] = scopes
            for _, scope in scopes:
                readers |= scope.captured
        names = [name for name in (*node.input, *readers) if name]
        reads.append(names)
        for name in names:
            source = writers.get(name)
            if source is not None:
                in_order = in_order and source < index
            elif name not in declared and name not in captured:
                captured[name] = readers.get(name) or describe_node(node)
    for name in outputs:
        if name not in writers and name not in declared:
            captured.setdefault(name, "a graph output")
    order = range(len(node_list)) if in_order else _sorted(node_list, reads, writers)
    new_index = {old: new for new, old in enumerate(order)}
    return NameScope(
        graph,
        tuple(declared),
        tuple(node_list[i] for i in order),
        {new_index[i]: scopes for i, scopes in inner.items()},
        {name: new_index[i] for name, i in writers.items()},
        [reads[i] for i in order],
        captured,
    )


def _writers(nodes: Sequence[onnx.NodeProto], declared: dict[str, None]) -> dict[str, int]:
    """Map each value to the index of the node that writes it."""
    writer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if type(name) is not str or name in writer or name in declared:
                value_text = quoted(checked_text(name, "node output"))
                raise InvalidModelError(f"{describe_node(node)}: {value_text} is written twice")
            writer[name] = index
    return writer


def _sorted(
    nodes: Sequence[onnx.NodeProto], reads: Sequence[Sequence[str]], writers: dict[str, int]
) -> Sequence[int]:
    """Sort nodes so that each comes behind the nodes whose outputs it reads."""
    needs = {i: [writers[n] for n in names if n in writers] for i, names in enumerate(reads)}
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        first = describe_node(nodes[error.args[1][0]])
        raise InvalidModelError(f"{first}: it reads what it feeds, a cycle") from error
