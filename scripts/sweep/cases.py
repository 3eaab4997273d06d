"""Models of one node, with inputs on which they run: the node cases of onnx, and our own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

Feed = Mapping[str, NDArray[Any]]

IR_VERSION = 10
"""Of every model: one that ONNX Runtime reads since 1.20."""

MAX_OPSET = 23
"""The last opset of which ONNX Runtime 1.32 has most kernels."""

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Case:
    """A model of one node, and inputs on which it runs.

    Attributes:
        name: of the case, and what was changed before any pair is made of it.
        model: the model.
        feed: numbers by the name of an input.
    """

    name: str
    model: onnx.ModelProto
    feed: Feed

    @property
    def node(self) -> onnx.NodeProto:
        """The node that the case is about."""
        node: onnx.NodeProto = self.model.graph.node[0]
        return node

    @property
    def operator(self) -> str:
        """Domain and type of the node."""
        return f"{self.node.domain or 'ai.onnx'}.{self.node.op_type}"


MAX_ELEMENTS = 1 << 12
"""Of an input: the few cases of onnx with more of them take most of the time, and show no more."""


def with_and_without_constants(found: Iterable[Case]) -> Iterator[Case]:
    """Yield small cases: with all inputs open, and with all but the first one constant."""
    for case in found:
        if max((array.size for array in case.feed.values()), default=0) <= MAX_ELEMENTS:
            yield case
            if len(case.feed) > 1:
                yield with_constants(case)


def node_cases() -> Iterator[Case]:
    """Yield the cases of one node that ship with onnx, once for each node and extents."""
    with warnings.catch_warnings():  # the cases divide by zero, and overflow
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for item in found:
        model = item.model
        if model is None or len(model.graph.node) != 1 or not item.data_sets:
            continue
        arrays = item.data_sets[0][0]
        values = zip(model.graph.input, arrays, strict=False)
        feed = {value.name: _array(array) for value, array in values}
        if any(array is None for array in feed.values()):
            continue  # sequences
        yield Case(item.name, _loadable(model), {k: v for k, v in feed.items() if v is not None})


def _array(value: Any) -> NDArray[Any] | None:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None


def _loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with a version of the format and of the operators that the runtime knows."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.ir_version = IR_VERSION
    for opset in result.opset_import:
        if not opset.domain:
            opset.version = min(opset.version, MAX_OPSET)
    return result


def with_constants(case: Case) -> Case:
    """Return a case in which all inputs but the first one are constants."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    first, *others = model.graph.input
    model.graph.initializer.extend(
        numpy_helper.from_array(case.feed[value.name], value.name) for value in others
    )
    del model.graph.input[1:]
    return Case(f"{case.name}, constants", model, {first.name: case.feed[first.name]})


def own_cases() -> Iterator[Case]:
    """Yield cases of operators that the runtime adds, and of those that onnx has none of."""
    draw = np.random.default_rng(5)

    def array(content: Any) -> NDArray[Any]:
        if not isinstance(content, tuple):
            return np.asarray(content)
        dtype, *shape = content
        if np.dtype(dtype).kind == "f":
            return np.asarray(draw.normal(size=shape), dtype)
        return draw.integers(0, 100, shape).astype(dtype)

    for name, attributes, contents in OWN_NODES:
        domain, _, op_type = name.rpartition(".")
        arrays = [array(content) for content in contents]
        yield own_case(name, op_type, domain, attributes, arrays)


def own_case(
    name: str,
    op_type: str,
    domain: str,
    attributes: Mapping[str, Any],
    arrays: Sequence[NDArray[Any]],
) -> Case:
    """Return a case of one node with one output of unknown extents."""
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op_type, names, ["y"], domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(
            item, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for item, array in zip(names, arrays, strict=True)
    ]
    output = onnx.ValueInfoProto(name="y")
    graph = helper.make_graph([node], "case", inputs, [output])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return Case(name, model, dict(zip(names, arrays, strict=True)))


F, U, I8, I64 = np.float32, np.uint8, np.int8, np.int64
SCALE, OTHER_SCALE, ZERO, OTHER_ZERO = F(0.03), F(0.05), U(3), U(7)
MS = f"{MICROSOFT}."

OWN_NODES: Sequence[tuple[str, Mapping[str, Any], Sequence[Any]]] = (
    ("OneHot", {"axis": -1}, (np.array([3, 0]), np.int64(3), np.array([0.0, 1.0], F))),
    ("OneHot", {"axis": 1}, (np.array([[1, 0]]), np.int64(4), np.array([2.0, 5.0], F))),
    ("MaxPool", {"kernel_shape": [2], "dilations": [3], "pads": [1, 1]}, ((F, 1, 1, 2),)),
    ("AveragePool", {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}, ((F, 2, 3, 7),)),
    ("LpPool", {"kernel_shape": [2, 2], "p": 2}, ((F, 1, 2, 5, 7),)),
    ("GlobalLpPool", {"p": 2}, ((F, 2, 3, 5),)),
    ("Conv", {"pads": [1, 2], "dilations": [2], "group": 2}, ((F, 2, 4, 11), (F, 6, 2, 3), (F, 6))),
    ("ConvTranspose", {"strides": [2], "pads": [1, 0]}, ((F, 1, 3, 5), (F, 3, 2, 3), (F, 2))),
    ("Gemm", {"alpha": 0.5, "transB": 1}, ((F, 3, 5), (F, 2, 5), (F, 2))),
    ("Abs", {}, (np.array([-7, 3, 0, 100000]),)),
    ("Mod", {}, (np.array([-7, 3, 5]), np.array([3, -2, 4]))),
    ("Clip", {}, (np.array([-7, 3, 2000]), np.int64(-2), np.int64(1000))),
    ("Cast", {"to": onnx.TensorProto.INT8}, (np.array([300, -5, 3]),)),
    ("Cast", {"to": onnx.TensorProto.UINT8}, (np.array([3, 250], np.int32),)),
    ("Cast", {"to": onnx.TensorProto.BOOL}, ((F, 2, 3),)),
    ("ReduceMean", {"axes": [1], "keepdims": 0}, ((F, 2, 3, 5),)),
    ("ReduceMax", {"axes": [-1]}, ((F, 2, 3, 5),)),
    ("Softmax", {"axis": 1}, ((F, 2, 3, 5),)),
    ("LogSoftmax", {"axis": -2}, ((F, 2, 3, 5),)),
    ("Hardmax", {"axis": 1}, ((F, 2, 3, 5),)),
    ("ArgMax", {"axis": 1, "select_last_index": 1}, ((F, 2, 3, 5),)),
    ("Flatten", {"axis": -2}, ((F, 2, 3, 5),)),
    ("Gather", {"axis": -1}, ((F, 2, 3, 5), np.array([[1, -1], [0, 2]]))),
    ("GatherElements", {"axis": 0}, ((F, 2, 3), np.array([[1, 0, 1]]))),
    ("ScatterElements", {"axis": -1}, ((F, 2, 3), np.array([[1], [0]]), (F, 2, 1))),
    ("Concat", {"axis": -1}, ((F, 2, 3), (F, 2, 3))),
    ("CumSum", {"exclusive": 1}, ((F, 2, 3), np.int64(1))),
    ("LayerNormalization", {"axis": -2}, ((F, 2, 3, 5), (F, 3, 5), (F, 3, 5))),
    ("QuantizeLinear", {"axis": 0}, ((F, 2, 3), np.array([0.1, 0.2], F), np.array([3, 5], U))),
    ("DequantizeLinear", {"axis": -2}, ((U, 2, 3), np.array([0.1, 0.2], F), np.array([3, 5], U))),
    (
        "QLinearConv",
        {"pads": [1, 1]},
        ((U, 1, 2, 5), SCALE, ZERO, (U, 3, 2, 3), OTHER_SCALE, OTHER_ZERO, F(0.2), U(100)),
    ),
    (
        "QLinearMatMul",
        {},
        ((U, 2, 3), SCALE, ZERO, (U, 3, 4), OTHER_SCALE, OTHER_ZERO, F(0.2), U(100)),
    ),
    (f"{MS}BiasGelu", {}, ((F, 2, 3), (F, 3))),
    (f"{MS}FastGelu", {}, ((F, 2, 3), (F, 3))),
    (f"{MS}Gelu", {}, ((F, 2, 3),)),
    (f"{MS}QuickGelu", {"alpha": 1.5}, ((F, 2, 3),)),
    (
        f"{MS}FusedConv",
        {"activation": "Relu", "pads": [1, 1]},
        ((F, 1, 2, 5), (F, 3, 2, 3), (F, 3)),
    ),
    (f"{MS}FusedGemm", {"activation": "Relu", "transA": 1}, ((F, 3, 2), (F, 3, 4), (F, 4))),
    (f"{MS}FusedMatMul", {"alpha": 2.0, "transB": 1}, ((F, 2, 2, 3), (F, 2, 5, 3))),
    (f"{MS}TransposeMatMul", {"transA": 1}, ((F, 3, 2), (F, 3, 4))),
    (f"{MS}Inverse", {}, ((F, 2, 3, 3),)),
    (f"{MS}CDist", {"metric": "sqeuclidean"}, ((F, 3, 4), (F, 2, 4))),
    (f"{MS}ExpandDims", {}, ((F, 2, 3), np.int32(-1))),
    (f"{MS}Trilu", {"upper": 0}, ((F, 3, 4), np.int64(1))),
    (f"{MS}Pad", {"mode": "constant"}, ((F, 2, 3), np.array([1, 0, 0, 2]), np.array([1.5], F))),
    (f"{MS}Range", {}, (F(1), F(9), F(2))),
    (f"{MS}MurmurHash3", {"seed": 3, "positive": 0}, (np.array([3, 5], np.int32),)),
    (f"{MS}GatherND", {}, ((F, 2, 3), np.array([[1, 2], [0, 0]]))),
    (f"{MS}GridSample", {"padding_mode": "zeros"}, ((F, 1, 2, 4, 5), (F, 1, 3, 2, 2))),
    (f"{MS}SkipLayerNormalization", {"epsilon": 0.1}, ((F, 1, 3, 4), (F, 1, 3, 4), (F, 4), (F, 4))),
    (
        f"{MS}SkipSimplifiedLayerNormalization",
        {"epsilon": 0.1},
        ((F, 1, 3, 4), (F, 1, 3, 4), (F, 4)),
    ),
    (f"{MS}NhwcMaxPool", {"kernel_shape": [2, 2]}, ((U, 1, 4, 5, 3),)),
    (
        f"{MS}QLinearAdd",
        {},
        ((U, 2, 3), SCALE, ZERO, (U, 2, 3), OTHER_SCALE, OTHER_ZERO, F(0.2), U(5)),
    ),
    (
        f"{MS}QLinearMul",
        {},
        ((U, 2, 3), SCALE, ZERO, (U, 2, 3), OTHER_SCALE, OTHER_ZERO, F(0.2), U(5)),
    ),
    (f"{MS}QLinearSigmoid", {}, ((U, 2, 3), SCALE, ZERO, F(0.004), U(0))),
    (f"{MS}QLinearLeakyRelu", {"alpha": 0.3}, ((U, 2, 3), SCALE, U(50), F(0.02), U(60))),
    (f"{MS}QLinearSoftmax", {"axis": -1, "opset": 13}, ((U, 2, 3), SCALE, ZERO, F(0.004), U(0))),
    (
        f"{MS}QLinearConcat",
        {"axis": 0},
        (
            F(0.04).reshape(1),
            U(4).reshape(1),
            (U, 2, 2),
            SCALE,
            ZERO,
            (U, 2, 2),
            OTHER_SCALE,
            OTHER_ZERO,
        ),
    ),
    (f"{MS}QLinearAveragePool", {"kernel_shape": [2]}, ((U, 1, 2, 5), SCALE, ZERO, F(0.04), U(9))),
    (
        f"{MS}QLinearGlobalAveragePool",
        {"channels_last": 0},
        ((U, 1, 2, 4, 5), SCALE, ZERO, F(0.04), U(9)),
    ),
    (
        f"{MS}QLinearWhere",
        {},
        (
            np.array([True, False]),
            (U, 2),
            SCALE,
            ZERO,
            (U, 2),
            OTHER_SCALE,
            OTHER_ZERO,
            F(0.04),
            U(9),
        ),
    ),
    (f"{MS}QGemm", {"transB": 1}, ((U, 2, 3), SCALE, ZERO, (U, 4, 3), OTHER_SCALE, OTHER_ZERO)),
    (f"{MS}MatMulIntegerToFloat", {}, ((U, 2, 3), (U, 3, 4), SCALE, OTHER_SCALE, ZERO, OTHER_ZERO)),
    (f"{MS}DynamicQuantizeMatMul", {}, ((F, 2, 3), (U, 3, 4), SCALE, OTHER_ZERO)),
    (f"{MS}QuantizeLinear", {"axis": 0}, ((F, 2, 3), np.array([0.1, 0.2], F), np.array([3, 5], U))),
    (
        f"{MS}DequantizeLinear",
        {"axis": 1},
        ((U, 2, 2), np.array([0.1, 0.2], F), np.array([3, 5], U)),
    ),
    (
        f"{MS}RotaryEmbedding",
        {"interleaved": 0},
        ((F, 1, 3, 4), np.array([0]), (F, 5, 2), (F, 5, 2)),
    ),
    (f"{MS}MultiHeadAttention", {"num_heads": 2}, ((F, 1, 3, 4), (F, 1, 3, 4), (F, 1, 3, 4))),
    (f"{MS}Attention", {"num_heads": 2}, ((F, 1, 3, 4), (F, 4, 12), (F, 12))),
    (
        f"{MS}CropAndResize",
        {"mode": "bilinear"},
        (
            (F, 1, 2, 5, 5),
            np.array([[0, 0, 0.5, 1]], F),
            np.array([0], np.int32),
            np.array([3, 2], np.int32),
        ),
    ),
    (f"{MS}UnfoldTensor", {"dim": -1, "size": 2, "step": 1}, ((F, 2, 5),)),
    (f"{MS}DynamicTimeWarping", {}, ((F, 3, 4),)),
    (f"{MS}NGramRepeatBlock", {"ngram_size": 2}, ([[0, 1, 2], [3, 4, 5]], (F, 2, 9))),
    (
        f"{MS}MatMulNBits",
        {"K": 16, "N": 3, "bits": 4, "block_size": 16},
        ((F, 2, 16), (U, 3, 1, 8), (F, 3)),
    ),
    (
        f"{MS}WordConvEmbedding",
        {"conv_window_size": 2, "embedding_size": 3, "char_embedding_size": 5},
        (np.ones((2, 4), np.int32), (F, 3, 1, 2, 5), (F, 3), (F, 7, 5)),
    ),
    (f"{MS}MaxpoolWithMask", {"kernel_shape": [2]}, ((F, 1, 2, 5), np.ones((1, 2, 5), np.int32))),
)
