"""Kernels of the runtime: PRelu of an Inf, sums of 8 bits that saturate."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.rewrite.quantized import convs
from tests.rewrite.quantized.convs import Case
from tests.running import run
from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.options import Provider, RuntimeOptions
from widthfold_onnx.runtime import kernels
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.provider_traits import Level
from widthfold_onnx.runtime.settings import Setting


@pytest.mark.parametrize("slopes", ["float[3,1] s = {0.5, 0.25, 2.0}", "float s = {0.5}"])
def test_what_it_says_holds_for_every_shape_of_slopes(slopes: str) -> None:
    text = f"g (float[3,7] x) => (float[3,7] y) <{slopes}> {{ y = PRelu (x, s) }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for number in (np.inf, -np.inf):
        (y,) = run(model, np.full((3, 7), number, np.float32))
        assert np.isinf(y).all() == kernels.prelu_keeps_inf()


def test_without_a_runtime_there_is_nothing_to_differ_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise UnverifiedError("none is installed")

    monkeypatch.setattr(kernels, "open_session", fail)
    assert kernels.prelu_keeps_inf.__wrapped__()


LINE = {"shape": (2, 8, 20), "weight": (5, 8, 4), "attributes": {"pads": [2, 1]}, "pads": (2, 1)}


def extreme(case: Case) -> np.ndarray:
    """The largest data."""
    return np.full(case.shape, np.iinfo(case.kinds[0]).max, case.kinds[0])


def computed(case: Case) -> np.ndarray:
    """The runtime's result for the largest data."""
    return convs.run(case.model(), extreme(case))


def test_unsigned_data_and_signed_weights_are_off_where_it_says_so() -> None:
    case = Case(op="QLinearConv", saturates=True, **LINE)
    off = np.abs(computed(case).astype(int) - case.expected(extreme(case)))
    assert bool(off.max()) == bool(u8s8_error())


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_operands_of_one_type_are_exact(kind: type) -> None:
    case = Case(op="QLinearConv", kinds=(kind, kind), **LINE)
    np.testing.assert_array_equal(computed(case), case.expected(extreme(case)))


def test_weights_of_seven_bits_are_exact() -> None:
    case = Case(op="QLinearConv", **LINE)
    np.testing.assert_array_equal(computed(case), case.expected(extreme(case)))


def test_it_is_known_in_steps_of_a_byte() -> None:
    assert 0 <= u8s8_error() <= 200


@pytest.mark.parametrize(
    ("provider", "dtype", "extent"),
    [
        (Provider.CPU, onnx.TensorProto.FLOAT, 512),
        (Provider.CUDA, onnx.TensorProto.FLOAT16, 4096),
        (Provider.TENSORRT, onnx.TensorProto.FLOAT16, 4096),
    ],
)
def test_the_peak_of_a_gpu_is_that_of_a_large_product_in_float16(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, dtype: int, extent: int
) -> None:
    def seconds(model: onnx.ModelProto, setting: Setting) -> float:
        seen = model.graph.input[0].type.tensor_type
        assert seen.elem_type == dtype
        assert [dim.dim_value for dim in seen.shape.dim] == [extent] * 2
        return 1e-3

    monkeypatch.setattr(kernels, "_shortest", seconds)
    setting = Setting(Level.ALL, RuntimeOptions(provider=provider))
    assert kernels.peak_speed(setting) == 2 * extent**3 / 1e-3
