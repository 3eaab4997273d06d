"""Put companions in the place of the nodes that they match, before anything is folded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import onnx

from widthfold_onnx.model.document import Document, Graph, Node, Value, graph_of
from widthfold_onnx.model.linking import NodeName, Scope, shown_name
from widthfold_onnx.model.proto.walk import copy_of, model_nodes, operator_of
from widthfold_onnx.options import Companion
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.new_nodes import NodeBuilder, SharedConstants, take_over
from widthfold_onnx.rewrite.record import ORIGIN_KEY, contains_folds
from widthfold_onnx.rules.companions import COMPANIONS
from widthfold_onnx.rules.companions.companion import CompanionRule, Exchange, NodeSpec, Operand
from widthfold_onnx.rules.layer_reading import place_problem
from widthfold_onnx.rules.op import SAME_NAME


@dataclass(frozen=True)
class Match:
    """A node that a companion matches.

    It holds names only, so that the linked copy of the model can be freed.

    Attributes:
        companion: its name.
        name: name of the node.
        op: its operator type.
        replacements: operators of the nodes that take its place, or why there are none.
    """

    companion: Companion
    name: NodeName
    op: str
    replacements: tuple[str, ...] | Refusal


def find_matches(
    proto: onnx.ModelProto, folder: Path | None, names: Collection[Companion]
) -> list[Match]:
    """Return every node that companions match, with its replacements; none in a folded model.

    A match is refused if the installed runtime does not compute it as its replacements.

    Args:
        proto: a checked model; it stays as it is.
        folder: where its external data lies.
        names: the companions.
    """
    return [_on_runtime(match) for match, _ in _exchanges_of(proto, folder, names)[1]]


def _on_runtime(match: Match) -> Match:
    if isinstance(match.replacements, Refusal):
        return match
    problem = COMPANIONS[match.companion].runtime_problem()
    return match if problem is None else replace(match, replacements=problem)


def exchanged(
    proto: onnx.ModelProto, folder: Path | None, nodes: Collection[tuple[Companion, NodeName]]
) -> tuple[onnx.ModelProto, list[Match]]:
    """Return a model with companions in place of nodes, and all matches of these companions.

    Args:
        proto: a checked model; it stays as it is, and is returned if nothing is exchanged or it
            contains folds.
        folder: where its external data lies.
        nodes: the nodes to replace, each by its companion.
    """
    document, exchanges = _exchanges_of(proto, folder, {companion for companion, _ in nodes})
    selected_exchanges = {
        exchange.node: exchange.nodes
        for match, exchange in exchanges
        if exchange is not None and (match.companion, match.name) in nodes
    }
    matches = [match for match, _ in exchanges]
    if document is None or not selected_exchanges:
        return proto, matches
    return _replace_nodes(document, selected_exchanges), matches


def _exchanges_of(
    proto: onnx.ModelProto, folder: Path | None, names: Collection[Companion]
) -> tuple[Document | None, list[tuple[Match, Exchange | None]]]:
    """Return a linked copy of a model, and its matches, each with its exchange if it has one.

    None and no match if the model has no operator of the companions, or contains folds.
    """
    operators = {("", op): name for name in names for op in COMPANIONS[name].op_types}
    is_there = any(operator_of(node) in operators for node in model_nodes(proto))
    if not is_there or contains_folds(proto):
        return None, []
    inlined = [operator for operator, name in operators.items() if COMPANIONS[name].inlines]
    document = Document(copy_of(proto), folder, inlined)
    exchanges: list[tuple[Match, Exchange | None]] = []
    for scope, node in document.nodes(operators):
        companion = operators[operator_of(node)]
        name = NodeName(scope.path, shown_name(node))
        exchange = _exchange_of(document, scope, node, COMPANIONS[companion])
        if isinstance(exchange, Refusal):
            exchanges.append((Match(companion, name, node.op_type, exchange), None))
        elif exchange is not None:
            op_types = tuple(spec.op_type for spec in exchange.nodes)
            exchanges.append((Match(companion, name, node.op_type, op_types), exchange))
    return document, _with_own_names(exchanges)


def _with_own_names(
    exchanges: Sequence[tuple[Match, Exchange | None]],
) -> list[tuple[Match, Exchange | None]]:
    """Return the exchanges; nodes of one name are refused, as a plan could not tell them apart."""
    counts = Counter((match.companion, match.name) for match, _ in exchanges)
    return [
        (match, exchange)
        if counts[match.companion, match.name] == 1
        else (replace(match, replacements=SAME_NAME), None)
        for match, exchange in exchanges
    ]


def _exchange_of(
    document: Document, scope: Scope, node: Node, rule: CompanionRule
) -> Exchange | Refusal | None:
    if scope.proto is None and not rule.inlines:
        return None
    return place_problem(document, scope, node) or rule.exchange(document, node)


def _make_nodes(
    document: Document, node: Node, specs: Sequence[NodeSpec], constants: SharedConstants
) -> list[Node]:
    """Make the nodes that replace a node; the last ones compute its outputs in order."""
    builder, graph = NodeBuilder(document, node), graph_of(node)

    def value_of(item: Operand) -> Value | None:
        if item is None or isinstance(item, Value):
            return item
        if isinstance(item, int):
            return builder.nodes[item].outputs[0]
        name = f"widthfold/{item.item()}" if item.size == 1 else "widthfold/weight"
        return constants.add(item, name, graph)

    inner = [node.outputs[0]] * (len(specs) - len(node.outputs))
    for spec, output in zip(specs, (*inner, *node.outputs), strict=True):
        inputs = list(map(value_of, spec.inputs))
        metadata = {ORIGIN_KEY: output.name or ""}
        kind = spec.op_type
        new_node = builder.add(kind, kind.lower(), inputs, spec.attributes, metadata=metadata)
        if spec.original is not None:
            take_over(spec.original, new_node)
    if specs[-1].original is None:
        take_over(node, builder.nodes[-1])
    return builder.nodes


def _replace_nodes(
    document: Document, exchanges: Mapping[Node, tuple[NodeSpec, ...]]
) -> onnx.ModelProto:
    """Put new nodes in the place of others; the document is consumed."""
    constants = SharedConstants(document)
    replacements = defaultdict[Graph, dict[Node, list[Node]]](dict)
    for node, specs in exchanges.items():
        others = {other: exchanges[other] for other in exchanges if other is not node}
        steps = _with_exchanged_copies(specs, others)
        replacements[graph_of(node)][node] = _make_nodes(document, node, steps, constants)
    for graph, nodes in replacements.items():
        values = {
            output: new_node.outputs[0]
            for node, new_nodes in nodes.items()
            for output, new_node in zip(node.outputs, new_nodes[-len(node.outputs) :], strict=True)
        }
        unread = [*_makers(nodes), *chain.from_iterable(nodes.values())]
        document.replace(graph, nodes, values)
        _remove_unread(document, graph, unread)
    return document.finish()


def _with_exchanged_copies(
    specs: Iterable[NodeSpec], exchanges: Mapping[Node, Sequence[NodeSpec]]
) -> list[NodeSpec]:
    """Return the specs with exchanges in place of copies of nodes that are exchanged, too.

    A Slice that becomes pads copies the ops between. A PRelu or a number in arithmetic among them
    may become ops that run faster; the last of these keeps the name, as without the Slice.
    """
    result: list[NodeSpec] = []
    steps: list[int] = []
    for spec in specs:
        inputs = tuple(steps[i] if isinstance(i, int) else i for i in spec.inputs)
        if spec.original is None or spec.original not in exchanges:
            result.append(replace(spec, inputs=inputs))
        else:
            begin, values = len(result), dict(zip(spec.original.inputs, inputs, strict=True))
            *inner, last = (
                replace(step, inputs=tuple(_moved(i, begin, values) for i in step.inputs))
                for step in exchanges[spec.original]
            )
            result += [*inner, replace(last, original=last.original or spec.original)]
        steps.append(len(result) - 1)
    return result


def _moved(operand: Operand, begin: int, values: Mapping[Value | None, Operand]) -> Operand:
    """Return an operand of an exchange whose steps begin at an index and read other values."""
    if isinstance(operand, int):
        return begin + operand
    return values.get(operand, operand) if isinstance(operand, Value) else operand


def _makers(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that compute the inputs of nodes."""
    values = [value for node in nodes for value in node.inputs if value is not None]
    return [maker for value in values if (maker := value.producer()) is not None]


def _remove_unread(document: Document, graph: Graph, nodes: list[Node]) -> None:
    """Remove nodes that nothing reads any more, and in turn the nodes that only they read."""
    while nodes:
        node = nodes.pop()
        if node.graph is graph and not any(v.uses() or document.must_stay(v) for v in node.outputs):
            nodes += _makers([node])
            document.replace(graph, {node: ()}, {})
