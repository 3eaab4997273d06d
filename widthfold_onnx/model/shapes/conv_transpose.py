"""Corrects onnx's shape inference for ConvTranspose.

Two cases (measured on onnx 1.23.2 and onnxruntime 1.31.1, tests/model/test_propagate.py). SAME
keeps stride times the input's extent (ONNX operator text, ConvTranspose-11), so output_padding adds
only the part of that which the kernel does not reach; inference adds all of it. At an output_shape
below an input's extent inference stops, and leaves a shape that lacks the axes from there on.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.domain import is_default


def settle_transposed(
    node: onnx.NodeProto,
    graph: onnx.GraphProto,
    inferred: onnx.GraphProto,
    shapes: Mapping[str, Dims],
) -> bool:
    """Correct a ConvTranspose of a skeleton, so that inference finds its true shape.

    Args:
        node: any node of a skeleton, changed in place.
        graph: of the skeleton, which holds it; its declarations are changed.
        inferred: the same graph with shapes.
        shapes: by value name, as inferred.

    Returns:
        Whether anything was changed.
    """
    if not is_default(node, "ConvTranspose"):
        return False
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    wanted = given.get("output_shape")
    if wanted:
        return _declare(node.output[0], wanted, graph, inferred)
    more = given.get("output_padding", [])
    kernel = given.get("kernel_shape") or shapes.get(node.input[1], ())[2:]
    same = given.get("auto_pad", b"").startswith(b"SAME")
    if not same or len(kernel) != len(more) or None in kernel:
        return False
    ones = [1] * len(more)
    strides, dilations = given.get("strides", ones), given.get("dilations", ones)
    geometry = zip(more, kernel, strides, dilations, strict=True)
    left = [min(m, max(0, s - d * (k - 1) - 1)) for m, k, s, d in geometry]
    for attribute in node.attribute:
        if attribute.name == "output_padding":
            attribute.ints[:] = left
    return left != list(more)


def _declare(
    name: str, wanted: list[int], graph: onnx.GraphProto, inferred: onnx.GraphProto
) -> bool:
    """Declare the spatial extents of a value, if inference did not find them all."""
    for value in (*inferred.value_info, *inferred.output):
        dims = value.type.tensor_type.shape.dim
        if value.name == name and 2 <= len(dims) < len(wanted) + 2:
            whole = onnx.ValueInfoProto()
            whole.CopyFrom(value)
            del whole.type.tensor_type.shape.dim[2:]
            for extent in wanted:
                whole.type.tensor_type.shape.dim.add(dim_value=extent)
            for declared in (*graph.value_info, *graph.output):
                if declared.name == name:
                    declared.CopyFrom(whole)
                    return True
            graph.value_info.append(whole)
            return True
    return False
