"""Define the values of names during an evaluation, and the call of one operator on such values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import onnx
from onnx import helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.evidence.proof.field import (
    KEY_BYTES,
    Draws,
    blocks,
    draws_of,
    key_of,
    primes,
    residues,
)
from widthfold_onnx.model.proto.walk import domain_name, is_default
from widthfold_onnx.model.shapes.inference import RawAttributes

Shape = tuple[int, ...]
Extents = Mapping[str, Shape]
"""Extents by the name of an input, or of another value of the main graph."""

TensorType = tuple[Shape, int]
"""Extents and element type."""


ROUNDED = 2
"""`Elements.constants` of a constant that was computed from others, as for a product of two."""


MAX_EVALUATED_ELEMENTS = 1 << 27
"""Largest value that is evaluated; it takes 20 bytes for each element."""


class UnevaluableError(Exception):
    """A node that no runtime could compute on its inputs."""


def check_size(extents: Sequence[int]) -> None:
    """Check that a value is small enough to be evaluated; numpy bounds what is empty, too.

    Raises:
        UnevaluableError: it is not.
    """
    if math.prod(max(extent, 1) for extent in extents) > MAX_EVALUATED_ELEMENTS:
        raise UnevaluableError(f"{list(extents)} are too many elements")


def from_first(axis: int, rank: int) -> int:
    """Return the index of an axis; a negative one counts from the end.

    Raises:
        UnevaluableError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise UnevaluableError(f"its axis {axis} is none of {rank}")
    return axis % rank


@dataclass(frozen=True, eq=False)
class KnownValue:
    """Numbers or strings that do not depend on the inputs.

    Attributes:
        array: the numbers or strings.
        rounded: True if the numbers were computed in floats, so that another order of computing
            may give other last digits.
    """

    array: Array
    rounded: bool = False

    degree = 1
    """Of the polynomial: a number that is not whole is a variable."""

    @property
    def shape(self) -> Shape:
        """The extents of the array, () of a scalar."""
        return self.array.shape

    @property
    def element_type(self) -> int:
        """The element type, as in `onnx.TensorProto.DataType`."""
        return helper.np_dtype_to_tensor_dtype(self.array.dtype)

    @property
    def is_numeric(self) -> bool:
        """Whether it holds real numbers: no strings, and no complex ones."""
        return self.array.dtype.kind not in "OSUTc"

    @cached_property
    def draws(self) -> Draws:
        """The numbers as elements.

        Raises:
            UnevaluableError: they are no numbers.
        """
        if self.array.dtype.kind in "OSUT":
            raise UnevaluableError("strings are no numbers")
        if self.array.dtype.kind == "c":
            raise UnevaluableError("complex numbers are no elements")
        return draws_of(self.array)

    @property
    def constants(self) -> int:
        """See `Elements.constants`."""
        return ROUNDED if self.rounded else 1

    def digest(self) -> bytes:
        """Return a digest that is equal for equal numbers, whatever their element type."""
        if not self.is_numeric:
            content = repr((self.array.shape, self.array.tolist())).encode()
            return hashlib.blake2b(content, digest_size=16).digest()
        return _digest(self.draws)


@dataclass(frozen=True, eq=False)
class Elements:
    """A tensor of field elements.

    Attributes:
        draws: the elements, one array per prime.
        degree: of the polynomial that each element is, at most.
        constants: how many constants are multiplied in one product, at most.
        grid: scale and zero point, digested, of the integers from which all elements were
            dequantized; empty where there are none.
        element_type: element type of the tensor, 0 where it is not known.
        factor: numbers that may be a factor of the tensor: check it before use.
    """

    draws: Draws
    degree: int = 1
    constants: int = 0
    grid: bytes = b""
    element_type: int = 0
    factor: KnownValue | None = None

    @property
    def shape(self) -> Shape:
        """The extents."""
        return self.draws[0].shape

    def digest(self) -> bytes:
        """Return a digest that is equal for equal elements."""
        return _digest(self.draws)


@dataclass(frozen=True, eq=False)
class OpaqueValue:
    """A value known by equality alone: its extents are not, or it is no tensor."""

    key: int

    element_type = constants = 0
    """As of a tensor of which neither is known."""

    def digest(self) -> bytes:
        """Return a digest that is equal for equal values."""
        return self.key.to_bytes(KEY_BYTES, "little")


Tensor = KnownValue | Elements
Value = KnownValue | Elements | OpaqueValue


def _digest(draws: Draws) -> bytes:
    state = hashlib.blake2b(repr(draws[0].shape).encode(), digest_size=16)
    for draw, prime in zip(draws, primes(), strict=True):
        flat = draw.reshape(-1)
        for part in blocks(flat.size):
            state.update(residues(flat[part], prime).astype(np.uint32).data)
    return state.digest()


FLOATS = tuple(
    onnx.TensorProto.DataType.Value(name) for name in ("FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE")
)


EPSILONS: Mapping[int, float] = dict(
    zip(FLOATS, (2.0**-10, 2.0**-7, 2.0**-23, 2.0**-52), strict=True)
)
"""Distance from 1 to the next float, by element type."""


AXES: Mapping[str, int] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Gather"), 0),
    **dict.fromkeys(("GatherElements", "Hardmax", "LayerNormalization", "LogSoftmax"), 0),
    **dict.fromkeys(("LpNormalization", "RMSNormalization", "Scatter", "ScatterElements"), 0),
    **dict.fromkeys(("Softmax", "Split", "SplitToSequence", "TopK", "Unique"), 0),
    "OneHot": 1,
}
"""Operators of onnx for which axis -1 is the same as axis rank - 1: how many axes they count beside
those of the first input. Of any other operator `axis` is compared as it is written."""


@dataclass(frozen=True)
class Call:
    """A node and its inputs.

    Attributes:
        node: the node.
        attributes: by name, with the defaults of the operator's schema.
        inputs: by position; None where one is left out.
        opset: version of the operator set of the node's domain.
        version: version since which the operator is unchanged, 0 if no schema is known.
        shapes: extents of the outputs; None where shape inference does not know them.
        output_types: element types of the outputs, 0 where unknown.
    """

    node: onnx.NodeProto
    attributes: RawAttributes
    inputs: Sequence[Value | None]
    opset: int
    version: int
    shapes: Sequence[Shape | None]
    output_types: Sequence[int] = ()

    def tensor(self, index: int) -> Tensor:
        """Return an input that must be there.

        Raises:
            UnevaluableError: it is left out.
        """
        value = self.optional(index)
        if value is None:
            raise UnevaluableError(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Tensor | None:
        """Return an input that may be left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        assert not isinstance(value, OpaqueValue)
        return value

    def numbers(self, index: int) -> Array | None:
        """Return the numbers of an input, None where it is left out or not known.

        Raises:
            UnevaluableError: it holds strings or complex numbers.
        """
        value = self.optional(index)
        if not isinstance(value, KnownValue):
            return None
        if value.array.dtype.kind in "OSUTc":
            raise UnevaluableError(f"input {index} holds no numbers")
        return value.array

    def whole_numbers(self, index: int) -> Array | None:
        """Return the whole numbers of an input, None where it is left out or not known.

        Raises:
            UnevaluableError: it holds others.
        """
        array = self.numbers(index)
        if array is not None and array.dtype.kind not in "iu":
            raise UnevaluableError(f"input {index} holds no whole numbers")
        return array

    def attribute(self, name: str) -> Any:
        """Return an attribute that must be there.

        Raises:
            UnevaluableError: it is missing.
        """
        if name not in self.attributes:
            raise UnevaluableError(f"attribute {name} is missing")
        return self.attributes[name]

    @property
    def tensors(self) -> list[Tensor]:
        """All inputs that are there."""
        return [value for value in self.inputs if isinstance(value, KnownValue | Elements)]

    def element_type(self, index: int) -> int:
        """Return the element type of an input, 0 where it is left out or unknown."""
        value = self.inputs[index] if index < len(self.inputs) else None
        return 0 if value is None else value.element_type

    def key(self, *parts: object, version: int = 0) -> int:
        """Return a key for the function of this node: operator, types, all attributes but graphs.

        On whole numbers an operator may be another function than on floats, and wrap around where
        their type ends. Floats of all types are treated as real numbers.
        """
        types = [self.element_type(i) for i in range(len(self.inputs))]
        types = [FLOATS[0] if item in FLOATS else item for item in types]
        while types and not types[-1]:
            types.pop()
        attributes = sorted(
            (name, self._from_first(value) if name == "axis" else _attribute_key(value))
            for name, value in self.attributes.items()
            if not isinstance(value, onnx.GraphProto)
        )
        domain = domain_name(self.node.domain)
        return key_of(domain, self.node.op_type, version, attributes, types, *parts)

    def _from_first(self, axis: Any) -> Any:
        """Return the attribute `axis` counted from the first axis, where `AXES` says how."""
        value = self.inputs[0] if self.inputs else None
        if not is_default(self.node, *AXES) or not isinstance(value, KnownValue | Elements):
            return axis
        rank = len(value.shape) + AXES[self.node.op_type]
        return axis + rank if -rank <= axis < 0 else axis

    def is_modern(self) -> bool:
        """Check whether extents are equal or broadcast as in numpy (ONNX since opset 7)."""
        return self.opset >= 7 or len({value.shape for value in self.tensors}) == 1

    def broadcasts(self) -> bool:
        """Check whether the inputs are broadcast as in numpy, which ONNX does since opset 7.

        Raises:
            UnevaluableError: their extents do not fit together.
        """
        if not self.is_modern():
            return False
        broadcast_shape([value.shape for value in self.tensors])
        return True


Meaning = Callable[[Call], list[Value] | None]
"""Computes the results of a node; None if it does not describe this one."""


def meaning_of(compute: Callable[..., Value]) -> Meaning:
    """Describe an operator that computes one result of its inputs alone."""
    count = len(signature(compute).parameters)

    def meaning(call: Call) -> list[Value]:
        if len(call.tensors) != count:
            raise UnevaluableError(f"it has {len(call.tensors)} inputs, not {count}")
        return [compute(*call.tensors)]

    return meaning


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the extents to which tensors of some extents are broadcast.

    Raises:
        UnevaluableError: they do not fit together.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        extents = " and ".join(str(list(shape)) for shape in shapes)
        raise UnevaluableError(f"extents {extents} do not fit together") from error


def _attribute_key(value: object) -> object:
    """Return an attribute as a value whose text identifies it."""
    if isinstance(value, onnx.TensorProto | onnx.SparseTensorProto):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_attribute_key(item) for item in value if not isinstance(item, onnx.GraphProto)]
    return value
