"""Find open dimensions of the inputs that a weight fixes, such as the channels of a first Conv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx
from onnx import helper

from widthfold_onnx.arrays import Dims
from widthfold_onnx.model.proto.dims import DimensionKey, Dimensions, declared, probe_extents
from widthfold_onnx.model.proto.scope import NameScope, graph_scope
from widthfold_onnx.model.proto.walk import inputs, is_default
from widthfold_onnx.model.shapes.fact import Fact
from widthfold_onnx.model.shapes.inference import weight_position
from widthfold_onnx.model.shapes.table import Derivation, inputs_of


def extents_by_weights(
    proto: onnx.ModelProto, derivation: Derivation | None = None
) -> dict[DimensionKey, int]:
    """Return the extents of open dimensions that weights require.

    Every open dimension is given an extent that no other has. Where one of these meets a weight, as
    the input channels of a Conv, it tells which dimension must have the extent of the weight. An
    Add tells nothing: its constant also fits an extent of 1.

    Args:
        proto: a checked model.
        derivation: of this model, to be used again if tables are made for several extents.

    Returns:
        Extents by dimension; a dimension that stays open is left out.
    """
    declared_dims = {
        value.name: declared(value)
        for value in inputs(proto)
        if value.type.tensor_type.HasField("shape")
    }
    dims, scope = Dimensions.of(declared_dims, {}), graph_scope(proto.graph)
    nodes = [scope.nodes[i] for i in scope.ancestors([v.name for v in proto.graph.output])]
    constants, extents = _constants(scope), dict[DimensionKey, int]()
    input_facts = inputs_of(proto, {})
    while open_dims := [dim for dim in dims.open_dims if dim not in extents]:
        derivation = derivation or Derivation(proto)
        dims_apart = {extent: dim for dim, extent in probe_extents(open_dims).items()}
        shapes = dims.shapes({**extents, **{dim: n for n, dim in dims_apart.items()}})
        facts = derivation.facts_for(
            input_facts | {n: replace(input_facts[n], dims=shapes[n]) for n in shapes}
        )[""]
        found = {
            dims_apart[extent]: demanded
            for node in nodes
            for extent, demanded in _demands(node, facts, constants)
            if extent in dims_apart and demanded is not None
        }
        if not found:
            break
        extents |= found
    return extents


def _constants(scope: NameScope) -> set[str]:
    """Return the names of the values of a graph that no input changes."""
    constants = {"", *scope.initializers}
    for node in scope.nodes:
        if constants.issuperset(node.input):
            constants.update(node.output)
    return constants


def _demands(
    node: onnx.NodeProto, facts: Mapping[str, Fact], constants: set[str]
) -> Iterator[tuple[int | None, int | None]]:
    """Yield extents of data, each with that of a constant operand that it has to equal."""
    dims = [None if (fact := facts.get(name)) is None else fact.dims for name in node.input]
    for (first, extent), (second, other_extent) in _equal_extents(node, dims):
        if node.input[second] in constants:
            yield extent, other_extent
        elif node.input[first] in constants:
            yield other_extent, extent


Extent = tuple[int, int | None]
"""The position of an operand, and an extent of it."""


def _equal_extents(
    node: onnx.NodeProto, dims: Sequence[Dims | None]
) -> Iterator[tuple[Extent, Extent]]:
    """Yield extents of two operands that have to be equal at every run of a node."""
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    weight = weight_position(node)
    if weight is not None:
        axis, groups = (
            (0, 1) if node.op_type == "ConvTranspose" else (1, attributes.get("group", 1))
        )
        channels = _extent(dims[weight], axis)
        yield (0, _extent(dims[0], 1)), (weight, channels and channels * groups)
    elif is_default(node, "BatchNormalization"):
        yield (0, _extent(dims[0], 1)), (1, _extent(dims[1], 0))
    elif is_default(node, "Gemm", "MatMul"):
        column = -2 if attributes.get("transA") else -1
        row = -1 if attributes.get("transB") or len(dims[1] or ()) == 1 else -2
        yield (0, _extent(dims[0], column)), (1, _extent(dims[1], row))


def _extent(dims: Dims | None, axis: int) -> int | None:
    """Return an extent; None if it is not known, or there is no such axis."""
    return dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
