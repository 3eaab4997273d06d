"""Nodes of operators of the runtime, for which onnx has no cases."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper

Parts = tuple[str, onnx.ModelProto, dict[str, np.ndarray]]


def contrib_cases() -> Iterator[Parts]:
    """Yield names, models and inputs."""
    rng = np.random.default_rng(0)

    def f(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def u(*shape: int) -> np.ndarray:
        return rng.integers(0, 256, shape).astype(np.uint8)

    scale, zero = np.array([0.1], np.float32), np.array([3], np.uint8)
    one, point = np.float32(0.1), np.uint8(3)
    for op, arrays, attributes in (
        ("QLinearConcat", (scale, zero, u(2, 2), scale, zero, u(2, 2), scale, zero), {"axis": 0}),
        ("BiasGelu", (f(2, 3), f(3)), {}),
        ("FastGelu", (f(2, 3), f(3)), {}),
        ("Gelu", (f(2, 3),), {}),
        ("QuickGelu", (f(2, 3),), {"alpha": 1.7}),
        ("BiasSoftmax", (f(2, 3, 4), f(1, 3, 4)), {"axis": 2, "is_inner_broadcast": 1}),
        (
            "FusedConv",
            (f(1, 2, 5, 5), f(3, 2, 3, 3), f(3)),
            {"activation": "Relu", "pads": [1] * 4},
        ),
        ("FusedMatMul", (f(3, 3), f(3, 3)), {"alpha": 1.5, "transA": 0, "transB": 0}),
        ("FusedGemm", (f(3, 3), f(3, 3), f(3)), {"activation": "Relu", "alpha": 1.0, "transB": 0}),
        ("QLinearAdd", (u(2, 3), one, point, u(2, 3), one, point, one, point), {}),
        ("QLinearMul", (u(2, 3), one, point, u(2, 3), one, point, one, point), {}),
        ("QLinearSigmoid", (u(2, 3), one, point, one, point), {}),
        ("QLinearLeakyRelu", (u(2, 3), one, point, one, point), {"alpha": 0.2}),
        ("QLinearSoftmax", (u(2, 3), one, point, one, point), {"axis": 1, "opset": 13}),
        ("QLinearGlobalAveragePool", (u(1, 2, 3, 4), one, point, one, point), {"channels_last": 0}),
        (
            "QLinearAveragePool",
            (u(1, 2, 6, 6), one, point, one, point),
            {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 0]},
        ),
        ("NhwcMaxPool", (u(1, 6, 6, 2),), {"kernel_shape": [2, 2], "strides": [2, 1]}),
        ("SkipLayerNormalization", (f(1, 2, 4), f(1, 2, 4), f(4), f(4)), {"epsilon": 1e-2}),
        ("SkipSimplifiedLayerNormalization", (f(1, 2, 4), f(1, 2, 4), f(4)), {"epsilon": 1e-2}),
        ("Inverse", (f(3, 3),), {}),
        ("Trilu", (f(3, 4), np.array(1, np.int64)), {"upper": 1}),
        ("Unique", (np.array([2, 1, 1, 3], np.float32),), {}),
        ("NGramRepeatBlock", (np.arange(6).reshape(2, 3), f(2, 9)), {"ngram_size": 2}),
        (
            "MatMulNBits",
            (f(2, 16), u(3, 1, 8), f(3)),
            {"K": 16, "N": 3, "bits": 4, "block_size": 16},
        ),
        ("DynamicQuantizeMatMul", (f(2, 4), u(4, 3), scale, zero), {}),
        ("MatMulIntegerToFloat", (u(2, 4), u(4, 3), scale, scale, zero, zero), {}),
        ("ExpandDims", (f(2, 3), np.array(1, np.int32)), {}),
        ("GatherND", (f(2, 3), np.array([[0, 1], [1, 2]])), {}),
        (
            "CropAndResize",
            (
                f(1, 1, 6, 6),
                np.array([[0, 0, 3, 3]], np.float32),
                np.array([0], np.int32),
                np.array([2, 2], np.int32),
            ),
            {"mode": "bilinear", "extrapolation_value": 0.0},
        ),
        (
            "MaxpoolWithMask",
            (f(1, 1, 6, 6), np.ones((1, 1, 6, 6), np.int32)),
            {"kernel_shape": [2, 2], "strides": [2, 1]},
        ),
        ("Pad", (f(2, 3), np.array([0, 1, 1, 0])), {"mode": "constant"}),
        ("Range", (np.float32(0), np.float32(6), np.float32(2)), {}),
        (
            "Tokenizer",
            (np.array(["ab cd"], object),),
            {"mark": 1, "separators": [" "], "pad_value": "#", "mincharnum": 1},
        ),
        (
            "RotaryEmbedding",
            (f(1, 2, 8), np.array([[0, 1]]), f(3, 4), f(3, 4)),
            {"interleaved": 0, "num_heads": 1},
        ),
        (
            "QuantizeLinear",
            (f(2, 3), f(2) ** 2 + np.float32(0.1), np.array([1, 2], np.uint8)),
            {"axis": 0},
        ),
        ("DequantizeLinear", (u(2, 3), f(2), np.array([1, 2], np.uint8)), {"axis": 0}),
        (
            "WordConvEmbedding",
            (np.ones((2, 4), np.int32), f(3, 1, 2, 5), f(3), f(7, 5)),
            {"conv_window_size": 2, "embedding_size": 3, "char_embedding_size": 5},
        ),
    ):
        names = [f"i{i}" for i in range(len(arrays))]
        node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
        inputs = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), np.shape(a)
            )
            for n, a in zip(names, arrays, strict=True)
        ]
        graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        yield f"contrib {op}", model, {n: np.asarray(a) for n, a in zip(names, arrays, strict=True)}
