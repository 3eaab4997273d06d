"""Random quantized convolutions through the whole rewrite: the integers of the loop oracle."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.oracle import resolve_auto_pad
from tests.rewrite.quantized import Case, run
from widthfold_onnx import FoldOptions, Layout, fold_model

KINDS = {
    "ConvInteger": [(a, b) for a in (np.uint8, np.int8) for b in (np.uint8, np.int8)],
    # What ONNX Runtime's CPU provider has kernels for (1.31.1).
    "QLinearConv": [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)],
    "QDQ Conv": [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)],
    "QDQ ConvTranspose": [(np.uint8, np.uint8), (np.int8, np.int8)],
}


@st.composite
def cases(draw: st.DrawFn, op: str):
    """A quantized convolution of any rank, and the options of a fold."""
    rank = draw(st.integers(1, 2 if op == "QDQ ConvTranspose" else 3))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    one, other = (draw(st.integers(1, 3)) for _ in range(2))
    kernel = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    weight = (group * one, other) if op == "QDQ ConvTranspose" else (group * other, one)
    transposed = op == "QDQ ConvTranspose"
    # Its results have as many positions as strides divide, or it is refused, every other time.
    most = draw(st.sampled_from([1, 3])) if transposed else 3
    strides = [draw(st.integers(1, most)) for _ in range(rank)]
    same = not transposed and draw(st.integers(0, 3)) == 0
    dilations = [1 if same else draw(st.integers(1, 3)) for _ in range(rank)]
    factor, axis = draw(st.integers(2, 6)), draw(st.sampled_from([0, *range(2, rank + 2)]))
    samples = draw(st.integers(1, 2)) * (1 if axis else factor)
    # Long enough for the kernel without pads: an open extent hides that nothing would come out.
    extents = [
        d * (k - 1) + draw(st.integers(1, 5)) for k, d in zip(kernel, dilations, strict=True)
    ]
    if axis:
        extents[axis - 2] += -extents[axis - 2] % factor
    attributes = {"strides": strides, "dilations": dilations, "group": group}
    attributes["kernel_shape"] = kernel
    if same:
        attributes["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
        pads = resolve_auto_pad(attributes["auto_pad"], extents, kernel, strides, dilations)
    else:
        widest = min(k - 1 for k in kernel) if transposed else 3
        pads = attributes["pads"] = [draw(st.integers(0, widest)) for _ in range(2 * rank)]
    others = [other for other in [0, *range(2, rank + 2)] if other != axis]
    open_axes = draw(st.sets(st.sampled_from(others), max_size=1))
    opset = draw(st.sampled_from([10, 11, 13, 19, 21]))
    # One scale for each channel, where DequantizeLinear has an axis and ConvInteger a kernel.
    several = op != "ConvInteger" and not (opset < 13 and op.startswith("QDQ"))
    case = Case(
        op=op,
        shape=(samples, group * one, *extents),
        weight=(*weight, *kernel),
        kinds=draw(st.sampled_from(KINDS[op])),
        per_channel=several and draw(st.booleans()),
        bias=draw(st.booleans()),
        attributes=attributes,
        pads=tuple(pads),
        opset=opset,
        open_axes=frozenset(open_axes),
        seed=draw(st.integers(0, 1 << 16)),
    )
    options = FoldOptions(
        factor=factor,
        axis=axis,
        layout=draw(st.sampled_from([Layout.NCHW, Layout.NHWC])),
        ragged=draw(st.booleans()),
        max_flops_growth=1e9,
        max_bytes_growth=1e9,
    )
    return case, options


@pytest.mark.parametrize("op", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_folded_node_returns_the_integers_of_the_oracle(op: str, data: st.DataObject) -> None:
    case, options = data.draw(cases(op))
    folded, (site,) = fold_model(case.model(), options)
    assume(site.status == "folded")
    onnx.checker.check_model(folded, full_check=True)
    x = case.data()
    expected = case.expected(x)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        np.testing.assert_array_equal(run(folded, x, level), expected)
