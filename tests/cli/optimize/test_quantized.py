"""Quantized models end to end: models of ONNX Runtime's own quantizer, and a shared model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import quantization  # noqa: TID251 - makes the models

from tests.cli.tool import widthfold
from tests.lacking import refuses_signed_convs
from tests.rewrite.quantized.convs import Case
from tests.rewrite.quantized.models import joined, optimized
from tests.shared import SHARED, needs_models
from tests.small_models import MODELS
from widthfold_onnx.runtime.kernels import u8s8_error
from widthfold_onnx.runtime.providers import PRECISION

PITCH = MODELS / "pitch_cnn.onnx"


class Audio(quantization.CalibrationDataReader):
    """Two seconds of noise."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        feeds = [rng.standard_normal((1, 1, 16384)).astype(np.float32) for _ in range(2)]
        self._feeds = iter([{"audio": array} for array in feeds])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantized(form: str, path: Path) -> Path:
    """The model of this repository, quantized."""
    if form == "dynamic":
        kinds = {"op_types_to_quantize": ["Conv"], "weight_type": quantization.QuantType.QUInt8}
        quantization.quantize_dynamic(PITCH, path, **kinds)
    else:
        quantization.quantize_static(
            PITCH,
            path,
            Audio(),
            quant_format=quantization.QuantFormat[form],
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
    return path


OPS = {"QDQ": "Conv", "QOperator": "QLinearConv", "dynamic": "ConvInteger"}


@pytest.mark.parametrize("form", OPS)
def test_a_model_quantized_by_the_runtime_folds_and_verifies(form: str, tmp_path: Path) -> None:
    model, out = quantized(form, tmp_path / "model.onnx"), tmp_path / "out.onnx"
    report = tmp_path / "report.json"
    done = widthfold("optimize", model, out, "--factor", 4, "--report", report)
    assert done.code == 0, done.err
    content = json.loads(report.read_text())
    assert [site["op"] for site in content["sites"]] == [OPS[form]] * 4
    assert {site["status"] for site in content["sites"]} == {"folded"}
    assert {site["spread"] for site in content["sites"]} == {1.0}
    assert content["verification"]["verdict"] == "pass"
    assert content["verification"]["proof"]["verdict"] == "equal"
    assert content["verification"]["integers"]["verdict"] != "different"
    # What a rewritten file says of itself is enough to verify it again.
    again = widthfold("verify", model, out, "--no-timing", "--seeds", 2)
    assert again.code == 0, again.err
    assert widthfold("optimize", out, tmp_path / "twice.onnx", "--factor", 4).code == 0
    assert (tmp_path / "twice.onnx").read_bytes() == out.read_bytes()


def test_the_folded_convs_of_a_quantized_model_are_computed_in_integers(tmp_path: Path) -> None:
    model, out = quantized("QDQ", tmp_path / "model.onnx"), tmp_path / "out.onnx"
    assert widthfold("optimize", model, out, "--factor", 4, "--no-verify").code == 0
    kernels = [optimized(onnx.load(path), tmp_path) for path in (model, out)]
    assert [names.count("QLinearConv") for names in kernels] == [4, 4]
    assert not {"Conv", "FusedConv"} & {*kernels[0], *kernels[1]}


def test_plans_and_surveys_of_quantized_models(tmp_path: Path) -> None:
    model = quantized("QOperator", tmp_path / "model.onnx")
    dry = widthfold("optimize", model, "--factor", 4)
    assert (dry.code, "4 of 4 QLinearConv nodes" in dry.out) == (0, True)
    assert widthfold("optimize", model, "--check", "--factor", 4).code == 1
    listed = widthfold("inspect", model)
    assert listed.code == 0
    assert "QLinearConv" in listed.out


@needs_models
@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_conv_of_dequantized_data_and_a_weight_of_floats(factor: int, tmp_path: Path) -> None:
    model, out = SHARED / "models" / "TensorRT-polygraphy__qdq_conv.onnx", tmp_path / "out.onnx"
    done = widthfold("optimize", model, out, "--factor", factor, "--ragged")
    assert done.code == 0, done.err
    assert "1 of 1 Conv nodes folded" in done.out
    assert "proof: equal" in done.out
    assert "Inf and NaN may spread" not in done.out  # what finite scales dequantize is finite


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("is_open", [True, False])
def test_signed_bytes_are_folded_at_every_opset(
    is_open: bool, kind: type, opset: int, tmp_path: Path
) -> None:
    """A Conv with a guard of its own, between others: their moves act on integers."""
    model, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(joined(kind, opset, is_open=is_open), model)
    done = widthfold(
        *("optimize", model, out, "--factor", 4, "--axis", "width"),
        *("--layout", "nhwc"),
        *("--input-shape", "k:1,3,24")[: 2 * is_open],
    )
    assert done.code == 0, done.err
    count = 3 + is_open
    assert f"{count} of {count} Conv nodes folded; wrote" in done.out
    assert ("guarded" in done.out) is is_open
    assert "largest relative error 0.0e+00" in done.out


LINE = {"shape": (2, 3, 20), "weight": (5, 3, 4), "attributes": {"pads": [2, 1]}, "pads": (2, 1)}


def test_types_without_a_kernel_are_proved_and_not_verified(tmp_path: Path) -> None:
    """The runtime has no QLinearConv of signed data and weights without a sign."""
    model, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    case = Case(op="QLinearConv", kinds=(np.int8, np.uint8), **LINE)
    onnx.save(case.model(), model)
    done = widthfold("optimize", model, out, "--factor", 4)
    assert (done.code, out.exists()) == (0, True), done.err
    assert "unverified" in done.out
    assert widthfold("verify", model, out, "--no-timing").code == 4


def test_zero_points_that_no_kernel_takes_are_not_verified(tmp_path: Path) -> None:
    """The runtime's ConvInteger takes one zero point, ONNX's one per output channel as well."""
    model, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(Case(op="ConvInteger", **LINE).model(), model)
    done = widthfold("optimize", model, out, "--factor", 4)
    assert (done.code, out.exists()) == (4, False), done.out
    assert "Non per-tensor quantization is not supported" in done.line


def test_what_this_cpu_does_to_integers_is_told(tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    chosen = ("--session-option", "session.disable_prepacking=1")
    model = MODELS / "quantized_cnn.onnx"
    done = widthfold("optimize", model, out, "--factor", 8, *chosen, "--report", report)
    assert (done.code, done.err) == (0, "")
    assert ("this CPU's 8-bit kernels saturate" in done.out) == bool(u8s8_error())
    environment = json.loads(report.read_text())["verification"]["environment"]
    assert environment["u8s8_error"] == u8s8_error()
    assert environment["session_options"] == {"session.disable_prepacking": "1"}


@refuses_signed_convs
def test_an_option_with_which_the_original_does_not_load_is_the_same_everywhere(
    tmp_path: Path,
) -> None:
    """At 1 the runtime looks for a kernel of signed data, which it has not."""
    model, right, out = (tmp_path / name for name in ("model.onnx", "right.onnx", "out.onnx"))
    onnx.save(Case(op="QLinearConv", kinds=(np.int8, np.int8), **LINE).model(), model)
    done = widthfold("optimize", model, right, "--factor", 4)
    assert done.code == 0, done.err
    option = ("--session-option", f"{PRECISION}=1")
    ends = [
        widthfold("optimize", model, out, "--factor", 4, *option),
        widthfold("optimize", model, out, *option),
        widthfold("verify", model, right, "--no-timing", *option),
        widthfold("verify", model, right, *option),
    ]
    assert [(done.code, out.exists()) for done in ends] == [(4, False)] * 4
    message = f"with {PRECISION}=1 model.onnx does not load: "
    assert [message in done.line for done in ends] == [True] * 4
