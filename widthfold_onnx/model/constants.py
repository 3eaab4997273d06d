"""Find the constants of a model, and remove constants that nothing reads.

Stored constants are initializers, dense or sparse, and Constant nodes; computed constants are what
`model.proto.constant_folding` evaluates. An Identity returns the very same constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.library import ir
from widthfold_onnx.model.linking import message_of, sparse_of
from widthfold_onnx.model.proto.constant_folding import (
    FOLDABLE,
    MAX_CONSTANT_ELEMENTS,
    dense,
    evaluated,
    too_large,
)
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.text import printable


@dataclass(frozen=True, eq=False)
class Constant:
    """A value known before the model runs.

    Attributes:
        value: the value.
        tensor: its numbers.
        owner: the graph that holds it.
        is_external: whether its data, or data it is computed from, are in an external file.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    owner: ir.Graph
    is_external: bool

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor."""
        return tuple(int(d) for d in self.tensor.shape.numpy())

    @property
    def dtype(self) -> str:
        """ONNX name of the element type, e.g. ``FLOAT``."""
        return self.tensor.dtype.name


@dataclass(kw_only=True)
class Constants:
    """All constants of one model; each is evaluated once.

    Args:
        folder: where external data lies.
        trained: names of values that training changes.
        overridable: whether a caller may replace an initializer that is an input as well.
        opset: version of the default domain.
    """

    folder: Path | None
    trained: Collection[str]
    overridable: bool
    opset: int
    _known: dict[ir.Value, Constant | Refusal] = field(default_factory=dict, init=False)
    _elements: int = field(default=0, init=False)

    def read(self, constant: Constant) -> Array:
        """Return the numbers of a constant; onnx's own guarded loader reads external data."""
        tensor = constant.tensor
        if isinstance(tensor, ir.ExternalTensor):
            message = ir.serde.serialize_tensor(tensor)
            return onnx.numpy_helper.to_array(message, base_dir=str(self.folder))
        return np.asarray(tensor.numpy())

    def find(self, value: ir.Value) -> Constant | Refusal:
        """Return the constant that a value holds, or the reason why it holds no constant."""
        stack = [value]
        while stack:
            top = stack[-1]
            sources = [v for v in computed_from(top) if v not in self._known]
            stack.extend(sources)
            if not sources:
                stack.pop()
                if top not in self._known:
                    self._known[top] = self._resolved(top)
        result = self._known[value]
        if isinstance(result, Refusal) and computed_from(value):
            name = printable(value.name or "")
            return Refusal(result.code, f"{name} is no constant: {result.reason}")
        return result

    def moved(self, constant: Constant, moves: Sequence[ir.Node]) -> Constant:
        """Return a constant after some moves.

        Args:
            constant: what the first one reads.
            moves: `PLAIN_MOVES` and Identity, in running order; their other inputs are constants.
        """
        if all(is_default(node, "Identity") for node in moves):
            return constant
        array = self.moved_array(self.read(constant), moves)
        return replace(constant, tensor=ir.Tensor(array, name=constant.value.name))

    def moved_array(self, array: Array, moves: Sequence[ir.Node]) -> Array:
        """Return an array after some moves, see `moved`."""
        for node in moves:
            if not is_default(node, "Identity"):
                others = [self._known[v] if v is not None else None for v in node.inputs[1:]]
                arrays = [self.read(c) if isinstance(c, Constant) else None for c in others]
                result = evaluated(message_of(node), [array, *arrays], self.opset)
                assert not isinstance(result, Refusal)  # it was evaluated on floats of that shape
                array = result
        return array

    def _resolved(self, value: ir.Value) -> Constant | Refusal:
        """Return the constant behind a value; the values that it is computed from are known."""
        name = printable(value.name or "")
        producer = value.producer()
        if value.name in self.trained:
            return Refusal(Code.TRAINED, f"{name} is changed by training")
        if value.is_initializer() and value.const_value is not None:
            if value.is_graph_input() and self.overridable:
                return Refusal(
                    Code.OVERRIDABLE, f"{name} is an initializer that a caller may replace"
                )
            assert isinstance(value.graph, ir.Graph)
            if (sparse := sparse_of(value)) is not None:
                return self._made(
                    value, value.graph, math.prod(sparse.dims), partial(dense, sparse)
                )
            tensor = value.const_value
            return Constant(value, tensor, value.graph, isinstance(tensor, ir.ExternalTensor))
        if producer is not None and isinstance(producer.graph, ir.Graph):
            if is_default(producer, "Constant"):
                return self._literal(value, producer, producer.graph)
            if sources := computed_from(value):
                return self._evaluated(value, producer, producer.graph, sources)
        origin = f"computed by {producer.op_type}" if producer else "an input"
        return Refusal(Code.NOT_CONSTANT, f"{name} is {origin}")

    def _literal(self, value: ir.Value, node: ir.Node, owner: ir.Graph) -> Constant | Refusal:
        """Return the value of a Constant node."""
        if "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
            return Constant(value, tensor, owner, isinstance(tensor, ir.ExternalTensor))
        return self._made(value, owner, 0, partial(evaluated, message_of(node), (), self.opset))

    def _evaluated(
        self, value: ir.Value, node: ir.Node, owner: ir.Graph, sources: Sequence[ir.Value]
    ) -> Constant | Refusal:
        """Evaluate a node on constants."""
        operands = [self._known[source] for source in sources]
        constants = [c for c in operands if isinstance(c, Constant)]
        if len(constants) < len(operands):
            return next(c for c in operands if isinstance(c, Refusal))
        if is_default(node, "Identity"):
            return constants[0]
        arrays = iter([self.read(constant) for constant in constants])
        inputs = [None if v is None else next(arrays) for v in node.inputs]
        return self._made(
            value,
            owner,
            math.prod(constants[0].shape),
            partial(evaluated, message_of(node), inputs, self.opset),
            external=any(constant.is_external for constant in constants),
        )

    def _made(
        self,
        value: ir.Value,
        owner: ir.Graph,
        elements: int,
        make: Callable[[], Array | Refusal],
        *,
        external: bool = False,
    ) -> Constant | Refusal:
        """Create a constant that is not stored; `elements` is its size, as far as known."""
        array = make() if self._elements + elements <= MAX_CONSTANT_ELEMENTS else too_large()
        if isinstance(array, Refusal):
            return array
        self._elements += array.size
        return Constant(value, ir.Tensor(array, name=value.name), owner, external)


def computed_from(value: ir.Value) -> list[ir.Value]:
    """Return the inputs of the foldable node that computes a value, [] for other values."""
    node = value.producer()
    if node is None or not is_default(node, *FOLDABLE, "Identity"):
        return []
    return [source for source in node.inputs if source is not None]


def drop_unused(
    values: Iterable[ir.Value],
    constant: Callable[[ir.Value], Constant | Refusal],
) -> Iterator[ir.Graph]:
    """Remove constants that are no longer read, and the nodes that compute them from others.

    Args:
        values: the inputs of removed nodes.
        constant: the constant behind a value.

    Yields:
        The graph of each removal, before it happens: the caller must run the iterator to its end.
    """
    stack = list(values)
    while stack:
        value = stack.pop()
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        producer = value.producer()
        if producer is None and value.is_initializer() and isinstance(value.graph, ir.Graph):
            yield value.graph
            del value.graph.initializers[value.name or ""]
        elif producer is None or producer.graph is None:
            continue  # no constant that a node makes, or gone with another reader
        elif not isinstance(constant(value), Refusal):
            stack += computed_from(value)
            graph = producer.graph
            assert isinstance(graph, ir.Graph)
            yield graph
            graph.remove(producer, safe=True)
