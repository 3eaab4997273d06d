"""What the tensors of a model that is written channel by channel are: channels of the original's.

Every new tensor claims to be one channel of a value of the original, or a part of the sum that is
one; each node is checked to return what that claims if its inputs are what they claim. Nothing else
may read such a tensor, and what has the name of a value of the original must be all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.channel_probe import Product
from widthfold_onnx.evidence.claims import content, read
from widthfold_onnx.evidence.elsewhere import first_change
from widthfold_onnx.evidence.rewritten import label
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.model.order import nodes_of
from widthfold_onnx.rewrite.record import ChannelRecord, read_channel
from widthfold_onnx.rules.by_channel import ELEMENTWISE, RANK, is_single
from widthfold_onnx.text import printable


@dataclass(frozen=True)
class Part:
    """What a tensor claims to be: one of `count` channels of a value of the original.

    Of a sum that is not complete, `summands` are the input channels that are in it, and `biased`
    says whether the bias is; None where it is complete.
    """

    of: str
    channel: int
    count: int
    summands: frozenset[int] | None = None
    biased: bool = False


class Channels:
    """The claims of the new tensors.

    Args:
        old: the original.
        new: the same, written channel by channel.
    """

    def __init__(self, old: Document, new: Document) -> None:
        self.old, self.new = old, new
        self._makers = {v.name: node for node in old.main for v in node.outputs}
        known = {n.outputs[0].name for n in old.main if read_channel(n)}
        self._nodes = {
            node: record
            for node in nodes_of(new.main)
            for record in [read_channel(node)]
            if record and node.outputs[0].name not in known
        }
        self._parts: dict[Value, Part] = {}
        self._products: dict[Node, Product] = {}

    @property
    def convs(self) -> list[Node]:
        """The Convs of the original for which new nodes stand."""
        origins = dict.fromkeys(record.of for record in self._nodes.values())
        return [self._makers[of] for of in origins if is_default(self._makers[of], "Conv")]

    def products(self, conv: Node) -> dict[Node, Product | None]:
        """The Convs of one channel that stand for a Conv, and as None the Adds between them."""
        return {
            node: self._products.get(node)
            for node, record in self._nodes.items()
            if record.of == conv.outputs[0].name and is_default(node, "Conv", "Add")
        }

    def fault(self) -> str:
        """Where a claim does not hold, or the models differ beside; "" if nowhere."""
        for node, record in self._nodes.items():
            try:
                self._check(node, record)
                self._check_readers(node)
            except Mismatch as error:
                return f"{label(node)}: {error}"
        made = {value.name for node in self._nodes for value in node.outputs}
        origins = {record.of for record in self._nodes.values()}
        gone = _places(made & self._makers.keys() | origins)
        changed = first_change(self.old, self.new, gone, _places(made))
        return f"the models differ elsewhere ({changed})" if changed else ""

    def _check(self, node: Node, record: ChannelRecord) -> None:
        original = self._makers.get(record.of)
        if original is None:
            raise Mismatch("the original has no such node")
        if is_default(node, "Split"):
            self._split(node)
        elif is_default(node, "Concat"):
            self._concat(node, record)
        elif is_default(node, "Conv") and is_single(self.old, original):
            self._summand(node, original, record)
        elif is_default(node, "Add") and is_single(self.old, original):
            self._sum(node, original, record)
        else:
            self._op(node, original, record)

    def _split(self, node: Node) -> None:
        """Every channel of a value; whether they are all is seen where they are read."""
        count, source = len(node.outputs), node.inputs[0]
        if len(node.inputs) != 1 or source is None or source in self._parts or not _along(node):
            raise Mismatch("it does not split channels")
        for channel, value in enumerate(node.outputs):
            self._parts[value] = Part(source.name or "", channel, count)

    def _concat(self, node: Node, record: ChannelRecord) -> None:
        parts = [self._parts.get(value) for value in node.inputs if value is not None]
        expected = [Part(record.of, channel, len(parts)) for channel in range(len(parts))]
        if parts != expected or not _along(node) or node.outputs[0].name != record.of:
            raise Mismatch("it does not join all channels in order")

    def _summand(self, node: Node, original: Node, record: ChannelRecord) -> None:
        """A Conv of one channel: products of one input channel with its weights."""
        weight, *bias = (read(self.old, v) for v in original.inputs[1:] if v is not None)
        outputs, count = weight.shape[:2]
        m = record.channel
        if m is None or not 0 <= m < outputs or _attributes(node) != _attributes(original):
            raise Mismatch("it is another Conv")
        c = self._channel(node.inputs[0], original.inputs[0], count)
        kernel, *added = (read(self.new, value) for value in node.inputs[1:] if value is not None)
        if content(kernel) != content(weight[m : m + 1, c : c + 1]):
            raise Mismatch("its weight is not that of the original")
        if added and (not bias or content(added[0]) != content(bias[0][m : m + 1])):
            raise Mismatch("its bias is not that of the original")
        self._products[node] = m, c
        part = Part(record.of, m, outputs, frozenset({c}), bool(added))
        self._parts[node.outputs[0]] = self._completed(part, count, len(bias) > 0)

    def _sum(self, node: Node, original: Node, record: ChannelRecord) -> None:
        one, other = (self._parts.get(_input(node, i)) for i in (0, 1))
        if one is None or other is None or one.summands is None or other.summands is None:
            raise Mismatch("it adds something else than parts of a sum")
        if (one.of, one.channel) != (other.of, other.channel) or one.of != record.of:
            raise Mismatch("it adds parts of two sums")
        if one.summands & other.summands or (one.biased and other.biased):
            raise Mismatch("it adds a product or the bias twice")
        summands = one.summands | other.summands
        part = Part(one.of, one.channel, one.count, summands, one.biased or other.biased)
        count = read(self.old, _input(original, 1)).shape[1]
        biased = any(value is not None for value in original.inputs[2:])
        self._parts[node.outputs[0]] = self._completed(part, count, biased)

    def _completed(self, part: Part, count: int, biased: bool) -> Part:
        """A sum of which nothing is missing is a channel."""
        assert part.summands is not None
        whole = len(part.summands) == count and part.biased == biased
        return Part(part.of, part.channel, part.count) if whole else part

    def _op(self, node: Node, original: Node, record: ChannelRecord) -> None:
        """What treats every element alone, on one channel."""
        alike = (
            is_default(original, *ELEMENTWISE)
            and (node.op_type, node.domain) == (original.op_type, original.domain)
            and len(node.inputs) == len(original.inputs)
            and len(node.outputs) == len(original.outputs) == 1
            and _attributes(node) == _attributes(original)
        )
        if not alike:
            raise Mismatch("it does something else than the original")
        counts = set()
        for one, other in zip(original.inputs, node.inputs, strict=True):
            part = None if other is None else self._parts.get(other)
            if part is not None:
                counts.add(part.count)
                if one is None or part != Part(one.name or "", record.channel or 0, part.count):
                    raise Mismatch("it reads another channel")
            elif one is None or other is None:
                if one is not other:
                    raise Mismatch("it reads something else")
            else:
                array = read(self.old, one)
                if content(array) != content(read(self.new, other)):
                    raise Mismatch("it reads another constant")
                if array.size != 1 or array.ndim > RANK:
                    raise Mismatch("its constant may differ per channel")
        if len(counts) != 1 or record.channel is None:
            raise Mismatch("it reads values of other channels")
        self._parts[node.outputs[0]] = Part(record.of, record.channel, counts.pop())

    def _channel(self, value: Value | None, data: Value | None, count: int) -> int:
        """Which channel of the data of the original a Conv reads."""
        assert value is not None
        assert data is not None
        part = self._parts.get(value)
        if part is None and count == 1 and value.name == data.name:
            return 0
        if part is None or part != Part(data.name or "", part.channel, count):
            raise Mismatch("it reads something else than a channel of the original's data")
        return part.channel

    def _check_readers(self, node: Node) -> None:
        """What is no value of the original may be read by new nodes only."""
        for value in node.outputs:
            part = self._parts.get(value)
            if value.name in self._makers:
                if part is not None and part != Part(value.name or "", 0, 1):
                    raise Mismatch(f"{printable(value.name or '')} is another value")
            elif value.is_graph_output() or any(n not in self._nodes for n, _ in value.uses()):
                raise Mismatch("something else reads a channel")


def _places(names: Iterable[str | None]) -> set[tuple[str, str]]:
    return {("", name or "") for name in names}


def _input(node: Node, index: int) -> Value:
    value = node.inputs[index]
    if value is None:
        raise Mismatch("an input is missing")
    return value


def _along(node: Node) -> bool:
    """Whether it works along the channels, in equal parts."""
    names = set(node.attributes) - {"num_outputs"}
    return names == {"axis"} and node.attributes["axis"].as_int() == 1


def _attributes(node: Node) -> dict[str, object]:
    return {name: attribute.value for name, attribute in node.attributes.items()}
