"""Prepare models for evaluation, and find the nodes that two models share.

A `Program` is a model with functions inlined and nodes in running order.

A node is shared if both models hold it: the same operator, attributes and constants, and the same
names of inputs and outputs. All other nodes changed. Targets are the values that changed nodes
return and that shared nodes or outputs read. Values that changed nodes read are variables, or are
evaluated from variables (`Correspondence.variables`). Suppose that every target is equal in both
models for all variables. Then both models are equal, by induction in running order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper
from onnx.inliner import inline_selected_functions

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import InvalidModelError, UnverifiedError
from widthfold_onnx.evidence.proof.field import Draw
from widthfold_onnx.evidence.proof.operators.arithmetic import MOVING
from widthfold_onnx.evidence.proof.values import FLOATS, Elements, Extents, Shape, TensorType
from widthfold_onnx.model.proto.constant_folding import dense, literal
from widthfold_onnx.model.proto.dims import DimensionKey
from widthfold_onnx.model.proto.functions import MAX_INLINED_BYTES, inline
from widthfold_onnx.model.proto.scope import NameScope, graph_scope
from widthfold_onnx.model.proto.tensors import is_external
from widthfold_onnx.model.proto.walk import (
    StoredTensor,
    all_nodes,
    all_tensors,
    copy_of,
    domain_name,
    inputs,
    is_default,
    opsets_of,
)
from widthfold_onnx.model.shapes.table import Derivation, ShapeTable
from widthfold_onnx.model.shapes.weights import extents_by_weights
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.text import printable

DEFINED = frozenset(
    {
        *("CastLike", "Celu", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish"),
        *("LayerNormalization", "LogSoftmax", "MeanVarianceNormalization", "Mish"),
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
        *("Relu", "Selu", "Shrink", "Softmax", "Softplus", "Softsign", "Swish"),
        "ThresholdedRelu",
    }
)
"""Operators that onnx defines by others. Where two models are not equal with the operators as they
are, the definitions may meet: HardSwish(x) and x * HardSigmoid(x)."""

Branch = tuple[str, str]
"""A branch of an If: the first output of the If, and the name of the branch."""


@dataclass(frozen=True, eq=False)
class Program:
    """A model without local functions.

    Attributes:
        proto: the model.
        folder: where its external data lies.
        scope: its main graph.
        exact: elements that take the place of constants that were rounded, by name.
        is_exact: True if nodes on constants are computed as elements, without rounding.
    """

    proto: onnx.ModelProto
    folder: Path | None
    scope: NameScope
    exact: Mapping[str, Callable[[], Elements]] = field(default_factory=dict)
    is_exact: bool = False

    @classmethod
    def of(cls, proto: onnx.ModelProto, folder: Path | None) -> Self:
        """Prepare a checked model.

        Raises:
            UnverifiedError: its functions cannot be inlined, or have names of operators.
        """
        if names := _operators_among_functions(proto):
            reason = f"it has functions with names of operators, {names}: runtimes take either"
            raise UnverifiedError(reason)
        if proto.functions:
            try:
                proto = inline(proto)
            except InvalidModelError as error:
                raise UnverifiedError(f"its functions cannot be inlined: {error}") from error
        if proto.functions:
            names = ", ".join(sorted(printable(function.name) for function in proto.functions))
            reason = f"its functions cannot be inlined: {names} of another operator set"
            raise UnverifiedError(reason)
        return cls(proto, folder, graph_scope(proto.graph))

    @cached_property
    def digest(self) -> bytes:
        """Digest of all that the model holds, its external data included."""
        state = hashlib.blake2b(self.proto.SerializeToString(deterministic=True), digest_size=16)
        for tensor in filter(is_external, all_tensors(self.proto)):
            state.update(self.read(tensor).tobytes())
        return state.digest()

    def expanded(self) -> Self | None:
        """Return the model with the operators of `DEFINED` as their definitions.

        The definitions are the function bodies that onnx has in the schemas of its operators.

        Returns:
            The model; None if it is large, or if onnx cannot insert the definitions.
        """
        if self.proto.ByteSize() > MAX_INLINED_BYTES:
            return None
        typed = copy_of(self.proto)
        table, declared = self.shapes_at({}), {value.name for value in typed.graph.value_info}
        for name in sorted(self.names - declared):  # a definition may depend on the element type
            if element_type := table.element_type("", name):
                value = helper.make_tensor_value_info(name, element_type, table.get("", name))
                typed.graph.value_info.append(value)
        for node in all_nodes(typed.graph.node):
            if is_default(node, *DEFINED):  # onnx finds no type for an attribute that is left out
                node.attribute.extend(self._left_out(node))
        operators = [("", name) for name in sorted(DEFINED)]
        try:
            proto = inline_selected_functions(typed, operators, inline_schema_functions=True)
        except RuntimeError:  # it knows no type of a value in a branch, for instance
            return None
        return type(self)(proto, self.folder, graph_scope(proto.graph))

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Version of the operator set by domain."""
        return opsets_of(self.proto.opset_import)

    @cached_property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Inputs that a caller can give."""
        return inputs(self.proto)

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [value.name for value in self.proto.graph.output]

    def shapes_at(self, shapes: Extents) -> ShapeTable:
        """Return the shapes of all values for extents of the inputs.

        Raises:
            UsageError: the extents contradict the model.
        """
        return ShapeTable(self.proto, shapes, self._derivation)

    @cached_property
    def extents_by_weights(self) -> dict[DimensionKey, int]:
        """The extents of open dimensions that weights fix."""
        return extents_by_weights(self.proto, self._derivation)

    @cached_property
    def _derivation(self) -> Derivation:
        return Derivation(self.proto)

    @cached_property
    def needed_nodes(self) -> list[int]:
        """Nodes on which outputs depend."""
        return self.scope.ancestors(self.outputs)

    @cached_property
    def names(self) -> set[str]:
        """Names of all values of the main graph."""
        inputs = {value.name for value in self.inputs}
        return {*self.scope.writers, *self.scope.initializers, *inputs}

    @cached_property
    def branches(self) -> dict[Branch, set[bytes]]:
        """The bodies of every branch of an If, at any depth; several Ifs may share a name."""
        digests: dict[Branch, set[bytes]] = {}
        for node in all_nodes(self.proto.graph.node):
            for attribute in node.attribute if is_default(node, "If") else ():
                body = bytes(attribute.g.SerializeToString(deterministic=True))
                digests.setdefault((node.output[0], attribute.name), set()).add(body)
        return digests

    @cached_property
    def constant_values(self) -> set[str]:
        """Names of the values that depend on constants alone."""
        constants = set(self.scope.initializers) - {value.name for value in self.inputs}
        for node, operands in zip(self.scope.nodes, self.scope.reads, strict=True):
            if constants.issuperset(operands):
                constants.update(name for name in node.output if name)
        return constants

    @cached_property
    def computes_constants(self) -> bool:
        """Check whether a node computes numbers from constants."""
        writers = map(self.scope.writer, self.constant_values)
        return any(node is not None and node.op_type != "Constant" for node in writers)

    def initializer(self, name: str) -> Array | None:
        """Read an initializer of the main graph, None if there is no such initializer."""
        tensor = self.scope.initializers.get(name)
        return None if tensor is None else self.read(tensor)

    def read(self, tensor: StoredTensor) -> Array:
        """Read the numbers of a stored tensor.

        Raises:
            UnverifiedError: it is sparse and broken.
        """
        if isinstance(tensor, onnx.SparseTensorProto):
            array = dense(tensor)
            if isinstance(array, Refusal):
                raise UnverifiedError(array.reason)
            return array
        if tensor.data_type == onnx.TensorProto.STRING:
            return _texts(tensor.string_data).reshape(tensor.dims)
        return numpy_helper.to_array(tensor, base_dir=str(self.folder or ""))

    def version(self, node: onnx.NodeProto) -> int:
        """Return the version since which the operator of a node is unchanged, 0 if unknown."""
        schema = self._schema(node)
        return schema.since_version if schema else 0

    def versions(self, node: onnx.NodeProto) -> list[int]:
        """Return the versions of a node and of all nodes in its graphs."""
        return [self.version(inner) for inner in all_nodes([node])]

    def attributes(self, node: onnx.NodeProto) -> dict[str, Any]:
        """Return the attributes of a node, with the defaults of its schema, strings as text."""
        attributes = [*node.attribute, *self._left_out(node)]
        return {
            attribute.name: _text(helper.get_attribute_value(attribute)) for attribute in attributes
        }

    def _left_out(self, node: onnx.NodeProto) -> list[onnx.AttributeProto]:
        """Return the defaults of the attributes that a node leaves out."""
        schema = self._schema(node)
        names = {attribute.name for attribute in node.attribute}
        return [
            attribute.default_value
            for name, attribute in (schema.attributes.items() if schema else ())
            if name not in names and attribute.default_value.type
        ]

    def _schema(self, node: onnx.NodeProto) -> defs.OpSchema | None:
        domain = domain_name(node.domain)
        try:
            return defs.get_schema(node.op_type, self.opsets.get(domain, 1), domain)
        except defs.SchemaError:
            return None


def _operators_among_functions(model: onnx.ModelProto) -> str:
    """Name the local functions that are operators of onnx, too, at the versions of the model.

    Which of both a node calls is up to the runtime (onnx.proto); ONNX Runtime takes the operator.
    """
    opsets = opsets_of(model.opset_import)
    keys = {(domain_name(function.domain), function.name) for function in model.functions}
    return ", ".join(
        sorted(
            printable(name)
            for domain, name in keys
            if defs.has(name, max_inclusive_version=opsets.get(domain, 1), domain=domain)
        )
    )


def _texts(strings: Iterable[bytes]) -> Array:
    """Return texts as a vector of objects: other arrays of numpy drop NULs at the end of a text."""
    return np.array([*map(_text, strings)], object)


def _text(value: Any) -> Any:
    """Return strings as text: other bytes, other text, also where they are no UTF-8."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, list | tuple) and value and isinstance(value[0], bytes):
        return [_text(item) for item in value]
    return value


def constant(node: onnx.NodeProto, program: Program) -> Array | None:
    """Return the numbers or strings of a Constant node, None if it is something else."""
    if not is_default(node, "Constant"):
        return None
    for attribute in node.attribute:
        if attribute.name in ("value_string", "value_strings"):
            return np.array(_text(helper.get_attribute_value(attribute)), object)
    content = literal(node)
    return program.read(content) if isinstance(content, StoredTensor) else content


_INTEGERS = tuple(
    onnx.TensorProto.DataType.Value(name) for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32")
)
_CHEAP_OPERATORS = frozenset({*MOVING, "DequantizeLinear", "Identity", "MaxPool", "Pad"})
"""Operators whose results are never variables: a move costs little, and a QuantizeLinear must see
that its data was dequantized."""


@dataclass(frozen=True, eq=False)
class Correspondence:
    """The nodes that two models share, and the values left to prove.

    Attributes:
        old: the original.
        new: the rewritten model.
    """

    old: Program
    new: Program
    _likeness: dict[str, bool] = field(default_factory=dict, init=False)

    @cached_property
    def _shared_nodes(self) -> list[int]:
        """The shared nodes of the new model."""
        nodes = self.old.scope.nodes
        names = {name for index in self.old.needed_nodes for name in nodes[index].output if name}
        return [index for index in self.new.needed_nodes if self._is_shared(index, names)]

    @cached_property
    def shared_values(self) -> set[str]:
        """Names of the values that shared nodes return."""
        nodes = self.new.scope.nodes
        return {name for index in self._shared_nodes for name in nodes[index].output if name}

    @cached_property
    def targets(self) -> list[str]:
        """Names of the values that are to be proved equal, in running order of the new model."""
        old, new = self.old.scope, self.new.scope
        operands = {name for index in self._shared_nodes for name in new.reads[index]}
        operands.update(self.new.outputs)
        results = [n for i in self.new.needed_nodes for n in new.nodes[i].output if n in operands]
        targets = [name for name in results if name not in self.shared_values]
        # Values that only the original computes and something reads, and constant outputs.
        removed_names = (old.writers.keys() - new.writers.keys()) & operands
        rest = {*removed_names, *self.new.outputs} - self.shared_values
        return targets + sorted(rest - {*targets})

    def draw(self, number: int) -> Draw:
        """Return the random numbers of a round: any byte of both models changes them."""
        return Draw.of(self.old.digest, self.new.digest, number)

    def values_behind(self, target: str, stops: Container[str]) -> list[str]:
        """Return a value, and all that either model computes it from, back to `stops`."""
        names = {target: None}
        for scope in (self.old.scope, self.new.scope):
            for index in scope.ancestors([target], stops):
                names |= dict.fromkeys(name for name in scope.nodes[index].output if name)
        return list(names)

    def changed_defaults(self) -> list[str]:
        """Return common inputs whose default value is not the same in both models."""
        old, new = ({value.name for value in side.inputs} for side in (self.old, self.new))
        return sorted(name for name in old & new if not self._is_alike(name))

    def _is_shared(self, index: int, computed: Container[str]) -> bool:
        node = self.new.scope.nodes[index]
        first = next((name for name in node.output if name), "")
        counterpart = self.old.scope.writer(first) if first in computed else None
        return (
            counterpart is not None
            and _bare(counterpart) == _bare(node)
            and self.old.versions(counterpart) == self.new.versions(node)
            and not any(map(is_external, all_tensors(node)))  # two files may lie elsewhere
            and all(self._is_alike(name) for name in self.new.scope.reads[index])
        )

    def _is_alike(self, name: str) -> bool:
        """Check whether a name is the same constant in both models, or a computed value in both."""
        if name in self.old.exact or name in self.new.exact:
            return False
        if name not in self._likeness:
            old, new = self.old.initializer(name), self.new.initializer(name)
            self._likeness[name] = old is new or (
                old is not None and new is not None and _is_equal(old, new)
            )
        return self._likeness[name]

    def agreed_types(self, table: ShapeTable) -> dict[str, TensorType]:
        """Return extents and element types, in the original, of values that both models compute."""
        facts = {}
        for name in self.shared_values | set(self.targets):
            extents = table.extents("", name)
            if extents is not None:
                facts[name] = extents, table.element_type("", name)
        return facts

    def variables(self, table: ShapeTable) -> dict[str, Shape]:
        """Return the values in both models that are treated as variables, with their extents.

        A value that only one of the models needs for a target is no variable, and is evaluated: the
        other model computes the same in another way.

        Args:
            table: extents and element types of the original.
        """
        extents = {
            name: dims
            for name, (dims, element_type) in self.agreed_types(table).items()
            if (writer := self.old.scope.writer(name)) is not None
            and name not in self.old.constant_values
            and not is_default(writer, *_CHEAP_OPERATORS)
            and element_type in (*FLOATS, *_INTEGERS)
        }
        while True:
            unshared = set[str]()
            for target in self.targets:
                old, new = (variables_of(side, target, extents) for side in (self.old, self.new))
                unshared |= old ^ new
            if not unshared:
                return extents
            for name in unshared:
                del extents[name]


def variables_of(program: Program, target: str, variables: Collection[str]) -> set[str]:
    """Return the variables from which a value is computed."""
    scope = program.scope
    operands = (name for i in scope.ancestors([target], variables) for name in scope.reads[i])
    return {name for name in operands if name in variables}


def _is_equal(old: Array, new: Array) -> bool:
    """Compare bit by bit."""
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return False
    if old.dtype.kind in "OSU":
        return bool(old.tolist() == new.tolist())
    first, second = (array.reshape(-1).view(np.uint8) for array in (old, new))
    return np.array_equal(first, second)


def _bare(node: onnx.NodeProto) -> bytes:
    """Serialize a node without its name, doc string and metadata."""
    bare = copy_of(node)
    for name in ("name", "metadata_props", "doc_string"):
        bare.ClearField(name)
    bare.domain = domain_name(node.domain)
    return bytes(bare.SerializeToString(deterministic=True))
