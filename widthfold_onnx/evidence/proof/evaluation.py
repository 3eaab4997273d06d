"""Evaluate a graph over finite fields: every value it names, once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import onnx

from widthfold_onnx.evidence.proof.field import key_of, variables
from widthfold_onnx.evidence.proof.operators import (
    evaluate,
    is_function,
    operator,
    unknown_function,
)
from widthfold_onnx.evidence.proof.operators.arithmetic import function_of
from widthfold_onnx.evidence.proof.program import Program, constant
from widthfold_onnx.evidence.proof.values import (
    Call,
    Elements,
    KnownValue,
    OpaqueValue,
    Shape,
    TensorType,
    UnevaluableError,
    Value,
    check_size,
)
from widthfold_onnx.model.proto.scope import NameScope, describe_node
from widthfold_onnx.model.proto.walk import body_path, domain_name, is_default
from widthfold_onnx.model.shapes.table import ShapeTable

Body = tuple[str, NameScope]
"""A graph in a node: the attribute that holds it, and the graph, see `NameScope.inner`."""


@dataclass
class _Frame:
    """A graph while it is evaluated.

    Attributes:
        scope: its nodes and initializers.
        path: of the graph (`walk.body_path`).
        values: computed values by name; a value is dropped after its last reader.
        outer: the graph around it.
        loops: how many loops are around it.
    """

    scope: NameScope
    path: str
    values: dict[str, Value]
    outer: _Frame | None = None
    loops: int = 0


@dataclass
class Evaluation:
    """One run of a program.

    Attributes:
        program: the model.
        table: extents and element types of the values of the model.
        shapes: extents of the inputs.
        agreed_types: extents and element types of values that another model has, too, as that model
            infers them; for variables, and for values that the table lacks.
        variables: values of the main graph that are variables for all that reads them.
        forced_ifs: first outputs of Ifs whose else branch is computed, whatever their condition is.
        is_kept: True if the values of the targets are kept, and not only their digests.
        digests: digests of the targets.
        values: values of the targets, if they are kept.
        degree: highest degree of the polynomials.
        size: number of elements of all values.
        functions: how often each operator was treated as a random function, by its name and the
            version since which it is unchanged.
        unknown_operators: operators that were treated as functions of all that they read.
        branches: the first output of the If and the name of each branch that was computed.
        undecided_ifs: first outputs of Ifs whose condition is not known, and whose branches differ.
    """

    program: Program
    table: ShapeTable
    shapes: Mapping[str, Shape]
    agreed_types: Mapping[str, TensorType]
    variables: Mapping[str, Shape]
    forced_ifs: frozenset[str] = frozenset()
    is_kept: bool = False
    digests: dict[str, bytes] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    degree: int = 1
    size: int = 0
    functions: Counter[tuple[str, int]] = field(default_factory=Counter)
    unknown_operators: set[str] = field(default_factory=set)
    branches: set[tuple[str, str]] = field(default_factory=set)
    undecided_ifs: set[str] = field(default_factory=set)

    def run(self, targets: Sequence[str]) -> Self:
        """Compute values of the main graph and all that they are computed from.

        Raises:
            UnevaluableError: a node that no runtime could compute.
        """
        inputs = {value.name: self._input(value) for value in self.program.inputs}
        main = _Frame(self.program.scope, "", inputs)
        for name in set(targets) - main.scope.writers.keys():  # outputs that no node writes
            self._note(name, self._read(name, main))
        self._graph(main, targets)
        return self

    def _input(self, value: onnx.ValueInfoProto) -> Value:
        is_tensor = value.type.HasField("tensor_type")
        shape, element_type = self.shapes.get(value.name), value.type.tensor_type.elem_type
        return self._drawn(key_of("input", value.name), shape if is_tensor else None, element_type)

    def _drawn(self, key: int, shape: Shape | None, element_type: int) -> Value:
        """Draw a variable; of one without extents only equality is known."""
        if shape is None:
            return OpaqueValue(key)
        self.size += math.prod(shape)
        return Elements(variables(key, shape), element_type=element_type)

    def _graph(self, frame: _Frame, outputs: Sequence[str]) -> None:
        """Evaluate the nodes of a graph that some values need."""
        scope, values = frame.scope, frame.values
        variable_shapes, targets = self.variables, frozenset(outputs)
        if frame.path:
            variable_shapes, targets = {}, frozenset()
        nodes = scope.ancestors(outputs, variable_shapes)
        names_of_node = {i: {*scope.reads[i], *scope.nodes[i].output} for i in nodes}
        last_reader = {name: i for i in nodes for name in names_of_node[i]}
        for index in nodes:
            node = scope.nodes[index]
            for name in scope.reads[index]:
                if name in variable_shapes and name not in values:
                    values[name] = self._drawn(key_of("variable", name), *self.agreed_types[name])
            try:
                results = self._node(frame, index)
            except UnevaluableError as error:
                raise UnevaluableError(f"{describe_node(node)}: {error}") from error
            for name, value in zip(node.output, results, strict=False):
                if name in targets:
                    self._note(name, value)
                if isinstance(value, Elements):
                    self.degree = max(self.degree, value.degree)
                    self.size += value.draws[0].size
                if name and name not in variable_shapes:
                    values[name] = value
            for name in names_of_node[index].difference(outputs):
                if last_reader[name] == index:
                    values.pop(name, None)

    def _read(self, name: str, frame: _Frame) -> Value:
        """Return a value of a graph, or of one around it; constants are read when needed."""
        if name in frame.values:
            return frame.values[name]
        if frame.outer is None and name in self.program.exact:
            return self.program.exact[name]()
        if name in frame.scope.initializers:
            return KnownValue(self.program.read(frame.scope.initializers[name]))
        if frame.outer is None:
            raise UnevaluableError(f"nothing computes {name}")
        return self._read(name, frame.outer)

    def _note(self, name: str, value: Value) -> None:
        self.digests[name] = _digest(value, self.table.element_type("", name))
        if self.is_kept:
            self.values[name] = value

    def _shape(self, path: str, name: str) -> Shape | None:
        """Return the extents of a value, None where they are not known.

        Raises:
            UnevaluableError: it is too large to be evaluated.
        """
        extents = self.table.extents(path, name)
        if extents is None and name in self.agreed_types and not path:
            extents = self.agreed_types[name][0]
        if extents is not None:
            check_size(extents)
        return extents

    def _node(self, frame: _Frame, index: int) -> list[Value]:
        node, path = frame.scope.nodes[index], frame.path
        if (array := constant(node, self.program)) is not None:
            is_exact = frame.outer is None and node.output[0] in self.program.exact
            return [self.program.exact[node.output[0]]() if is_exact else KnownValue(array)]
        call = Call(
            node=node,
            attributes=self.program.attributes(node),
            inputs=[self._read(name, frame) if name else None for name in node.input],
            opset=self.program.opsets.get(domain_name(node.domain), 1),
            version=self.program.version(node),
            shapes=[self._shape(path, name) if name else None for name in node.output],
            output_types=[self.table.element_type(path, name) for name in node.output],
        )
        bodies = frame.scope.inner.get(index, ())
        if bodies and is_default(node, "If"):
            return self._if(call, bodies, frame)
        if bodies:
            outputs = [self._body(call, body, frame, number) for number, body in enumerate(bodies)]
            digests = (_digest(value).hex() for values in outputs for value in values)
            results, is_unknown = unknown_function(call, *digests), True
        else:
            results, is_unknown = evaluate(call, is_exact=self.program.is_exact)
        if is_unknown:
            self.unknown_operators.add(operator(node))
        is_known = all(isinstance(value, KnownValue) for value in results)
        if bodies or (
            not is_known and (is_function(node) or operator(node) in self.unknown_operators)
        ):
            self.functions[operator(node), call.version] += 1
        return [
            replace(value, element_type=known_type)
            if known_type and isinstance(value, Elements)
            else value
            for value, known_type in zip(results, call.output_types, strict=False)
        ]

    def _body(self, call: Call, body: Body, frame: _Frame, number: int | None) -> list[Value]:
        """Return the outputs of a graph of a node.

        Args:
            call: the node.
            body: the graph, with the attribute that holds it.
            frame: the graph that holds the node.
            number: which body of a loop it is; None for a branch of an If.
        """
        attribute, scope = body
        path = body_path(frame.path, call.node, attribute)
        assert scope.graph is not None
        body_frame = _Frame(scope, path, {}, frame, frame.loops + (number is not None))
        for i, value in enumerate(scope.graph.input):
            key = key_of("body", frame.loops, number, i)
            element_type = self.table.element_type(path, value.name)
            variable = self._drawn(key, self._shape(path, value.name), element_type)
            body_frame.values[value.name] = variable
        outputs = [value.name for value in scope.graph.output]
        try:
            self._graph(body_frame, outputs)
            return [self._read(name, body_frame) for name in outputs]
        except UnevaluableError as error:
            raise UnevaluableError(f"in its {attribute}, {error}") from error

    def _if(self, call: Call, bodies: Sequence[Body], frame: _Frame) -> list[Value]:
        """Compute the branch that is forced or that a known condition chooses, else both.

        If both return the same, that is the result under any condition.
        """
        condition = call.inputs[0]
        branch_names = {"then_branch", "else_branch"}
        if call.node.output[0] in self.forced_ifs:
            branch_names = {"else_branch"}
        elif isinstance(condition, KnownValue):
            branch_names = {"then_branch" if condition.array.any() else "else_branch"}
        self.branches.update((call.node.output[0], name) for name in branch_names)
        results = {
            body[0]: self._body(call, body, frame, None)
            for body in bodies
            if body[0] in branch_names
        }
        if len(results) < 2:
            return next(iter(results.values()))
        branches = zip(results["then_branch"], results["else_branch"], strict=True)
        return [self._choice(call, first, second, i) for i, (first, second) in enumerate(branches)]

    def _choice(self, call: Call, first: Value, second: Value, index: int) -> Value:
        if _digest(first) == _digest(second):
            return first
        self.functions["If", call.version] += 1
        self.undecided_ifs.add(call.node.output[0])
        self.unknown_operators.add("If")
        condition = call.inputs[0]
        key = key_of("If", None if condition is None else condition.digest())
        if (
            isinstance(first, OpaqueValue)
            or isinstance(second, OpaqueValue)
            or (first.shape, first.element_type) != (second.shape, second.element_type)
        ):
            return OpaqueValue(key_of(key, first.digest(), second.digest(), index))
        return replace(function_of(key, [first, second]), element_type=first.element_type)


def _digest(value: Value, default_type: int = 0) -> bytes:
    """Digest a value with its element type, or with a default where that is not known."""
    return value.digest() + bytes([value.element_type or default_type])
