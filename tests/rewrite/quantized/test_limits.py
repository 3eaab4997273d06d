"""Quantized convolutions that are extended, cut, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.folding import fold_model
from tests.rewrite.proved import assert_proved
from tests.rewrite.quantized.convs import Case
from tests.rewrite.quantized.models import FOLD, LINE, optimized, qdq_chain
from tests.running import run as outputs
from widthfold_onnx.options import AxisName, FoldOptions
from widthfold_onnx.results import SiteReport


def refused(model: onnx.ModelProto, options: FoldOptions = FOLD) -> SiteReport:
    _, (site,) = fold_model(model, options)
    assert site.status == "refused"
    return site


@pytest.mark.parametrize("axis", [AxisName.WIDTH, AxisName.HEIGHT])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_what_is_extended_and_cut_becomes_the_kernel_of_integers(
    kind: type[np.integer], axis: AxisName, tmp_path: Path
) -> None:
    model = qdq_chain(kind=kind)
    folded, sites = fold_model(model, FoldOptions(factor=7, axis=axis, ragged=True))
    assert [site.status for site in sites] == ["folded", "folded"]
    assert {"Pad", "Slice"} <= {node.op_type for node in folded.graph.node}
    assert optimized(folded, tmp_path).count("QLinearConv") == 2
    assert optimized(model, tmp_path).count("QLinearConv") == 2
    assert_proved(model, folded, 2)
    x = np.random.default_rng(5).normal(0, 30, (1, 3, 8, 12)).astype(np.float32)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        pairs = zip(outputs(model, x, level), outputs(folded, x, level), strict=True)
        for expected, actual in pairs:
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("relu", [False, True])
def test_what_is_not_quantized_right_behind_is_not_cut(relu: bool) -> None:
    """The runtime would compute such a Conv in floats: a Relu behind a Slice keeps them apart."""
    model = qdq_chain(relu=relu)
    if not relu:
        for name in ("c0", "c1"):
            model.graph.output.add().CopyFrom(
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4)
            )
    _, sites = fold_model(model, FoldOptions(factor=7, axis=AxisName.WIDTH, ragged=True))
    for site in sites:
        assert (site.code, "right behind" in site.reason) == ("quantized", True)
    # Along the height 8 rows are extended on neither side.
    _, sites = fold_model(model, FoldOptions(factor=8, axis=AxisName.HEIGHT, ragged=True))
    assert [site.status for site in sites] == ["folded", "folded"]


def test_there_is_no_pad_of_integers_before_opset_11() -> None:
    case = Case(op="ConvInteger", per_channel=False, opset=10, **LINE)
    site = refused(case.model(), FoldOptions(factor=3, axis=AxisName.WIDTH, ragged=True))
    assert (site.code, site.reason) == (
        "extension-unsupported",
        "width: the operator set has no Pad of integers",
    )


def test_scales_of_input_channels_are_not_those_of_outputs() -> None:
    proto = Case(op="QDQ Conv", **(LINE | {"weight": (3, 3, 4)})).model()
    maker = next(n for n in proto.graph.node if n.output[0] == "wf")
    maker.attribute[0].i = 1
    site = refused(proto)
    assert site.code == "quantized"
    assert "differ along axis 1, which counts no output channels" in site.reason


@pytest.mark.parametrize("scale", [0.0, -0.5, np.nan, np.inf])
def test_a_scale_is_a_positive_number(scale: float) -> None:
    proto = Case(op="QLinearConv", **LINE).model()
    held = next(t for t in proto.graph.initializer if t.name == "ws")
    numbers = numpy_helper.to_array(held).copy()
    numbers[2] = scale
    held.CopyFrom(numpy_helper.from_array(numbers, "ws"))
    assert refused(proto).reason == "a scale is not a positive number"


def test_sums_that_may_leave_int32_are_refused() -> None:
    case = Case(
        op="ConvInteger",
        per_channel=False,
        shape=(1, 9000, 1, 8),
        weight=(1, 9000, 1, 5),
        kinds=(np.uint8, np.uint8),
    )
    proto = case.model()
    for tensor in proto.graph.initializer:
        number = {"w": 255, "wz": 0}.get(tensor.name, 7)
        array = np.full(list(tensor.dims), number, np.uint8)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    site = refused(proto, FoldOptions(factor=2, axis=AxisName.WIDTH, max_channels=1 << 20))
    assert site.reason.startswith(f"a sum may reach {45000 * 255 * 248}, ")
    assert site.code == "accumulator-overflow"
    assert "more than the 2147483647 that int32 holds" in site.reason


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (TensorProto.INT4, "DequantizeLinear of INT4 with a scale of FLOAT is not evaluated"),
        (TensorProto.FLOAT8E4M3FN, "DequantizeLinear of FLOAT8E4M3FN"),
    ],
)
def test_narrower_types_are_named(kind: int, why: str) -> None:
    proto = Case(op="QDQ Conv", per_channel=False, opset=21, **LINE).model()
    maker = next(n for n in proto.graph.node if n.output[0] == "wf")
    del maker.input[2:]
    held = next(t for t in proto.graph.initializer if t.name == "w")
    held.CopyFrom(helper.make_tensor("w", kind, held.dims, np.ones(60)))
    assert why in refused(proto).reason


def test_weights_in_blocks_are_named() -> None:
    proto = Case(op="QDQ Conv", opset=21, bias=False, **LINE).model()
    maker = next(n for n in proto.graph.node if n.output[0] == "wf")
    del maker.input[2:]
    maker.attribute[0].i = 1
    maker.attribute.append(helper.make_attribute("block_size", 3))
    held = next(t for t in proto.graph.initializer if t.name == "ws")
    held.CopyFrom(numpy_helper.from_array(np.ones((5, 1, 4), np.float32), "ws"))
    site = refused(proto)
    assert site.code == "weight-not-constant"
    assert "is not evaluated" in site.reason


def test_integers_of_no_known_type_are_named() -> None:
    proto = Case(op="ConvInteger", per_channel=False, **LINE).model()
    proto.graph.node[0].input[2] = ""
    proto.graph.node.insert(0, helper.make_node("Identity", ["x"], ["i"]))
    proto.graph.node[1].input[0] = "i"
    _, (site,) = fold_model(proto, FOLD)
    assert site.status == "folded"  # an Identity keeps the type of the input
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Made", "elsewhere"
    proto.opset_import.append(helper.make_opsetid("elsewhere", 1))
    assert refused(proto).code == "unknown-type"


@pytest.mark.parametrize(("per_channel", "code"), [(False, "folded"), (True, "unknown-shape")])
def test_one_scale_of_the_weight_may_be_computed(per_channel: bool, code: str) -> None:
    """A fold changes numbers per output channel only."""
    model = Case(op="QLinearConv", per_channel=per_channel, **LINE).model()
    held = next(t for t in model.graph.initializer if t.name == "ws")
    model.graph.initializer.remove(held)
    dims = ["n"] if per_channel else list(held.dims)
    model.graph.input.append(helper.make_tensor_value_info("ws", TensorProto.FLOAT, dims))
    folded, (site,) = fold_model(model, FoldOptions(factor=4, axis=AxisName.WIDTH))
    assert site.code == code
    if code == "folded":
        assert_proved(model, folded, 1)
