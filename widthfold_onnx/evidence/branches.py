"""A model with guards, as one of its branches: the If away, the nodes of the branch in its place.

So what is proved of models without guards is proved of the folded nodes, and what the other branch
holds can be compared with the original node by node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import onnx

from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.model.walk import all_graphs, all_nodes, placed_graphs
from widthfold_onnx.rewrite.conditions import GUARD_KEY
from widthfold_onnx.text import quoted

Branch = Literal["then_branch", "else_branch"]
FOLDED: Branch = "then_branch"
ORIGINAL: Branch = "else_branch"


@dataclass(frozen=True)
class Choice:
    """An If of a guard, and the graph that holds it, with its path."""

    node: onnx.NodeProto
    graph: onnx.GraphProto
    path: str

    @property
    def purpose(self) -> list[str]:
        """What it says that it is for."""
        entry = next(e for e in self.node.metadata_props if e.key == GUARD_KEY)
        return str(entry.value).split("+")

    def body(self, branch: Branch) -> onnx.GraphProto:
        """The graph of a branch.

        Raises:
            Mismatch: it has none, or other outputs than the If.
        """
        found: list[onnx.GraphProto] = [a.g for a in self.node.attribute if a.name == branch]
        if len(found) != 1 or len(found[0].output) != len(self.node.output):
            raise Mismatch(f"its {branch} does not fit")
        return found[0]

    def nodes(self, branch: Branch) -> list[onnx.NodeProto]:
        """The nodes of a branch, its results under the names that the If gives them.

        Raises:
            Mismatch: as `body`.
        """
        body = self.body(branch)
        names = {v.name: n for v, n in zip(body.output, self.node.output, strict=True)}
        nodes = []
        for node in body.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for ports in (copy.input, copy.output):
                ports[:] = [names.get(name, name) for name in ports]
            nodes.append(copy)
        return nodes


def choices(graph: onnx.GraphProto) -> Iterator[Choice]:
    """Every guard of a graph and of the graphs in it."""
    for path, inner in placed_graphs(graph):
        for node in inner.node:
            if node.op_type == "If" and any(e.key == GUARD_KEY for e in node.metadata_props):
                yield Choice(node, inner, path)


def taken(model: onnx.ModelProto, branch: Branch) -> onnx.ModelProto:
    """A copy of a model in which every guard has taken one branch.

    Raises:
        Mismatch: what only tests a condition is read elsewhere, or names of constants clash.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for choice in list(choices(result.graph)):
        _take(choice, branch)
    for graph in all_graphs(result.graph):
        tests = {id_ for node in graph.node if _tests(node) for id_ in node.output}
        kept = [node for node in graph.node if not _tests(node)]
        read = {name for node in all_nodes(kept) for name in node.input}
        if read & tests:
            raise Mismatch(f"{quoted(sorted(read & tests)[0])} is more than a condition")
        if tests:
            del graph.node[:]
            graph.node.extend(kept)
    return result


def _tests(node: onnx.NodeProto) -> bool:
    return any(entry.key == GUARD_KEY for entry in node.metadata_props)


def _take(choice: Choice, branch: Branch) -> None:
    graph, body = choice.graph, choice.body(branch)
    held = {tensor.name for tensor in graph.initializer}
    for tensor in body.initializer:
        if tensor.name in held:
            raise Mismatch(f"two constants are named {quoted(tensor.name)}")
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += choice.nodes(branch) if node.output[:1] == choice.node.output[:1] else [node]
    graph.initializer.extend(body.initializer)
    del graph.node[:]
    graph.node.extend(nodes)
