"""Plants one fault in a folded model, at every place that has room for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Planted = Iterator[tuple[str, onnx.ModelProto]]

SIBLINGS = {
    "Add": "Sub", "And": "Or", "AveragePool": "MaxPool", "Clip": "Relu", "Elu": "Celu",
    "MaxPool": "AveragePool", "Min": "Max", "Mul": "Add", "Neg": "Abs", "PRelu": "Mul",
    "Relu": "Abs", "Sigmoid": "Tanh", "Sub": "Add", "Tanh": "Sigmoid",
}  # fmt: skip
"""Another operator that takes the same inputs."""


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all graphs in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def altered(
    model: onnx.ModelProto, change: Callable[[onnx.GraphProto, int], object], at: tuple[int, int]
) -> onnx.ModelProto:
    """Copy a model and change it at a graph and a place in it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    change(list(graphs(copy.graph))[at[0]], at[1])
    return copy


def constants(model: onnx.ModelProto, rng: Rng) -> Planted:
    """Faults in numbers: weights, biases, scales, zero points, extents, pads, places."""
    for g, graph in enumerate(graphs(model.graph)):
        for i, tensor in enumerate(graph.initializer):
            array = numpy_helper.to_array(tensor)
            for what, wrong in numbers(array, rng):
                if wrong.tobytes() == array.tobytes() and wrong.shape == array.shape:
                    continue

                def put(graph: onnx.GraphProto, i: int, wrong: Array = wrong) -> None:
                    tensor = numpy_helper.from_array(wrong, graph.initializer[i].name)
                    graph.initializer[i].CopyFrom(tensor)

                yield f"{tensor.name} {what}", altered(model, put, (g, i))


def numbers(array: Array, rng: Rng) -> Iterator[tuple[str, Array]]:
    """Arrays that are wrong in one thing."""
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        for what, places, value in (
            ("one unit in the last place", np.flatnonzero(flat), lambda v: np.nextafter(v, v + 1)),
            ("structural zero filled", np.flatnonzero(flat == 0), lambda v: np.float32(1e-8)),
            ("sign", np.flatnonzero(flat), lambda v: -v),
        ):
            if places.size:
                wrong = flat.copy()
                place = rng.choice(places)
                wrong[place] = value(wrong[place].astype(array.dtype))
                yield what, wrong.reshape(array.shape)
    else:
        steps = (1, -1) if array.size else ()
        for step in steps:
            wrong = flat.copy()
            place = rng.integers(flat.size)
            wrong[place] = int(wrong[place]) + step
            yield f"{step:+} somewhere", wrong.reshape(array.shape)
        for place in np.flatnonzero(flat <= 0) if array.dtype == np.int64 else ():
            for value in (1, 2, -1):
                wrong = flat.copy()
                wrong[place] = value
                yield f"{value} for {flat[place]} at {place}", wrong.reshape(array.shape)
        if array.dtype == np.int64 and flat.size > 1:  # as many elements, other extents
            a, b = rng.choice(flat.size, 2, replace=False)
            if flat[a] > 0 and flat[a] % 2 == 0 and flat[b] > 0:
                wrong = flat.copy()
                wrong[a], wrong[b] = flat[a] // 2, flat[b] * 2
                yield f"half of {a} to {b}", wrong.reshape(array.shape)
    for axis, extent in enumerate(array.shape):
        if extent > 1:
            first, second = rng.choice(extent, 2, replace=False)
            order = np.arange(extent)
            order[[first, second]] = second, first
            yield f"{first} and {second} of axis {axis} exchanged", np.take(array, order, axis)
            yield f"axis {axis} flipped", np.flip(array, axis).copy()
            yield f"axis {axis} rolled", np.roll(array, 1, axis)


def nodes(model: onnx.ModelProto, rng: Rng) -> Planted:
    """Faults in nodes: attributes, operands, operators, values that are read."""
    for g, graph in enumerate(graphs(model.graph)):
        before: list[str] = [value.name for value in graph.input]
        for i, node in enumerate(graph.node):
            changes = [*of_attributes(node), *of_operands(node, before, rng)]
            before += node.output
            for what, change in changes:

                def put(
                    graph: onnx.GraphProto, i: int, change: Callable[..., object] = change
                ) -> None:
                    change(graph.node[i])

                yield f"{node.op_type} {node.output[0]} {what}", altered(model, put, (g, i))


Change = tuple[str, Callable[[onnx.NodeProto], object]]


def of_attributes(node: onnx.NodeProto) -> Iterator[Change]:
    """One attribute dropped, or one number of it changed, or its numbers in another order."""
    for a, attribute in enumerate(node.attribute):
        if attribute.type == AttributeProto.GRAPH:
            others = [b for b in range(a) if node.attribute[b].type == AttributeProto.GRAPH]
            for b in others:
                yield "branches exchanged", lambda n, a=a, b=b: exchange(n, a, b)
            continue
        yield f"{attribute.name} dropped", lambda n, a=a: n.attribute.__delitem__(a)
        value = helper.get_attribute_value(attribute)
        wrong: list[object] = []
        if isinstance(value, int):
            wrong = [value + 1, value - 1]
        elif isinstance(value, float):
            wrong = [float(np.nextafter(np.float32(value), np.float32(9))), -value]
        elif isinstance(value, list) and value and isinstance(value[0], int):
            wrong = [value[::-1], value[1:] + value[:1], [value[0] + 1, *value[1:]],
                     [*value[:-1], value[-1] + 1]]  # fmt: skip
        for other in wrong:
            if other != value:
                yield (
                    f"{attribute.name} {other}",
                    lambda n, a=a, other=other: n.attribute[a].CopyFrom(
                        helper.make_attribute(n.attribute[a].name, other)
                    ),
                )


def exchange(node: onnx.NodeProto, first: int, second: int) -> None:
    """Exchange two graphs of a node."""
    copy = onnx.GraphProto()
    copy.CopyFrom(node.attribute[first].g)
    node.attribute[first].g.CopyFrom(node.attribute[second].g)
    node.attribute[second].g.CopyFrom(copy)


def of_operands(node: onnx.NodeProto, before: list[str], rng: Rng) -> Iterator[Change]:
    """Operands exchanged or left out, another value read, another operator."""
    count = len(node.input)
    for i in range(count):
        for j in range(i + 1, count):
            yield f"operands {i} and {j} exchanged", lambda n, i=i, j=j: swap(n, i, j)
        if i == count - 1 and count > 1:
            yield "last operand left out", lambda n: n.input.pop()
        if before:
            other = str(rng.choice(before))
            yield f"operand {i} is {other}", lambda n, i=i, other=other: read(n, i, other)
    if node.op_type in SIBLINGS:
        sibling = SIBLINGS[node.op_type]
        yield f"is {sibling}", lambda n: setattr(n, "op_type", sibling)
    if count and node.output and node.op_type not in ("If", "Loop", "Shape"):
        yield "left out", passed
    if len(node.output) > 1:
        yield "outputs exchanged", lambda n: swap_outputs(n)


def swap(node: onnx.NodeProto, i: int, j: int) -> None:
    """Exchange two operands."""
    node.input[i], node.input[j] = node.input[j], node.input[i]


def swap_outputs(node: onnx.NodeProto) -> None:
    """Exchange the first two results."""
    node.output[0], node.output[1] = node.output[1], node.output[0]


def read(node: onnx.NodeProto, i: int, name: str) -> None:
    """Read another value."""
    node.input[i] = name


def passed(node: onnx.NodeProto) -> None:
    """Return the first operand."""
    del node.input[1:], node.attribute[:]
    node.op_type = "Identity"


def outputs(model: onnx.ModelProto, rng: Rng) -> Planted:
    """Graphs in nodes that return their values in another order, or the same one twice."""
    for g, graph in enumerate(graphs(model.graph)):
        names = [value.name for value in graph.output]
        for i in range(1, len(names)) if g else ():

            def put(graph: onnx.GraphProto, i: int) -> None:
                name = graph.output[i].name
                graph.output[i].name = graph.output[i - 1].name
                graph.output[i - 1].name = name

            yield f"{graph.name} outputs {i - 1} and {i} exchanged", altered(model, put, (g, i))


def opsets(model: onnx.ModelProto, rng: Rng) -> Planted:
    """The same nodes under another version of the operators.

    onnx's BatchNormalization of old versions is in training (onnx 1.23.2): no judge of these.
    """
    if any(node.op_type == "BatchNormalization" for node in model.graph.node):
        return
    for version in (10, 11, 13, 17):
        if version != model.opset_import[0].version:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            copy.opset_import[0].version = version
            yield f"opset {version}", copy


def planted(model: onnx.ModelProto, seed: int) -> Planted:
    """All faults of a model."""
    rng = np.random.default_rng(seed)
    for kind in (constants, nodes, outputs, opsets):
        yield from kind(model, rng)
