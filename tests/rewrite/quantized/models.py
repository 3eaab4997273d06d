"""Models of quantized convolutions beside each other, and how the runtime runs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
from onnx import TensorProto, helper, numpy_helper

from tests.rewrite.quantized.convs import Case
from widthfold_onnx.options import AxisName, FoldOptions

LINE = {
    "shape": (2, 3, 20),
    "weight": (5, 3, 4),
    "attributes": {"pads": [2, 1], "kernel_shape": [4]},
    "pads": (2, 1),
}
FOLD = FoldOptions(factor=4, axis=AxisName.WIDTH)


def optimized(model: onnx.ModelProto, folder: Path) -> list[str]:
    """The operators that the runtime runs."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options)
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def qdq_chain(
    *, shared: bool = False, relu: bool = False, kind: type[np.integer] = np.uint8
) -> onnx.ModelProto:
    """Two QDQ Convs, one behind the other or both on one DequantizeLinear."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xf"]),
    ]
    constants = {"s": np.float32(0.5), "z": kind(31), "big": np.float32(4)}
    # A Relu does nothing above a zero point that is the least integer.
    constants["end"] = kind(np.iinfo(kind).min if relu else 97)
    data, real = "xf", "r" if relu else "c"
    for i, (inputs, outputs) in enumerate([(3, 5), (3 if shared else 5, 2)]):
        constants |= {
            f"w{i}": rng.integers(-64, 64, (outputs, inputs, 3, 3)).astype(np.int8),
            f"ws{i}": (2.0 ** -rng.integers(4, 8, outputs)).astype(np.float32),
            f"wz{i}": np.zeros(outputs, np.int8),
            f"b{i}": rng.integers(-999, 999, outputs).astype(np.int32),
        }
        # The runtime takes no other scale of a bias.
        constants[f"bs{i}"] = constants[f"ws{i}"] * constants["big" if data == "d0" else "s"]
        names = [f"w{i}", f"ws{i}", f"wz{i}"]
        nodes += [
            helper.make_node("DequantizeLinear", names, [f"wf{i}"], axis=0),
            helper.make_node("DequantizeLinear", [f"b{i}", f"bs{i}"], [f"bf{i}"], axis=0),
            helper.make_node(
                "Conv", [data, f"wf{i}", f"bf{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4
            ),
        ]
        if relu:
            nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        nodes += [
            helper.make_node("QuantizeLinear", [f"{real}{i}", "big", "end"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "big", "end"], [f"d{i}"]),
        ]
        data = "xf" if shared else f"d{i}"
    ends = ["d0", "d1"] if shared else ["d1"]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 12))],
        [helper.make_tensor_value_info(end, TensorProto.FLOAT, [None] * 4) for end in ends],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def quantized_first(case: Case) -> onnx.ModelProto:
    """The model of a case with a QuantizeLinear in front, whose bytes a runtime may make unsigned.

    It takes floats that are whole numbers of steps, so the case reads its own integers.
    """
    model = case.model()
    maker = next(n for n in model.graph.node if n.output[0] == "xf")
    front = helper.make_node("QuantizeLinear", ["x", *maker.input[1:]], ["xq"])
    maker.input[0] = "xq"
    model.graph.node.insert(0, front)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def with_moves(model: onnx.ModelProto, chain: Sequence[str]) -> onnx.ModelProto:
    """The same function; its weight w is stored otherwise, dequantized and moved by a chain."""
    graph = model.graph
    maker = next(node for node in graph.node if node.input[0] == "w")
    (tensor,) = (tensor for tensor in graph.initializer if tensor.name == "w")
    array, end = numpy_helper.to_array(tensor), maker.output[0]
    axis = next((a.i for a in maker.attribute if a.name == "axis"), None)
    nodes = []
    for k, op in reversed(list(enumerate(chain))):
        inputs, attributes = [f"moved{k}"], {}
        if op == "Transpose":
            perm = np.roll(np.arange(array.ndim), 1)
            attributes["perm"] = perm.tolist()
            axis = None if axis is None else int(perm[axis])
            array = array.transpose(np.argsort(perm))
        elif op != "Identity":  # an axis of 1 in front goes
            bounds = [0] if op == "Squeeze" else array.shape
            graph.initializer.append(numpy_helper.from_array(np.int64(bounds), f"bounds{k}"))
            inputs.append(f"bounds{k}")
            axis, array = None if axis is None else axis + 1, array[np.newaxis]
        nodes.insert(0, helper.make_node(op, inputs, [f"moved{k + 1}"], **attributes))
    maker.output[0], nodes[-1].output[0] = "moved0", end
    del maker.attribute[:]
    if axis is not None:
        maker.attribute.append(helper.make_attribute("axis", axis))
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), "w"))
    for node in reversed(nodes):
        graph.node.insert(list(graph.node).index(maker) + 1, node)
    return model


def steps(case: Case) -> np.ndarray:
    numbers, x = case.constants(), case.data()
    return (x.astype(np.float32) - numbers["xz"].astype(np.float32)) * numbers["xs"]


def joined(kind: type[np.integer], opset: int, *, is_open: bool = False) -> onnx.ModelProto:
    """Two QDQ Convs, and one of a Concat: that returns anything, for all that is known.

    Args:
        kind: element type of the integers.
        opset: of the model.
        is_open: a fourth Conv is added, of an input whose length is open.
    """
    rng = np.random.default_rng(4)
    constants: dict[str, np.ndarray] = {"s": np.float32(0.125), "z": kind(6)}
    layers = [("d0", 3, 5), ("d1", 5, 2), ("both", 5, 5)] + [("k0", 3, 5)] * is_open
    nodes = []
    for source, name in [("x", "d0"), ("k", "k0")][: 1 + is_open]:
        nodes += [
            helper.make_node("QuantizeLinear", [source, "s", "z"], [f"{source}q"]),
            helper.make_node("DequantizeLinear", [f"{source}q", "s", "z"], [name]),
        ]
    for i, (reads, inputs, outputs) in enumerate(layers, 1):
        constants[f"w{i}"] = rng.integers(-9, 9, (outputs, inputs, 3)).astype(np.int8)
        constants[f"ws{i}"] = np.float32(2.0**-7)
        if reads == "both":
            nodes.append(helper.make_node("Concat", ["d2", "d0"], ["both"], axis=1))
        nodes += [
            helper.make_node("DequantizeLinear", [f"w{i}", f"ws{i}"], [f"wf{i}"]),
            helper.make_node("Conv", [reads, f"wf{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1]),
            helper.make_node("QuantizeLinear", [f"c{i}", "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]),
        ]
    nodes.append(helper.make_node("Add", ["d3", "d4" if is_open else "d1"], ["y"]))
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [
            port("x", TensorProto.FLOAT, (1, 3, 24)),
            *[port("k", TensorProto.FLOAT, (1, 3, "L"))] * is_open,
        ],
        [port("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def rounding(
    seed: int, op: str = "Conv", scales: tuple[float, ...] | None = None
) -> onnx.ModelProto:
    """A QDQ Conv whose scales are no powers of two, so that sums of floats round.

    Args:
        seed: of all random numbers.
        op: Conv or ConvTranspose.
        scales: of data, weight and result, by default random.
    """
    rng = np.random.default_rng(seed)
    constants = {
        "s": np.float32(rng.uniform(0.02, 0.03)),
        "z": np.uint8(100),
        "w": rng.integers(-127, 127, (4, 4, 3, 3)).astype(np.int8),
        "ws": np.float32(rng.uniform(0.002, 0.004)),
        "wz": np.int8(0),
        "ys": np.float32(rng.uniform(0.02, 0.04)),
        "yz": np.uint8(117),
        "b": rng.integers(-999, 999, 4).astype(np.int32),
    }
    if scales is not None:
        constants |= dict(zip(("s", "ws", "ys"), map(np.float32, scales), strict=True))
    constants["bs"] = constants["s"] * constants["ws"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"]),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"]),
        helper.make_node(op, ["xf", "wf", "bf"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 32, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
