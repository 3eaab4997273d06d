"""Finds the nodes that two models share, and the values that are left to be proved equal.

A node is shared if both models hold it: the same operator, attributes and constants, the same
names of inputs and outputs. All others changed. Targets are the values that changed nodes return
and shared nodes or outputs read. If every target is equal in both models, whatever the values are
that changed nodes read from elsewhere, then by induction in running order both models are equal.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.call import FLOATS
from widthfold_onnx.evidence.proof.operators.moves import MOVES
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.evidence.proof.values import Described, Shape
from widthfold_onnx.model.proto.domain import domain_name, is_default
from widthfold_onnx.model.proto.external import is_external
from widthfold_onnx.model.proto.walk import all_tensors
from widthfold_onnx.model.shapes.table import ShapeTable

_INTEGERS = tuple(
    onnx.TensorProto.DataType.Value(name) for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32")
)
_CHEAP = frozenset({*MOVES, "DequantizeLinear", "Identity", "MaxPool", "Pad"})
"""Always evaluated: a move costs little, and what was dequantized must be seen to be."""


class Correspondence:
    """The nodes that two models share, and the values left to prove.

    Attributes:
        shared: names of the values that shared nodes return.
        targets: names of the values that are to be proved equal, in running order of the new model.
    """

    def __init__(self, old: Program, new: Program) -> None:
        self.old, self.new = old, new
        self._same: dict[str, bool] = {}
        self._computed = {name for i in old.needed for name in old.scope.nodes[i].output if name}
        self.shared: set[str] = set()
        read = set(new.outputs)
        for index in new.needed:
            node = new.scope.nodes[index]
            if self._is_shared(node, index):
                self.shared.update(name for name in node.output if name)
                read.update(new.scope.reads[index])
        written = [name for i in new.needed for name in new.scope.nodes[i].output if name in read]
        self.targets = [name for name in written if name not in self.shared]
        # Values that only the original computes and something reads, and constant outputs.
        gone = (old.scope.writers.keys() - new.scope.writers.keys()) & read
        self.targets += sorted((gone | set(new.outputs)) - self.shared - set(self.targets))

    @property
    def changed(self) -> list[onnx.NodeProto]:
        """Nodes of the original that are not shared, in running order."""
        nodes = [self.old.scope.nodes[index] for index in self.old.needed]
        return [node for node in nodes if not self.shared & set(node.output)]

    def changed_defaults(self) -> list[str]:
        """Return common inputs whose default value is not the same in both models."""
        old, new = ({value.name for value in side.inputs} for side in (self.old, self.new))
        return sorted(name for name in old & new if not self._alike(name))

    def _is_shared(self, node: onnx.NodeProto, index: int) -> bool:
        first = next((name for name in node.output if name), "")
        if first not in self._computed:
            return False
        before = self.old.writer(first)
        return (
            _bare(before) == _bare(node)
            and self.old.versions(before) == self.new.versions(node)
            and not any(map(is_external, all_tensors(node)))  # two files may lie elsewhere
            and all(self._alike(name) for name in self.new.scope.reads[index])
        )

    def _alike(self, name: str) -> bool:
        """Check whether a name is the same constant in both models, or a computed value in both."""
        if name not in self._same:
            one, other = self.old.stored(name), self.new.stored(name)
            self._same[name] = one is other or (
                one is not None and other is not None and _is_equal(one, other)
            )
        return self._same[name]

    def agreed(self, table: ShapeTable) -> dict[str, Described]:
        """Return extents and element types of what both models compute, as the original says."""
        found = {}
        for name in self.shared | set(self.targets):
            extents = table.extents("", name)
            if extents is not None:
                found[name] = extents, table.element("", name)
        return found

    def variables(self, table: ShapeTable) -> dict[str, Shape]:
        """Return the values in both models that are treated as variables, with their extents.

        A variable that one model needs for a target and the other does not is evaluated instead:
        the other computes it again in another way.

        Args:
            table: extents and element types of the original.
        """
        found = {
            name: dims
            for name, (dims, kind) in self.agreed(table).items()
            if name in self.old.scope.writers
            and name not in self.old.constant
            and not is_default(self.old.writer(name), *_CHEAP)
            and kind in (*FLOATS, *_INTEGERS)
        }
        while True:
            lonely = set[str]()
            for target in self.targets:
                one, other = (variables_of(side, target, found) for side in (self.old, self.new))
                lonely |= one ^ other
            if not lonely:
                return found
            for name in lonely:
                del found[name]


def variables_of(program: Program, target: str, variables: Collection[str]) -> set[str]:
    """Return those of the variables that a value is computed from."""
    scope = program.scope
    read = (name for i in scope.behind([target], variables) for name in scope.reads[i])
    return {name for name in read if name in variables}


def _is_equal(one: Array, other: Array) -> bool:
    """Compare bit by bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype.kind in "OSU":
        return bool(one.tolist() == other.tolist())
    first, second = (array.reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(first, second)


def _bare(node: onnx.NodeProto) -> bytes:
    """Serialize a node without its name and what it says of itself."""
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    for name in ("name", "metadata_props", "doc_string"):
        bare.ClearField(name)
    bare.domain = domain_name(node.domain)
    return bytes(bare.SerializeToString(deterministic=True))
