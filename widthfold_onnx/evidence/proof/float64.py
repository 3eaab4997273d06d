"""Compute values in float64, by onnx's reference implementation.

`proof.doubt` and `parity.truth` need them.

The reference implementation lacks or misreads some operators in some versions, which are defined
here. Of onnx 1.23.2: BatchNormalization of opset 9 to 13 uses the statistics of the batch, as in
training; Conv and MaxPool take seconds where numpy takes milliseconds; ConvTranspose fails with
groups; Softmax of opset 12 and before is computed as Softmax of 13; DequantizeLinear is missing
before opset 19; STFT refuses a signal without a last axis, which the runtime takes; Loop does not
iterate if it has no condition, and concatenates scan outputs instead of stacking them. The
definitions here work in float64 and for every opset.
"""

from __future__ import annotations

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
from widthfold_onnx.evidence.proof.geometry import (
    conv,
    conv_transpose,
    read_transposed_windows,
    read_windows,
)
from widthfold_onnx.evidence.proof.values import FLOATS
from widthfold_onnx.model.proto.scope import NameScope, graph_scope
from widthfold_onnx.model.proto.walk import all_tensors, model_nodes

ONE_AXIS_SOFTMAX_OPSET = 13
"""Operator set since which Softmax acts along one axis; before, on all axes from it on."""


class _Op(OpRun):
    op_domain = ""


class Conv(_Op):
    """Conv in float64."""

    place, compute = staticmethod(read_windows), staticmethod(conv)

    def _run(self, x: Array, w: Array, b: Array | None = None, **attributes: Any) -> tuple[Array]:
        windows = self.place(attributes, w.shape[2:], x.shape[2:])
        y = self.compute(x, w, attributes["group"], windows, None)
        return (y if b is None else np.asarray(y + b.reshape(-1, *[1] * (y.ndim - 2))),)


class ConvTranspose(Conv):
    """ConvTranspose in float64."""

    place, compute = staticmethod(read_transposed_windows), staticmethod(conv_transpose)


class MaxPool(_Op):
    """MaxPool without the indices of its results."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if len(self.onnx_node.output) > 1:
            raise UnverifiedError("the places that MaxPool returns are not computed in float64")
        windows = read_windows(attributes, attributes["kernel_shape"], x.shape[2:])
        data = windows.padded(x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min)
        taps = (data[:, :, *windows.tap(index)] for index in np.ndindex(*windows.kernel))
        return (reduce(np.maximum, taps),)


class Softmax(_Op):
    """Softmax; before opset 13 over all axes from `axis` on (ONNX operator text)."""

    def _run(self, x: Array, **_: object) -> tuple[Array]:
        is_old = self.run_params["opsets"][self.op_domain] < ONE_AXIS_SOFTMAX_OPSET
        default = 1 if is_old else -1
        entries = (entry.i for entry in self.onnx_node.attribute if entry.name == "axis")
        axis = next(entries, default) % x.ndim
        axes = tuple(range(axis, x.ndim)) if is_old else axis
        powers = np.exp(x - x.max(axes, keepdims=True))
        return (powers / powers.sum(axes, keepdims=True),)


class LogSoftmax(Softmax):
    """The logarithm of Softmax."""

    def _run(self, x: Array, **attributes: object) -> tuple[Array]:
        (y,) = super()._run(x, **attributes)
        return (np.log(y),)


class BatchNormalization(_Op):
    """BatchNormalization with the statistics that it reads; training is refused."""

    def _run(
        self, x: Array, *parts: Array, epsilon: float = 1e-5, **attributes: Any
    ) -> tuple[Array]:
        if attributes.get("training_mode") or len(self.onnx_node.output) > 1:
            raise UnverifiedError("BatchNormalization in training mode is not computed in float64")
        shape = (-1, *[1] * (x.ndim - 2))
        scale, bias, mean, variance = (part.reshape(shape) for part in parts)
        return (scale * (x - mean) / np.sqrt(variance + epsilon) + bias,)


class DequantizeLinear(_Op):
    """DequantizeLinear of a tensor or along one axis, in float64."""

    def _run(
        self, x: Array, scale: Array, zero_point: Array | None = None, **attributes: Any
    ) -> tuple[Array]:
        if attributes.get("block_size"):
            raise UnverifiedError("DequantizeLinear in blocks is not computed in float64")
        shape = [1] * x.ndim
        if scale.size > 1:
            axis = attributes.get("axis")
            shape[1 if axis is None else axis] = -1
        zero = 0.0 if zero_point is None else zero_point.astype(np.float64).reshape(shape)
        return ((x.astype(np.float64) - zero) * scale.astype(np.float64).reshape(shape),)


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
    """Loop; it does not end by a trip count or condition that is left out (ONNX operator text)."""

    def need_context(self) -> bool:
        """Return True: the body may read what the graphs around it hold."""
        return True

    def _run(
        self,
        trip_count: Array | None,
        condition: Any,
        *states: Any,
        body: ReferenceEvaluator,
        context: Mapping[str, Any],
        attributes: dict[str, Any] | None = None,
        **_: object,
    ) -> tuple[Any, ...]:
        rows: list[Sequence[Any]] = []
        state_count = len(states)
        while (trip_count is None or len(rows) < trip_count) and (condition is None or condition):
            arguments = (np.array(len(rows)), np.array(True), *states)
            inputs = {**context, **dict(zip(body.input_names, arguments, strict=True))}
            condition, *results = body.run(None, inputs, attributes=attributes)
            states = tuple(results[:state_count])
            rows.append(results[state_count:])
        if not rows and len(self.onnx_node.output) > state_count:
            raise UnverifiedError(
                "stacked outputs of a Loop without turns are not known in float64"
            )
        return (*states, *(np.stack(outputs) for outputs in zip(*rows, strict=True)))


OPS = (
    *(Conv, ConvTranspose, MaxPool, Softmax, LogSoftmax, BatchNormalization, DequantizeLinear),
    *(STFT, Loop),
)


def evaluator(
    model: onnx.ModelProto, kind: type[ReferenceEvaluator] = ReferenceEvaluator
) -> ReferenceEvaluator:
    """Return an evaluator in float64 of a model that holds its own data; changes the model.

    It is of the given kind, as are those of bodies and functions.
    """
    widen(model)
    _order(graph_scope(model.graph))
    return kind(model, new_ops=list(OPS))


def _order(scope: NameScope) -> None:
    """Put the nodes into an order that can run, in every graph of a scope."""
    for scopes in scope.inner.values():
        for _, inner_scope in scopes:
            _order(inner_scope)
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
