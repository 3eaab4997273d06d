"""Our operators of the reference implementation, against the loop oracle and the runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests import oracle
from tests.lacking import IS_OLD
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.proof.float64 import OPS
from widthfold_onnx.evidence.proof.values import UnevaluableError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.session import open_session

GEOMETRIES = [
    ((2, 3, 11), (4, 3, 3), {}),
    ((1, 4, 13), (6, 2, 3), {"group": 2, "strides": [2], "dilations": [3], "pads": [2, 5]}),
    ((1, 2, 9, 8), (3, 2, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((2, 3, 7, 7), (3, 1, 3, 3), {"group": 3, "dilations": [1, 2], "pads": [1, 2, 1, 2]}),
    ((1, 2, 5, 6, 4), (2, 2, 2, 3, 1), {"strides": [1, 2, 2]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), GEOMETRIES)
@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
def test_conv_is_what_the_oracle_says(x, w, attributes, auto_pad):
    rank = len(w) - 2
    resolved = dict(attributes)
    if auto_pad != "NOTSET":
        steps = [attributes.get(key, [1] * rank) for key in ("strides", "dilations")]
        resolved["pads"] = oracle.resolve_auto_pad(auto_pad, x[2:], w[2:], *steps)
        attributes = {k: v for k, v in attributes.items() if k != "pads"} | {"auto_pad": auto_pad}
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape) for shape in (x, w, w[:1])]
    kind = TensorProto.DOUBLE
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in zip("wb", arrays[1:], strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (y,) = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, {"x": arrays[0]})
    np.testing.assert_allclose(y, oracle.conv(*arrays, **resolved), rtol=0, atol=1e-12)


def both(folder, op_type, arrays, attributes, opset, outputs=1, names="xwbmv"):
    """Outputs of the runtime and of the reference; the first array is the only input."""
    named = dict(zip(names, arrays, strict=False))
    node = helper.make_node(op_type, list(named), [f"y{i}" for i in range(outputs)], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, arrays[0].shape)],
        [onnx.ValueInfoProto(name=name) for name in node.output],
        [numpy_helper.from_array(a, n) for n, a in named.items() if n not in ("x", "")],
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    feeds = {"x": arrays[0]}
    reference = ReferenceEvaluator(model, new_ops=list(OPS)).run(None, feeds)[0]
    session = open_session(path, RuntimeOptions(provider=Provider.CPU), Level.DISABLED)
    return session.run(feeds)["y0"], reference


TRANSPOSED = [
    ((2, 3, 5), (3, 2, 3), {}),
    ((1, 4, 7), (4, 3, 2), {"group": 2, "strides": [3], "output_padding": [1], "pads": [1, 2]}),
    ((1, 8, 1, 33), (8, 1, 1, 3), {"group": 8, "strides": [1, 2], "pads": [0, 1, 0, 1]}),
    ((1, 2, 4, 5), (2, 3, 3, 2), {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 1]}),
    ((1, 2, 4, 5), (2, 1, 3, 3), {"strides": [2, 2], "output_shape": [8, 10]}),
    ((1, 2, 4, 5), (2, 1, 3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    ((1, 2, 5), (2, 2, 4), {"strides": [2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 5), (2, 2, 5), {"strides": [2], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 3, 3, 2), (2, 2, 2, 1, 2), {"strides": [2, 1, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
def test_conv_transpose_is_what_the_runtime_says(tmp_path, x, w, attributes):
    rng = np.random.default_rng(3)
    channels = w[1] * attributes.get("group", 1)
    arrays = [rng.integers(-9, 9, shape).astype(np.float32) for shape in (x, w, (channels,))]
    expected, computed = both(tmp_path, "ConvTranspose", arrays, attributes, 17)
    np.testing.assert_array_equal(computed, expected)


def test_a_conv_transpose_that_must_grow_is_refused(tmp_path):
    arrays = [np.ones((1, 1, 3), np.float32), np.ones((1, 1, 1), np.float32)]
    with pytest.raises(UnevaluableError, match="3 positions do not become 9"):
        both(tmp_path, "ConvTranspose", arrays, {"output_shape": [9]}, 17)


POOLS = [
    ((2, 3, 11), {"kernel_shape": [3]}),
    ((1, 2, 9, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((1, 2, 7, 10), {"kernel_shape": [2, 3], "dilations": [2, 1], "strides": [1, 2]}),
    ((1, 2, 10), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ((1, 2, 7, 5), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
]


@pytest.mark.parametrize(("shape", "attributes"), POOLS)
@pytest.mark.parametrize("kind", [np.float32, np.int8])
def test_max_pool(tmp_path, shape, attributes, kind):
    x = np.random.default_rng(9).integers(-99, -3, shape).astype(kind)
    expected, computed = both(tmp_path, "MaxPool", [x], attributes, 17)
    np.testing.assert_array_equal(computed, expected)


def test_places_of_maxima_are_refused(tmp_path):
    x = np.ones((1, 1, 5), np.float32)
    with pytest.raises(UnverifiedError, match="places"):
        both(tmp_path, "MaxPool", [x], {"kernel_shape": [2]}, 17, outputs=2)


@pytest.mark.parametrize("opset", [7, 11, 13, 17])
@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 2}])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax_of_every_version(tmp_path, op_type, attributes, opset):
    x = np.random.default_rng(2).standard_normal((2, 3, 5)).astype(np.float32)
    expected, computed = both(tmp_path, op_type, [x], attributes, opset)
    np.testing.assert_allclose(computed, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization_takes_the_statistics_it_is_given(tmp_path, opset):
    rng = np.random.default_rng(4)
    arrays = [rng.standard_normal((2, 3, 4, 5)).astype(np.float32)]
    arrays += [rng.uniform(0.5, 2, 3).astype(np.float32) for _ in range(4)]
    expected, computed = both(tmp_path, "BatchNormalization", arrays, {"epsilon": 0.1}, opset)
    np.testing.assert_allclose(computed, expected, rtol=0, atol=2e-6)


def test_batch_normalization_in_training_mode_is_refused(tmp_path):
    arrays = [np.ones((2, 3, 4), np.float32)] + [np.ones(3, np.float32)] * 4
    for opset, attributes, outputs in (
        (15, {"training_mode": 1}, 3),
        (15, {"training_mode": 1}, 1),
        (9, {}, 5),
    ):
        with pytest.raises(UnverifiedError, match="training mode"):
            both(tmp_path, "BatchNormalization", arrays, attributes, opset, outputs)


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
@pytest.mark.parametrize("zero_point", [True, False])
def test_dequantize_linear(tmp_path, opset, zero_point):
    x = np.arange(-12, 12, dtype=np.int8).reshape(2, 3, 4)
    arrays = [x, np.array(0.25, np.float32), np.array(3, np.int8)]
    expected, computed = both(tmp_path, "DequantizeLinear", arrays[: 2 + zero_point], {}, opset)
    np.testing.assert_array_equal(computed, expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_dequantize_linear_along_an_axis(tmp_path, axis):
    x = np.arange(-12, 12, dtype=np.int8).reshape(2, 3, 4)
    count = x.shape[axis]
    arrays = [x, 2.0 ** -np.arange(count, dtype=np.float32), np.arange(count, dtype=np.int8)]
    expected, computed = both(tmp_path, "DequantizeLinear", arrays, {"axis": axis}, 13)
    np.testing.assert_array_equal(computed, expected)


def test_dequantize_linear_in_blocks_is_refused(tmp_path):
    arrays = [np.ones((2, 4), np.int8), np.ones((2, 2), np.float32)]
    with pytest.raises(UnverifiedError, match="in blocks"):
        both(tmp_path, "DequantizeLinear", arrays, {"axis": 1, "block_size": 2}, 21)


@pytest.mark.parametrize("shape", [(2, 40), (2, 40, 1), (2, 40, 2)])
@pytest.mark.parametrize("windowed", [True, False])
def test_stft(tmp_path, shape, windowed):
    rng = np.random.default_rng(5)
    window = rng.random(16).astype(np.float32)
    arrays = [rng.standard_normal(shape).astype(np.float32), np.array(7), window, np.array(16)]
    names = ["x", "step", "window" if windowed else "", "length"]
    whole = {"onesided": int(shape[-1] != 2)}
    expected, computed = both(tmp_path, "STFT", arrays, whole, 17, names=names)
    if IS_OLD and shape[-1] == 2:
        pytest.skip("ONNX Runtime's STFT reads complex numbers from behind the data")
    np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-5)
