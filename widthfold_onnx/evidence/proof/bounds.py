"""Find the numbers that meet open extents in a model: its function may change there.

Where x has at most 100 positions, x[:, :100] is x; a model may choose by `Less(Shape(x), 50)`, or
clip an index. Such models differ only at extents beyond the number (`sizes.beyond_tries`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx import helper

from widthfold_onnx.arrays import Dims
from widthfold_onnx.evidence.proof.program import Program
from widthfold_onnx.model.proto.scope import NameScope
from widthfold_onnx.model.proto.walk import body_path, is_default
from widthfold_onnx.model.shapes.table import ShapeTable

COUNTING = ("CumSum", "NonZero", "Shape", "Size")
"""Operators whose results are extents or positions."""

COMPARING = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")

BOUNDING = (*COMPARING, "Add", "Clip", "Div", "Max", "Min", "Mod", "Mul", "Range", "Sub", "Where")
"""Operators whose constant numbers are bounds if another operand is an extent or a position."""

MOVING_FIRST = ("Expand", "Gather", "Pad", "Reshape", "Resize", "Slice", "Squeeze", "Tile")
"""Operators whose elements are those of their first operand."""

MAX_INTEGERS = 64
"""Most elements of a constant whose numbers are taken for bounds."""


def size_bounds(program: Program, targets: Collection[str]) -> set[int]:
    """Return the bounds of each Slice of an open axis, and the numbers that meet open extents.

    The extents of an axis of a Slice or Gather that an open extent cuts are bounds, too: of a table
    of 512 positions, all rows are read only where there are 512. An index counts as an extent. Of a
    negative number, which counts from the end, the magnitude is returned; of a fraction the
    integers next to it.

    Args:
        program: a model.
        targets: values of the main graph; only what computes them counts.
    """
    nodes = program.scope.ancestors(targets)
    return set(_bounds(program.scope, nodes, program.shapes_at({}), "", set()))


def _bounds(
    scope: NameScope, positions: Sequence[int], table: ShapeTable, path: str, sizes: set[str]
) -> Iterator[int]:
    """Yield the bounds of a graph and of the bodies of its nodes.

    Args:
        scope: the graph.
        positions: of the nodes that count, in running order.
        table: extents and constants; what is open has none.
        path: of the graph.
        sizes: names of extents and indices outside of it; those inside are added.
    """
    for position in positions:
        node, names = scope.nodes[position], scope.reads[position]
        for place, body in scope.inner.get(position, ()):
            every = range(len(body.nodes))
            yield from _bounds(body, every, table, body_path(path, node, place), {*sizes})
        if is_default(node, "Slice") and _is_open(node, table, path):
            yield from _slice_attributes(node)
            yield from _integers(node.input[1:3], table, path)
        if is_default(node, "Gather", "Slice") and not sizes.isdisjoint(node.input[1:3]):
            yield from _cut_extents(node, table, path)
        is_size = any(name in sizes for name in _element_operands(node, names))
        if is_size and is_default(node, *BOUNDING):
            yield from _integers(names, table, path)
        if is_default(node, *COUNTING) or (is_size and not is_default(node, *COMPARING)):
            sizes.update(name for name in node.output if not _is_known(name, table, path))


def _is_open(node: onnx.NodeProto, table: ShapeTable, path: str) -> bool:
    """Check whether the extent of a sliced axis is open, as far as the axes are known."""
    dims = table.get(path, node.input[0])
    return dims is None or None in _along_axes(node, dims, table, path)


def _cut_extents(node: onnx.NodeProto, table: ShapeTable, path: str) -> Iterator[int]:
    """Yield the known extents of the axes of a Slice or Gather."""
    dims = table.get(path, node.input[0]) or ()
    yield from (extent for extent in _along_axes(node, dims, table, path) if extent is not None)


def _along_axes(
    node: onnx.NodeProto, dims: Dims, table: ShapeTable, path: str
) -> Sequence[int | None]:
    """Return the extents along the axes of a Slice or Gather, all if the axes are not known."""
    axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), None)
    if is_default(node, "Gather"):
        axes = [next((a.i for a in node.attribute if a.name == "axis"), 0)]
    elif len(node.input) > 3 and (numbers := table.numbers(path, node.input[3])) is not None:
        axes = numbers.ravel().tolist()
    if axes is None or None in axes:
        return dims
    return [dims[axis] for axis in axes if -len(dims) <= axis < len(dims)]


def _slice_attributes(node: onnx.NodeProto) -> Iterator[int]:
    """Yield the bounds of a Slice of an early operator set."""
    for attribute in node.attribute:
        if attribute.name in ("starts", "ends"):
            yield from map(abs, helper.get_attribute_value(attribute))


def _element_operands(node: onnx.NodeProto, names: Sequence[str]) -> Sequence[str]:
    """Return the operands from which the elements of the results are computed."""
    if is_default(node, "ConstantOfShape"):
        return ()
    if is_default(node, "Where"):
        return names[1:]
    return names[:1] if is_default(node, *MOVING_FIRST) else names


def _is_known(name: str, table: ShapeTable, path: str) -> bool:
    """Check whether a value is constant at any extents."""
    numbers = table.numbers(path, name)
    return numbers is not None and None not in numbers.ravel().tolist()


def _integers(names: Sequence[str], table: ShapeTable, path: str) -> Iterator[int]:
    """Yield the magnitudes that are known of small values, rounded down and up.

    An extent that is cast to a float may be compared with 777.5, which yields 777 and 778.
    """
    for name in names:
        numbers = table.numbers(path, name)
        if numbers is not None and numbers.dtype.kind in "Oiuf" and numbers.size <= MAX_INTEGERS:
            for number in numbers.ravel().tolist():
                if number is not None and math.isfinite(number):
                    yield from {math.floor(abs(number)), math.ceil(abs(number))}
