"""Random convolutions of any rank."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import assume
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.oracle import conv, conv_transpose, resolve_auto_pad, resolve_transposed_pads
from tests.rewrite.checked_fold import ANY_GROWTH, Drawn
from tests.rewrite.quantized.convs import Case
from widthfold_onnx.options import AxisName, FoldOptions, Layout

OPSETS = [7, 9, 10, 11, 13, 17, 21]
SEED = st.integers(0, 1 << 32)


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
        **ANY_GROWTH,
    )
    open_axes = draw(st.sets(st.sampled_from([0, *range(2, rank + 2)]), max_size=2))
    # An open extent hides that nothing would come out, and then the original does not run either.
    sizes = list(zip(extents, kernel, dilations, pads[:rank], pads[rank:], strict=True))
    fits = [before + n + behind > d * (k - 1) for n, k, d, before, behind in sizes]
    assume(all(fits[axis - 2] for axis in open_axes if axis))
    opset = draw(st.sampled_from(OPSETS))
    rng = np.random.default_rng(draw(SEED))
    x, w, b = integers(rng, shape, [outputs, per_group, *kernel], outputs)
    model = model_of(shape, w, b, attributes, opset, open_axes)
    geometry = {name: attributes[name] for name in ("strides", "dilations", "group")}
    return Drawn(
        model=model,
        x=x,
        options=options,
        expected=lambda: [floats(conv(x, w, b, **geometry, pads=pads))],
    )


def integers(
    rng: np.random.Generator, shape: list[int], weight: list[int], outputs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Data, weight and bias; no weight is 0, which is also what folds fill in."""
    x, w = rng.integers(-9, 10, shape), rng.integers(1, 10, weight)
    return floats(x), floats(w), floats(rng.integers(-9, 10, outputs))


def floats(array: np.ndarray) -> np.ndarray:
    """The same numbers as the models have them."""
    assert np.abs(array).max(initial=0) < 1 << 24
    return array.astype(np.float32)


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
        attributes["auto_pad"] = way
        pads = resolve_transposed_pads(way, *geometry)
    others = [f - a - b for f, a, b in zip(full, pads[:rank], pads[rank:], strict=True)]
    assume(min(others) >= 1)
    options = FoldOptions(
        factor=draw(st.integers(2, 6)),
        axis=draw(st.sampled_from([AxisName.AUTO, 0, *range(2, rank + 2)])),
        layout=draw(st.sampled_from(list(Layout))),
        ragged=draw(st.integers(0, 3)) > 0,
        mix_samples=draw(st.booleans()),
        **ANY_GROWTH,
    )
    open_axes = draw(st.sets(st.sampled_from([0, *range(2, rank + 2)]), max_size=1))
    shape = [draw(st.integers(1, 6)), channels, *extents]
    opset = draw(st.sampled_from([n for n in OPSETS if n > 10 or way == "pads"]))
    rng = np.random.default_rng(draw(SEED))
    x, w, b = integers(rng, shape, [channels, outputs, *kernel], outputs * group)
    model = model_of(shape, w, b, attributes, opset, open_axes, "ConvTranspose")
    names = ("strides", "dilations", "output_padding", "group")
    geometry = {name: attributes[name] for name in names}
    return Drawn(
        model=model,
        x=x,
        options=options,
        expected=lambda: [floats(conv_transpose(x, w, b, **geometry, pads=pads))],
    )


KINDS = {
    "ConvInteger": [(a, b) for a in (np.uint8, np.int8) for b in (np.uint8, np.int8)],
    # What ONNX Runtime's CPU provider has kernels for (1.31.1).
    "QLinearConv": [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)],
    "QDQ Conv": [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)],
    "QDQ ConvTranspose": [(np.uint8, np.uint8), (np.int8, np.int8)],
}


@st.composite
def quantized_convs(draw: st.DrawFn, op: str):
    """A quantized convolution of any rank, and the options of a fold."""
    rank = draw(st.integers(1, 2 if op == "QDQ ConvTranspose" else 3))
    group = draw(st.sampled_from([1, 1, 2, 3]))
    first, other = (draw(st.integers(1, 3)) for _ in range(2))
    kernel = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    weight = (group * first, other) if op == "QDQ ConvTranspose" else (group * other, first)
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
        shape=(samples, group * first, *extents),
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
        **ANY_GROWTH,
    )
    model, x = case.model(), case.data()
    return Drawn(model=model, x=x, options=options, expected=lambda: [case.expected(x)])
