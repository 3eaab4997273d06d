"""Edit a model: walk it, resolve constants, replace nodes and write the result back.

onnx_ir gives the linked graph (producers, users, captured values); the ModelProto is authoritative.
Only graphs that were changed are written back, node by node: an untouched node, initializer or
field is the very message that was read (`model.linking`). So the parts that onnx_ir lacks
are not lost: sparse tensors, training_info, map types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.constants import Constant, Constants, drop_unused
from widthfold_onnx.model.library import ir
from widthfold_onnx.model.linking import (
    Scope,
    linked,
    named_by_training,
    names_of,
    scopes_of,
    shown_name,
    sparse_of,
    write_back,
)
from widthfold_onnx.model.proto.functions import inline_holders
from widthfold_onnx.model.proto.walk import OVERRIDABLE_SINCE, operator_of, opsets_of
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.refusal import Refusal

Node = ir.Node
Value = ir.Value
Graph = ir.Graph
Attribute = int | float | str | Sequence[int] | Sequence[float] | Array | Graph | ir.Attr
Attributes = Mapping[str, Attribute]


class Document:
    """A model being rewritten, without functions that hold certain operators.

    It owns `proto` and changes it in `finish`.

    Args:
        proto: a checked model.
        folder: where external data lies; None if the model has none.
        operators: by domain and type; functions that hold one of these are inlined.

    Raises:
        InvalidModelError: the model uses something that the graph library cannot read.
    """

    def __init__(
        self, proto: onnx.ModelProto, folder: Path | None, operators: Collection[tuple[str, str]]
    ) -> None:
        proto, self.why_not_inlined = inline_holders(proto, operators)
        self.proto = proto
        self.folder = folder
        self.external_names: set[str] = set()
        self._model = linked(proto)
        self.opset = opsets_of(proto.opset_import).get("", 1)
        self.scopes = list(scopes_of(self._model, proto))
        self._model.graph.sort()  # a file may hold its nodes in any order
        self._trained = frozenset(named_by_training(proto))
        self._names = names_of(self.scopes) | self._trained
        self._touched: set[int] = set()
        self._branches: dict[Graph, list[Graph]] = {}
        self._constants = Constants(
            folder=folder,
            trained=self._trained,
            overridable=proto.ir_version >= OVERRIDABLE_SINCE,
            opset=self.opset,
        )
        self._annotated = {
            a.tensor_name for s in self.scopes if s.proto for a in s.proto.quantization_annotation
        }

    @property
    def main(self) -> Graph:
        """The main graph."""
        return self._model.graph

    @cached_property
    def shapes(self) -> ShapeTable:
        """Extents of every value as the model itself fixes them, before anything is written."""
        return ShapeTable(self.proto, {})

    def nodes(self, operators: Collection[tuple[str, str]]) -> Iterator[tuple[Scope, Node]]:
        """Yield all nodes of some operators, by domain and type, each with its scope."""
        for scope in self.scopes:
            nodes = scope.graph if scope.proto else ir.traversal.RecursiveGraphIterator(scope.graph)
            for node in nodes:
                if operator_of(node) in operators:
                    yield scope, node

    def has_own_name(self, node: Node) -> bool:
        """Check whether no other node is called as a node is shown (`linking.shown_name`).

        An unnamed Conv with the output y is shown as ``Conv -> y``, which may be another's name.
        """
        shown = shown_name(node)
        given_names, shown_names = self._node_names
        is_given_once = given_names[shown] == bool(node.name)
        return is_given_once and shown_names[node.graph, shown] == 1

    @cached_property
    def _node_names(self) -> tuple[Counter[str], Counter[tuple[object, str]]]:
        """How many nodes have a name, and how many of a graph are shown by it."""
        nodes = [node for scope in self.scopes for node in scope.graph]
        shown_names = Counter[tuple[object, str]]((n.graph, shown_name(n)) for n in nodes)
        return Counter(node.name or "" for node in nodes), shown_names

    def constant(self, value: Value) -> Constant | Refusal:
        """Return the constant behind a value; see `model.constants`."""
        return self._constants.find(value)

    def is_annotated(self, value: Value) -> bool:
        """Check whether a quantization annotation of the model names the value."""
        return value.name in self._annotated

    def read(self, constant: Constant) -> Array:
        """Return the numbers of a constant."""
        return self._constants.read(constant)

    def moved(self, constant: Constant, moves: Sequence[Node]) -> Constant:
        """Return a constant after some moves; see `model.constants`."""
        return self._constants.moved(constant, moves)

    def moved_array(self, array: Array, moves: Sequence[Node]) -> Array:
        """Return an array after some moves; see `model.constants`."""
        return self._constants.moved_array(array, moves)

    def fresh(self, base: str) -> str:
        """Return a name that no value or node of the model has yet: `base`, or `base`_2, ..."""
        name, count = base, 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def add_constant(
        self, array: Array, name: str, owner: ir.Graph, *, external: bool = False
    ) -> Value:
        """Add a new initializer to `owner`.

        Below IR version 4 initializers are inputs of the main graph as well, which the runtime
        does not ask a caller for: there it is added to the main graph and its list of inputs.
        """
        name = self.fresh(name)
        value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        graph = owner
        if self.proto.ir_version < OVERRIDABLE_SINCE:
            graph = self._model.graph
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            declaration = onnx.helper.make_tensor_value_info(name, kind, array.shape)
            self.proto.graph.input.append(declaration)
        graph.register_initializer(value)
        self._touched.add(id(graph))
        if external:
            self.external_names.add(name)
        return value

    def new_node(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        attributes: Attributes,
        *,
        name: str,
        metadata: Mapping[str, str],
        outputs: int = 1,
        domain: str = "",
    ) -> Node:
        """Create a node with fresh names; it shares its name with its first output."""
        names = [self.fresh(name) for _ in range(outputs)]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            [_attribute(*item) for item in attributes.items()],
            num_outputs=outputs,
            name=names[0],
            metadata_props=dict(metadata),
        )
        for output, output_name in zip(node.outputs, names, strict=True):
            output.name = output_name
        return node

    def must_stay(self, value: Value) -> bool:
        """Check whether a value must stay: an output, or named by training or an annotation."""
        return value.is_graph_output() or value.name in self._trained or self.is_annotated(value)

    def path_of(self, graph: ir.Graph) -> str:
        """Return the path of a graph of the model."""
        return next(scope.path for scope in self.scopes if scope.graph is graph)

    def dims(self, graph: ir.Graph, value: Value) -> Dims | None:
        """Return the shape of a value seen from a graph; None if not even the rank is known."""
        return self.shapes.get(self.path_of(graph), value.name or "")

    def element_type(self, graph: ir.Graph, name: str) -> int:
        """Return the element type of a value of the model, as ONNX numbers it; 0 if unknown."""
        return self.shapes.element_type(self.path_of(graph), name)

    def replace(
        self,
        graph: ir.Graph,
        replacements: Mapping[Node, Sequence[Node]],
        values: Mapping[Value, Value],
    ) -> None:
        """Put new nodes in the place of nodes.

        Args:
            graph: holds the nodes.
            replacements: new nodes by the removed node.
            values: for outputs of removed nodes that are still read, values that take their name
                and users; no other output may be read by a node that stays.
        """
        for old, new in values.items():
            new.name = old.name
        old_values, new_values = list(values), list(values.values())
        ir.convenience.replace_all_uses_with(old_values, new_values, replace_graph_outputs=True)
        inputs = [value for node in replacements for value in node.inputs if value is not None]
        operands = [value for value in inputs if value.producer() not in replacements]
        for node, new_nodes in replacements.items():
            graph.insert_after(node, new_nodes)
        graph.remove(replacements, safe=True)
        changed_graphs = drop_unused(dict.fromkeys(operands), self.constant)
        self._touched |= {id(graph), *map(id, changed_graphs)}

    def add_branches(self, graph: ir.Graph, branches: Sequence[ir.Graph]) -> None:
        """Note the new bodies in a graph, which may read any of its values."""
        if branches:
            graph.sort()
            self._branches[graph] = list(branches)

    def _move_constants(self, graph: ir.Graph, branches: Sequence[ir.Graph]) -> None:
        """Move constants that only one branch reads into that branch.

        ONNX Runtime changes the layout of weights in the same graph only: with weights outside, a
        Conv 8 -> 8 of 3x39 took 1.3 times as long.
        """
        for value in list(graph.initializers.values()):
            readers = {user.graph for user, _ in value.uses()}
            branch = next((body for body in branches if readers == {body}), None)
            is_stored = sparse_of(value) is None and not value.is_graph_input()
            if branch is not None and is_stored and not self.must_stay(value):
                del graph.initializers[value.name or ""]
                value.type = value.shape = None  # the tensor says both
                branch.register_initializer(value)

    def drop_wrong_declarations(self) -> None:
        """Remove the declared extents of computed values that do not hold.

        The runtime would take them for the extents of what a branch of an If returns. Declarations
        of outputs stay, as callers may read them.
        """
        wrong: dict[str, set[str]] = {}
        for item in self.shapes.wrong_declarations:
            wrong.setdefault(item.path, set()).add(item.name)
        for scope in self.scopes:
            names = wrong.get(scope.path, set())
            if scope.proto is not None and names:
                kept = [value for value in scope.proto.value_info if value.name not in names]
                del scope.proto.value_info[:]
                scope.proto.value_info.extend(kept)
                for value in (value for node in scope.graph for value in node.outputs):
                    value.shape = None if value.name in names else value.shape

    def finish(self) -> onnx.ModelProto:
        """Write the changed graphs back into `proto` and return it."""
        # Below IR version 4 an initializer must be an input of its graph, and a body has no inputs.
        if self.proto.ir_version >= OVERRIDABLE_SINCE and not self.proto.training_info:
            for graph, branches in self._branches.items():
                self._move_constants(graph, branches)
        # Inner graphs first: a node that holds one is copied when its own graph is written.
        for scope in reversed(self.scopes):
            if scope.proto is not None and id(scope.graph) in self._touched:
                assert isinstance(scope.graph, ir.Graph)
                write_back(scope.graph, scope.proto)
        return self.proto


def graph_of(node: Node) -> ir.Graph:
    """Return the graph that holds a node being rewritten; functions are never rewritten."""
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def first_output(node: Node) -> Value | None:
    """Return the first output of a node; an operator of another domain may have none."""
    return node.outputs[0] if node.outputs else None


def input_of(node: Node, index: int | None) -> Value | None:
    """Return an input of a node, None where it is left out."""
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def constant_of(document: Document, value: Value | None) -> Constant | None:
    """Return the constant behind a value, None if there is none."""
    constant = None if value is None else document.constant(value)
    return constant if isinstance(constant, Constant) else None


def _attribute(name: str, value: Attribute) -> ir.Attr:
    """Return an attribute; the library is slow to find out that a list holds integers."""
    integers = isinstance(value, list | tuple) and all(isinstance(x, int) for x in value)
    kind = ir.AttributeType.INTS if integers else None
    tensor = ir.Tensor(value) if isinstance(value, np.ndarray) else value
    return ir.convenience.convert_attribute(name, tensor, kind)
