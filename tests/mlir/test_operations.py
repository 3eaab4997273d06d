"""Operations that are not folded stay as they are, with the reason that an ONNX model would get."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from widthfold_onnx.errors import InvalidModelError, UsageError
from widthfold_onnx.mlir.files import fold_module
from widthfold_onnx.options import AxisName, FoldOptions

pytest.importorskip("iree.compiler", reason="no IREE: pip install 'widthfold-onnx[mlir]'")

CONV = "conv_2d_nchw_fchw"


def refused(text: str, **options: object) -> tuple[str, str]:
    """The code and reason of the only layer of a module, which stays as it is."""
    folded, (site,) = fold_module(text, FoldOptions(**{"factor": 4, **options}))
    assert site.status == "refused"
    assert f"linalg.{'matmul' if site.op == 'MatMul' else CONV}" in folded
    assert "expand_shape" not in folded
    return site.code, site.reason


def weight(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_extents_that_the_factor_does_not_divide(build: ModuleType) -> None:
    text = build.module(CONV, [1, 1, 7, 9], weight(1, 1, 1, 1))
    code, reason = refused(text)
    assert code == "factor-does-not-divide"
    assert "width: input extent 9 would have to be 12" in reason


def test_an_open_position(build: ModuleType) -> None:
    text = build.module(CONV, [1, 1, 8, 8], weight(1, 1, 1, 1))
    text = text.replace("tensor<1x1x8x8xf32>", "tensor<1x1x?x8xf32>")
    text = text.replace("tensor.empty()", "tensor.empty(%axis)")
    code, reason = refused(text)
    assert (code, reason) == ("unknown-extent", "of [1, 1, None, 8] only samples may be open")


def test_an_open_batch_that_would_be_folded(build: ModuleType) -> None:
    text = build.module(CONV, [None, 1, 8, 8], weight(1, 1, 1, 1))
    code, _ = refused(text, axis=AxisName.BATCH)
    assert code == "unknown-extent"


def test_rows_that_may_be_samples(build: ModuleType) -> None:
    code, _ = refused(build.module("matmul", [8, 3], weight(3, 2)))
    assert code == "mixes-samples"


def test_a_wide_layer(build: ModuleType) -> None:
    code, _ = refused(build.module(CONV, [1, 32, 8, 8], weight(32, 32, 1, 1)))
    assert code == "already-wide"


def test_a_weight_that_is_not_finite(build: ModuleType) -> None:
    code, _ = refused(build.module(CONV, [1, 1, 8, 8], weight(1, 1, 1, 1) * np.nan))
    assert code == "weight-not-finite"


def test_a_constant_that_the_bindings_do_not_show(build: ModuleType) -> None:
    text = build.module(CONV, [1, 1, 8, 9], weight(1, 1, 1, 2))
    line = next(line for line in text.splitlines() if "%w =" in line)
    held = "  %w = arith.constant dense_resource<w> : tensor<1x1x1x2xf32>"
    resource = '{-# dialect_resources: {builtin: {w: "0x040000000000803F00000040"}} #-}'
    code, _ = refused(text.replace(line, held) + resource)
    assert code == "weight-not-constant"


def test_a_weight_that_is_computed(build: ModuleType) -> None:
    text = build.module(CONV, [1, 1, 8, 8], weight(1, 1, 1, 1))
    text = text.replace("@layer(", "@layer(%v: tensor<1x1x1x1xf32>, ").replace(", %w", ", %v")
    code, _ = refused(text)
    assert code == "weight-not-constant"


def test_integers(build: ModuleType) -> None:
    text = build.module(CONV, [1, 1, 8, 8], weight(1, 1, 1, 1))
    text = text.replace("f32", "i32").replace("0.0", "0").replace("1.000000e+00", "1")
    code, _ = refused(text)
    assert code == "dtype-unsupported"


def test_bfloat16_which_numpy_has_not(build: ModuleType) -> None:
    text = build.module(CONV, [1, 1, 8, 8], weight(1, 1, 1, 1)).replace("f32", "bf16")
    code, _ = refused(text)
    assert code == "weight-not-constant"


def test_a_product_that_reads_its_operand_transposed_is_no_layer(build: ModuleType) -> None:
    text = """func.func @f(%x: tensor<3x8xf32>, %e: tensor<8x2xf32>) -> tensor<8x2xf32> {
      %w = arith.constant dense<1.0> : tensor<3x2xf32>
      %y = linalg.matmul indexing_maps = [affine_map<(d0, d1, d2) -> (d2, d0)>,
        affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>]
        ins(%x, %w : tensor<3x8xf32>, tensor<3x2xf32>) outs(%e : tensor<8x2xf32>)
        -> tensor<8x2xf32>
      return %y : tensor<8x2xf32> }"""
    assert fold_module(text, FoldOptions(factor=4, mix_samples=True))[1] == []


@pytest.mark.parametrize(("value", "reads"), [("0.0", "%arg0"), ("1.0", "%padded")])
def test_a_pad_is_part_of_the_layer_if_it_is_of_zeros(
    build: ModuleType, value: str, reads: str
) -> None:
    text = build.module(CONV, [1, 1, 8, 8], weight(1, 1, 1, 1), pads=((0, 0), (4, 4)))
    text = text.replace("%zero = arith.constant 0.0", f"%zero = arith.constant {value}")
    folded, (site,) = fold_module(text, FoldOptions(factor=4, axis=AxisName.WIDTH))
    assert site.status == "folded"
    assert f"tensor.expand_shape {reads} " in folded


def test_a_module_without_layers_is_written_as_it_is() -> None:
    text = "func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
    folded, sites = fold_module(text, FoldOptions(factor=4))
    assert sites == []
    assert "return %arg0 : tensor<2xf32>" in folded


def test_what_is_no_module_and_what_has_no_factor() -> None:
    with pytest.raises(InvalidModelError, match=r"no MLIR module: .*custom op 'not' is unknown"):
        fold_module("not mlir", FoldOptions(factor=4))
    with pytest.raises(UsageError, match="give a factor"):
        fold_module("module {}", FoldOptions())
    module = "func.func @f() { return }"
    assert fold_module(module, FoldOptions(factor=4, nodes=("*",)))[1] == []
