"""The one door to onnx_ir: walk a model, resolve constants, splice nodes, write back.

onnx_ir gives the linked graph (producers, users, captured values); the ModelProto stays the truth.
Only graphs that were spliced are written back, node by node: an untouched node, initializer or
field is the very message that was read. So nothing is lost that onnx_ir does not carry
(reference/peers.md, section 5, lists what that would be).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir  # noqa: TID251 - this module is the door

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.text import printable

Node = ir.Node
Value = ir.Value
Attributes = Mapping[str, int | str | Sequence[int]]
_SOURCE = "widthfold.source"  # key in Node.meta: the NodeProto that the node was read from


@dataclass(frozen=True)
class Scope:
    """A graph of the model: the main one, a body of If/Loop/Scan, or a local function.

    Attributes:
        path: "" for the main graph; else the outputs and attributes that lead to it, e.g.
            ``y/then_branch``.
        graph: the linked graph.
        proto: the message it was read from; None for a function, which is never written.
    """

    path: str
    graph: ir.Graph | ir.Function
    proto: onnx.GraphProto | None


@dataclass(frozen=True, eq=False)
class Constant:
    """A value known before the model runs, and the graph that owns it."""

    value: Value
    tensor: ir.TensorProtocol
    owner: ir.Graph

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor."""
        return tuple(int(d) for d in self.tensor.shape.numpy())

    @property
    def dtype(self) -> str:
        """ONNX name of the element type, e.g. ``FLOAT``."""
        return self.tensor.dtype.name

    @property
    def is_external(self) -> bool:
        """Whether the data lies in a file of its own."""
        return isinstance(self.tensor, ir.ExternalTensor)


class Document:
    """A model being rewritten. It owns `proto` and changes it in `finish`.

    Args:
        proto: a checked model.
        folder: where external data lies; None if the model has none.

    Raises:
        InvalidModelError: the model uses something that the graph library cannot read.
    """

    def __init__(self, proto: onnx.ModelProto, folder: Path | None) -> None:
        self.proto = proto
        self.folder = folder
        self.external_names: set[str] = set()
        try:
            self._model = ir.from_proto(proto)
        except Exception as error:
            # The library has no common base class for what it cannot read.
            raise InvalidModelError(f"cannot be represented: {printable(str(error))}") from error
        self.opset = self._model.opset_imports.get("", 1)
        self.scopes = list(self._walk())
        self._names = {n for scope in self.scopes for n in _names_in(scope.graph)}
        self._touched: set[int] = set()
        self._annotated = {
            a.tensor_name for s in self.scopes if s.proto for a in s.proto.quantization_annotation
        }

    def _walk(self) -> Iterator[Scope]:
        stack = [Scope("", self._model.graph, self.proto.graph)]
        while stack:
            scope = stack.pop()
            yield scope
            assert scope.proto is not None
            for node, message in zip(scope.graph, scope.proto.node, strict=True):
                node.meta[_SOURCE] = message
                for attribute in message.attribute:
                    bodies = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
                    for i, body in enumerate(bodies):
                        value = node.attributes[attribute.name].value
                        graph = value if attribute.HasField("g") else value[i]
                        path = f"{scope.path}/{message.output[0]}/{attribute.name}"
                        stack.append(Scope(path.lstrip("/"), graph, body))
        for function in self._model.functions.values():
            yield Scope(f"function {function.domain}:{function.name}", function, None)

    def nodes(self, op_type: str) -> Iterator[tuple[Scope, Node]]:
        """All nodes of an operator of the default domain, with the scope that holds each."""
        for scope in self.scopes:
            inside = (
                scope.graph if scope.proto else ir.traversal.RecursiveGraphIterator(scope.graph)
            )
            for node in inside:
                if node.op_type == op_type and node.domain in ("", "ai.onnx"):
                    yield scope, node

    def constant(self, value: Value) -> Constant | Refusal:
        """The constant behind a value: an initializer or a Constant node, through Identity."""
        what = printable(value.name or "")
        producer = value.producer()
        while producer is not None and producer.op_type == "Identity" and producer.inputs[0]:
            value = producer.inputs[0]
            producer = value.producer()
        if value.is_initializer() and value.const_value is not None:
            if value.is_graph_input() and self.proto.ir_version >= 4:
                return Refusal("overridable", f"{what} is an initializer that a caller may replace")
            assert isinstance(value.graph, ir.Graph)
            return Constant(value, value.const_value, value.graph)
        if producer is not None and producer.op_type == "Constant":
            tensor = producer.attributes.get("value")
            if tensor is not None and isinstance(producer.graph, ir.Graph):
                return Constant(value, tensor.as_tensor(), producer.graph)
        origin = f"computed by {producer.op_type}" if producer else "an input"
        return Refusal("not-constant", f"{what} is {origin}")

    def is_annotated(self, value: Value) -> bool:
        """Whether a quantization annotation of the model names the value."""
        return value.name in self._annotated

    def read(self, constant: Constant) -> npt.NDArray[Any]:
        """The numbers of a constant; external data is read by onnx's own guarded loader."""
        tensor = constant.tensor
        if isinstance(tensor, ir.ExternalTensor):
            message = ir.to_proto(tensor)
            return onnx.numpy_helper.to_array(message, base_dir=str(self.folder))
        return np.asarray(tensor.numpy())

    def message(self, node: Node) -> onnx.NodeProto:
        """A node as ONNX message: the one that was read, if it is unchanged."""
        return _message(node)

    def fresh(self, base: str) -> str:
        """A name that no value and no node of the model has yet: `base`, or `base`_2, ..."""
        name, count = base, 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def add_constant(
        self, array: npt.NDArray[Any], name: str, owner: ir.Graph, *, external: bool = False
    ) -> Value:
        """A new initializer in `owner`.

        Below IR version 4 initializers are inputs of the main graph as well, which the runtime
        does not ask a caller for: there it goes into the main graph and its list of inputs.
        """
        name = self.fresh(name)
        value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        graph = owner
        if self.proto.ir_version < 4:
            graph = self._model.graph
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            described = onnx.helper.make_tensor_value_info(name, kind, array.shape)
            self.proto.graph.input.append(described)
        graph.register_initializer(value)
        self._touched.add(id(graph))
        if external:
            self.external_names.add(name)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value],
        attributes: Attributes,
        *,
        name: str,
        output: str,
        metadata: Mapping[str, str],
    ) -> Node:
        """A new node of the default domain with one output; `name` and `output` are made fresh."""
        node = ir.Node(
            "",
            op_type,
            inputs,
            ir.convenience.convert_attributes(dict(attributes)),
            name=self.fresh(name),
            metadata_props=dict(metadata),
        )
        node.outputs[0].name = self.fresh(output)
        return node

    def splice(self, node: Node, chain: Sequence[Node], keeper: Node) -> None:
        """Replace `node` by `chain`; the last output takes over its name, shape and users.

        `keeper` is the node of the chain that takes over name, documentation and metadata.
        """
        graph = graph_of(node)
        keeper.name, keeper.doc_string = node.name, node.doc_string
        keeper.metadata_props.update(
            {k: v for k, v in node.metadata_props.items() if k not in keeper.metadata_props}
        )
        inputs = [value for value in node.inputs if value is not None]
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], chain, [node.outputs[0]], [chain[-1].outputs[0]]
        )
        self._touched.add(id(graph))
        for value in inputs[1:]:
            self._drop_unused(value)

    def _drop_unused(self, value: Value) -> None:
        """Remove a constant that nobody reads any more, and the Identities in front of it."""
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            return
        producer = value.producer()
        if producer is None and value.is_initializer() and isinstance(value.graph, ir.Graph):
            self._touched.add(id(value.graph))
            del value.graph.initializers[value.name or ""]
        elif producer is not None and producer.op_type in ("Constant", "Identity"):
            behind = [v for v in producer.inputs if v is not None]
            graph = graph_of(producer)
            self._touched.add(id(graph))
            graph.remove(producer, safe=True)
            for source in behind:
                self._drop_unused(source)

    def finish(self) -> onnx.ModelProto:
        """Write the spliced graphs back into `proto` and return it."""
        # Inner graphs first: a node that holds one is copied when its own graph is written.
        for scope in reversed(self.scopes):
            if scope.proto is not None and id(scope.graph) in self._touched:
                assert isinstance(scope.graph, ir.Graph)
                _write_back(scope.graph, scope.proto)
        return self.proto


def graph_of(node: Node) -> ir.Graph:
    """The graph that holds a node of a model being rewritten; functions are never rewritten."""
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def _write_back(graph: ir.Graph, message: onnx.GraphProto) -> None:
    nodes = [_message(node) for node in graph]
    del message.node[:]
    message.node.extend(nodes)
    # An initializer that is read by name only (sparse, or an output) is in `graph` too.
    before = {tensor.name for tensor in message.initializer}
    gone = before - set(graph.initializers)
    kept = [tensor for tensor in message.initializer if tensor.name not in gone]
    added = [v for name, v in graph.initializers.items() if name not in before]
    if gone:
        del message.initializer[:]
        message.initializer.extend(kept)
        described = [v for v in message.value_info if v.name not in gone]
        del message.value_info[:]
        message.value_info.extend(described)
    for value in added:
        assert value.const_value is not None
        tensor = ir.to_proto(value.const_value)
        assert isinstance(tensor, onnx.TensorProto)
        message.initializer.append(tensor)


def _message(node: Node) -> onnx.NodeProto:
    source: onnx.NodeProto | None = node.meta.get(_SOURCE)
    return ir.to_proto(node) if source is None else source


def _names_in(graph: ir.Graph | ir.Function) -> Iterator[str]:
    for node in graph:
        yield node.name or ""
        yield from (value.name or "" for value in node.outputs)
    yield from (value.name or "" for value in graph.inputs)
    if isinstance(graph, ir.Graph):
        yield from graph.initializers
