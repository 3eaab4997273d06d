"""Put guards around folded nodes: If(condition) folded nodes, else the nodes of the original.

Guards are put into the messages of a graph that is already rewritten: the folded nodes move into
one branch, copies of the original nodes into the other. Constants that only one branch reads lie in
that branch, because ONNX Runtime changes the layout of weights in the same graph only: with weights
outside, a Conv 8 -> 8 of 3x39 took 1.3 times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import GraphProto, NodeProto, helper

from widthfold_onnx.model.proto.domain import domain_name
from widthfold_onnx.model.proto.scope import graph_scope
from widthfold_onnx.model.proto.walk import all_nodes, placed_graphs, subgraphs
from widthfold_onnx.rewrite.conditions import GUARD_KEY, Conditions, Fresh
from widthfold_onnx.rules.forms.open_extents import EXTENTS, Extent

Ports = Mapping[str, onnx.ValueInfoProto | None]
"""The values that a guard returns, with their descriptions in the graph."""


@dataclass(frozen=True)
class Guard:
    """Nodes that are to be guarded together.

    Attributes:
        path: path of the graph that holds them (`model.graph.messages.Scope.path`).
        base: prefix of the names of its own nodes.
        new: first outputs of the folded nodes.
        originals: the original nodes that they replace.
        extents: conditions on the extents, by value and axis.
    """

    path: str
    base: str
    new: frozenset[str]
    originals: tuple[NodeProto, ...]
    extents: Mapping[str, Mapping[int, Extent]]


def put_guards(model: onnx.ModelProto, guards: Iterable[Guard], fresh: Fresh) -> None:
    """Move the guarded nodes into the branches of Ifs."""
    by_path: dict[str, list[Guard]] = {}
    for guard in guards:
        by_path.setdefault(guard.path, []).append(guard)
    if not by_path:
        return
    # Inner graphs first: a node that holds one is copied when its own graph is rewritten.
    for path, graph in reversed(list(placed_graphs(model.graph))):
        if path in by_path:
            _put(graph, by_path[path], fresh)
    # Below IR version 4 an initializer must be an input of its graph, and a body has no inputs.
    # Constants move after all guards are put: the originals of another may read the same ones.
    if model.ir_version >= 4 and not model.training_info:
        for path, graph in placed_graphs(model.graph):
            if path in by_path:
                _move_constants(graph)


def _put(graph: GraphProto, guards: Sequence[Guard], fresh: Fresh) -> None:
    """Replace the folded nodes of a graph by guards."""
    owner = {name: guard for guard in guards for name in guard.new}
    folded: dict[int, list[NodeProto]] = {id(guard): [] for guard in guards}
    readers: dict[str, set[int]] = {name: {0} for name in _ends(graph)}
    for node in graph.node:
        guard = owner.get(node.output[0]) if node.output else None
        if guard is not None:
            folded[id(guard)].append(node)
        for name in _read_by([node]):
            readers.setdefault(name, set()).add(0 if guard is None else id(guard))
    described = {v.name: v for v in (*graph.value_info, *graph.output)}
    nodes: list[NodeProto] = []
    done: set[int] = set()
    for node in graph.node:
        guard = owner.get(node.output[0]) if node.output else None
        if guard is None:
            nodes.append(node)
        elif id(guard) not in done:
            done.add(id(guard))
            written = {name for new in folded[id(guard)] for name in new.output}
            ports = {
                name: described.get(name)
                for original in guard.originals
                for name in original.output
                # A value without readers among the nodes is kept: something else uses it.
                if name in written and readers.get(name, set()) != {id(guard)}
            }
            nodes += _guarded(guard, folded[id(guard)], ports, fresh)
    _set_nodes(graph, nodes)
    _set_nodes(graph, list(graph_scope(graph).nodes))  # sort: a guard may read a later node


def _guarded(
    guard: Guard, folded: Sequence[NodeProto], ports: Ports, fresh: Fresh
) -> list[NodeProto]:
    """Return the If that returns `ports`, behind the nodes of its condition."""
    conditions = Conditions(guard.base, fresh)
    choice = helper.make_node(
        "If",
        [conditions.all_of(guard.extents)],
        list(ports),
        name=fresh(f"{guard.base}/guard"),
        then_branch=_branch("folded", folded, ports, guard.base, fresh),
        else_branch=_branch("original", guard.originals, ports, guard.base, fresh),
    )
    for node in conditions.nodes:
        node.metadata_props.add(key=GUARD_KEY, value="")
    choice.metadata_props.add(key=GUARD_KEY, value=EXTENTS)
    return [*conditions.nodes, choice]


def _set_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    del graph.node[:]
    graph.node.extend(nodes)


def _branch(
    what: str,
    nodes: Sequence[NodeProto],
    ports: Ports,
    base: str,
    fresh: Fresh,
) -> GraphProto:
    """Return a body that computes the values of `ports`, under new names."""
    body = GraphProto(name=f"{base}/{what}")
    own = {name: fresh(f"{name}/widthfold/{what}") for name in ports}
    for node in nodes:
        copy = body.node.add()
        copy.CopyFrom(node)
        if domain_name(node.domain) != node.domain:
            copy.ClearField("domain")  # the runtime knows no "ai.onnx" in a body
        for names in (copy.input, copy.output):
            names[:] = [own.get(name, name) for name in names]
    for name, port in ports.items():
        described = body.output.add()
        if port is not None:
            described.CopyFrom(port)
        described.name = own[name]
    return body


def _read_by(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the names that nodes read, and the graphs inside them."""
    every = list(all_nodes(nodes))
    ends = {name for node in every for body in subgraphs(node) for name in _ends(body)}
    return {name for node in every for name in node.input} | ends


def _ends(graph: GraphProto) -> set[str]:
    return {value.name for value in graph.output}


def _move_constants(graph: GraphProto) -> None:
    """Move constants that only one branch of a guard reads into that branch."""
    readers: dict[str, list[int]] = {}
    bodies: dict[int, GraphProto] = {}

    def note(names: Iterable[str], reader: int) -> None:
        for name in names:
            readers.setdefault(name, []).append(reader)

    note(_ends(graph) | {value.name for value in graph.input}, -1)
    note({annotation.tensor_name for annotation in graph.quantization_annotation}, -1)
    for node in graph.node:
        inner = subgraphs(node) if any(e.key == GUARD_KEY for e in node.metadata_props) else []
        for body in inner:
            bodies[len(bodies)] = body
            note(_read_by(body.node), len(bodies) - 1)
        note(node.input if inner else _read_by([node]), -1)
    stay = []
    for tensor in graph.initializer:
        reader = readers.get(tensor.name, [-1])
        if len(reader) == 1 and reader[0] in bodies:
            bodies[reader[0]].initializer.append(tensor)
        else:
            stay.append(tensor)
    del graph.initializer[:]
    graph.initializer.extend(stay)
