"""What the condition of a guard tests, read from its nodes; anything else is no such condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from widthfold_onnx.evidence.chain import Mismatch
from widthfold_onnx.rewrite.conditions import GUARD_KEY
from widthfold_onnx.rules.guarding import Extent
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]


@dataclass
class Tested:
    """What holds where the folded nodes compute.

    Attributes:
        below: values of which Sum |x| is below a number.
        extents: (extent - offset) mod modulus = 0, by value and axis.
    """

    below: dict[str, float] = field(default_factory=dict)
    extents: dict[str, dict[int, Extent]] = field(default_factory=dict)


def tested(graph: onnx.GraphProto, condition: str) -> Tested:
    """Read a condition.

    Args:
        graph: holds the nodes that compute it.
        condition: what the If reads.

    Raises:
        Mismatch: it is no conjunction of tests as guards make them.
    """
    reading = _Reading({name: node for node in graph.node for name in node.output})
    reading.conjunction(condition)
    return reading.found


class _Reading:
    def __init__(self, makers: Mapping[str, onnx.NodeProto]) -> None:
        self.found = Tested()
        self._makers = makers

    def conjunction(self, name: str) -> None:
        waiting, seen = [name], set[str]()
        while waiting:
            name = waiting.pop()
            node = self._maker(name)
            if name in seen:
                continue  # an And of itself, n levels deep, would be read 2**n times
            seen.add(name)
            if node.op_type == "And":
                waiting += node.input
                continue
            self._check(node, "Less", {})
            if self._maker(node.input[0]).op_type == "ReduceMax":
                self._extents(node)
            else:
                self._finite(node)

    def _finite(self, node: onnx.NodeProto) -> None:
        """Sum |x| < bound: all axes are summed up, for the operator's default is all."""
        total = self._chain(node.input[0], "ReduceL1", {"keepdims": 0})
        source = self._makers.get(total.input[0])
        value = total.input[0]
        if len(total.input) != 1:
            raise Mismatch("its condition does not add up all of the data")
        if source is not None and source.op_type == "Cast" and _is_test(source):
            self._check(source, "Cast", {"to": TensorProto.FLOAT})
            value = source.input[0]
        bound = self._constant(node.input[1])
        if bound.shape != ():
            raise Mismatch("its condition compares with more than one number")
        self.found.below[value] = float(bound)

    def _extents(self, node: onnx.NodeProto) -> None:
        """Largest (extent - offset) mod modulus < sign(smallest extent).

        Mod of integers is not negative here, so that the first is 0 and the second 1.
        """
        largest = self._chain(node.input[0], "ReduceMax", {"keepdims": 0})
        rest = self._chain(largest.input[0], "Mod", {})
        above = self._chain(rest.input[0], "Sub", {})
        extents = self._chain(above.input[0], "Gather", {})
        shape = self._chain(extents.input[0], "Shape", {})
        some = self._chain(node.input[1], "Sign", {})
        smallest = self._chain(some.input[0], "ReduceMin", {"keepdims": 0})
        axes, offsets, moduli = (
            self._constant(name) for name in (extents.input[1], above.input[1], rest.input[1])
        )
        alike = axes.shape == offsets.shape == moduli.shape == (axes.size,)
        whole = len(largest.input) == len(smallest.input) == 1
        if not alike or not whole or smallest.input[0] != extents.input[0]:
            raise Mismatch("its condition does not test extents one by one")
        if axes.size and (moduli.min() < 1 or axes.min() < 0):
            raise Mismatch("its condition holds a number out of range")
        known = self.found.extents.setdefault(shape.input[0], {})
        for axis, offset, modulus in zip(axes, offsets, moduli, strict=True):
            known[int(axis)] = Extent(int(offset), int(modulus))

    def _chain(self, name: str, op_type: str, attributes: Mapping[str, int]) -> onnx.NodeProto:
        node = self._maker(name)
        self._check(node, op_type, attributes)
        return node

    def _check(self, node: onnx.NodeProto, op_type: str, attributes: Mapping[str, int]) -> None:
        given = {a.name: a.i for a in node.attribute}
        if (node.op_type, node.domain, given) != (op_type, "", dict(attributes)):
            raise Mismatch(f"its condition has a {printable(node.op_type)} for a {op_type}")

    def _maker(self, name: str) -> onnx.NodeProto:
        node = self._makers.get(name)
        if node is None:
            raise Mismatch("its condition is not computed beside it")
        return node

    def _constant(self, name: str) -> Array:
        node = self._maker(name)
        held = [a.t for a in node.attribute if a.name == "value"]
        if node.op_type != "Constant" or node.domain or not held:
            raise Mismatch("its condition compares with something that is not constant")
        array: Array = np.asarray(numpy_helper.to_array(held[0]))
        if array.dtype.kind not in "if":
            raise Mismatch("its condition compares with something that is no number")
        return array


def _is_test(node: onnx.NodeProto) -> bool:
    return any(entry.key == GUARD_KEY for entry in node.metadata_props)
