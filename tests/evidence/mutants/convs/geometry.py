"""Right folds of another Conv: weight, nodes and record agree with each other, but not with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper

from tests.evidence.mutants.alter import copied_output, flipped, swapped
from tests.evidence.mutants.folded import Array, attribute, put

Change = Callable[[onnx.ModelProto], bool]
"""Makes another model of the original before it is folded; False where that cannot be done."""


def conv_of(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type in ("Conv", "ConvTranspose"))


def attributes(name: str, alter: Callable[[list[int]], list[int]]) -> Change:
    def change(model: onnx.ModelProto) -> bool:
        conv = conv_of(model)
        old = attribute(conv, name)
        new = alter(list(old)) if old else old
        if new == old or min(new) < 0:
            return False
        put(conv, name, new)
        return True

    return change


def stored(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    """The initializer of a name, or what the value of that name is computed from."""
    sources = {node.output[0]: node.input[0] for node in model.graph.node}
    source = sources.get(name, name)
    return next(tensor for tensor in model.graph.initializer if tensor.name == source)


def parameter(index: int, alter: Callable[[Array], Array | None]) -> Change:
    def change(model: onnx.ModelProto) -> bool:
        conv = conv_of(model)
        if index >= len(conv.input):
            return False
        tensor = stored(model, conv.input[index])
        old = numpy_helper.to_array(tensor)
        new = alter(old.copy())
        if new is None or new.tobytes() == old.tobytes():
            return False
        contiguous = np.ascontiguousarray(new.astype(old.dtype))
        tensor.CopyFrom(numpy_helper.from_array(contiguous, tensor.name))
        return True

    return change


def dilated(model: onnx.ModelProto) -> bool:
    """Dilation 2 along the last axis where there was 1, and pads so that the extent stays."""
    conv = conv_of(model)
    rank = len(attribute(conv, "pads")) // 2
    weight = stored(model, conv.input[1])
    reach = weight.dims[-1] - 1
    if weight.name != conv.input[1] or not rank or attribute(conv, "dilations"):
        return False
    put(conv, "dilations", [1] * (rank - 1) + [2])
    pads = attribute(conv, "pads")
    pads[-1] += reach
    put(conv, "pads", pads)
    return reach > 0


def other_side(model: onnx.ModelProto) -> bool:
    """The odd position cut off the other end."""
    conv = conv_of(model)
    for attribute_proto in conv.attribute:
        if attribute_proto.name == "auto_pad":
            upper = attribute_proto.s == b"SAME_UPPER"
            put(conv, "auto_pad", "SAME_LOWER" if upper else "SAME_UPPER")
            return True
    put(conv, "auto_pad", "SAME_UPPER")
    return bool(attribute(conv, "output_shape"))


def no_bias(model: onnx.ModelProto) -> bool:
    conv = conv_of(model)
    had = len(conv.input) > 2
    del conv.input[2:]
    return had


def ungrouped_order(array: Array) -> Array:
    """Output channels of two groups interleaved: what a wrong order of groups would do."""
    half = len(array) // 2
    return np.concatenate([array[half:], array[:half]])


CHANGES: dict[str, Change] = {
    "other.pads_later": attributes("pads", lambda p: shifted(p, 1)),
    "other.pads_earlier": attributes("pads", lambda p: shifted(p, -1)),
    "other.pads_swapped": attributes("pads", lambda p: p[len(p) // 2 :] + p[: len(p) // 2]),
    "other.pads_more": attributes("pads", lambda p: [*p[:-1], p[-1] + 1]),
    "other.dilation": dilated,
    "other.odd_side": other_side,
    "other.output_padding_less": attributes("output_padding", lambda p: [0] * len(p)),
    "other.output_padding_more": attributes("output_padding", lambda p: [v + 1 for v in p]),
    "other.output_shape": attributes("output_shape", lambda p: [v - 1 for v in p]),
    "other.stride_more": attributes("strides", lambda s: [v + 1 for v in s]),
    "other.stride_less": attributes("strides", lambda s: [max(1, v - 1) for v in s]),
    "other.kernel_reversed": parameter(1, flipped(-1)),
    "other.first_kernel_axis_reversed": parameter(1, flipped(2)),
    "other.inputs_swapped": parameter(1, swapped(1, 0, 1)),
    "other.outputs_swapped": parameter(1, swapped(0, 0, 1)),
    "other.output_copied": parameter(1, copied_output),
    "other.group_order": parameter(1, ungrouped_order),
    "other.weight_scaled": parameter(1, lambda array: array * array.dtype.type(1.0001)),
    "other.bias_rotated": parameter(2, lambda array: np.roll(array, 1)),
    "other.bias_scaled": parameter(2, lambda array: array * array.dtype.type(1.01)),
    "other.no_bias": no_bias,
}


def shifted(pads: list[int], step: int) -> list[int]:
    """The same extent, read `step` positions earlier along the last axis."""
    half = len(pads) // 2
    pads[half - 1] += step
    pads[-1] -= step
    return pads
