"""Make ONNX nodes as the operator set of the model defines them: Reshape, Transpose, Pad, Slice.

Pads and bounds are inputs or attributes (`rules.op.as_inputs`). Shapes are constants with 0 for a
copied and -1 for an inferred dimension, never computed at run time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from widthfold_onnx.algebra.packing import MoveOrSum, Reshape, ShiftedSum, pixel_shuffle
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.document import Attributes, Document, Graph, Node, Value, graph_of
from widthfold_onnx.rewrite.record import ORIGIN_KEY
from widthfold_onnx.rules.op import BOUNDS_OPSET, PADS_OPSET, Vectors, as_inputs, can_shuffle


class SharedConstants:
    """New constants of a model; numbers are compared by content, and equal ones added once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._values: dict[tuple[object, ...], Value] = {}

    def add(
        self,
        array: Array,
        name: str,
        owner: Graph,
        *,
        sharing_key: Hashable = None,
        external: bool = False,
    ) -> Value:
        """Return a constant of a graph; equal arrays of one sharing key share a constant."""
        content = (array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest())
        key = (owner, sharing_key, *content)
        if key not in self._values:
            self._values[key] = self._document.add_constant(array, name, owner, external=external)
        return self._values[key]


class NodeBuilder:
    """Builds nodes in the place of an original one; `nodes` has them in running order.

    Args:
        document: the model.
        owner: the original node; names and graph come from it.
    """

    def __init__(self, document: Document, owner: Node) -> None:
        self.nodes: list[Node] = []
        self._document = document
        self._graph = graph_of(owner)
        self._base = base_name(owner)

    def add(
        self,
        op_type: str,
        suffix: str,
        inputs: Sequence[Value | None],
        attributes: Attributes,
        *,
        metadata: Mapping[str, str],
        outputs: int = 1,
        domain: str = "",
    ) -> Node:
        """Add a node; `suffix` ends its name."""
        node = self._document.new_node(
            op_type,
            inputs,
            attributes,
            name=f"{self._base}/{suffix}",
            metadata=metadata,
            outputs=outputs,
            domain=domain,
        )
        self.nodes.append(node)
        return node


class Series(NodeBuilder):
    """Builds nodes one after the other; `value` is the result of the last.

    Args:
        document: the model.
        start: the value that the first one reads.
        owner: the original node that they replace.
        origin: the value of the original that they compute.
    """

    def __init__(self, document: Document, start: Value, owner: Node, origin: str) -> None:
        super().__init__(document, owner)
        self.value = start
        self._origin = origin

    def append_moves(self, moves: Sequence[MoveOrSum], suffix: str) -> None:
        """Append moves; the moves of a pixel shuffle become one node."""
        block = pixel_shuffle(moves)
        element_type = self._document.element_type(self._graph, self._origin)
        if block is not None and can_shuffle(self._document.opset, element_type):
            shuffle: Attributes = {"blocksize": block, "mode": "CRD"}
            self.append("DepthToSpace", f"{suffix}_depth_to_space", [self.value], shuffle)
            return
        for move in moves:
            if isinstance(move, Reshape):
                dims = [
                    0 if keep and extent is None else -1 if extent is None else extent
                    for extent, keep in zip(move.extents, move.keep, strict=True)
                ]
                shape = self._constants(f"{suffix}_reshape", {"shape": dims})
                self.append("Reshape", f"{suffix}_reshape", [self.value, *shape], {})
            elif isinstance(move, ShiftedSum):
                self._append_sum(move)
            else:
                self.append("Transpose", f"{suffix}_transpose", [self.value], {"perm": move.order})

    def _append_sum(self, shifted_sum: ShiftedSum) -> None:
        """Append a Pad for each tap, which selects its channels and shifts them, and their Sum."""
        start = self.value
        taps = []
        channels, pads = shifted_sum.channels, shifted_sum.pads
        zeros = [0] * (shifted_sum.rank - 3)
        for k, (begin, end) in enumerate(pads):
            first, last = k * channels, (len(pads) - 1 - k) * channels
            self.value = start
            self._pad([0, begin, -first, *zeros, 0, end, -last, *zeros], "shift")
            taps.append(self.value)
        self.append("Sum", "sum", taps, {})

    def _pad(self, pads: Sequence[int], suffix: str, zero: Value | None = None) -> None:
        vectors, attributes = as_inputs(self._document, PADS_OPSET, {"pads": pads})
        inputs = [self.value, *self._constants(suffix, vectors)]
        self.append("Pad", suffix, inputs if zero is None else [*inputs, zero], attributes)

    def extend(self, added_positions: Mapping[int, int], rank: int, zero: Value | None) -> None:
        """Append zeros, or `zero`: by axis as many positions as are added."""
        pads = [0] * rank + [added_positions.get(i, 0) for i in range(rank)]
        self._pad(pads, "extend", zero)

    def cut(self, slice_ends: Mapping[int, int]) -> None:
        """Keep the first positions of some axes.

        Args:
            slice_ends: by axis the number of positions to keep, or if negative to cut off.
        """
        axes, ends = list(slice_ends), list(slice_ends.values())
        bounds = {"starts": [0] * len(axes), "ends": ends, "axes": axes}
        vectors, attributes = as_inputs(self._document, BOUNDS_OPSET, bounds)
        self.append("Slice", "cut", [self.value, *self._constants("cut", vectors)], attributes)

    def requantize(self, maker: Node | None) -> None:
        """Quantize data and dequantize it again, if it was moved.

        Args:
            maker: the `exact_dequantizer` of the data.
        """
        if maker is not None and self.nodes:
            _, *scale_and_zero = maker.inputs
            self.append("QuantizeLinear", "quantize", [self.value, *scale_and_zero], {})
            self.append("DequantizeLinear", "dequantize", [self.value, *scale_and_zero], {})

    def append(
        self,
        op_type: str,
        suffix: str,
        inputs: Sequence[Value | None],
        attributes: Attributes,
        metadata: Mapping[str, str] | None = None,
        *,
        domain: str = "",
    ) -> Node:
        """Append a node, whose result becomes `value`."""
        metadata = {ORIGIN_KEY: self._origin, **(metadata or {})}
        node = self.add(op_type, suffix, inputs, attributes, metadata=metadata, domain=domain)
        self.value = node.outputs[0]
        return node

    def _constants(self, suffix: str, vectors: Vectors) -> list[Value]:
        """Add whole numbers for the node whose name ends with `suffix`."""
        base, add = f"{self._base}/{suffix}", self._document.add_constant
        return [add(np.array(v, np.int64), f"{base}/{k}", self._graph) for k, v in vectors.items()]

    def add_before(
        self, op_type: str, inputs: Sequence[Value | None], attributes: Attributes
    ) -> Value:
        """Put a node of constants before the next one; return its output."""
        return self.add(op_type, op_type.lower(), inputs, attributes, metadata={}).outputs[0]


def base_name(owner: Node) -> str:
    """Return the prefix of the names of all nodes that replace a node."""
    return f"{owner.name or owner.outputs[0].name}/widthfold"


def take_over(node: Node, new: Node) -> None:
    """Copy name, documentation and metadata of a node to its replacement."""
    new.name, new.doc_string = node.name, node.doc_string
    entries = {k: v for k, v in node.metadata_props.items() if k not in new.metadata_props}
    new.metadata_props.update(entries)
