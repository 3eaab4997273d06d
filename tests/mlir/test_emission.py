"""A folded linalg operation computes what the original does, bit for bit on integers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime as ort  # noqa: TID251 - another implementation to compare with
import pytest
from onnx import TensorProto, helper, numpy_helper

from widthfold_onnx.mlir import emission
from widthfold_onnx.mlir.files import fold_module
from widthfold_onnx.mlir.operations import CONVOLUTIONS, ORDER
from widthfold_onnx.options import AxisName, FoldOptions

pytest.importorskip("iree.compiler", reason="no IREE: pip install 'widthfold-onnx[mlir]'")

SIZES = {"n": 2, "g": 3, "c": 2, "f": 5, "h": 8, "w": 12}
KERNEL = {"h": 3, "w": 2}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def weight(kind: str, **sizes: int) -> np.ndarray:
    return numbers(*({**SIZES, **KERNEL, **sizes}[x] for x in CONVOLUTIONS[kind][1]), seed=1)


def shape(kind: str, **sizes: int) -> list[int]:
    return [{**SIZES, **sizes}[x] for x in CONVOLUTIONS[kind][0]]


def onnx_conv(
    kind: str, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None, **attributes: Any
) -> np.ndarray:
    """The result of ONNX Runtime, with the axes of the operation."""
    data, of_weight = CONVOLUTIONS[kind]

    def ordered(array: np.ndarray, letters: str) -> tuple[np.ndarray, dict[str, int]]:
        order = sorted(range(len(letters)), key=lambda i: ORDER.index(letters[i]))
        return array.transpose(order), dict(zip(letters, array.shape, strict=True))

    (x, at), (w, kernel) = ordered(x, data), ordered(w, of_weight)
    spatial = [letter for letter in "hw" if letter in at]
    group, outputs = at.get("g", 1), kernel.get("f", 1)
    x = x.reshape(at["n"], -1, *(at[letter] for letter in spatial))
    w = w.reshape(group * outputs, -1, *(kernel[letter] for letter in spatial))
    inputs = {"w": w} | ({} if bias is None else {"b": np.tile(bias, group)})
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", *inputs], ["y"], group=group, **attributes)],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in inputs.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    letters = data.replace("c", "f")
    there = {**at, "f": outputs} | dict(zip(spatial, y.shape[2:], strict=True))
    in_order = sorted(letters, key=ORDER.index)
    y = y.reshape([there[letter] for letter in in_order])
    return y.transpose([in_order.index(letter) for letter in letters])


def check(build: ModuleType, text: str, x: np.ndarray, expected: np.ndarray, **options: Any) -> str:
    """Fold by 4 under the options, compare both modules with `expected`; return the fold."""
    groups = options.pop("groups", False)
    folded, (site,) = fold_module(text, FoldOptions(factor=4, **options), groups=groups)
    assert site.status == "folded", site.reason
    for module in (text, folded):
        _, result = build.loaded(build.compiled(module), x)
        np.testing.assert_array_equal(result(), expected)
    return folded


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("axis", [AxisName.BATCH, AxisName.HEIGHT, AxisName.WIDTH])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_every_operation_along_every_axis(
    build: ModuleType, kind: str, axis: AxisName, groups: bool
) -> None:
    if axis is AxisName.HEIGHT and "1d" in kind:
        return
    w, x = weight(kind), numbers(*shape(kind, n=4))
    rank = sum(letter in "hw" for letter in CONVOLUTIONS[kind][0])
    ends = [(1, 1), (0, 1)][-rank:]
    text = build.module(kind, x.shape, w, pads=ends)
    expected = onnx_conv(kind, x, w, pads=[pad for end in zip(*ends, strict=True) for pad in end])
    folded = check(build, text, x, expected, axis=axis, groups=groups)
    assert "tensor.expand_shape" in folded


@pytest.mark.parametrize("kind", ["conv_2d_nchw_fchw", "conv_2d_nhwc_hwcf", "conv_1d_ncw_fcw"])
@pytest.mark.parametrize(
    ("strides", "dilations", "pads", "w"),
    [
        ((2, 1), (1, 2), ((0, 2), (1, 1)), 12),
        ((1, 2), (2, 1), ((1, 1), (0, 0)), 16),
        ((1, 3), (1, 3), ((2, 0), (0, 3)), 24),
    ],
)
def test_strides_dilations_and_pads(
    build: ModuleType,
    kind: str,
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[tuple[int, int], ...],
    w: int,
) -> None:
    rank = 1 if "1d" in kind else 2
    geometry = {"strides": strides[-rank:], "dilations": dilations[-rank:]}
    ends = pads[-rank:]
    x, kernel = numbers(*shape(kind, w=w)), weight(kind)
    text = build.module(kind, x.shape, kernel, pads=ends, **geometry)
    listed = [pad for end in zip(*ends, strict=True) for pad in end]
    expected = onnx_conv(kind, x, kernel, pads=listed, **geometry)
    check(build, text, x, expected, axis=AxisName.WIDTH)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_bias_is_folded_and_any_other_start_is_moved(build: ModuleType, kind: str) -> None:
    w, x = weight(kind, w=1), numbers(*shape(kind))
    outputs = SIZES["f"] if "f" in CONVOLUTIONS[kind][1] else SIZES["g"]
    if "g" in CONVOLUTIONS[kind][0] and outputs == SIZES["f"]:
        expected = onnx_conv(kind, x, w)  # a bias of groups has two axes; the module below has one
        start = numbers(*expected.shape, seed=2)
    else:
        bias = numbers(outputs, seed=2)
        letters = CONVOLUTIONS[kind][0].replace("c", "f")
        along = [-1 if letter in "gf" else 1 for letter in letters]
        expected = onnx_conv(kind, x, w)
        check(build, build.module(kind, x.shape, w, bias=bias), x, expected + bias.reshape(along))
        start = numbers(*expected.shape, seed=3)
    check(build, build.module(kind, x.shape, w, init=start), x, expected + start)


def test_the_number_of_samples_may_be_open(build: ModuleType) -> None:
    w = weight("conv_2d_nchw_fchw")
    bias = numbers(5)
    text = build.module("conv_2d_nchw_fchw", [None, 2, 8, 12], w, bias=bias, pads=((1, 1), (0, 1)))
    for samples in (1, 3):
        x = numbers(samples, 2, 8, 12)
        expected = onnx_conv("conv_2d_nchw_fchw", x, w, bias, pads=[1, 0, 1, 1])
        check(build, text, x, expected)


@pytest.mark.parametrize("right", [False, True])
def test_products(build: ModuleType, right: bool) -> None:
    x, w = (numbers(24, 3), numbers(3, 5)) if right else (numbers(3, 24), numbers(5, 3))
    bias = numbers(5, seed=4)
    expected = x @ w if right else w @ x
    text = build.module("matmul", x.shape, w, right=right)
    folded = check(build, text, x, expected, mix_samples=True)
    assert "linalg.transpose" not in folded
    text = build.module("matmul", x.shape, w, bias=bias, right=right)
    along = bias if right else bias[:, None]
    check(build, text, x, expected + along, mix_samples=True)


def test_halves_are_summed_in_floats_if_the_result_is_one(build: ModuleType) -> None:
    kind = "conv_2d_nhwc_hwcf"
    w, x = weight(kind), numbers(*shape(kind))
    ends = {"pads": ((1, 1), (0, 1))}
    text = build.module(kind, x.shape, w.astype(np.float16), sums="f32", **ends)
    folded, (site,) = fold_module(text, FoldOptions(factor=4))
    assert site.status == "folded"
    expected = onnx_conv(kind, x, w, pads=[1, 0, 1, 1])
    for module in (text, folded):
        _, result = build.loaded(build.compiled(module), x.astype(np.float16))
        np.testing.assert_array_equal(result(), expected)


def test_the_papers_case_folds_to_views_alone(build: ModuleType) -> None:
    """Appendix A: B, H, W = 1, 32, 64, kernel 5 x 1, one channel, F = 8, channels last."""
    w, x, b = numbers(5, 1, 1, 1), numbers(1, 32, 64, 1), numbers(1)
    text = build.module("conv_2d_nhwc_hwcf", x.shape, w, bias=b)
    folded, (site,) = fold_module(text, FoldOptions(factor=8))
    assert "linalg.transpose" not in folded
    assert "tensor<1x32x8x8xf32>, tensor<5x1x8x8xf32>" in folded
    assert site.reason == "1 -> 1 channels became 8 -> 8"
    wide = np.zeros((5, 1, 8, 8), np.float32)  # the loop of the paper's listing
    for f in range(8):
        wide[:, :, f, f : f + 1] = w[:, :, 0, :]
    held = build.dense(wide)
    assert held in folded
    _, result = build.loaded(build.compiled(folded), x)
    expected = onnx_conv("conv_2d_nhwc_hwcf", x, w, b)
    np.testing.assert_array_equal(result(), expected)
    grouped, _ = fold_module(text, FoldOptions(factor=8), groups=True)
    assert "linalg.depthwise_conv_2d_nhwc_hwc" in grouped


def test_layers_that_follow_each_other_are_all_folded(build: ModuleType) -> None:
    first, two = numbers(4, 1, 3, 3), numbers(2, 4, 3, 3)
    text = f"""func.func @layer(%x: tensor<1x1x8x8xf32>) -> tensor<1x2x4x4xf32> {{
      %v = arith.constant {build.dense(first)}
      %w = arith.constant {build.dense(two)}
      %a = arith.constant dense<1.0> : tensor<1x4x6x6xf32>
      %b = arith.constant dense<2.0> : tensor<1x2x4x4xf32>
      %y = linalg.conv_2d_nchw_fchw ins(%x, %v : tensor<1x1x8x8xf32>, tensor<4x1x3x3xf32>)
        outs(%a : tensor<1x4x6x6xf32>) -> tensor<1x4x6x6xf32>
      %z = linalg.conv_2d_nchw_fchw ins(%y, %w : tensor<1x4x6x6xf32>, tensor<2x4x3x3xf32>)
        outs(%b : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
      return %z : tensor<1x2x4x4xf32>
    }}"""
    folded, sites = fold_module(text, FoldOptions(factor=2))
    assert [site.status for site in sites] == ["folded", "folded"]
    x = numbers(1, 1, 8, 8)
    kind = "conv_2d_nchw_fchw"
    expected = onnx_conv(kind, onnx_conv(kind, x, first) + 1, two) + 2
    for module in (text, folded):
        np.testing.assert_array_equal(build.loaded(build.compiled(module), x)[1](), expected)


def views_only(value: Any, order: Any) -> Any:
    return emission._emit_reshape(value, tuple(emission.shape_of(value)[i] for i in order))


def mirrored(numbers: np.ndarray) -> Any:
    return EMIT_CONSTANT(np.flip(numbers).copy())


EMIT_CONSTANT = emission.emit_constant


@pytest.mark.parametrize(
    ("name", "fault"), [("_emit_transpose", views_only), ("emit_constant", mirrored)]
)
def test_a_fault_is_seen(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, fault: Any
) -> None:
    w, x = weight("conv_2d_nchw_fchw"), numbers(2, 2, 8, 12)
    text = build.module("conv_2d_nchw_fchw", x.shape, w, pads=((1, 1), (0, 1)))
    expected = onnx_conv("conv_2d_nchw_fchw", x, w, pads=[1, 0, 1, 1])
    check(build, text, x, expected)
    monkeypatch.setattr(emission, name, fault)
    with pytest.raises(AssertionError, match="not equal"):
        check(build, text, x, expected)
