"""Random Convs through the whole rewrite; the result equals the loop oracle on the runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests run what the package made
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.oracle import conv, resolve_auto_pad
from widthfold_onnx import AxisName, FoldOptions, Layout, fold_model

OPSETS = [7, 9, 10, 11, 13, 17, 21]


@st.composite
def convs(draw: st.DrawFn):
    """A Conv of any rank with integer weights; open dimensions; the options of a fold."""
    rank = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    per_group, outputs = draw(st.integers(1, 3)), group * draw(st.integers(1, 3))
    kernel = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    extents = draw(st.lists(st.integers(1, 14 - 3 * rank), min_size=rank, max_size=rank))
    auto_pad = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    same = auto_pad.startswith("SAME")
    # The runtime has no SAME padding of dilated kernels.
    dilations = [1 if same else draw(st.integers(1, 3)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    pads = [draw(st.integers(0, 3)) for _ in range(2 * rank)]
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    if auto_pad == "NOTSET":
        attributes["pads"] = pads
    else:
        attributes["auto_pad"] = auto_pad
        pads = resolve_auto_pad(auto_pad, extents, kernel, strides, dilations)
    attributes["group"] = group
    shape = [draw(st.integers(1, 6)), group * per_group, *extents]
    options = FoldOptions(
        factor=draw(st.integers(2, 6)),
        axis=draw(st.sampled_from([AxisName.AUTO, 0, *range(2, rank + 2)])),
        layout=draw(st.sampled_from([Layout.NCHW, Layout.NHWC])),
        ragged=draw(st.booleans()),
        mix_samples=draw(st.booleans()),
        max_flops_growth=1e9,
        max_bytes_growth=1e9,
    )
    open_axes = draw(st.sets(st.sampled_from([0, *range(2, rank + 2)]), max_size=2))
    return (
        shape,
        [outputs, per_group, *kernel],
        attributes,
        pads,
        options,
        open_axes,
        draw(st.sampled_from(OPSETS)),
    )


def model_of(
    shape, weight, bias, attributes, opset, open_axes, op: str = "Conv"
) -> onnx.ModelProto:
    dims = [f"d{i}" if i in open_axes else extent for i, extent in enumerate(shape)]
    nodes = [
        helper.make_node(op, ["x", "w", "b"], ["c"], "conv", **attributes),
        helper.make_node("Identity", ["c"], ["y"], "end"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(dims))],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def run(model: onnx.ModelProto, x: np.ndarray, level: str) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


@settings(max_examples=400, deadline=None)
@given(convs(), st.integers(0, 1 << 32))
def test_the_folded_model_equals_the_oracle_bit_for_bit(case, seed: int) -> None:
    shape, weight_shape, attributes, pads, options, open_axes, opset = case
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, shape).astype(np.float32)
    w = rng.integers(1, 10, weight_shape).astype(np.float32)
    b = rng.integers(-9, 10, weight_shape[0]).astype(np.float32)
    spans = [
        d * (k - 1) + 1
        for d, k in zip(attributes["dilations"], attributes["kernel_shape"], strict=True)
    ]
    half = len(pads) // 2
    assume(
        all(
            extent + begin + end >= span
            for extent, begin, end, span in zip(
                shape[2:], pads[:half], pads[half:], spans, strict=True
            )
        )
    )
    model = model_of(shape, w, b, attributes, opset, open_axes)
    folded, (site,) = fold_model(model, options)
    if site.status != "folded":
        assert folded.SerializeToString() == model.SerializeToString()
        return
    onnx.checker.check_model(folded, full_check=True)
    expected = conv(
        x,
        w,
        b,
        strides=attributes["strides"],
        dilations=attributes["dilations"],
        pads=pads,
        group=attributes["group"],
    )
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, x, level), expected)
    again, (second,) = fold_model(folded, options)
    assert second.code == "already-folded"
    assert again.SerializeToString() == folded.SerializeToString()
