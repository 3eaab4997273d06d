"""Finds the nodes that two models share, and the values that are left to be proved equal.

A node is shared if both models hold it: the same operator, attributes and constants, the same
names of inputs and outputs. All others changed. Targets are the values that changed nodes return
and shared nodes or outputs read. If every target is equal in both models, whatever the values are
that changed nodes read from elsewhere, then by induction in running order both models are equal.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import onnx

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.call import FLOATS
from widthfold_onnx.evidence.proof.operators.moves import MOVES
from widthfold_onnx.evidence.proof.program import Program, Tensors, stored
from widthfold_onnx.evidence.proof.values import Described, Shape
from widthfold_onnx.model.proto.domain import domain_name, is_default
from widthfold_onnx.model.proto.external import is_external
from widthfold_onnx.model.proto.walk import all_tensors
from widthfold_onnx.model.shapes.table import ShapeTable

_INTEGERS = tuple(
    onnx.TensorProto.DataType.Value(name) for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32")
)
_CHEAP = frozenset({*MOVES, "DequantizeLinear", "Identity", "MaxPool"})
"""Always evaluated: a move costs little, and what was dequantized must be seen to be."""


@dataclass(eq=False)
class Side:
    """The main graph of one model.

    Attributes:
        program: the model.
        writers: index of the node that returns a value.
        needed: nodes on which outputs depend.
        names: of all values.
        constant: values that depend on constants alone.
        tensors: initializers by name.
    """

    program: Program
    tensors: Tensors = field(init=False)
    writers: dict[str, int] = field(init=False)
    needed: set[int] = field(init=False)
    names: set[str] = field(init=False)
    constant: set[str] = field(init=False)

    def __post_init__(self) -> None:
        """Look through the graph once."""
        scope, graph = self.program.scope, self.program.proto.graph
        self.writers = {n: i for i, node in enumerate(scope.nodes) for n in node.output if n}
        given = {value.name for value in self.program.inputs}
        self.tensors = stored(graph)
        self.names = {*self.writers, *self.tensors, *given}
        self.constant = set(self.tensors) - given
        for index, node in enumerate(scope.nodes):
            if all(name in self.constant for name in self.reads(index)):
                self.constant.update(name for name in node.output if name)
        self.needed, waiting = set(), [value.name for value in graph.output]
        while waiting:
            name = waiting.pop()
            if name in self.writers and self.writers[name] not in self.needed:
                self.needed.add(self.writers[name])
                waiting += self.reads(self.writers[name])

    def stored(self, name: str) -> Array | None:
        """Return the numbers of an initializer, None where there is none of that name."""
        tensor = self.tensors.get(name)
        return None if tensor is None else self.program.read(tensor)

    def behind(self, target: str, variables: Container[str]) -> tuple[set[int], set[str]]:
        """Return the nodes and the variables that a value is computed from."""
        waiting, nodes, found = [target], set[int](), set[str]()
        while waiting:
            node = self.writers.get(waiting.pop())
            if node is None or node in nodes:
                continue
            nodes.add(node)
            for name in self.reads(node):
                if name in variables:
                    found.add(name)
                else:
                    waiting.append(name)
        return nodes, found

    def node(self, name: str) -> onnx.NodeProto:
        """Return the node that returns a value."""
        return self.program.scope.nodes[self.writers[name]]

    def reads(self, index: int) -> list[str]:
        """Return the names that a node and the graphs in it read."""
        scope = self.program.scope
        inside = [name for inner in scope.inner.get(index, ()) for name in inner.captured]
        return [*(name for name in scope.nodes[index].input if name), *inside]


class Correspondence:
    """The nodes that two models share, and the values left to prove.

    Attributes:
        shared: names of the values that shared nodes return.
        targets: names of the values that are to be proved equal, in running order of the new model.
        outputs: names of the outputs of the new model.
    """

    def __init__(self, old: Program, new: Program) -> None:
        self.old, self.new = Side(old), Side(new)
        self._same: dict[str, bool] = {}
        self.shared: set[str] = set()
        for index in sorted(self.new.needed):
            node = new.scope.nodes[index]
            if self._is_shared(node, index):
                self.shared.update(name for name in node.output if name)
        self.outputs = [value.name for value in new.proto.graph.output]
        read = {name for i in self._shared_nodes() for name in self.new.reads(i)}
        read |= set(self.outputs)
        order = sorted(self.new.needed)
        written = [name for i in order for name in new.scope.nodes[i].output if name in read]
        self.targets = [name for name in written if name not in self.shared]
        # Values that only the original computes and something reads, and constant outputs.
        gone = (self.old.writers.keys() - self.new.writers.keys()) & read
        self.targets += sorted((gone | set(self.outputs)) - self.shared - set(self.targets))

    @property
    def changed(self) -> list[onnx.NodeProto]:
        """Nodes of the original that are not shared, in running order."""
        nodes = [self.old.program.scope.nodes[index] for index in sorted(self.old.needed)]
        return [node for node in nodes if not self.shared & set(node.output)]

    def is_written(self, name: str) -> bool:
        """Check whether both models name a value."""
        return all(name in side.names for side in (self.old, self.new))

    def changed_defaults(self) -> list[str]:
        """Return common inputs whose default value is not the same in both models."""
        old, new = ({value.name for value in side.program.inputs} for side in (self.old, self.new))
        return sorted(name for name in old & new if not self._alike(name))

    def _shared_nodes(self) -> Iterator[int]:
        for index in self.new.needed:
            if any(name in self.shared for name in self.new.program.scope.nodes[index].output):
                yield index

    def _is_shared(self, node: onnx.NodeProto, index: int) -> bool:
        first = next((name for name in node.output if name), "")
        if first not in self.old.writers:
            return False
        other = self.old.writers[first]
        if other not in self.old.needed:
            return False
        before = self.old.node(first)
        return (
            _bare(before) == _bare(node)
            and self.old.program.versions(before) == self.new.program.versions(node)
            and not any(map(is_external, all_tensors(node)))  # two files may lie elsewhere
            and all(self._alike(name) for name in self.new.reads(index))
        )

    def _alike(self, name: str) -> bool:
        """Check whether a name is the same constant in both models, or a computed value in both."""
        if name not in self._same:
            one, other = self.old.stored(name), self.new.stored(name)
            if one is None or other is None:
                self._same[name] = one is other
            else:
                kinds = {(array.dtype, array.shape) for array in (one, other)}
                self._same[name] = len(kinds) == 1 and _bytes(one) == _bytes(other)
        return self._same[name]

    def agreed(self, table: ShapeTable) -> dict[str, Described]:
        """Return extents and element types of what both models compute, as the original says."""
        found = {}
        for name in self.shared | set(self.targets):
            dims = table.get("", name)
            if dims is not None and None not in dims:
                extents = tuple(n for n in dims if n is not None)
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
            if name in self.old.writers
            and name not in self.old.constant
            and not is_default(self.old.node(name), *_CHEAP)
            and kind in (*FLOATS, *_INTEGERS)
        }
        while True:
            lonely = set[str]()
            for target in self.targets:
                needs = [side.behind(target, found)[1] for side in (self.old, self.new)]
                lonely |= needs[0] ^ needs[1]
            if not lonely:
                return found
            for name in lonely:
                del found[name]


def _bytes(array: Array) -> bytes:
    return repr(array.tolist()).encode() if array.dtype.kind in "OSU" else array.tobytes()


def _bare(node: onnx.NodeProto) -> bytes:
    """Serialize a node without its name and what it says of itself."""
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    for name in ("name", "metadata_props", "doc_string"):
        bare.ClearField(name)
    bare.domain = domain_name(node.domain)
    return bytes(bare.SerializeToString(deterministic=True))
