"""Build the nodes that test by the extents of their data whether folded nodes may run.

Extents are tested as (extent - offset) mod modulus = 0. The data must also have elements: a Reshape
infers no extent beside one of 0. Both hold if the largest rest is below sign(smallest extent),
which is 1, or 0 without elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from widthfold_onnx.model.graph.document import Attributes, Value
from widthfold_onnx.rewrite.chain import NewNodes
from widthfold_onnx.rules.forms.open_extents import Extent

GUARD_KEY = "widthfold.guard"
"""Metadata key of the nodes of a guard; for its If, the value names what the guard tests."""


class Conditions(NewNodes):
    """The nodes of a guard: first the nodes of its test, then its If."""

    def all_of(self, extents: Mapping[Value, Mapping[int, Extent]]) -> Value:
        """Return the value that is true if the folded nodes may run.

        Args:
            extents: conditions on the extents, by value and axis.
        """
        chosen, *more = [self._extents(value, wanted) for value, wanted in extents.items()]
        for test in more:
            chosen = self._add("And", "guard_all", [chosen, test])
        return chosen

    def _extents(self, value: Value, wanted: Mapping[int, Extent]) -> Value:
        axes = self._constant("axes", wanted)
        offsets = self._constant("offsets", [extent.offset for extent in wanted.values()])
        moduli = self._constant("moduli", [extent.modulus for extent in wanted.values()])
        shape = self._add("Shape", "guard_shape", [value])
        extents = self._add("Gather", "guard_extents", [shape, axes])
        above = self._add("Sub", "guard_above", [extents, offsets])
        rest = self._add("Mod", "guard_rest", [above, moduli])
        largest = self._add("ReduceMax", "guard_largest", [rest], {"keepdims": 0})
        smallest = self._add("ReduceMin", "guard_smallest", [shape], {"keepdims": 0})
        some = self._add("Sign", "guard_some", [smallest])
        return self._add("Less", "guard_fits", [largest, some])

    def _constant(self, what: str, numbers: Iterable[int]) -> Value:
        array = np.array(list(numbers), np.int64)
        return self._add("Constant", f"guard_{what}", [], {"value": array})

    def _add(
        self, op_type: str, what: str, inputs: Sequence[Value], attributes: Attributes | None = None
    ) -> Value:
        return self.add(op_type, what, inputs, attributes or {}, metadata={GUARD_KEY: ""}).outputs[
            0
        ]
