"""Follow the extents that a model leaves open, and the bounds that it computes from them.

An extent is written as `times` * R + `offset`. R is the open extent from which it is computed: that
of the value `root` along `axis`. So two extents of the same R can be compared at all sizes. An open
extent is at least 1. Here, behind a Conv of kernel 3, the Slice takes 2 positions away at every T:

    x [N,C,T] -+- Conv, pads (2,2) - y [N,O,T+2] - Slice - z [N,O,T]
               +- Shape - Gather [2] ----- ends -----+

    extent of y = 1 * T + 2, ends = 1 * T + 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import onnx

from widthfold_onnx.algebra.axis import ConvAxis
from widthfold_onnx.arrays import Array, Dims
from widthfold_onnx.model.document import Document, Graph, Node, Value, graph_of
from widthfold_onnx.model.proto.walk import operator_of
from widthfold_onnx.operators.base import Operator
from widthfold_onnx.operators.conv import CONV
from widthfold_onnx.operators.conv_transpose import CONV_TRANSPOSE
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.op import BOUNDS_OPSET, BROADCASTING, UNARY

CONVS: dict[str, Operator] = {"Conv": CONV, "ConvTranspose": CONV_TRANSPOSE}

TO_THE_END = (1 << 31) - 1
"""Ends from here on are beyond any extent: exporters write the largest int32 or int64."""

WHOLE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


@dataclass(frozen=True)
class Length:
    """A whole number: `times` * the extent of `root` along `axis` + `offset`.

    Attributes:
        root: a value of the model; None for a constant, which is `offset`.
        axis: an axis of it.
        times: at least 1, or 0 without a root.
        offset: any number.
    """

    root: Value | None = None
    axis: int = 0
    times: int = 0
    offset: int = 0

    @property
    def least(self) -> int:
        """The smallest number that this can be."""
        return self.times + self.offset

    def minus(self, other: Length) -> int | None:
        """Return the difference, None if it depends on the size."""
        multiples = {(length.root, length.axis, length.times) for length in (self, other)}
        return self.offset - other.offset if len(multiples) == 1 else None


@dataclass(frozen=True)
class Trim:
    """Numbers of positions that a Slice takes away at both ends of an axis."""

    begin: int
    end: int


@dataclass(frozen=True)
class Lengths:
    """The extents of the values of one graph.

    Attributes:
        document: the model.
        graph: the graph.
    """

    document: Document
    graph: Graph
    _extents: dict[tuple[Value, int], Length] = field(default_factory=dict)

    @classmethod
    def around(cls, document: Document, node: Node) -> Lengths:
        """Return the extents of the graph that holds a node."""
        return cls(document, graph_of(node))

    def dims(self, value: Value | None) -> Dims | None:
        """Return the extents that the model fixes; None if not even their number is known."""
        return None if value is None else self.document.dims(self.graph, value)

    def numbers(self, value: Value | None) -> Sequence[int | None]:
        """Return the whole numbers in a value, None for numbers that depend on an input."""
        numbers: Array | None = None
        if value is not None:
            path = self.document.path_of(self.graph)
            numbers = self.document.shapes.numbers(path, value.name or "")
        if numbers is not None:
            return [None if n is None else int(n) for n in numbers.ravel().tolist()]
        dims = self.dims(value)
        is_vector = dims is not None and len(dims) <= 1 and None not in dims
        return [None] * (dims[0] or 0 if dims else 1) if is_vector else []

    def of(self, value: Value, axis: int) -> Length:
        """Return the extent of a value along an axis."""
        dims = self.dims(value)
        extent = dims[axis] if dims is not None and axis < len(dims) else None
        if extent is not None:
            return Length(offset=extent)
        key, root = (value, axis), Length(value, axis, 1)
        if key not in self._extents:
            self._extents[key] = root  # before it is followed, so that `MAX_FOLLOWED` counts it
            self._extents[key] = self._extent_by_maker(value, axis) or root
        return self._extents[key]

    def _extent_by_maker(self, value: Value, axis: int) -> Length | None:
        """Return an open extent, computed from the extents that the maker of the value reads."""
        node = value.producer()
        if node is None or operator_of(node)[0] or len(self._extents) > MAX_FOLLOWED:
            return None
        data = node.inputs[0] if node.inputs else None
        if data is None:
            return None
        if node.op_type in UNARY:
            return self.of(data, axis)
        if node.op_type in BROADCASTING:
            return self._broadcast(node, value, axis)
        if node.op_type in CONVS and axis >= 2:
            axes = conv_axes(self, node)
            return None if axes is None else self._conv_output(axes[axis - 2], self.of(data, axis))
        if node.op_type == "Slice":
            trim_of = trims(self, node)
            extent = self.of(data, axis)
            trim = None if trim_of is None else trim_of.get(axis, Trim(0, 0))
            if trim is not None and extent.least >= trim.begin + trim.end:
                return replace(extent, offset=extent.offset - trim.begin - trim.end)
        return None

    def _broadcast(self, node: Node, value: Value, axis: int) -> Length | None:
        """Return the extent of a broadcast: its operands have it or 1. None if they differ."""
        dims = self.dims(value)
        extents = set()
        for operand in node.inputs:
            operand_dims = self.dims(operand)
            if operand is None or operand_dims is None or dims is None:
                return None
            operand_axis = axis - len(dims) + len(operand_dims)
            if operand_axis >= 0 and operand_dims[operand_axis] != 1:
                extents.add(self.of(operand, operand_axis))
        return extents.pop() if len(extents) == 1 else None

    def _conv_output(self, axis: ConvAxis, extent: Length) -> Length | None:
        """Return the output extent of an axis, which at stride 1 grows with the input's."""
        offset = replace(axis, length=extent.offset).out_length
        if axis.stride > 1 or offset is None:
            return None
        return replace(extent, times=extent.times * axis.base_dilation, offset=offset)

    def element(self, value: Value | None, index: int) -> Length | None:
        """Return an element of a vector that is computed from extents, None for other vectors."""
        numbers = self.numbers(value)
        node = None if value is None else value.producer()
        if index < len(numbers) and (number := numbers[index]) is not None:
            return Length(offset=number)
        if node is None or operator_of(node)[0] or not node.inputs or node.inputs[0] is None:
            return None
        first = node.inputs[0]
        match node.op_type:
            case "Shape":
                begin = node.attributes.get_int("start", 0)
                return self.of(first, begin + index) if begin >= 0 else None
            case "Cast":
                is_whole = node.attributes.get_int("to", 0) in WHOLE
                return self.element(first, index) if is_whole else None
            case "Identity" | "Reshape" | "Squeeze" | "Unsqueeze":
                return self.element(first, index)
            case "Gather":
                indices, count = self.numbers(node.inputs[1]), len(self.numbers(first))
                position = indices[index] if index < len(indices) else None
                return None if position is None else self.element(first, position % max(count, 1))
            case "Slice":
                trim_of = trims(self, node)
                trim = None if trim_of is None else trim_of.get(0)
                return None if trim is None else self.element(first, trim.begin + index)
            case "Concat":
                for part in node.inputs:
                    count = len(self.numbers(part))
                    if index < count or not count:
                        return self.element(part, index) if count else None
                    index -= count
            case "Add" | "Sub":
                first_term, term = (self.element(v, index) for v in node.inputs)
                if first_term is not None and term is not None and not term.times:
                    sign = 1 if node.op_type == "Add" else -1
                    return replace(first_term, offset=first_term.offset + sign * term.offset)
        return None


MAX_FOLLOWED = 100
"""Values that are followed for one node: each costs levels of recursion."""


def trims(lengths: Lengths, node: Node) -> dict[int, Trim | None] | None:
    """Return what a Slice takes away by axis; None for an axis where that depends on the size.

    Returns None if it takes steps other than 1, or if its axes are not known.
    """
    data, bounds = node.inputs[0], _bounds(lengths, node)
    dims = lengths.dims(data)
    if data is None or dims is None or bounds is None:
        return None
    return {
        axis % len(dims): _trim(lengths.of(data, axis % len(dims)), start, end)
        for axis, start, end in bounds
    }


def _bounds(lengths: Lengths, node: Node) -> list[tuple[int, Length | None, Length | None]] | None:
    """Return axis, start and end of each axis that a Slice names, None if a step is not 1."""
    if lengths.document.opset < BOUNDS_OPSET:
        vectors: list[list[Length | None]] = [
            [Length(offset=n) for n in node.attributes.get_ints(name, [])]
            for name in ("starts", "ends", "axes")
        ]
        vectors.append([])
    else:
        inputs = [*node.inputs[1:], None, None][:4]
        vectors = [
            [lengths.element(value, i) for i in range(len(lengths.numbers(value)))]
            for value in inputs
        ]
        if any(v is not None and not vector for v, vector in zip(inputs, vectors, strict=True)):
            return None
    starts, ends, axes, steps = vectors
    count = len(starts)
    axes = axes or [Length(offset=n) for n in range(count)]
    fits = count == len(ends) == len(axes) and all(step == Length(offset=1) for step in steps)
    axis_numbers = [axis.offset for axis in axes if axis is not None and not axis.times]
    return (
        list(zip(axis_numbers, starts, ends, strict=True))
        if fits and len(axis_numbers) == count
        else None
    )


def _trim(extent: Length, start: Length | None, end: Length | None) -> Trim | None:
    """Return what a Slice with these bounds takes away of an extent (operator text, Slice-13)."""
    if start is None or end is None or start.times:
        return None
    if not extent.times and not end.times:
        first, last, _ = slice(start.offset, end.offset).indices(extent.offset)
        return Trim(first, extent.offset - last)
    if start.offset < 0:
        return None
    if not end.times and end.offset >= TO_THE_END:
        return Trim(start.offset, 0)
    if not end.times:
        return Trim(start.offset, -end.offset) if end.offset < 0 else None
    end_count = extent.minus(end) if end.least >= 0 else None
    return None if end_count is None else Trim(start.offset, max(end_count, 0))


def conv_axes(lengths: Lengths, node: Node) -> list[ConvAxis] | None:
    """Return the spatial axes of a Conv or ConvTranspose, None if it cannot run or is not known."""
    dims, weight = lengths.dims(node.inputs[0]), lengths.dims(node.inputs[1])
    shape = tuple(n for n in weight or () if n is not None)
    operator = CONVS[node.op_type]
    if not dims or not weight or len(shape) < len(weight) or 0 in shape or 0 in dims:
        return None
    if operator.data_problem(node, dims, shape) is not None:
        return None
    axes = operator.axes(node, dims, shape)
    if isinstance(axes, Refusal):
        return None
    extents = [axis.out_length for axis in axes]
    return None if any(n is not None and n < 1 for n in extents) else list(axes)
