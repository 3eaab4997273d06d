"""Build the nodes that test by the extents of their data whether folded nodes may run.

Extents are tested as (extent - offset) mod modulus = 0. The data must also have elements: a Reshape
infers no extent beside one of 0. Both hold if the largest rest is below sign(smallest extent),
which is 1, or 0 without elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from widthfold_onnx.rules.forms.open_extents import Extent

GUARD_KEY = "widthfold.guard"
"""Metadata key of the nodes of a guard; for its If, the value names what the guard tests."""

Fresh = Callable[[str], str]
"""Returns a name that the model does not have yet."""


class Conditions:
    """The nodes of the test of a guard.

    Args:
        base: prefix of their names.
        fresh: returns new names.
    """

    def __init__(self, base: str, fresh: Fresh) -> None:
        self.nodes: list[NodeProto] = []
        self._base = base
        self._fresh = fresh

    def all_of(self, extents: Mapping[str, Mapping[int, Extent]]) -> str:
        """Return the name of the value that is true if the folded nodes may run.

        Args:
            extents: conditions on the extents, by value and axis.
        """
        chosen, *more = [self._extents(value, wanted) for value, wanted in extents.items()]
        for test in more:
            chosen = self._add("And", "guard_all", [chosen, test])
        return chosen

    def _extents(self, value: str, wanted: Mapping[int, Extent]) -> str:
        columns = {
            "axes": list(wanted),
            "offsets": [extent.offset for extent in wanted.values()],
            "moduli": [extent.modulus for extent in wanted.values()],
        }
        axes, offsets, moduli = (
            self._constant(f"guard_{name}", np.array(numbers, np.int64))
            for name, numbers in columns.items()
        )
        shape = self._add("Shape", "guard_shape", [value])
        extents = self._add("Gather", "guard_extents", [shape, axes])
        above = self._add("Sub", "guard_above", [extents, offsets])
        rest = self._add("Mod", "guard_rest", [above, moduli])
        largest = self._add("ReduceMax", "guard_largest", [rest], keepdims=0)
        smallest = self._add("ReduceMin", "guard_smallest", [shape], keepdims=0)
        some = self._add("Sign", "guard_some", [smallest])
        return self._add("Less", "guard_fits", [largest, some])

    def _constant(self, what: str, array: np.ndarray[Any, Any]) -> str:
        return self._add("Constant", what, [], value=numpy_helper.from_array(array))

    def _add(self, op_type: str, what: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = self._fresh(f"{self._base}/{what}")
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name
