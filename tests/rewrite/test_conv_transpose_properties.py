"""Random ConvTransposes through the whole rewrite; the result equals the oracle on the runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.oracle import conv_transpose, matmul, resolve_transposed_pads
from tests.rewrite.test_properties import OPSETS, model_of, run
from widthfold_onnx import AxisName, FoldOptions, Layout, fold_model


@st.composite
def conv_transposes(draw: st.DrawFn):
    """A ConvTranspose of any rank with integer weights; open dimensions; the options of a fold."""
    rank = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    channels, outputs = group * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    extents = draw(st.lists(st.integers(1, 11 - 2 * rank), min_size=rank, max_size=rank))
    strides, dilations = ([draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(2))
    more = [draw(st.integers(0, s - 1)) for s in strides]  # the runtime has no larger one
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    attributes |= {"output_padding": more, "group": group}
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    full = [s * (n - 1) + r + m for s, n, r, m in zip(strides, extents, reach, more, strict=True)]
    geometry = (extents, kernel, strides, dilations, more)
    way = draw(st.sampled_from(["pads", "pads", "output_shape", "SAME_UPPER", "SAME_LOWER"]))
    if way == "pads":
        pads = [draw(st.integers(0, 3)) for _ in range(2 * rank)]
        attributes["pads"] = pads
    elif way == "output_shape":
        # The runtime adds less than a stride, what output_padding adds included.
        most = [n + s - 1 - m for n, s, m in zip(full, strides, more, strict=True)]
        shape = [draw(st.integers(1, n)) for n in most]
        auto_pad = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
        attributes |= {"output_shape": shape, "auto_pad": auto_pad}
        pads = resolve_transposed_pads(auto_pad, *geometry, shape)
    else:
        assume(all(s * n <= f for s, n, f in zip(strides, extents, full, strict=True)))
        attributes["auto_pad"] = way
        pads = resolve_transposed_pads(way, *geometry)
    kept = [f - a - b for f, a, b in zip(full, pads[:rank], pads[rank:], strict=True)]
    assume(min(kept) >= 1)
    options = FoldOptions(
        factor=draw(st.integers(2, 6)),
        axis=draw(st.sampled_from([AxisName.AUTO, 0, *range(2, rank + 2)])),
        layout=draw(st.sampled_from(list(Layout))),
        ragged=draw(st.integers(0, 3)) > 0,
        mix_samples=draw(st.booleans()),
        max_flops_growth=1e9,
        max_bytes_growth=1e9,
    )
    open_axes = draw(st.sets(st.sampled_from([0, *range(2, rank + 2)]), max_size=1))
    shape = [draw(st.integers(1, 6)), channels, *extents]
    opset = draw(st.sampled_from([n for n in OPSETS if n > 10 or way == "pads"]))
    return shape, [channels, outputs, *kernel], attributes, pads, options, open_axes, opset


@settings(max_examples=300, deadline=None)
@given(conv_transposes(), st.integers(0, 1 << 32))
def test_the_folded_model_equals_the_oracle_bit_for_bit(case, seed: int) -> None:
    shape, weight_shape, attributes, pads, options, open_axes, opset = case
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, shape).astype(np.float32)
    w = rng.integers(1, 10, weight_shape).astype(np.float32)
    b = rng.integers(-9, 10, weight_shape[1] * attributes["group"]).astype(np.float32)
    model = model_of(shape, w, b, attributes, opset, open_axes, "ConvTranspose")
    folded, (site,) = fold_model(model, options)
    assert site.op == "ConvTranspose"
    if site.status != "folded":
        assert folded.SerializeToString() == model.SerializeToString()
        return
    assert site.factor == options.factor
    onnx.checker.check_model(folded, full_check=True)
    geometry = {name: attributes[name] for name in ("strides", "dilations", "output_padding")}
    expected = conv_transpose(x, w, b, **geometry, pads=pads, group=attributes["group"])
    np.testing.assert_array_equal(run(model, x, "ORT_DISABLE_ALL"), expected)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, x, level), expected)
    again, (second,) = fold_model(folded, options)
    assert second.code == "already-folded"
    assert again.SerializeToString() == folded.SerializeToString()


@pytest.mark.parametrize("kernel", [2, 3])
def test_what_follows_same_padding_with_output_padding_is_folded_too(kernel: int) -> None:
    nodes = [
        helper.make_node(
            "ConvTranspose",
            ["x", "w"],
            ["u"],
            auto_pad="SAME_LOWER",
            strides=[3],
            output_padding=[2],
        ),
        helper.make_node("MatMul", ["v", "u"], ["y"]),
    ]
    rng = np.random.default_rng(kernel)
    arrays = {"w": rng.integers(1, 10, (2, 3, kernel)), "v": rng.integers(1, 10, (5, 3))}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None] * 3)],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folded, sites = fold_model(model, FoldOptions(factor=4))
    assert [site.status for site in sites] == ["folded"] * 2
    x = rng.integers(-9, 10, (1, 2, 8)).astype(np.float32)
    pads = resolve_transposed_pads("SAME_LOWER", [8], [kernel], [3], [1], [2])
    u = conv_transpose(x, arrays["w"], strides=[3], output_padding=[2], pads=pads)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, x, level), matmul(arrays["v"], u))
