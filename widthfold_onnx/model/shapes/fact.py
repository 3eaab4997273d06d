"""Define the fact of a value: its type, and its numbers where no input changes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.proto.dims import dims_of_type
from widthfold_onnx.model.proto.tensors import is_external

MAX_KEPT = {"b": 1 << 16, "i": 1 << 16, "u": 1 << 16, "f": 1 << 10}
"""Most elements that are kept, by the kind of a numpy type; larger floats are weights."""


@dataclass(frozen=True, eq=False, slots=True)
class Fact:
    """The known part of the type and the numbers of a value.

    Attributes:
        element_type: the element type of a tensor; 0 if unknown.
        dims: the extents of a tensor; None if not even the rank is known.
        other_type: the serialized type of a sequence, map or optional; empty for a tensor.
        numbers: the elements of a tensor, if known. An array of objects has None for each element
            that is not known.
    """

    element_type: int = 0
    dims: Dims | None = None
    other_type: bytes = b""
    numbers: Array | None = None

    @property
    def type(self) -> tuple[int, Dims | None, bytes]:
        """The type alone, in a form that can be compared."""
        return self.element_type, self.dims, self.other_type

    @property
    def is_whole(self) -> bool:
        """True if all elements are known."""
        return self.numbers is not None and self.numbers.dtype != object

    def equals(self, other: Fact) -> bool:
        """Check whether two facts have the same type and the same numbers, signs of zeros too."""
        mine, theirs = self.numbers, other.numbers
        if self.type != other.type or mine is None or theirs is None:
            return self.type == other.type and mine is theirs
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return False
        if mine.dtype == object:
            return repr(mine.tolist()) == repr(theirs.tolist())
        return mine.tobytes() == theirs.tobytes()

    def without_numbers(self) -> Fact:
        """Return the fact without the numbers."""
        return Fact(*self.type)

    def proto(self) -> onnx.TypeProto:
        """Return the type as a message."""
        if self.other_type:
            message = onnx.TypeProto.FromString(self.other_type)
        else:
            message = helper.make_tensor_type_proto(self.element_type, self.dims)
        assert isinstance(message, onnx.TypeProto)
        return message

    def fits(self, numbers: Array) -> bool:
        """Check whether a tensor of this type can have these elements."""
        if self.dims is None or len(self.dims) != numbers.ndim:
            return False
        is_typed = numbers.dtype in (object, helper.tensor_dtype_to_np_dtype(self.element_type))
        pairs = zip(self.dims, numbers.shape, strict=True)
        return is_typed and all(extent in (None, size) for extent, size in pairs)

    def with_numbers(self, numbers: Array) -> Fact:
        """Return the fact with numbers, if they are few enough to be kept."""
        if numbers.dtype == object:
            elements = numbers.ravel().tolist()
            if None not in elements:
                numbers = numbers.astype(helper.tensor_dtype_to_np_dtype(self.element_type))
            elif len(elements) > MAX_KEPT["i"] or not any(n is not None for n in elements):
                return self
        elif numbers.size > MAX_KEPT.get(numbers.dtype.kind, 0):
            return self
        return replace(self, dims=numbers.shape, numbers=numbers)


def of_type(message: onnx.TypeProto) -> Fact:
    """Return the fact of a value of a type."""
    if message.WhichOneof("value") in ("tensor_type", None):
        return Fact(message.tensor_type.elem_type, dims_of_type(message))
    return Fact(other_type=message.SerializeToString())


def of_tensor(tensor: onnx.TensorProto) -> Fact:
    """Return the fact of a stored tensor."""
    fact = Fact(tensor.data_type, tuple(tensor.dims))
    is_text = tensor.data_type == onnx.TensorProto.STRING
    if is_text or is_external(tensor) or math.prod(tensor.dims) > max(MAX_KEPT.values()):
        return fact
    return fact.with_numbers(numpy_helper.to_array(tensor))


def common_fact(first: Fact, second: Fact) -> Fact:
    """Return what two facts have in common, which holds whichever of them holds."""
    dims = None
    if first.dims is not None and second.dims is not None and len(first.dims) == len(second.dims):
        dims = tuple(a if a == b else None for a, b in zip(first.dims, second.dims, strict=True))
    return Fact(
        element_type=first.element_type if first.element_type == second.element_type else 0,
        dims=dims,
        other_type=first.other_type if first.other_type == second.other_type else b"",
    )


def completed(fact: Fact, declaration: Fact) -> Fact:
    """Fill the gaps of a fact from a declaration; where they differ, the fact counts."""
    dims = declaration.dims if fact.dims is None else fact.dims
    if dims and declaration.dims and len(dims) == len(declaration.dims):
        dims = tuple(b if a is None else a for a, b in zip(dims, declaration.dims, strict=True))
    return replace(
        fact,
        element_type=fact.element_type or declaration.element_type,
        dims=dims,
        other_type=fact.other_type or declaration.other_type,
    )
