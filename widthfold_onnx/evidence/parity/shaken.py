"""Make copies of a model and its inputs in which numbers differ by units in the last place.

The inputs and the weights of linear layers move by as many units as `COPIES` says, up or down at
random. Rounding may move the outputs as far as the copies do: stochastic arithmetic, as of
Higham and Mary, A new approach to probabilistic rounding error analysis, 2019. Constants and inputs
that compare, clip, select, index or scale sizes stay: other limits make another function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import numpy as np
import onnx
from onnx import helper, numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.proto.walk import subgraphs
from widthfold_onnx.runtime.inputs.cases import MAX_SMALL

COPIES = (1, 1, 10, 10)
"""Units in the last place by which copies are shaken. The first copy always runs, the others while
an output is too far off. Larger steps find sums that are near half a step of a quantizer."""

LINEAR = (
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Einsum"),
    *("GRU", "LSTM", "RNN", "FusedConv", "FusedGemm", "FusedMatMul"),
)
"""Operators whose constant operands move; the names of ONNX and `com.microsoft` differ."""

PASS_THROUGH = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators between a constant and the layer that reads it."""

SHAKEN = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)

Constants = Mapping[str, onnx.TensorProto]

Steps = Callable[[tuple[int, ...]], Array]
"""Draws the steps of all elements of an array of a shape, in units in the last place."""


def steps_of(copy: int, size: int) -> Steps:
    """Draw steps of a size, up or down at random.

    An odd copy moves every number the other way than the copy before it, so that two copies move a
    number up and down.
    """
    generator, step = np.random.default_rng(copy // 2), size if copy % 2 else -size
    return lambda shape: np.where(generator.random(shape) < 0.5, step, -step)


def shaken(array: Array, steps: Steps) -> Array:
    """Return floats moved by their steps; 0, Inf, NaN and other types stay."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        result = array + np.spacing(np.abs(array)) * steps(array.shape).astype(array.dtype)
    return np.asarray(np.where((array == 0) | ~np.isfinite(result), array, result))


def shaken_input(array: Array, steps: Steps) -> Array:
    """Return an input moved by its steps, without the numbers that a model may compare.

    Small inputs stay: they are limits, rates and switches, whose values are drawn from the
    constants that they are compared with. Whole numbers stay: they are masks, labels and counts.
    Where one unit in the last place turns a comparison, a copy would be another function.
    """
    if array.dtype.kind != "f" or array.size <= MAX_SMALL:
        return array
    return np.where(array == np.rint(array), array, shaken(array, steps))


def shake(model: onnx.ModelProto, steps: Steps) -> onnx.ModelProto:
    """Move the weights of all linear layers of a model, in place.

    A weight that is stored as integers moves behind its DequantizeLinear, by a Mul node.
    """
    _shake(model.graph, {}, steps, (f"widthfold/shaken/{i}" for i in count()))
    return model


def _shake(graph: onnx.GraphProto, outside: Constants, steps: Steps, names: Iterator[str]) -> None:
    makers = {name: node for node in graph.node for name in node.output}
    constants = {**outside, **{tensor.name: tensor for tensor in graph.initializer}}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    weights: dict[str, onnx.TensorProto] = {}
    for node in list(graph.node):
        for _, inner in subgraphs(node.attribute):
            _shake(inner, constants, steps, names)
        for place, name in enumerate(node.input if node.op_type in LINEAR else ()):
            reader, maker = node, makers.get(name)
            while maker is not None and maker.op_type in PASS_THROUGH:
                reader, place, name = maker, 0, maker.input[0]
                maker = makers.get(name)
            if maker is not None and maker.op_type == "DequantizeLinear":
                weight, scale = (constants.get(operand) for operand in maker.input[:2])
                if weight is not None and scale is not None and scale.data_type in SHAKEN:
                    units = np.ones(tuple(weight.dims), numpy_helper.to_array(scale).dtype)
                    factors, product = next(names), next(names)
                    value = numpy_helper.from_array(shaken(units, steps))
                    graph.node.append(helper.make_node("Constant", [], [factors], value=value))
                    graph.node.append(helper.make_node("Mul", [name, factors], [product]))
                    reader.input[place] = product
            elif name in constants and constants[name].data_type in SHAKEN:
                weights[name] = constants[name]
    for tensor in weights.values():
        array = shaken(numpy_helper.to_array(tensor), steps)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
