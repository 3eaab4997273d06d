"""Walk every graph, node and tensor of a model, and name its operators and inputs.

The default domain has two spellings, "" and "ai.onnx". Inputs are the values that a caller can
give, so that before IR version 4 an initializer is none, although graphs list it as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, MutableSequence
from typing import Protocol, TypeVar

import onnx
from google.protobuf.message import Message


class HasOperator(Protocol):
    """A node, linked or as a message: domain and type name its operator."""

    @property
    def op_type(self) -> str: ...  # noqa: D102 - as ONNX names it
    @property
    def domain(self) -> str: ...  # noqa: D102 - as ONNX names it


def is_default(node: HasOperator, *op_types: str) -> bool:
    """Check whether a node is one of these operators of the default domain."""
    return node.op_type in op_types and node.domain in ("", "ai.onnx")


FLAGS = (
    *("allowzero", "antialias", "ceil_mode", "count_include_pad", "exclude_outside", "exclusive"),
    *("is_test", "keepdims", "largest", "noop_with_empty_axes", "reverse", "saturate"),
    *("select_last_index", "sorted", "training_mode", "transA", "transB", "upper"),
)
"""Attributes that are 0 or 1. What another number means is not defined: ONNX Runtime takes a
`keepdims` of 2 for 0, and a `transA` of 2 for 1."""


def operator_of(node: HasOperator) -> tuple[str, str]:
    """Return domain and type of a node's operator; the default domain is ""."""
    return domain_name(node.domain), node.op_type


def domain_name(domain: str) -> str:
    """Return the canonical spelling of a domain: the default domain has two spellings."""
    return "" if domain == "ai.onnx" else domain


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the version of the operator set by domain."""
    return {domain_name(entry.domain): entry.version for entry in imports}


M = TypeVar("M", bound=Message)

StoredTensor = onnx.TensorProto | onnx.SparseTensorProto


def subgraphs(attributes: Iterable[onnx.AttributeProto]) -> list[tuple[str, onnx.GraphProto]]:
    """Return the graphs in the attributes of a node, in the order of the file, with their places.

    The place is the name of the attribute, with an index where it is a list. The declared type of
    an attribute does not count.
    """
    graphs: list[tuple[str, onnx.GraphProto]] = []
    for attribute in attributes:  # without a generator: this runs for every node, many times
        if attribute.HasField("g"):
            graphs.append((attribute.name, attribute.g))
        graphs += [(f"{attribute.name}[{i}]", graph) for i, graph in enumerate(attribute.graphs)]
    return graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of all graphs in them; a node comes before its subgraphs."""
    for node in nodes:
        yield node
        for _, graph in subgraphs(node.attribute):
            yield from all_nodes(graph.node)


def model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a model, also of its local functions."""
    for body in (model.graph, *model.functions):
        yield from all_nodes(body.node)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs in it."""
    return (body for _, body in placed_graphs(graph))


def placed_graphs(graph: onnx.GraphProto, path: str = "") -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield a graph and all graphs in it, each with its path, see `body_path`."""
    yield path, graph
    for node in graph.node:
        for place, body in subgraphs(node.attribute):
            yield from placed_graphs(body, body_path(path, node, place))


def body_path(path: str, node: onnx.NodeProto, place: str) -> str:
    """Name a subgraph by the way to it: ``y/then_branch``, within the subgraph `path`.

    Names as PyTorch writes them begin with a slash of their own: ``/If_output_0/then_branch``.

    Args:
        path: path of the graph that holds the node; "" for the main graph.
        node: the node that holds the subgraph; its first output names the subgraph.
        place: place of the subgraph in the node, see `subgraphs`.
    """
    owner = next((name for name in node.output if name), node.name)
    return f"{path}/{owner}/{place}" if path else f"{owner}/{place}"


def initializers(graph: onnx.GraphProto) -> dict[str, StoredTensor]:
    """Return the initializers of a graph by name, dense and sparse ones."""
    sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    return {tensor.name: tensor for tensor in graph.initializer} | sparse


def copy_of(message: M) -> M:
    """Return a copy of a message."""
    copy: M = type(message)()
    copy.CopyFrom(message)
    return copy


def retain(items: MutableSequence[M], is_kept: Callable[[M], bool]) -> None:
    """Remove the messages from a repeated field for which `is_kept` is false."""
    retained = [item for item in items if is_kept(item)]
    if len(retained) < len(items):
        del items[:]
        items.extend(retained)


def all_tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Yield every TensorProto in a message: initializers, attributes, parts of sparse tensors.

    Includes subgraphs, local functions with their attribute defaults, and training graphs.
    """
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.name in _HOLDERS:
            for item in [value] if isinstance(value, Message) else value:
                if isinstance(item, onnx.TensorProto):
                    yield item
                else:
                    yield from all_tensors(item)


_HOLDERS = frozenset(
    {
        *("AttributeProto", "FunctionProto", "GraphProto", "NodeProto", "SparseTensorProto"),
        *("TensorProto", "TrainingInfoProto"),
    }
)
"""The messages that are tensors or may hold some."""


OVERRIDABLE_SINCE = 4
"""IR version from which an initializer that is also an input is a default value."""


def inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller can give; some may have a default value."""
    old = model.ir_version < OVERRIDABLE_SINCE
    fixed = {tensor.name for tensor in model.graph.initializer} if old else ()
    return [value for value in model.graph.input if value.name not in fixed]


def required_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller must feed: those without a default value."""
    defaults = initializers(model.graph)
    return [value for value in model.graph.input if value.name not in defaults]


def weights_among_inputs(model: onnx.ModelProto) -> set[str]:
    """Return the initializers that are inputs as well; a caller may replace `overridable` ones."""
    return initializers(model.graph).keys() & {value.name for value in model.graph.input}


def overridable(model: onnx.ModelProto) -> set[str]:
    """Return the initializers that a caller may replace."""
    return set() if model.ir_version < OVERRIDABLE_SINCE else weights_among_inputs(model)


def unread_weights(model: onnx.ModelProto) -> set[str]:
    """Return the initializers that are inputs as well, and that nothing reads."""
    reads = {name for node in all_nodes(model.graph.node) for name in node.input}
    return weights_among_inputs(model) - reads - {value.name for value in model.graph.output}


def frozen(model: onnx.ModelProto, names: Collection[str] | None = None) -> onnx.ModelProto:
    """Return a model in which initializers are no inputs: itself if none of them is one.

    ONNX Runtime treats a weight that is an input as data: it neither packs it nor fuses anything
    with it. Below `OVERRIDABLE_SINCE` all initializers are inputs, and constant all the same:
    freezing one gives the model that version, and takes all of them out of the inputs.

    Args:
        model: the model; it is not changed.
        names: the initializers to freeze; None for all.
    """
    weights = weights_among_inputs(model)
    taken = weights if names is None else weights & set(names)
    if not taken:
        return model
    copy = copy_of(model)
    if copy.ir_version < OVERRIDABLE_SINCE:
        copy.ir_version, taken = OVERRIDABLE_SINCE, weights
    retain(copy.graph.input, lambda value: value.name not in taken)
    return copy
