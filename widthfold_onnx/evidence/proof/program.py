"""Prepares a model for evaluation: functions inlined, nodes in running order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import InvalidModelError, UnverifiedError
from widthfold_onnx.model.proto.constant_folding import dense, literal
from widthfold_onnx.model.proto.domain import domain_name, is_default
from widthfold_onnx.model.proto.frozen import inputs
from widthfold_onnx.model.proto.functions import inline
from widthfold_onnx.model.proto.scope import NameScope, graph_scope
from widthfold_onnx.model.proto.walk import Stored, all_nodes
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.text import printable

Branch = tuple[str, str]
"""A branch of an If: the first output of the If, and the name of the branch."""


@dataclass(frozen=True, eq=False)
class Program:
    """A model without local functions.

    Attributes:
        proto: the model.
        folder: where its external data lies.
        scope: its main graph.
        forced: first outputs of Ifs whose else branch is computed, whatever their condition is.
    """

    proto: onnx.ModelProto
    folder: Path | None
    scope: NameScope
    forced: frozenset[str] = frozenset()

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Version of the operator set by domain."""
        return {domain_name(entry.domain): entry.version for entry in self.proto.opset_import}

    @cached_property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Inputs that a caller can give."""
        return inputs(self.proto)

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [value.name for value in self.proto.graph.output]

    @cached_property
    def needed(self) -> list[int]:
        """Nodes on which outputs depend."""
        return self.scope.behind(self.outputs)

    @cached_property
    def names(self) -> set[str]:
        """Names of all values of the main graph."""
        given = {value.name for value in self.inputs}
        return {*self.scope.writers, *self.scope.initializers, *given}

    @cached_property
    def branches(self) -> dict[Branch, set[bytes]]:
        """The bodies of every branch of an If, at any depth; several Ifs may share a name."""
        found: dict[Branch, set[bytes]] = {}
        for node in all_nodes(self.proto.graph.node):
            for attribute in node.attribute if is_default(node, "If") else ():
                body = bytes(attribute.g.SerializeToString(deterministic=True))
                found.setdefault((node.output[0], attribute.name), set()).add(body)
        return found

    @cached_property
    def constant(self) -> set[str]:
        """Values that depend on constants alone."""
        found = set(self.scope.initializers) - {value.name for value in self.inputs}
        for node, read in zip(self.scope.nodes, self.scope.reads, strict=True):
            if found.issuperset(read):
                found.update(name for name in node.output if name)
        return found

    def stored(self, name: str) -> Array | None:
        """Read an initializer of the main graph, None where there is none of that name."""
        tensor = self.scope.initializers.get(name)
        return None if tensor is None else self.read(tensor)

    def writer(self, name: str) -> onnx.NodeProto:
        """Return the node of the main graph that returns a value."""
        return self.scope.nodes[self.scope.writers[name]]

    def read(self, tensor: Stored) -> Array:
        """Read the numbers of a stored tensor.

        Raises:
            UnverifiedError: it is sparse and broken.
        """
        if isinstance(tensor, onnx.SparseTensorProto):
            array = dense(tensor)
            if isinstance(array, Refusal):
                raise UnverifiedError(array.reason)
            return array
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
        schema = self._schema(node)
        said = list(node.attribute)
        names = {attribute.name for attribute in said}
        for name, described in schema.attributes.items() if schema else ():
            if name not in names and described.default_value.type:
                said.append(described.default_value)
        return {attribute.name: _text(helper.get_attribute_value(attribute)) for attribute in said}

    def _schema(self, node: onnx.NodeProto) -> defs.OpSchema | None:
        domain = domain_name(node.domain)
        try:
            return defs.get_schema(node.op_type, self.opsets.get(domain, 1), domain)
        except defs.SchemaError:
            return None


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list | tuple) and value and isinstance(value[0], bytes):
        return [_text(item) for item in value]
    return value


def program(proto: onnx.ModelProto, folder: Path | None) -> Program:
    """Prepare a checked model.

    Raises:
        UnverifiedError: its functions cannot be inlined.
    """
    if proto.functions:
        try:
            proto = inline(proto)
        except InvalidModelError as error:
            raise UnverifiedError(f"its functions cannot be inlined: {error}") from error
    if proto.functions:
        names = ", ".join(sorted(printable(function.name) for function in proto.functions))
        raise UnverifiedError(f"its functions cannot be inlined: {names} of another operator set")
    return Program(proto, folder, graph_scope(proto.graph))


def constant(node: onnx.NodeProto, program: Program) -> Array | None:
    """Return the numbers or strings of a Constant node, None if it is something else."""
    if not is_default(node, "Constant"):
        return None
    for attribute in node.attribute:
        if attribute.name in ("value_string", "value_strings"):
            return np.array(_text(helper.get_attribute_value(attribute)), object)
    held = literal(node)
    return program.read(held) if isinstance(held, Stored) else held
