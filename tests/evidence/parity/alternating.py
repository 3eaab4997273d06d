"""Quantized Convs whose weights have two signs in turn, and how they are verified."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.options import DeliveryOptions, Provider

FURTHER = "further from the definition than the original: output y"
VALUES = DeliveryOptions(provider=Provider.CPU)


def alternating(weight: list[int]) -> onnx.ModelProto:
    """A QLinearConv of one channel; the runtime adds the products of taps 0 and 1, and of 2 and 3.

    Where the weights of such a pair have two signs, no data makes their sum leave 16 bits.
    """
    constants = {
        "one": np.float32(1),
        "zero": np.uint8(0),
        "w": np.array(weight, np.int8).reshape(1, 1, 4),
        "wz": np.int8(0),
        "ys": np.float32(600),
        "yz": np.uint8(128),
    }
    inputs = ["x", "one", "zero", "w", "one", "wz", "ys", "yz"]
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", inputs, ["y"], "conv")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 1, 67))],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, (1, 1, 64))],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def alternating_floats() -> onnx.ModelProto:
    """The same between dequantizers; normal data come to 13 + 5 / 0.05, and saturate nothing."""
    model = alternating([-127, 127, 127, -127])
    graph, node = model.graph, helper.make_node
    tensors = {"xs": np.float32(0.05), "xz": np.uint8(13)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in tensors.items())
    del graph.node[:]
    graph.node.extend(
        [
            node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
            node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
            node("DequantizeLinear", ["w", "one", "wz"], ["v"]),
            node("Conv", ["d", "v"], ["c"], "conv"),
            node("QuantizeLinear", ["c", "ys", "yz"], ["y"]),
        ]
    )
    graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    next(t for t in graph.initializer if t.name == "ys").float_data[:] = []
    next(t for t in graph.initializer if t.name == "ys").raw_data = np.float32(30).tobytes()
    return model
