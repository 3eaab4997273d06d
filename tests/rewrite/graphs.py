"""Random graphs of Convs and what lies between them, on integers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Builder:
    """A graph that grows node by node; weights and constants are small integers.

    Every value is a name; `channels` knows how many channels it has.
    """

    shape: list[int | str]
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.channels["x"] = int(self.shape[1])

    def op(self, op: str, *inputs: str | np.ndarray, channels: int = 0, **attributes) -> str:
        """Append a node; arrays become initializers. Returns its output."""
        count = len(self.nodes)
        names = []
        for i, value in enumerate(inputs):
            if isinstance(value, np.ndarray):
                self.constants[f"k{count}_{i}"] = value
            names.append(f"k{count}_{i}" if isinstance(value, np.ndarray) else value)
        self.nodes.append(
            helper.make_node(op, names, [f"v{count}"], f"{op}{count}".lower(), **attributes)
        )
        self.channels[f"v{count}"] = channels or self.channels[names[0]]
        return f"v{count}"

    def integers(self, *shape: int) -> np.ndarray:
        """Integers from -2 to 2, never all zero."""
        return self.rng.integers(-2, 3, shape).astype(np.float32)

    def conv(self, value: str, out: int, kernel: list[int], group: int = 1, **attributes) -> str:
        """A Conv that keeps the spatial extents where `attributes` do not say otherwise."""
        pads = [k // 2 for k in kernel] + [(k - 1) // 2 for k in kernel]
        weight = self.integers(out, self.channels[value] // group, *kernel)
        attributes = {"pads": pads, "group": group, **attributes}
        return self.op("Conv", value, weight, self.integers(out), channels=out, **attributes)

    def model(self, outputs: list[str], opset: int = 17) -> onnx.ModelProto:
        rank = len(self.shape)
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(o, TensorProto.FLOAT, [None] * rank) for o in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        ids = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=ids, ir_version=8)


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def folded_ops(model: onnx.ModelProto) -> list[str]:
    """Name the operators that run folded: of a guard, the nodes of its folded branch."""
    return [
        op
        for node in model.graph.node
        for op in (
            [n.op_type for a in node.attribute if a.name == "then_branch" for n in a.g.node]
            if any(entry.key == "widthfold.guard" and entry.value for entry in node.metadata_props)
            else [node.op_type]
        )
    ]
