"""Infer the extents and element type of every value of a model.

A dimension is a number, or None where the model leaves it open. With `assumed` the given input
shapes are assumed: such a table serves planning only, and the model is never changed.

Nodes are visited in order. Inference gives each output its type (`inference`). An output has
numbers where the numbers of the inputs are known (`arithmetic`). A declaration fills gaps, and
replaces nothing; one that inference contradicts at any sizes is not used (`declarations`).
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.proto.constant_folding import literal
from widthfold_onnx.model.proto.dims import check_shapes, declared, dims_of_type
from widthfold_onnx.model.proto.functions import FunctionKey, call_key, function_key
from widthfold_onnx.model.proto.scope import NameScope, function_scope, graph_scope
from widthfold_onnx.model.proto.walk import (
    body_path,
    copy_of,
    inputs,
    is_default,
    opsets_of,
    subgraphs,
)
from widthfold_onnx.model.shapes.arithmetic import EVALUATED, computed
from widthfold_onnx.model.shapes.declarations import WrongDeclaration, contradict, probes
from widthfold_onnx.model.shapes.fact import (
    MAX_KEPT,
    Fact,
    common_fact,
    completed,
    of_tensor,
    of_type,
)
from widthfold_onnx.model.shapes.inference import infer_node, rank_by_weight
from widthfold_onnx.options import Shapes

Facts = Mapping[str, Fact]

UNKNOWN_FACT = Fact()


class ShapeTable:
    """Shapes by scope path (`model.linking.Scope.path`) and value name.

    Args:
        proto: a checked model.
        assumed: extents of inputs that are assumed.
        derivation: of this model, to be used again if tables are made for several extents.

    Attributes:
        facts: by path of the graph and name; a graph sees the values of the graphs around it.

    Raises:
        UsageError: an assumed shape names no input, or contradicts the model.
    """

    def __init__(
        self, proto: onnx.ModelProto, assumed: Shapes, derivation: Derivation | None = None
    ) -> None:
        self._derivation = derivation or Derivation(proto)
        self.facts: Mapping[str, Facts] = self._derivation.facts_for(inputs_of(proto, assumed))

    def _fact(self, path: str, name: str) -> Fact:
        return self.facts.get(path, {}).get(name, UNKNOWN_FACT)

    def get(self, path: str, name: str) -> Dims | None:
        """Return the shape of a value seen from a scope; None if not even the rank is known."""
        return self._fact(path, name).dims

    def extents(self, path: str, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value seen from a scope; None if any extent is open."""
        dims = self.get(path, name)
        if dims is None:
            return None
        extents = tuple(n for n in dims if n is not None)
        return extents if len(extents) == len(dims) else None

    def numbers(self, path: str, name: str) -> Array | None:
        """Return the elements of a value that no input changes, None for other values.

        The array holds objects if some elements are unknown. The result is also None if all
        elements are unknown, or there are many.
        """
        return self._fact(path, name).numbers

    def element_type(self, path: str, name: str) -> int:
        """Return the element type of a value seen from a scope, as ONNX number; 0 if unknown."""
        return self._fact(path, name).element_type

    @cached_property
    def wrong_declarations(self) -> Sequence[WrongDeclaration]:
        """The declared extents of values of the model that do not hold."""
        return [
            WrongDeclaration(path, name, dims, found)
            for path, name, dims in self._derivation.declared_extents()
            if contradict(dims, found := self.get(path, name))
            or (path, name) in self._derivation.dropped
        ]


def inputs_of(proto: onnx.ModelProto, assumed: Shapes) -> dict[str, Fact]:
    """Return the types and extents of the inputs, with the extents that a caller assumes.

    Raises:
        UsageError: an assumed shape names no input, or contradicts the model.
    """
    values = {value.name: value for value in inputs(proto)}
    facts = {name: of_type(value.type) for name, value in values.items()}
    dims = {n: None if facts[n].dims is None else declared(value) for n, value in values.items()}
    check_shapes(dims, assumed)
    return facts | {n: Fact(facts[n].element_type, tuple(shape)) for n, shape in assumed.items()}


MAX_KNOWN_ELEMENTS = 1 << 22
"""Elements that all evaluated nodes may read and write together."""

NODE_ELEMENTS = 1 << 8
"""Cost of the evaluation of one node, in elements that are read or written in the same time."""

MAX_REPEATED = 100_000
"""Nodes of bodies and functions that are visited again, all together."""

MAX_CALLS = 32
"""Depth of functions that call each other."""

LOOPING_SCAN_OPSET = 9
"""Operator set since which a Scan has no batch axis."""

Body = Callable[[Sequence[Fact]], list[Fact]]
"""Returns the facts of the outputs of a body for the facts of its inputs."""

WIDENING_ITERATIONS = 3
"""Iterations of a loop after which a type that still changes counts as unknown."""

MAX_COUNTED_ITERATIONS = 16
"""Most iterations of a loop that are counted one by one, if its condition changes between them."""


@dataclass(frozen=True)
class _Frame:
    """Where in its model a graph is visited, and the facts that hold there.

    Attributes:
        path: of the graph; None in a function, which may be called from several graphs.
        opsets: version of the operator set by domain.
        facts: of the values that the graph sees, by name.
        is_doubted: whether declared extents are not used: in a loop, where they may hold for one
            iteration only, and where declarations are judged.
        calls: number of functions around it.
        attributes: of the call of a function.
    """

    path: str | None
    opsets: Mapping[str, int]
    facts: ChainMap[str, Fact] = field(default_factory=ChainMap)
    is_doubted: bool = False
    calls: int = 0
    attributes: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)


class _Step(NamedTuple):
    """The last derivation of a node.

    Attributes:
        inputs: the facts of its inputs.
        outputs: the facts of its outputs.
        cost: how much of `MAX_KNOWN_ELEMENTS` it took.
    """

    inputs: Sequence[Fact | None]
    outputs: Sequence[Fact]
    cost: int


class Derivation:
    """Derives the facts of all values of a model, visiting its nodes in order.

    Declared extents that inference contradicts at any sizes are not used (`dropped`).

    It may be repeated for other facts of the inputs. Then a node is derived again only if a fact of
    its inputs differs. A fact that is derived again and is equal stays the same object, so that the
    nodes behind it are not derived again either. One thread at a time may use it.

    Args:
        proto: a checked model.

    Attributes:
        dropped: path and name of the values whose declared extents are not used.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.dropped: set[tuple[str, str]] = set()
        self._opsets = opsets_of(proto.opset_import)
        self._functions = {function_key(function): function for function in proto.functions}
        self._main = graph_scope(proto.graph)
        self._scopes: dict[FunctionKey, NameScope] = {}
        self._beginnings: dict[tuple[int, bool], tuple[dict[str, Fact], dict[str, Fact]]] = {}
        self._steps: dict[tuple[int, int, bool], _Step] = {}
        self._declared_dims = {
            value.name: declared(value)
            for value in inputs(proto)
            if value.type.tensor_type.HasField("shape")
        }
        self._is_completed = False
        self._begin()

    def _begin(self) -> None:
        self._facts: dict[str, Facts] = {}
        self._owners: dict[str, NameScope] = {}
        self._visited: set[int] = set()
        self._elements, self._repeated, self._declined = MAX_KNOWN_ELEMENTS, MAX_REPEATED, 0

    def facts_for(self, input_facts: Facts) -> Mapping[str, Facts]:
        """Return the facts by path and name, for facts of the inputs of the main graph."""
        facts = self._derived(input_facts, is_doubted=False)
        has_ended = self._repeated >= 0
        if has_ended and self._is_completed and self._drop_wrong(input_facts):
            facts = self._derived(input_facts, is_doubted=False)
        return facts

    def _derived(self, input_facts: Facts, *, is_doubted: bool) -> Mapping[str, Facts]:
        """Return the facts by path and name, with declared extents or without."""
        self._begin()
        self._graph(self._main, input_facts, _Frame("", self._opsets, is_doubted=is_doubted))
        # Below 0 the visits of bodies ended before their facts were steady.
        return self._facts if self._repeated >= 0 else {"": self._facts[""]}

    def _drop_wrong(self, input_facts: Facts) -> bool:
        """Drop the declared extents that inference contradicts; return whether there are any.

        Sizes at which a value loses its rank are impossible, and judge nothing.
        """
        ranked = _ranked(self._derived(input_facts, is_doubted=True))
        count = len(self.dropped)
        for probe in probes(self._declared_dims, input_facts):
            facts = self._derived(probe, is_doubted=True)
            if ranked <= _ranked(facts):
                self.dropped.update(
                    (path, name)
                    for path, name, dims in self.declared_extents()
                    if contradict(dims, facts.get(path, {}).get(name, UNKNOWN_FACT).dims)
                )
        for path, name in self.dropped:
            declarations, _ = self._beginnings[id(self._owners[path]), False]
            declarations[name] = Fact(declarations[name].element_type)
        if len(self.dropped) > count:
            self._steps.clear()
        return len(self.dropped) > count

    def declared_extents(self) -> Iterator[tuple[str, str, Dims]]:
        """Yield path, name and extents of the computed values that graphs declare.

        Graphs in loops are left out: there an extent may hold for one iteration only.
        """
        for path, scope in self._owners.items():
            if (id(scope), False) in self._beginnings and scope.graph is not None:
                for value in (*scope.graph.value_info, *scope.graph.output):
                    dims = dims_of_type(value.type)
                    if dims is not None and value.name in scope.writers:
                        yield path, value.name, dims

    def _graph(self, scope: NameScope, input_facts: Facts, outer_frame: _Frame) -> Facts:
        """Return the facts of the values of a graph or function, and of the graphs around it."""
        if id(scope) in self._visited:
            self._repeated -= len(scope.nodes)
            if self._repeated < 0:
                return {}
        self._visited.add(id(scope))
        declarations, stored_facts = self._beginning(scope, is_doubted=outer_frame.is_doubted)
        facts = {**stored_facts, **input_facts}
        frame = replace(outer_frame, facts=outer_frame.facts.new_child(facts))
        if frame.path is not None:
            owner = self._owners.setdefault(frame.path, scope)
            # Nodes without outputs and names share a path: their bodies have no facts.
            self._facts[frame.path] = frame.facts if owner is scope else {}
        for index, node in enumerate(scope.nodes):
            if (rank := rank_by_weight(node, frame.facts)) is not None:
                data = frame.facts.get(node.input[0], UNKNOWN_FACT)
                facts[node.input[0]] = replace(data, dims=(None,) * rank)
            outputs = self._step(scope, index, frame, declarations)
            facts.update(zip(node.output, outputs, strict=True))
        return frame.facts

    def _beginning(
        self, scope: NameScope, *, is_doubted: bool
    ) -> tuple[dict[str, Fact], dict[str, Fact]]:
        """Return the declared facts of a graph, and the facts of its inputs and constants."""
        key = id(scope), is_doubted
        if key not in self._beginnings:
            graph = scope.graph or onnx.GraphProto()  # a function declares nothing
            declarations = _declarations(graph, is_doubted=is_doubted)
            self._beginnings[key] = declarations, _stored_facts(graph, declarations)
        return self._beginnings[key]

    def _step(
        self, scope: NameScope, index: int, frame: _Frame, declarations: Facts
    ) -> Sequence[Fact]:
        """Return the facts of the outputs of a node, derived or as they were derived before."""
        node, inner = scope.nodes[index], scope.inner.get(index, ())
        key = id(scope), index, frame.is_doubted
        inputs = [frame.facts.get(name, UNKNOWN_FACT) if name else None for name in node.input]
        earlier = self._steps.get(key)
        if (
            earlier is not None
            and earlier.cost <= self._elements
            and all(map(_is_same, inputs, earlier.inputs))
        ):
            self._elements -= earlier.cost
            return earlier.outputs
        elements, declined = self._elements, self._declined
        results = chain(self._node(node, inner, frame, inputs), repeat(UNKNOWN_FACT))
        facts = [fact for _, fact in zip(node.output, results, strict=False)]
        outputs = [
            completed(fact, declarations[name]) if name in declarations else fact
            for name, fact in zip(node.output, facts, strict=True)
        ]
        self._is_completed |= any(a.dims != b.dims for a, b in zip(facts, outputs, strict=True))
        # Kept only if it depends on its inputs alone: a body reads other values, too, and a call
        # binds attributes.
        is_alone = not inner and not frame.calls and call_key(node) not in self._functions
        if is_alone and declined == self._declined:
            if earlier is not None:
                pairs = zip(earlier.outputs, outputs, strict=True)
                outputs = [old if old.equals(new) else new for old, new in pairs]
            self._steps[key] = _Step(inputs, outputs, elements - self._elements)
        return outputs

    def _node(
        self,
        node: onnx.NodeProto,
        inner: Sequence[tuple[str, NameScope]],
        frame: _Frame,
        inputs: Sequence[Fact | None],
    ) -> Sequence[Fact]:
        """Return the facts of the outputs of a node."""
        if frame.calls:
            node = _bound_node(node, frame.attributes)
        if self._functions and call_key(node) in self._functions:
            return self._call(node, frame, inputs)
        if subgraphs(node.attribute):
            facts = [fact or UNKNOWN_FACT for fact in inputs]
            return self._with_bodies(node, inner, frame, facts)
        if is_default(node, "Constant") and (constant := _constant(node)) is not None:
            return [constant]
        if is_default(node, "Shape", "Size") and inputs:
            return [_extents_fact(node, inputs[0] or UNKNOWN_FACT)]
        types = infer_node(node, frame.opsets, inputs)
        if is_default(node, *EVALUATED) and any(f and f.numbers is not None for f in inputs):
            element_count = sum(f.numbers.size for f in inputs if f and f.numbers is not None)
            pays = self._pays(types, element_count)
            results = computed(node, frame.opsets.get("", 1), inputs) if pays else []
            if len(results) == len(types) and all(map(Fact.fits, types, results)):
                return list(map(Fact.with_numbers, types, results))
        return types

    def _pays(self, types: Sequence[Fact], element_count: int) -> bool:
        """Check whether the rest of the budget, `_elements`, pays for the results; if so, pay."""
        # An extent that inference leaves open depends on elements. All of them are read.
        sizes = [math.prod(element_count if n is None else n for n in f.dims or ()) for f in types]
        cost = element_count + sum(sizes) + NODE_ELEMENTS
        is_typed = all(f.dims is not None and f.element_type for f in types)
        if not is_typed or max(sizes, default=0) > MAX_KEPT["i"]:
            return False
        if cost > self._elements:
            self._declined += 1
            return False
        self._elements -= cost
        return True

    def _call(
        self, node: onnx.NodeProto, frame: _Frame, inputs: Sequence[Fact | None]
    ) -> Sequence[Fact]:
        """Return the facts of the results of a function."""
        if frame.calls >= MAX_CALLS:
            return []
        key = call_key(node)
        function = self._functions[key]
        if key not in self._scopes:
            self._scopes[key] = function_scope(function)
        attributes = {entry.name: entry for entry in (*function.attribute_proto, *node.attribute)}
        opsets = opsets_of(function.opset_import)
        inner_frame = _Frame(None, opsets, calls=frame.calls + 1, attributes=attributes)
        input_facts = {name: f for name, f in zip(function.input, inputs, strict=False) if f}
        facts = self._graph(self._scopes[key], input_facts, inner_frame)
        return [facts.get(name, UNKNOWN_FACT) for name in function.output]

    def _with_bodies(
        self,
        node: onnx.NodeProto,
        inner: Sequence[tuple[str, NameScope]],
        frame: _Frame,
        inputs: Sequence[Fact],
    ) -> Sequence[Fact]:
        """Return the facts of the outputs of a node that holds graphs."""
        is_if = is_default(node, "If")
        results: dict[str, list[Fact]] = {}
        for place, scope in inner:
            path = None if frame.path is None else body_path(frame.path, node, place)
            inner_frame = replace(frame, path=path, is_doubted=frame.is_doubted or not is_if)
            body = partial(self._body, scope, inner_frame)
            if is_default(node, "Loop"):
                return _loop(body, node, inputs)
            if is_default(node, "Scan") and frame.opsets.get("", 1) >= LOOPING_SCAN_OPSET:
                return _scan(body, node, inputs)
            results[place] = body([])
        if not is_if or results.keys() != {"then_branch", "else_branch"} or not inputs:
            return []
        if inputs[0].is_whole and inputs[0].numbers is not None:
            return results["then_branch" if inputs[0].numbers.any() else "else_branch"]
        return [common_fact(*pair) for pair in zip(*results.values(), strict=False)]

    def _body(self, scope: NameScope, frame: _Frame, input_facts: Sequence[Fact]) -> list[Fact]:
        """Return the facts of the outputs of a graph, derived from the facts of its inputs."""
        assert scope.graph is not None
        inputs = {v.name: f for v, f in zip(scope.graph.input, input_facts, strict=False)}
        facts = self._graph(scope, inputs, frame)
        return [facts.get(value.name, UNKNOWN_FACT) for value in scope.graph.output]


def _ranked(facts: Mapping[str, Facts]) -> set[tuple[str, str]]:
    """Return path and name of the values of known rank."""
    return {
        (path, name)
        for path, values in facts.items()
        for name, fact in values.items()
        if fact.dims is not None
    }


def _is_same(fact: Fact | None, earlier: Fact | None) -> bool:
    """Check whether two facts are equal, without a look at each number."""
    if fact is earlier or fact is None or earlier is None:
        return fact is earlier
    return fact.type == earlier.type and fact.numbers is earlier.numbers


def _declarations(graph: onnx.GraphProto, *, is_doubted: bool) -> dict[str, Fact]:
    """Return the declared facts of the values of a graph, without extents that are doubted."""
    declarations = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        fact = of_type(value.type)
        declarations[value.name] = Fact(fact.element_type) if is_doubted else fact
    return declarations


def _stored_facts(graph: onnx.GraphProto, declarations: Facts) -> dict[str, Fact]:
    """Return the facts of the inputs and constants of a graph."""
    facts = {value.name: declarations[value.name] for value in graph.input}
    facts |= {tensor.name: of_tensor(tensor) for tensor in graph.initializer}
    for sparse in graph.sparse_initializer:
        facts[sparse.values.name] = Fact(sparse.values.data_type, tuple(sparse.dims))
    return facts


def _bound_node(
    node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """Return a node of a function whose attributes are bound to the attributes of the call."""
    if not any(entry.ref_attr_name for entry in node.attribute):
        return node
    copy = copy_of(node)
    del copy.attribute[:]
    for entry in node.attribute:
        if not entry.ref_attr_name:
            copy.attribute.append(entry)
        elif entry.ref_attr_name in attributes:
            copy.attribute.append(attributes[entry.ref_attr_name])
            copy.attribute[-1].name = entry.name
    return copy


def _constant(node: onnx.NodeProto) -> Fact | None:
    """Return the fact of a Constant that holds a tensor or numbers, None for another Constant."""
    content = literal(node)
    if isinstance(content, TensorProto):
        return of_tensor(content)
    if isinstance(content, np.ndarray):
        return Fact(helper.np_dtype_to_tensor_dtype(content.dtype)).with_numbers(content)
    return None


def _extents_fact(node: onnx.NodeProto, fact: Fact) -> Fact:
    """Return the fact of the result of a Shape or Size."""
    numbers = Fact(TensorProto.INT64, () if node.op_type == "Size" else (None,))
    if fact.dims is None:
        return numbers
    # Start and end count like the bounds of a slice (ONNX operator text, Shape-15).
    bounds = {entry.name: entry.i for entry in node.attribute}
    dims = fact.dims[bounds.get("start", 0) : bounds.get("end", len(fact.dims))]
    if node.op_type == "Shape":
        return replace(numbers, dims=(len(dims),)).with_numbers(np.array(dims, object))
    sizes = [n for n in dims if n is not None]
    return numbers if len(sizes) < len(dims) else numbers.with_numbers(np.array(math.prod(sizes)))


def _loop(body: Body, node: onnx.NodeProto, inputs: Sequence[Fact]) -> list[Fact]:
    """Return the facts of the outputs of a Loop."""
    counters = [Fact(TensorProto.INT64, ()), _TRUE]  # the body runs under a true condition alone
    conditions: list[Fact] = []

    def run_once(states: Sequence[Fact]) -> list[Fact]:
        condition, *results = body([*counters, *states]) or [UNKNOWN_FACT]
        conditions.append(condition)
        return results

    states, rows = _invariant(run_once, inputs[2:])
    limit, condition = (
        inputs[i] if i < len(node.input) and node.input[i] else absent
        for i, absent in enumerate((Fact().with_numbers(_ENDLESS), _TRUE))
    )
    if not limit.is_whole or not condition.is_whole or limit.dims not in ((), (1,)):
        length = None
    elif _is_true(conditions[-1]) or not _is_true(condition):  # the same in every iteration
        length = _scalar(limit) if _is_true(condition) else 0
    else:
        length = _iteration_count(body, inputs[2:], _scalar(limit))
        run_once(states)  # the facts in the body are to hold in every iteration
    length = None if length == _ENDLESS else length
    return [*states, *(_with_axis(fact, 0, length) for fact in rows)]


def _iteration_count(body: Body, states: Sequence[Fact], limit: int) -> int | None:
    """Count the iterations of a Loop, up to `MAX_COUNTED_ITERATIONS`; None if that is not known."""
    for count in range(min(limit, MAX_COUNTED_ITERATIONS)):
        counter = Fact(TensorProto.INT64, ()).with_numbers(np.array(count))
        condition, *results = body([counter, _TRUE, *states]) or [UNKNOWN_FACT]
        if not condition.is_whole:
            return None
        if not _is_true(condition):
            return count + 1
        states = results[: len(states)]
    return limit if limit <= MAX_COUNTED_ITERATIONS else None


_TRUE = Fact(TensorProto.BOOL, ()).with_numbers(np.array(True))
_ENDLESS = np.array(np.iinfo(np.int64).max)
"""Trip count of a Loop that only its condition ends."""


def _is_true(fact: Fact) -> bool:
    """Check whether a condition is known to be true."""
    return fact.is_whole and fact.numbers is not None and bool(fact.numbers.all())


def _scalar(fact: Fact) -> int:
    """Return a known trip count, not below 0."""
    assert fact.numbers is not None
    return max(0, int(fact.numbers.flat[0]))


def _scan(body: Body, node: onnx.NodeProto, inputs: Sequence[Fact]) -> list[Fact]:
    """Return the facts of the outputs of a Scan (since operator set 9)."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    state_count = max(len(inputs) - attributes.get("num_scan_inputs", 0), 0)
    axes = attributes.get("scan_input_axes") or [0] * len(inputs)
    slices = [_without_axis(*pair) for pair in zip(inputs[state_count:], axes, strict=False)]
    length = next((n for _, n in slices if n is not None), None)

    def run_once(states: Sequence[Fact]) -> list[Fact]:
        return body([*states, *(fact for fact, _ in slices)])

    states, rows = _invariant(run_once, inputs[:state_count])
    axes = attributes.get("scan_output_axes") or [0] * len(rows)
    pairs = zip(rows, axes, strict=False)
    return [*states, *(_with_axis(fact, axis, length) for fact, axis in pairs)]


def _invariant(
    run_once: Callable[[Sequence[Fact]], list[Fact]], first: Sequence[Fact]
) -> tuple[list[Fact], list[Fact]]:
    """Return the facts of the carried values in every iteration, and of its other results."""
    states, count = [fact.without_numbers() for fact in first], 0
    while True:
        results = run_once(states)
        count += 1
        next_states = [common_fact(*pair) for pair in zip(states, results, strict=False)]
        next_states += [Fact()] * (len(states) - len(next_states))
        if [fact.type for fact in next_states] == [fact.type for fact in states]:
            return states, results[len(states) :]
        if count >= WIDENING_ITERATIONS:
            pairs = zip(states, next_states, strict=True)
            next_states = [
                new if new.type == old.type else Fact(new.element_type) for old, new in pairs
            ]
        states = next_states


def _without_axis(fact: Fact, axis: int) -> tuple[Fact, int | None]:
    """Return the fact of a slice of a value along an axis, and the number of slices."""
    dims = fact.dims
    if dims is None or not -len(dims) <= axis < len(dims):
        return Fact(fact.element_type), None
    axis %= len(dims)
    return Fact(fact.element_type, (*dims[:axis], *dims[axis + 1 :])), dims[axis]


def _with_axis(fact: Fact, axis: int, length: int | None) -> Fact:
    """Return the fact of stacked slices."""
    dims: Dims | None = fact.dims
    if dims is not None:
        axis = axis % (len(dims) + 1)
        dims = (*dims[:axis], length, *dims[axis:])
    return Fact(fact.element_type, dims)
