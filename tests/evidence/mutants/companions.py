"""Nets of PRelus and of trimmed Convs as companions write them, and what may go wrong with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tests.evidence.mutants.mutant import Mutant
from tests.folding import exchange_all
from widthfold_onnx.runtime import kernels

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2,3,4,5] x) => (float[2,3,4,5] y)
<float[1] one = {0.3}, float[3,1,1] small = {0.25, 0.6, 1.0}, float[3,1,1] large = {1.5, 1.0, 3.3},
 float[3,1,1] mixed = {-0.7, 0.0, 1.9}>
{ w = Neg (x)  a = PRelu (x, one)  b = PRelu (a, small)  c = PRelu (b, large)  d = PRelu (c, mixed)
  y = Add (d, w) }"""

Fault = Callable[[onnx.GraphProto], None]


def original() -> onnx.ModelProto:
    return parser.parse_model(TEXT)


def right() -> onnx.ModelProto:
    """Return the model with exchanged PRelus, whatever the kernels here make of an Inf."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "prelu_keeps_inf", lambda: True)
        return exchange_all(original(), ["prelu"])[0]


def node(graph: onnx.GraphProto, op_type: str, index: int = 0) -> onnx.NodeProto:
    return [node for node in graph.node if node.op_type == op_type][index]


def numbers(name: str, change: Callable[[np.ndarray], None]) -> Fault:
    def plant(graph: onnx.GraphProto) -> None:
        (tensor,) = (t for t in graph.initializer if t.name == name)
        array = numpy_helper.to_array(tensor).copy()
        change(array)
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return plant


def one_ulp(index: int) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array.flat[index] = np.nextafter(array.flat[index], np.float32(9))

    return change


def put(index: int, number: float) -> Callable[[np.ndarray], None]:
    return lambda array: array.put(index, number)


def swap(array: np.ndarray) -> None:
    array[[0, 1]] = array[[1, 0]]


def operator(op_type: str, other: str, index: int = 0) -> Fault:
    def plant(graph: onnx.GraphProto) -> None:
        node(graph, op_type, index).op_type = other

    return plant


def reads(op_type: str, inputs: tuple[str, ...], index: int = 0) -> Fault:
    def plant(graph: onnx.GraphProto) -> None:
        node(graph, op_type, index).input[:] = inputs

    return plant


def alpha(number: float | None) -> Fault:
    def plant(graph: onnx.GraphProto) -> None:
        del node(graph, "LeakyRelu").attribute[:]
        if number is not None:
            node(graph, "LeakyRelu").attribute.append(helper.make_attribute("alpha", number))

    return plant


MIXED = "d/widthfold/where", "d/widthfold/less"

FAULTS: dict[str, Fault] = {
    "alpha.one_ulp": alpha(float(np.nextafter(np.float32(0.3), np.float32(9)))),
    "alpha.negative": alpha(-float(np.float32(0.3))),
    "alpha.left_out": alpha(None),
    "alpha.of_another_op": operator("LeakyRelu", "Elu"),
    "max.one_ulp": numbers("small", one_ulp(0)),
    "max.above_one": numbers("small", put(1, 1.5)),
    "max.one_ulp_above_one": numbers("small", one_ulp(2)),
    "max.zero": numbers("small", put(2, 0.0)),
    "max.negative": numbers("small", put(1, -0.6)),
    "max.channels_swapped": numbers("small", swap),
    "max.is_min": operator("Max", "Min"),
    "max.of_another_value": reads("Max", ("w", "b/widthfold/mul")),
    "max.of_another_product": reads("Mul", ("w", "small")),
    "max.of_itself": reads("Max", ("a", "a")),
    "max.of_three": reads("Max", ("a", "b/widthfold/mul", "w")),
    "max.adds": operator("Mul", "Add"),
    "min.one_ulp": numbers("large", one_ulp(0)),
    "min.below_one": numbers("large", put(0, 0.5)),
    "min.channels_swapped": numbers("large", swap),
    "min.is_max": operator("Min", "Max"),
    "min.of_the_slopes_of_max": reads("Mul", ("b", "small"), 1),
    "where.one_ulp": numbers("mixed", one_ulp(0)),
    "where.channels_swapped": numbers("mixed", swap),
    "where.turned": reads("Where", (MIXED[1], "widthfold/1.0", "mixed")),
    "where.other_bound": numbers("widthfold/0.0", put(0, 0.5)),
    "where.greater": operator("Less", "Greater"),
    "where.other_data": reads("Less", ("w", "widthfold/0.0")),
    "where.turned_bound": reads("Less", ("widthfold/0.0", "c")),
    "where.not_one": numbers("widthfold/1.0", one_ulp(0)),
    "where.other_product": reads("Mul", ("b", MIXED[0]), 2),
    "where.added": operator("Mul", "Add", 2),
}


TRIMS = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2,3,11] x) => (float[2,4,M] y)
<int64[1] s = {1}, int64[1] e = {-3}, int64[1] a = {2}, int64[6] p = {0,0,2,0,0,1}>
{ c = Conv<pads=[4,5]> (x, v)  r = Relu (c)  d = Slice (r, s, e, a)  q = Pad (d, p)
  f = Conv<pads=[2,2]> (q, w)  t = ConvTranspose<strides=[2]> (f, u)  y = Slice (t, s, e, a) }"""


def pads(op_type: str, numbers: tuple[int, int], index: int = 0) -> Fault:
    def plant(graph: onnx.GraphProto) -> None:
        (attribute,) = (a for a in node(graph, op_type, index).attribute if a.name == "pads")
        assert tuple(attribute.ints) != numbers
        attribute.ints[:] = numbers

    return plant


TRIM_FAULTS: dict[str, Fault] = {
    "begin": pads("Conv", (4, 2)),
    "end": pads("Conv", (3, 3)),
    "moved": pads("Conv", (2, 3)),
    "shifted": pads("Conv", (1, 4)),
    "merged.begin": pads("Conv", (3, 3), 1),
    "merged.not": pads("Conv", (2, 2), 1),
    "transposed.begin": pads("ConvTranspose", (0, 3)),
    "transposed.end": pads("ConvTranspose", (1, 2)),
    "relu.left_out": operator("Relu", "Identity"),
}


def trims() -> onnx.ModelProto:
    model = parser.parse_model(TRIMS)
    for name, shape in (("v", (4, 3, 5)), ("w", (3, 4, 3)), ("u", (3, 4, 7))):
        numbers = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(numbers, name))
    return model


def cropped() -> onnx.ModelProto:
    return exchange_all(trims(), ["crop"])[0]


def mutants() -> Iterator[Mutant]:
    for name, plant in TRIM_FAULTS.items():
        model = cropped()
        plant(model.graph)
        yield Mutant("trims", f"crop.{name}", trims(), model)
    for name, plant in FAULTS.items():
        model = right()
        plant(model.graph)
        yield Mutant("prelus", name, original(), model)
