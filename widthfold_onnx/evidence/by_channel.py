"""Is a model that is written channel by channel the original?

The rewritten model may stem from one that `rewrite.by_channel` made of the original. That one is
made again here, and whatever made it, it is checked against the original: every new tensor must be
one channel of a value of the original, or a part of the sum that is one. Then the folds are proved
against it instead of the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx

from widthfold_onnx.errors import NoKernelError, UnverifiedError
from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.evidence.channel_probe import Product, probe_channels
from widthfold_onnx.evidence.claims import content, read
from widthfold_onnx.evidence.elsewhere import first_change
from widthfold_onnx.evidence.rewritten import label
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Document, Graph, Node, Value
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.by_channel import write_by_channel
from widthfold_onnx.rewrite.record import ChannelRecord, read_channel
from widthfold_onnx.rules.by_channel import ELEMENTWISE, RANK, is_single
from widthfold_onnx.text import printable

Report = Callable[[str], None]


def by_channel(
    original: onnx.ModelProto,
    rewritten: Document,
    folder: Path | None,
    options: VerifyOptions,
    report: Report,
) -> tuple[onnx.ModelProto, list[ExactSite]]:
    """The model that the rewritten one was folded from, and its proof.

    Args:
        original: the model before.
        rewritten: the model after.
        folder: of the original's external data.
        options: where integers are run.
        report: gets a line of text per Conv.

    Returns:
        The original itself where nothing in the rewritten model is written channel by channel.
    """
    written = {record.of for node in _main(rewritten) for record in [read_channel(node)] if record}
    copy = onnx.ModelProto()
    copy.CopyFrom(original)
    again = Document(copy, folder)
    convs = [
        node
        for node in _main(again)
        if node.outputs[0].name in written and is_single(again, node) and not read_channel(node)
    ]
    if not convs:
        return original, []
    write_by_channel(again, _main(again), convs)
    split = again.finish()
    old, new = Document(original, folder), Document(split, folder)
    return split, check_channels(old, new, options, report)


def check_channels(
    old: Document, new: Document, options: VerifyOptions, report: Report
) -> list[ExactSite]:
    """The proof of every Conv of `old` that is written channel by channel in `new`."""
    return _Proof(old, new).sites(options, report)


def _main(document: Document) -> Graph:
    graph = document.scopes[0].graph
    assert isinstance(graph, Graph)
    return graph


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


class _Proof:
    """The claims of the new tensors, each checked when its node is."""

    def __init__(self, old: Document, new: Document) -> None:
        self._old, self._new = old, new
        self._makers = {v.name: node for node in _main(old) for v in node.outputs}
        known = {n.outputs[0].name for n in _main(old) if read_channel(n)}
        self._nodes = {
            node: record
            for node in new.nodes_of(_main(new))
            for record in [read_channel(node)]
            if record and node.outputs[0].name not in known
        }
        self._parts: dict[Value, Part] = {}
        self._products: dict[Node, Product] = {}

    def sites(self, options: VerifyOptions, report: Report) -> list[ExactSite]:
        """One result for every Conv that was written channel by channel."""
        fault = self._fault()
        if fault:
            return [ExactSite(node="channels", verdict="different", reason=fault)]
        origins = dict.fromkeys(record.of for record in self._nodes.values())
        convs = (self._makers[of] for of in origins)
        return [self._probed(c, options, report) for c in convs if is_default(c, "Conv")]

    def _fault(self) -> str:
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
        changed = first_change(self._old, self._new, gone, _places(made))
        return f"the models differ elsewhere ({changed})" if changed else ""

    def _probed(self, conv: Node, options: VerifyOptions, report: Report) -> ExactSite:
        """The Conv and what stands for it, run on integers."""
        report(f"exact probe of {label(conv)}, channel by channel")
        of = conv.outputs[0].name
        nodes = {
            node: self._products.get(node)
            for node, record in self._nodes.items()
            if record.of == of and is_default(node, "Conv", "Add")
        }
        outputs, inputs, *_ = read(self._old, _input(conv, 1)).shape
        verdict: Literal["exact", "different", "proved", "skipped"] = "exact"
        run = "runs on integers agree bit for bit"
        try:
            found = probe_channels(self._old, conv, self._new, nodes, options)
            if found:
                verdict, run = "different", found
        except NoKernelError as error:
            verdict, run = "proved", f"not run on integers: {error}"
        except UnverifiedError as error:
            verdict, run = "skipped", str(error)
        return ExactSite(
            node=label(conv),
            verdict=verdict,
            reason=run
            if verdict in ("different", "skipped")
            else f"{outputs * inputs} Convs of one channel hold its weight and bias, bit for bit, "
            f"and are added up per output channel; {run}",
            channels=f"{inputs} -> {outputs}, {outputs * inputs} times 1 -> 1",
            fold="Written channel by channel.",
        )

    def _check(self, node: Node, record: ChannelRecord) -> None:
        original = self._makers.get(record.of)
        if original is None:
            raise Mismatch("the original has no such node")
        if is_default(node, "Split"):
            self._split(node)
        elif is_default(node, "Concat"):
            self._concat(node, record)
        elif is_default(node, "Conv") and is_single(self._old, original):
            self._summand(node, original, record)
        elif is_default(node, "Add") and is_single(self._old, original):
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
        weight, *bias = (read(self._old, v) for v in original.inputs[1:] if v is not None)
        outputs, count = weight.shape[:2]
        m = record.channel
        if m is None or not 0 <= m < outputs or _attributes(node) != _attributes(original):
            raise Mismatch("it is another Conv")
        c = self._channel(node.inputs[0], original.inputs[0], count)
        kernel, *added = (read(self._new, value) for value in node.inputs[1:] if value is not None)
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
        count = read(self._old, _input(original, 1)).shape[1]
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
                array = read(self._old, one)
                if content(array) != content(read(self._new, other)):
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
