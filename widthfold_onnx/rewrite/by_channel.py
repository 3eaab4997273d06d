"""Write Convs channel by channel: every channel becomes a tensor of its own.

Between such Convs channels stay apart; they are split before the first and joined behind the last.
The result is a model that computes the same with no fold in it: layers of one channel, which are
folded like any others. Every new node says what it is part of (`CHANNEL_KEY`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Attributes, Document, Graph, Node, Value
from widthfold_onnx.rewrite.record import CHANNEL_KEY
from widthfold_onnx.rules.by_channel import members


def write_by_channel(document: Document, graph: Graph, convs: Collection[Node]) -> None:
    """Replace Convs for which `rules.by_channel.is_single` holds, and the ops between them."""
    _Writer(document, graph).run(members(document, graph, convs), convs)


class _Writer:
    """The new nodes of one graph."""

    def __init__(self, document: Document, graph: Graph) -> None:
        self._document = document
        self._graph = graph
        self._channels: dict[Value | None, list[Value]] = {}
        self._chains: dict[Node, list[Node]] = {}

    def run(self, nodes: dict[Node, int], convs: Collection[Node]) -> None:
        """Make them, and put them in the place of the old ones."""
        joined: dict[Value, Value] = {}
        for node in nodes:
            self._chains[node] = []
            made = self._sums(node) if node in convs else self._each(node, nodes[node])
            result = node.outputs[0]
            self._channels[result] = made
            inside = result.uses() and all(user in nodes for user, _ in result.uses())
            if not inside or self._document.is_fixed(result):
                joined[result] = self._joined(node, made)
        self._document.replace(self._graph, self._chains, joined, ())

    def _sums(self, conv: Node) -> list[Value]:
        """One sum of Convs per output channel, the bias in its first summand."""
        weight, *bias = (self._document.read(c) for c in self._constants(conv))
        sources = self._apart(conv, weight.shape[1])
        results = []
        for m, rows in enumerate(weight):
            total: Value | None = None
            for c, kernel in enumerate(rows):
                given = {"w": kernel[np.newaxis, np.newaxis]}
                if bias and total is None:
                    given["b"] = bias[0][m : m + 1]
                base = f"{_base(conv, m)}_of_{c}"
                constants = [
                    self._document.add_constant(array, f"{base}/{name}", self._graph)
                    for name, array in given.items()
                ]
                part = self._again(conv, [sources[c], *constants], base)
                total = part if total is None else self._new(conv, "Add", [total, part], m)[0]
            assert total is not None
            results.append(total)
        return results

    def _each(self, node: Node, channels: int) -> list[Value]:
        """The op on every channel."""
        apart, results = self._channels, []
        for m in range(channels):
            inputs = [apart[v][m] if v in apart else v for v in node.inputs]
            results.append(self._again(node, inputs, _base(node, m)))
        return results

    def _apart(self, conv: Node, channels: int) -> list[Value]:
        """The channels of what a Conv reads, split before the first reader that needs them."""
        data = conv.inputs[0]
        assert data is not None
        if data not in self._channels:
            self._channels[data] = [data] if channels == 1 else self._split(conv, data, channels)
        return self._channels[data]

    def _joined(self, node: Node, channels: list[Value]) -> Value:
        """All channels in one tensor again."""
        if len(channels) == 1:
            return channels[0]
        return self._new(node, "Concat", channels, None, {"axis": 1})[0]

    def _split(self, conv: Node, data: Value, channels: int) -> list[Value]:
        counted = {"num_outputs": channels} if self._document.opset >= 18 else {}
        return self._new(conv, "Split", [data], None, {"axis": 1, **counted}, channels)

    def _new(
        self,
        node: Node,
        op: str,
        inputs: list[Value],
        channel: int | None,
        attributes: Attributes | None = None,
        outputs: int = 1,
    ) -> list[Value]:
        new = self._document.node(
            op,
            inputs,
            attributes or {},
            name=_base(node, channel),
            metadata=_metadata(node),
            outputs=outputs,
        )
        new.name = new.outputs[0].name
        self._chains[node].append(new)
        return list(new.outputs)

    def _again(self, node: Node, inputs: list[Value | None], name: str) -> Value:
        new = self._document.again(node, inputs, name, _metadata(node))
        new.name = new.outputs[0].name
        self._chains[node].append(new)
        return new.outputs[0]

    def _constants(self, conv: Node) -> list[Constant]:
        found = (self._document.constant(v) for v in conv.inputs[1:] if v is not None)
        return [constant for constant in found if isinstance(constant, Constant)]


def _base(node: Node, channel: int | None) -> str:
    """What names of new nodes begin with."""
    name = node.name or node.outputs[0].name
    return f"{name}/{'channels' if channel is None else f'channel_{channel}'}"


def _metadata(node: Node) -> dict[str, str]:
    return {CHANNEL_KEY: node.outputs[0].name or ""}
