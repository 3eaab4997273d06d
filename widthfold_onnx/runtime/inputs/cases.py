"""Find control inputs, which choose between parts of a model, and values that choose each part.

Control inputs are rates, modes or thresholds. A random rate would reach a branch that nobody uses,
so values are taken from the constants that the graph compares the input with: where a model tests
`sr == 16000`, they are 16000 and 8000.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

import numpy as np
import onnx
from onnx import numpy_helper

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.proto.constant_folding import literal
from widthfold_onnx.model.proto.dims import dims_of
from widthfold_onnx.model.proto.functions import without_functions
from widthfold_onnx.model.proto.indices import index_limits
from widthfold_onnx.model.proto.tensors import is_external
from widthfold_onnx.model.proto.walk import required_inputs, subgraphs
from widthfold_onnx.model.shapes.weights import extents_by_weights
from widthfold_onnx.options import RuntimeOptions, Values
from widthfold_onnx.runtime.session import Port
from widthfold_onnx.text import printable, value_text

R = TypeVar("R", bound=RuntimeOptions)

MAX_SMALL = 4
"""Most elements of an input that may be a control input."""

MAX_CASES = 8
"""Most combinations of all values; if there are more, each value is in just one combination."""

MAX_CONSTANT = 4096
"""Most elements of a constant that is read."""

_DTYPES = "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT16 FLOAT DOUBLE"
NUMERIC = frozenset(map(onnx.TensorProto.DataType.Value, _DTYPES.split()))
"""Element types of numbers of which random inputs are made."""

SAME = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that return the elements of their first operand."""

ORDERED = {"Less": (-1, 0), "LessOrEqual": (0, 1), "Greater": (1, 0), "GreaterOrEqual": (0, -1)}
"""Comparison -> steps from the constant to a left operand for which it holds, and to one for which
it fails: x < 5 holds one step below 5, and fails at 5."""

MIRRORED = {
    "Less": "Greater",
    "LessOrEqual": "GreaterOrEqual",
    "Greater": "Less",
    "GreaterOrEqual": "LessOrEqual",
}


def cases(model: onnx.ModelProto, chosen: Values) -> tuple[Values, ...]:
    """Return combinations of values of the control inputs of a model.

    Returns:
        At least one combination. In the first, with which models are timed, the first comparison of
        each input holds.

    Raises:
        UsageError: a chosen value for an input that does not exist or cannot hold it.
    """
    ports = {value.name: value for value in required_inputs(model)}
    for name, elements in chosen.items():
        if name not in ports:
            names = ", ".join(map(printable, ports)) or "none"
            reason = f"which is no input; there are: {names}"
            raise UsageError(f"--value names {printable(name)}, {reason}")
        _check(ports[name], elements)
    small = {name for name, value in ports.items() if _is_small(value)}
    choices: dict[str, list[tuple[float, ...]]] = {name: [value] for name, value in chosen.items()}
    if small - chosen.keys():
        reader = _Reader(small)
        reader.read(without_functions(model).graph)
        choices |= {n: reader.values(n) for n in sorted(reader.compared) if n not in chosen}
    if math.prod(map(len, choices.values())) <= MAX_CASES:
        combinations = product(*choices.values())
        return tuple(dict(zip(choices, values, strict=True)) for values in combinations)
    count = max(map(len, choices.values()))
    return tuple({n: v[k % len(v)] for n, v in choices.items()} for k in range(count))


def for_model(options: R, model: onnx.ModelProto) -> R:
    """Return the options with the cases, index limits and extents that follow from a graph.

    Raises:
        UsageError: as `cases`.
    """
    return replace(
        options,
        cases=cases(model, options.values),
        index_limits=index_limits(model),
        weight_extents=extents_by_weights(model),
    )


def _check(value: onnx.ValueInfoProto, elements: tuple[float, ...]) -> None:
    """Check that an input can hold a value.

    Raises:
        UsageError: it cannot.
    """
    size, kind = _size(value), value.type.tensor_type.elem_type
    label = f"--value gives {printable(value.name)}"
    if kind not in NUMERIC:
        raise UsageError(f"{label} a number; it is not numeric")
    if not elements or not all(map(math.isfinite, elements)):
        raise UsageError(f"{label} no finite number")
    if len(elements) > 1 and size is not None and size != len(elements):
        raise UsageError(f"{label} {len(elements)} elements; it has {size}")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    for element in elements:
        with np.errstate(all="ignore"):
            stored = np.array(element).astype(dtype)
        if dtype.kind in "iub" and float(stored) != element:
            raise UsageError(f"{label} {element:g}; it holds {dtype.name}")


def _size(value: onnx.ValueInfoProto) -> int | None:
    """Return the number of elements of an input; None if its shape is open."""
    dims = dims_of(value)
    if dims is None or None in dims:
        return None
    return math.prod(dim for dim in dims if dim is not None)


def _is_small(value: onnx.ValueInfoProto) -> bool:
    size = _size(value)
    return size is not None and size <= MAX_SMALL and value.type.tensor_type.elem_type in NUMERIC


class _Reader:
    """Reads what the nodes of a graph do with small inputs.

    Attributes:
        compared: by input: values for which comparisons hold, and values for which they fail.
    """

    def __init__(self, small: set[str]) -> None:
        self.compared: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        self._inputs = {name: name for name in small}
        self._constants: dict[str, Array] = {}
        self._extents: dict[str, tuple[int, ...]] = {}

    def values(self, name: str) -> list[tuple[float, ...]]:
        """Return values of an input; each one fills all elements of the input."""
        holding, failing = self.compared[name]
        return [(value,) for value in list(dict.fromkeys(holding + failing))[:MAX_CASES]]

    def read(self, graph: onnx.GraphProto) -> None:
        """Read a graph, and all graphs in it."""
        for tensor in graph.initializer:
            self._keep(tensor.name, tensor)
        for node in graph.node:
            if node.op_type == "Constant" and (constant := literal(node)) is not None:
                self._keep(node.output[0], constant)
            self._read_node(node)
            for _, body in subgraphs(node.attribute):
                self.read(body)

    def _keep(self, name: str, constant: object) -> None:
        if isinstance(constant, onnx.TensorProto):
            self._extents[name] = tuple(constant.dims)
            is_text = constant.data_type == onnx.TensorProto.STRING
            if is_text or is_external(constant) or math.prod(constant.dims) > MAX_CONSTANT:
                return
            constant = numpy_helper.to_array(constant)
        if isinstance(constant, np.ndarray) and constant.size and constant.dtype.kind in "fiub":
            self._constants[name] = constant

    def _read_node(self, node: onnx.NodeProto) -> None:
        operands = [self._inputs.get(name) for name in node.input]
        constants = [self._constants.get(name) for name in node.input]
        if node.op_type in SAME and operands and operands[0] is not None:
            self._inputs[node.output[0]] = operands[0]
        elif node.op_type in SAME and constants and constants[0] is not None:
            self._constants[node.output[0]] = constants[0]
        elif node.op_type == "If" and operands[0] is not None:
            self._add(operands[0], [1.0], [0.0])
        elif node.op_type == "Gather" and operands[1] is not None:
            self._gathered(operands[1], node)
        elif node.op_type == "Equal" or node.op_type in ORDERED:
            (first, second), (bound, other_bound), op = operands, constants, node.op_type
            if first is not None and other_bound is not None:
                self._compared(first, op, other_bound)
            if second is not None and bound is not None:
                self._compared(second, MIRRORED.get(op, op), bound)

    def _compared(self, name: str, op: str, constant: Array) -> None:
        """Add values of an input that is the left operand of a comparison with a constant."""
        elements = [float(element) for element in np.unique(constant) if np.isfinite(element)]
        if not elements:
            return
        if op == "Equal":
            first = float(constant.flat[0])
            least = min(map(abs, elements))
            failing_value = float(least // 2) if least >= 2 else max(elements) + 1
            self._add(name, [first, *(e for e in elements if e != first)], [failing_value])
            return
        holds, fails = ORDERED[op]
        above = op.startswith("Greater")
        holding = elements[-1] if above else elements[0]
        step = abs(holding) / 2 or 1.0
        if constant.dtype.kind != "f":
            step = float(math.ceil(step))
        # Compared with many elements, the result is a mask; failing everywhere, it would hide all
        # data.
        failing = [holding + fails * step] if len(elements) == 1 else []
        self._add(name, [holding + holds * step], failing)

    def _gathered(self, name: str, node: onnx.NodeProto) -> None:
        extents = self._extents.get(node.input[0])
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if extents and -len(extents) <= axis < len(extents) and extents[axis]:
            last = extents[axis] - 1
            self._add(name, [float(i) for i in sorted({*range(min(last, 2) + 1), last})], [])

    def _add(self, name: str, holding: list[float], failing: list[float]) -> None:
        holds, fails = self.compared[name]
        holds.extend(holding)
        fails.extend(failing)


def values_for_report(combinations: Sequence[Values]) -> list[dict[str, list[float]]]:
    """Return combinations of values for a report."""
    return [{name: list(elements) for name, elements in values.items()} for values in combinations]


def shown_values(ports: Iterable[Port]) -> str:
    """Return the values of inputs that have one as text."""
    return ", ".join(value_text(port.name, port.value) for port in ports if port.value)
