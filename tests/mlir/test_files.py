"""`widthfold mlir` on files, and what other targets of the compiler make of its output."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - another implementation to compare with
import pytest
from click.testing import CliRunner, Result

from tests.shared import ROOT
from widthfold_onnx.cli import main

pytest.importorskip("iree.compiler", reason="no IREE: pip install 'widthfold-onnx[mlir]'")

MODELS = ROOT / "models"
TARGETS = {
    "cuda": "--iree-cuda-target=sm_80",
    "rocm": "--iree-rocm-target=gfx942",
    "vulkan-spirv": "--iree-vulkan-target=ampere",
}


def command(*words: object) -> Result:
    return CliRunner().invoke(main, ["mlir", *map(str, words)])


@pytest.mark.parametrize(
    ("name", "folded"),
    [("paper_conv.onnx", 1), ("chain.onnx", 4), ("dynamic_batch.onnx", 1), ("luma_sr.onnx", 3)],
)
def test_an_onnx_model_is_imported_and_folded(
    build: ModuleType, tmp_path: Path, name: str, folded: int
) -> None:
    path, out = tmp_path / name, tmp_path / "out.mlir"
    model = build.of_integers(MODELS / name)
    onnx.save(model, path)
    run = command(path, out, "--factor", 8)
    assert run.exit_code == 0, run.output
    assert f"{folded} of {folded} Conv layers folded; wrote out.mlir" in run.output
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (port,) = session.get_inputs()
    shape = [extent if isinstance(extent, int) else 2 for extent in port.shape]
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float32)
    _, result = build.loaded(build.compiled(out.read_text()), x)
    np.testing.assert_array_equal(result(), session.run(None, {port.name: x})[0])


@pytest.mark.parametrize("backend", TARGETS)
def test_other_targets_compile_it(build: ModuleType, tmp_path: Path, backend: str) -> None:
    weight = np.ones((3, 3, 1, 16), np.float16)
    module = build.module(
        "conv_2d_nhwc_hwcf", [1, 32, 64, 1], weight, pads=((1, 1), (1, 1)), sums="f32"
    )
    source, out = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(module)
    assert command(source, out).exit_code == 0
    assert "linalg.conv_2d_nhwc_hwcf" in out.read_text()
    assert build.compiled(out.read_text(), backend, TARGETS[backend])


def test_an_old_model_is_converted(tmp_path: Path) -> None:
    """IREE has no lowering of a BatchNormalization before operator set 14."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 11]>'
        "f (float[1, 1, 8, 8] x) => (float[1, 1, 8, 8] y)"
        "<float[1, 1, 1, 1] w = {2.0}, float[1] s = {1.0}, float[1] b = {0.0}>"
        "{ c = Conv(x, w) y = BatchNormalization(c, s, b, b, s) }"
    )
    onnx.save(model, tmp_path / "in.onnx")
    run = command(tmp_path / "in.onnx", tmp_path / "out.mlir")
    assert run.exit_code == 0, run.output
    assert "1 of 1 Conv layers folded" in run.output


def test_bytecode_is_read(build: ModuleType, tmp_path: Path) -> None:
    text = build.module("conv_1d_ncw_fcw", [1, 1, 16], np.ones((2, 1, 1), np.float32))
    with build.ir.Context(), (tmp_path / "in.mlirbc").open("wb") as file:
        build.ir.Module.parse(text).operation.write_bytecode(file)
    run = command(tmp_path / "in.mlirbc", tmp_path / "out.mlir")
    assert "1 of 1 Conv layers folded" in run.output


def test_a_layer_can_be_left_alone(build: ModuleType, tmp_path: Path) -> None:
    source, out = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(build.module("conv_1d_ncw_fcw", [1, 1, 16], np.ones((2, 1, 1), np.float32)))
    run = command(source, out, "--skip", "layer/*")
    assert run.exit_code == 0, run.output
    assert "0 of 1 Conv layers folded" in run.output
    run = command(source, out, "--nodes", "other/*")
    assert run.exit_code == 2


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("in.mlir", b"not mlir", 3, "no MLIR module"),
        ("in.mlir", b"\xff\xfe\x00", 3, "no MLIR module"),
        ("in.onnx", b"not onnx", 3, "not an ONNX model"),
        ("in.mlir", None, 2, "in.mlir"),
        ("in.onnx", None, 2, "in.onnx"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, name: str, content: bytes | None, code: int, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    run = command(tmp_path / name, tmp_path / "out.mlir")
    assert run.exit_code == code
    assert message in run.output
    assert run.output.count("\n") == 1
    assert not (tmp_path / "out.mlir").exists()


def test_an_operator_that_iree_does_not_import(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
        "f (float[1, 4] x) => (float[1, 4] y) { y = com.microsoft.Gelu(x) }"
    )
    onnx.save(model, tmp_path / "in.onnx")
    run = command(tmp_path / "in.onnx", tmp_path / "out.mlir")
    assert run.exit_code == 3
    assert "IREE does not import it: " in run.output
    assert run.output.count("\n") == 1
