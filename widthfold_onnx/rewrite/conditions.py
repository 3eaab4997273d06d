"""The nodes that test whether folded nodes may compute, by the data that they would read.

Data is finite where Sum |x| is below a bound: the terms are not negative, so Inf and NaN survive
every order of summation and compare as false, and a sum that overflows only means the original
nodes. It is one pass that writes nothing; IsInf and IsNaN take four times as long with what they
need around them, ReduceMax skips NaN (ONNX Runtime 1.31.1, CPU), and x*0 a compiler may drop.
Extents are tested as (extent - offset) mod modulus = 0. And there must be elements: a Reshape
infers no extent beside one of 0. So the largest rest is below sign(smallest extent): 1, else 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from widthfold_onnx.rules.guarding import Extent

GUARD_KEY = "widthfold.guard"
"""Metadata of the nodes of a guard; of its If, what the guard is for, joined by "+"."""

Fresh = Callable[[str], str]
"""Makes a name that the model does not have yet."""


@dataclass(frozen=True)
class Finite:
    """Sum |x| of these values is below a bound; `wide`: half precision is summed up as float."""

    values: tuple[str, ...]
    below: float
    dtype: str
    wide: bool


class Conditions:
    """The nodes that test what a guard has to.

    Args:
        base: what their names begin with.
        fresh: makes names.
    """

    def __init__(self, base: str, fresh: Fresh) -> None:
        self.nodes: list[NodeProto] = []
        self._base = base
        self._fresh = fresh

    def all_of(self, finite: Finite | None, extents: Mapping[str, Mapping[int, Extent]]) -> str:
        """The value that says whether the folded nodes may compute.

        Args:
            finite: what must be finite, if anything.
            extents: what extents of which value must be, by value and axis.
        """
        tests = []
        if finite is not None:
            tests += [self._finite(value, finite) for value in finite.values]
        tests += [self._extents(value, wanted) for value, wanted in extents.items()]
        chosen, *more = tests
        for test in more:
            chosen = self._add("And", "guard_all", [chosen, test])
        return chosen

    def _finite(self, value: str, finite: Finite) -> str:
        if finite.wide:
            value = self._add("Cast", "guard_float", [value], to=TensorProto.FLOAT)
        total = self._add("ReduceL1", "guard_sum", [value], keepdims=0)
        bound = self._constant("guard_bound", np.array(finite.below, finite.dtype))
        return self._add("Less", "guard_finite", [total, bound])

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
