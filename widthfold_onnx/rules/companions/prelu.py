"""Write PRelu, which ONNX Runtime computes slowly, as ops that it computes fast.

PRelu returns x where x >= 0, and slope * x where x < 0.

    before:            x ---------------------- PRelu(slope) -- y
    one slope:         x ---------------------- LeakyRelu ----- y
    slopes up to 1:    x -+- Mul(slope) ------- Max(x, .) ----- y
    slopes from 1:     x -+- Mul(slope) ------- Min(x, .) ----- y
    any others:        x -+- Less(0) - Where(slope, 1) - Mul(x) - y

Matches: a PRelu of floats whose slopes are constant.
Rewrites: to LeakyRelu(x) if there is one slope: runtimes compute it in the Conv before it.
    Else, if all slopes are finite and none is 0 or subnormal: to Max(x, slope * x) if all are up
    to 1, and to Min(x, slope * x) if all are at least 1. For Max they must be above 0, too, in
    float16 and double. Any others: to x * Where(x < 0, slope, 1).
Exact: bit for bit, but for the sign of some zeros. LeakyRelu has the same definition; its slope is
    a float32, so that the slope must be one.
    Max and Min: the product is rounded as in the PRelu. Rounding keeps order: with slopes up to 1
    the product is at most a positive x, and at least a negative x. Where it overflows to an Inf,
    so does the product of the PRelu, or it is not taken. Inf times a slope is an Inf, and NaN stays
    NaN.
    With a slope of 0, Max(x, 0 * x) of Inf would be NaN. With a slope below 0, the product of a
    zero is a zero of the other sign, and ONNX leaves open which of the two is the Max. For float32
    on x86 ONNX Runtime returns its second input, x; elements at the end that fill no vector of 4
    get the first.
    Where: the factor is 1 for NaN and for both zeros, and x * 1 is x. Subnormal slopes count as 0,
    which they are where subnormals are flushed. The product of a negative x may be -0: kernels of
    ONNX Runtime for a PRelu of double, and some of float16, return +0 there.
Refuses: slopes that may give the result other extents than the data. A slope of -0 among others:
    the Where of ONNX Runtime returns 0 for it. All slopes if the runtime's PRelu makes NaN of an
    Inf (`prelu_runtime_problem`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from widthfold_onnx.arrays import Array
from widthfold_onnx.model.document import Document, Node, Value, graph_of
from widthfold_onnx.model.shapes.arithmetic import BROADCAST_OPSET
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.companions.companion import Exchange, NodeSpec
from widthfold_onnx.runtime import kernels

WHERE_OPSET = 9
"""First operator set with a Where."""

SLOPE_TYPES = ("FLOAT", "FLOAT16", "DOUBLE")


def prelu(document: Document, node: Node) -> Exchange | Refusal:
    """Return the nodes that are equal to a PRelu."""
    data, slope = node.inputs
    assert data is not None and slope is not None
    if document.opset < BROADCAST_OPSET:
        return Refusal(Code.OPSET_TOO_OLD, f"opset {document.opset} is below {BROADCAST_OPSET}")
    constant = document.constant(slope)
    if isinstance(constant, Refusal):
        return replace(constant, reason=f"the slope {constant.reason}")
    if constant.dtype not in SLOPE_TYPES:
        return Refusal(Code.DTYPE_UNSUPPORTED, f"the slope is {constant.dtype}")
    problem = _slope_problem(document, node, data, constant.shape)
    nodes = problem or _nodes(document, data, slope, document.read(constant))
    return nodes if isinstance(nodes, Refusal) else Exchange(node, nodes)


def prelu_runtime_problem() -> Refusal | None:
    """Refuse every PRelu where the installed runtime, which is tried once, makes NaN of an Inf."""
    if kernels.prelu_keeps_inf():
        return None
    return Refusal(Code.INEXACT, "PRelu of this ONNX Runtime returns NaN for an Inf")


def _slope_problem(
    document: Document, node: Node, data: Value, slope: tuple[int, ...]
) -> Refusal | None:
    """Refuse slopes that may give the result other extents than the data."""
    dims = document.dims(graph_of(node), data)
    if dims is None:
        return Refusal(Code.UNKNOWN_SHAPE, "the rank of the input is not known") if slope else None
    pairs = zip(reversed(dims), reversed(slope), strict=False)
    if len(slope) <= len(dims) and all(n in (1, extent) for extent, n in pairs):
        return None
    return Refusal(Code.INCONSISTENT_SHAPES, f"slopes {list(slope)} for an input {list(dims)}")


def _nodes(
    document: Document, data: Value, slope: Value, slopes: Array
) -> tuple[NodeSpec, ...] | Refusal:
    least, most = float(slopes.min(initial=np.inf)), float(slopes.max(initial=-np.inf))
    with np.errstate(over="ignore"):
        is_held = float(np.float32(least)) == least
    if is_held and np.unique(slopes.view(f"u{slopes.itemsize}")).size == 1:
        return (NodeSpec("LeakyRelu", (data,), {"alpha": least}),)
    product = NodeSpec("Mul", (data, slope))
    sizes = np.abs(slopes)
    is_normal = bool(((np.finfo(slopes.dtype).tiny <= sizes) & (sizes < np.inf)).all())
    if is_normal and most <= 1 and (least > 0 or slopes.dtype == np.float32):
        return product, NodeSpec("Max", (0, data))
    if is_normal and least >= 1:
        return product, NodeSpec("Min", (data, 0))
    if document.opset < WHERE_OPSET:
        return Refusal(
            Code.OPSET_TOO_OLD,
            f"slopes from {least:g} to {most:g} at opset {document.opset}, below {WHERE_OPSET}",
        )
    if (np.signbit(slopes) & (slopes == 0)).any():
        return Refusal(Code.INEXACT, "one of the slopes is -0, and Where may return 0 for it")
    # Of the rank of the slopes: ONNX Runtime broadcasts a lone number slowly along extents of 1.
    zero, unit = (np.full((1,) * slopes.ndim, number, slopes.dtype) for number in (0, 1))
    is_negative, factor = NodeSpec("Less", (data, zero)), NodeSpec("Where", (0, slope, unit))
    return is_negative, factor, NodeSpec("Mul", (data, 1))
