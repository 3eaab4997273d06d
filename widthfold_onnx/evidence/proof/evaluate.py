"""Evaluates a graph over finite fields: every value it names, once."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import onnx

from widthfold_onnx.evidence.proof.call import Call
from widthfold_onnx.evidence.proof.field import function, key_of, variables
from widthfold_onnx.evidence.proof.operators import evaluate, is_function, operator, unknown
from widthfold_onnx.evidence.proof.program import Program, constant, stored
from widthfold_onnx.evidence.proof.values import (
    Described,
    Elements,
    Known,
    Opaque,
    Shape,
    UnevaluableError,
    Value,
)
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.domain import domain_name, is_default
from widthfold_onnx.model.proto.scope import NameScope, bodies_of, describe_node
from widthfold_onnx.model.proto.walk import body_path
from widthfold_onnx.model.shapes.table import ShapeTable

MOST_ELEMENTS = 1 << 27
"""Largest value that is evaluated; it takes 20 bytes for each element."""


class EvaluationError(Exception):
    """A node that no runtime could compute."""


class Evaluation:
    """One run of a program.

    Args:
        program: the model.
        table: extents and element types of its values.
        agreed: extents and element types from another model that names the values as well: of the
            variables, and of values that the table lacks.
        shapes: extents of the inputs.
        targets: values of the main graph that are computed, with what they need.
        variables: values of the main graph that are variables for all that reads them.
        is_kept: whether the values of the targets are kept, and not only their digests.

    Attributes:
        digests: of the targets.
        values: the targets.
        degree: of the polynomials, at most.
        size: elements of all values.
        functions: how often each operator was treated as a random function, by its name and the
            version since which it is unchanged.
        unknown: operators that were treated as functions of all that they read.
        branches: the computed branches of every If, by its first output.
    """

    def __init__(
        self,
        program: Program,
        table: ShapeTable,
        shapes: Mapping[str, Shape],
        *,
        agreed: Mapping[str, Described],
        targets: Sequence[str],
        variables: Mapping[str, Shape],
        is_kept: bool = False,
    ) -> None:
        self._program = program
        self._table = table
        self._agreed = agreed
        self._variables = variables
        self._targets = frozenset(targets)
        self._is_kept = is_kept
        self._depth = 0  # loops around the node that is evaluated
        self.digests: dict[str, bytes] = {}
        self.values: dict[str, Value] = {}
        self.degree, self.size = 1, 0
        self.functions: Counter[tuple[str, int]] = Counter()
        self.unknown: set[str] = set()
        self.branches: dict[str, set[str]] = {}
        given: dict[str, Value] = {}
        for value in program.inputs:
            given[value.name] = self._input(value, shapes)
        tensors = stored(program.proto.graph)
        for name in self._targets & (given.keys() | tensors.keys()):  # outputs that no node writes
            self._keep(name, self._read(name, given, tensors))
        self._graph(program.scope, "", targets, ChainMap(given))

    def _input(self, value: onnx.ValueInfoProto, shapes: Mapping[str, Shape]) -> Value:
        is_tensor = value.type.HasField("tensor_type")
        shape, kind = shapes.get(value.name), value.type.tensor_type.elem_type
        return self._drawn(key_of("input", value.name), shape if is_tensor else None, kind)

    def _drawn(self, key: int, shape: Shape | None, kind: int) -> Value:
        """Draw a variable; of one without extents only equality is known."""
        if shape is None:
            return Opaque(key)
        self.size += math.prod(shape)
        return Elements(variables(key, shape), kind=kind)

    def _graph(
        self,
        scope: NameScope,
        path: str,
        outputs: Sequence[str],
        env: ChainMap[str, Value],
    ) -> list[Value]:
        """Evaluate what the outputs of a graph need.

        Raises:
            EvaluationError: a node that cannot be computed.
        """
        assert scope.graph is not None
        tensors = stored(scope.graph)
        fixed = {} if path else self._variables
        needed, last = _plan(scope, outputs, fixed)
        for index in sorted(needed):
            for name in needed[index]:
                if name in fixed and name not in env:
                    shape, kind = self._agreed[name]
                    env[name] = self._drawn(key_of("variable", name), shape, kind)
            node = scope.nodes[index]
            read = {name: self._read(name, env, tensors) for name in node.input if name}
            try:
                results = self._node(node, scope.inner.get(index, ()), path, read, env, tensors)
            except UnevaluableError as error:
                raise EvaluationError(f"{describe_node(node)}: {error}") from error
            except MemoryError as error:
                raise EvaluationError(f"{describe_node(node)} needs too much memory") from error
            self._note(node, path, results)
            for name, value in zip(node.output, results, strict=False):
                if name and name not in fixed:
                    env[name] = value
            for name in last.get(index, ()):
                env.maps[0].pop(name, None)
        return [self._read(name, env, tensors) for name in outputs] if path else []

    def _read(self, name: str, env: Mapping[str, Value], tensors: Mapping[str, Any]) -> Value:
        if name in tensors and name not in env:
            return Known(self._program.read(tensors[name]))
        if name in env:
            return env[name]
        raise EvaluationError(f"nothing computes {name}")

    def _keep(self, name: str, value: Value) -> None:
        self.digests[name] = _digest(value, self._table.element("", name))
        if self._is_kept:
            self.values[name] = value

    def _note(self, node: onnx.NodeProto, path: str, results: Sequence[Value]) -> None:
        for name, value in zip(node.output, results, strict=False):
            if name in self._targets and not path:
                self._keep(name, value)
            if isinstance(value, Elements):
                self.degree = max(self.degree, value.degree)
                self.size += value.draws[0].size

    def _shape(self, path: str, name: str) -> Shape | None:
        """Return the extents of a value, None where they are not known.

        Raises:
            UnevaluableError: it is too large to be evaluated.
        """
        dims: Dims | None = self._table.get(path, name)
        if (dims is None or None in dims) and name in self._agreed and not path:
            dims = self._agreed[name][0]
        if dims is None or None in dims:
            return None
        known = tuple(n for n in dims if n is not None)
        if math.prod(known) > MOST_ELEMENTS:
            raise UnevaluableError(f"{list(known)} are too many elements")
        return known

    def _node(
        self,
        node: onnx.NodeProto,
        inner: Sequence[NameScope],
        path: str,
        read: Mapping[str, Value],
        env: ChainMap[str, Value],
        tensors: Mapping[str, Any],
    ) -> list[Value]:
        if is_default(node, "Constant"):
            array = constant(node, self._program)
            if array is not None:
                return [Known(array)]
        call = Call(
            node=node,
            attributes=self._program.attributes(node),
            inputs=[read.get(name) for name in node.input],
            opset=self._program.opsets.get(domain_name(node.domain), 1),
            version=self._program.version(node),
            shapes=[self._shape(path, name) if name else None for name in node.output],
            unknown=self.unknown,
            made=[self._table.element(path, name) for name in node.output],
        )
        if not inner:
            results = evaluate(call)
            is_known = all(isinstance(value, Known) for value in results)
            if not is_known and (is_function(node) or operator(node) in self.unknown):
                self.functions[operator(node), call.version] += 1
            return [_typed(value, kind) for value, kind in zip(results, call.made, strict=False)]
        around = _outside(env, tensors, inner, self._program)
        if is_default(node, "If"):
            return self._if(call, inner, path, around)
        self.functions[operator(node), call.version] += 1
        bodies = []
        for number, (attribute, index, scope) in enumerate(bodies_of(node, inner)):
            assert scope.graph is not None
            inside = body_path(path, node, attribute, index)
            given = {
                value.name: self._body_input(inside, value.name, (self._depth, number, i))
                for i, value in enumerate(scope.graph.input)
            }
            outputs = [value.name for value in scope.graph.output]
            self._depth += 1
            try:
                found = self._graph(scope, inside, outputs, around.new_child(given))
            finally:
                self._depth -= 1
            bodies += [_digest(value).hex() for value in found]
        results = unknown(call, *bodies)
        return [_typed(value, kind) for value, kind in zip(results, call.made, strict=True)]

    def _body_input(self, path: str, name: str, which: tuple[int, int, int]) -> Value:
        kind = self._table.element(path, name)
        return self._drawn(key_of("body", *which), self._shape(path, name), kind)

    def _if(
        self,
        call: Call,
        inner: Sequence[NameScope],
        path: str,
        env: ChainMap[str, Value],
    ) -> list[Value]:
        """Compute the branch that a known condition chooses, else both.

        If both return the same, that is the result under any condition.
        """
        condition = call.inputs[0]
        chosen = {"then_branch", "else_branch"}
        if isinstance(condition, Known):
            chosen = {"then_branch" if condition.array.any() else "else_branch"}
        self.branches.setdefault(call.node.output[0], set()).update(chosen)
        results: dict[str, list[Value]] = {}
        for attribute, index, scope in bodies_of(call.node, inner):
            if attribute in chosen:
                assert scope.graph is not None
                outputs = [value.name for value in scope.graph.output]
                inside = body_path(path, call.node, attribute, index)
                results[attribute] = self._graph(scope, inside, outputs, env.new_child())
        if len(results) < 2:
            return next(iter(results.values()))
        branches = (results["then_branch"], results["else_branch"])
        return [
            self._either(call, one, other, i)
            for i, (one, other) in enumerate(zip(*branches, strict=True))
        ]

    def _either(self, call: Call, one: Value, other: Value, index: int) -> Value:
        if _digest(one) == _digest(other):
            return one
        self.functions["If", call.version] += 1
        self.unknown.add("If")
        condition = call.inputs[0]
        types = {None if isinstance(v, Opaque) else (v.shape, v.kind) for v in (one, other)}
        key = key_of("If", None if condition is None else condition.digest())
        if len(types) > 1 or None in types:
            parts = (one.digest(), other.digest(), index)
            return Opaque(key_of(key, *parts))
        assert not isinstance(one, Opaque)
        assert not isinstance(other, Opaque)
        return Elements(
            function(key, [one.draws, other.draws], one.shape),
            constants=max(one.constants, other.constants),
            kind=one.kind,
        )


def _digest(value: Value, otherwise: int = 0) -> bytes:
    """Digest a value with its element type, or another type where its own is not known."""
    kind = 0 if isinstance(value, Opaque) else value.kind
    return value.digest() + bytes([kind or otherwise])


def _typed(value: Value, kind: int) -> Value:
    return replace(value, kind=kind) if kind and isinstance(value, Elements) else value


def _outside(
    env: ChainMap[str, Value],
    tensors: Mapping[str, Any],
    inner: Sequence[NameScope],
    program: Program,
) -> ChainMap[str, Value]:
    """Return the values visible to the graphs inside a node, constants included."""
    captured = {name for scope in inner for name in scope.captured}
    constants: MutableMapping[str, Value] = {
        name: Known(program.read(tensors[name]))
        for name in captured
        if name in tensors and name not in env
    }
    return env.new_child(constants)


def _plan(
    scope: NameScope, outputs: Sequence[str], fixed: Collection[str]
) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Return the needed nodes with what they read, and the values that each of them reads last."""
    writer = {name: i for i, node in enumerate(scope.nodes) for name in node.output if name}
    waiting = [writer[name] for name in outputs if name in writer]
    reads: dict[int, list[str]] = {}
    while waiting:
        index = waiting.pop()
        if index in reads:
            continue
        inside = [name for s in scope.inner.get(index, ()) for name in s.captured]
        reads[index] = [*(name for name in scope.nodes[index].input if name), *inside]
        waiting += [writer[n] for n in reads[index] if n in writer and n not in fixed]
    last: dict[str, int] = {}
    for index in sorted(reads):
        for name in (*reads[index], *scope.nodes[index].output):
            if name:
                last[name] = index
    ends: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in outputs:
            ends.setdefault(index, []).append(name)
    return reads, ends
