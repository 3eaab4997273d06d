"""Computes values in float64, by onnx's reference implementation.

`doubt_of` decides by them whether elements that differ show that two models differ. Parity takes
them for the truth.

The reference implementation lacks or misreads some operators in some versions, which are defined
here. Of onnx 1.23.2: BatchNormalization of opset 9 to 13 uses the statistics of the batch, as in
training; Conv and MaxPool take seconds where numpy takes milliseconds; ConvTranspose fails with
groups; Softmax of opset 12 and before equals Softmax of 13; DequantizeLinear is not there before
opset 19; STFT takes no signal without a last axis, which the runtime does; Loop does not iterate if
it has no condition, and concatenates scan outputs instead of stacking them. Each of ours works in
float64 and for every opset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from widthfold_onnx.arrays import Array
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.proof.evaluate import Evaluation
from widthfold_onnx.evidence.proof.field import key_of
from widthfold_onnx.evidence.proof.geometry import conv, conv_transpose, spread, windows
from widthfold_onnx.evidence.proof.operators import RANDOM, operator
from widthfold_onnx.evidence.proof.program import Program, variables_of
from widthfold_onnx.evidence.proof.values import FLOATS, Opaque, Shape
from widthfold_onnx.model.proto.scope import NameScope, graph_scope
from widthfold_onnx.model.proto.walk import all_tensors, model_nodes, retain
from widthfold_onnx.model.shapes.table import ShapeTable

DIGITS = {kind: 2.0**-bits for kind, bits in zip(FLOATS, (10, 7, 23, 52), strict=True)}
"""Distance from 1 to the next float of a type."""

UNITS = 64
"""Constants that are rounded move no result by more of these distances, by the largest result."""

SPREAD = 6
"""Numbers are drawn with magnitudes from 2^-SPREAD to 2^SPREAD, below and above usual limits."""

SAME = 2.0**-40
"""Rounding in float64 moves no result further, by the largest; one unit in the last place of one
float32 weight does."""


Operators = Counter[tuple[str, int]]
"""Operators by name and the version since which they are unchanged."""


def doubt_of(target: str, before: Evaluation, after: Evaluation) -> str:
    """Say why elements that differ do not show that a value differs in two models.

    Models that apply the same functions return different values if elements differ. If one
    applies others, both may compute the same by a law that the proof does not know; and constants
    that one multiplies may be rounded in the other. Then values in float64 decide.

    Args:
        target: a value that both compute.
        before: the original, evaluated up to this value alone.
        after: the new model, likewise.

    Returns:
        The reason; "" where the models differ.
    """
    runs, table = (before, after), before.table
    variables = {**before.shapes, **before.variables}
    values = [run.values[target] for run in runs]
    is_opaque = any(isinstance(value, Opaque) for value in values)
    gone, added = _exchanged(before.functions, after.functions)
    merged, _ = _exchanged(*(_operators(run.program, target, variables) for run in runs))
    is_merged = bool(merged) and values[0].constants > values[1].constants
    chooses = any(name == "If" for name, _ in before.functions)  # numbers reach one branch only
    if not is_opaque and (chooses or not (gone or added or is_merged)):
        return ""
    numbers = [_numbers(run.program, target, variables, table) for run in runs]
    if numbers[0] is None or numbers[1] is None:
        foreign = [name for name in added if "." in name]  # of a domain that is not onnx's own
        if foreign:
            return f"what {', '.join(foreign)} computes is not known"
        return "its extents are not known" if is_opaque else ""
    if numbers[0].shape != numbers[1].shape:
        return ""
    others = tuple(axis for axis in range(numbers[0].ndim) if axis != 1)  # each channel by itself
    largest = np.abs(numbers[0]).max(others, initial=0)
    distance = np.abs(numbers[0] - numbers[1]).max(others, initial=0)
    digits = DIGITS.get(table.element("", target), DIGITS[FLOATS[2]])
    if (gone or added or is_opaque) and (distance <= SAME * largest).all():
        return f"the numbers agree{_said(gone, added)}"
    if is_merged and (distance <= UNITS * digits * largest).all():
        return f"the new model has rounded what {', '.join(merged)} make of constants"
    return ""


def _exchanged(before: Operators, after: Operators) -> tuple[list[str], list[str]]:
    """Name the operators that only one of two models applies, or that it applies more often."""
    gone, added = before - after, after - before
    changed = {name for name, _ in gone} & {name for name, _ in added}
    old, new = (
        sorted({f"{name}-{version}" if name in changed else name for name, version in some})
        for some in (gone, added)
    )
    return old, new


def _operators(program: Program, target: str, variables: Mapping[str, Shape]) -> Operators:
    nodes = [program.scope.nodes[i] for i in program.scope.behind([target], variables)]
    return Counter((operator(node), program.version(node)) for node in nodes)


def _said(gone: list[str], added: list[str]) -> str:
    old, new = ", ".join(gone), ", ".join(added)
    if old and new:
        return f", but the original applies {old}, the new model {new}"
    if old or new:
        return f", but only the {'original' if old else 'new model'} applies {old or new}"
    return ", but its extents are not known"


def _numbers(
    program: Program, target: str, variables: Mapping[str, Shape], table: ShapeTable
) -> Array | None:
    """Compute a value in float64; None where the reference implementation cannot."""
    scope = program.scope
    indices = scope.behind([target], variables)
    read = {target, *(name for i in indices for name in scope.reads[i])}
    names = variables_of(program, target, variables)
    stored = {name: program.stored(name) for name in read - names}
    constants = [numpy_helper.from_array(a, n) for n, a in stored.items() if a is not None]
    inputs = [helper.make_tensor_value_info(name, FLOATS[3], None) for name in sorted(names)]
    outputs = [helper.make_tensor_value_info(target, FLOATS[3], None)]
    nodes = [program.scope.nodes[i] for i in indices]
    segment = helper.make_graph(nodes, "segment", inputs, outputs, constants)
    model = helper.make_model(segment, opset_imports=program.proto.opset_import)
    _seed(model)
    feeds = {name: _drawn(name, variables[name], table.element("", name)) for name in names}
    try:
        with np.errstate(all="ignore"):
            (result,) = evaluator(model).run(None, feeds)
    except Exception:
        # It raises a different error for every operator that it does not know or cannot compute.
        return None
    return np.asarray(result, np.float64)


def _seed(model: onnx.ModelProto) -> None:
    """Let each random node draw the same numbers in both models and in every process.

    Two nodes draw different numbers; a seed is small enough for float32, which stores it.
    """
    for node in model_nodes(model):
        if node.op_type in RANDOM:
            retain(node.attribute, lambda attribute: attribute.name != "seed")
            node.attribute.extend([helper.make_attribute("seed", key_of(*node.output) % 2**24)])


def _drawn(name: str, shape: Shape, kind: int) -> Array:
    rng = np.random.default_rng(key_of("numbers", name))
    numbers = rng.standard_normal(shape) * 2.0 ** rng.integers(-SPREAD, SPREAD, shape)
    if kind in (*FLOATS, onnx.TensorProto.UNDEFINED):
        return numbers
    return np.floor(np.abs(numbers)).astype(helper.tensor_dtype_to_np_dtype(kind))


SOFTMAX_OF_ONE_AXIS = 13
"""Operator set since which Softmax is one of an axis, not of all from it on."""


class _Op(OpRun):
    op_domain = ""


class Conv(_Op):
    """Conv in float64."""

    place, compute = staticmethod(windows), staticmethod(conv)

    def _run(self, x: Array, w: Array, b: Array | None = None, **attributes: Any) -> tuple[Array]:
        at = self.place(attributes, w.shape[2:], x.shape[2:])
        y = self.compute(x, w, attributes["group"], at, None)
        return (y if b is None else np.asarray(y + b.reshape(-1, *[1] * (y.ndim - 2))),)


class ConvTranspose(Conv):
    """ConvTranspose in float64."""

    place, compute = staticmethod(spread), staticmethod(conv_transpose)


class MaxPool(_Op):
    """MaxPool without the places of its results."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if len(self.onnx_node.output) > 1:
            raise UnverifiedError("the places that MaxPool returns are not computed in float64")
        at = windows(attributes, attributes["kernel_shape"], x.shape[2:])
        padded = at.padded(x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min)
        return (reduce(np.maximum, (padded[:, :, *at.tap(t)] for t in np.ndindex(*at.kernel))),)


class Softmax(_Op):
    """Softmax; before opset 13 over all axes from `axis` on (ONNX operator text)."""

    def _run(self, x: Array, **_: object) -> tuple[Array]:
        old = self.run_params["opsets"][self.op_domain] < SOFTMAX_OF_ONE_AXIS
        axes = [entry.i for entry in self.onnx_node.attribute if entry.name == "axis"]
        axis = (axes[0] if axes else 1 if old else -1) % x.ndim
        over = tuple(range(axis, x.ndim)) if old else axis
        powers = np.exp(x - x.max(over, keepdims=True))
        return (powers / powers.sum(over, keepdims=True),)


class LogSoftmax(Softmax):
    """The logarithm of Softmax."""

    def _run(self, x: Array, **attributes: object) -> tuple[Array]:
        (y,) = super()._run(x, **attributes)
        return (np.log(y),)


class BatchNormalization(_Op):
    """BatchNormalization with the statistics that it is given; training is refused."""

    def _run(
        self, x: Array, *parts: Array, epsilon: float = 1e-5, **attributes: Any
    ) -> tuple[Array]:
        if attributes.get("training_mode") or len(self.onnx_node.output) > 1:
            raise UnverifiedError("BatchNormalization in training mode is not computed in float64")
        along = (-1, *[1] * (x.ndim - 2))
        scale, bias, mean, variance = (part.reshape(along) for part in parts)
        return (scale * (x - mean) / np.sqrt(variance + epsilon) + bias,)


class DequantizeLinear(_Op):
    """DequantizeLinear of a tensor or along one axis, in float64."""

    def _run(
        self, x: Array, scale: Array, zero_point: Array | None = None, **attributes: Any
    ) -> tuple[Array]:
        if attributes.get("block_size"):
            raise UnverifiedError("DequantizeLinear in blocks is not computed in float64")
        along = [1] * x.ndim
        if scale.size > 1:
            axis = attributes.get("axis")
            along[1 if axis is None else axis] = -1
        zero = 0.0 if zero_point is None else zero_point.astype(np.float64).reshape(along)
        return ((x.astype(np.float64) - zero) * scale.astype(np.float64).reshape(along),)


class STFT(_Op):
    """STFT of a real signal [batch, length] or [batch, length, 1], or of a complex one."""

    def _run(
        self,
        signal: Array,
        frame_step: Array,
        window: Array | None = None,
        frame_length: Array | None = None,
        onesided: int = 1,
    ) -> tuple[Array]:
        if signal.ndim == 3:
            signal = signal @ [1, 1j][: signal.shape[2]]
        count = signal.shape[1] if frame_length is None else int(frame_length)
        if frame_length is None and window is not None:
            count = len(window)
        frames = np.lib.stride_tricks.sliding_window_view(signal, count, 1)[:, :: int(frame_step)]
        frames = frames if window is None else frames * window
        result = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
        return (np.stack([result.real, result.imag], axis=-1),)


class Loop(_Op):
    """Loop; a trip count or condition that is left out ends nothing (ONNX operator text)."""

    def need_context(self) -> bool:
        """Return True: the body may read what the graphs around it hold."""
        return True

    def _run(
        self,
        most: Array | None,
        more: Any,
        *states: Any,
        body: ReferenceEvaluator,
        context: Mapping[str, Any],
        attributes: dict[str, Any] | None = None,
        **_: object,
    ) -> tuple[Any, ...]:
        scanned: list[Sequence[Any]] = []
        carried = len(states)
        while (most is None or len(scanned) < most) and (more is None or more):
            arguments = (np.array(len(scanned)), np.array(True), *states)
            inputs = {**context, **dict(zip(body.input_names, arguments, strict=True))}
            more, *results = body.run(None, inputs, attributes=attributes)
            states = tuple(results[:carried])
            scanned.append(results[carried:])
        if not scanned and len(self.onnx_node.output) > carried:
            raise UnverifiedError("what a Loop without any turn stacks is not computed in float64")
        return (*states, *(np.stack(rows) for rows in zip(*scanned, strict=True)))


OPS = (
    *(Conv, ConvTranspose, MaxPool, Softmax, LogSoftmax, BatchNormalization, DequantizeLinear),
    *(STFT, Loop),
)


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Return what evaluates a model that holds its own data in float64; changes the model."""
    widen(model)
    _order(graph_scope(model.graph))
    return ReferenceEvaluator(model, new_ops=list(OPS))


def _order(scope: NameScope) -> None:
    """Put the nodes into an order that can run, in every graph of a scope."""
    for scopes in scope.inner.values():
        for _, inside in scopes:
            _order(inside)
    if scope.graph is not None and list(map(id, scope.graph.node)) != list(map(id, scope.nodes)):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in scope.nodes]
        del scope.graph.node[:]
        scope.graph.node.extend(nodes)


def widen(model: onnx.ModelProto) -> None:
    """Turn every float of a model that holds its own data into float64."""
    for tensor in all_tensors(model):
        if tensor.data_type in FLOATS[:3]:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in model_nodes(model):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in FLOATS[:3]:
                attribute.i = TensorProto.DOUBLE
            elif node.op_type == "Constant" and attribute.name.startswith("value_float"):
                single = attribute.name == "value_float"
                values = np.array(attribute.f if single else attribute.floats, np.float64)
                wide = numpy_helper.from_array(values)
                attribute.CopyFrom(helper.make_attribute("value", wide))
