"""Read a Conv node: everything the algebra needs, or why the node is left alone."""

from __future__ import annotations

from widthfold_onnx.fold.axis import ConvAxis
from widthfold_onnx.model.graph import Constant, Document, Node, Value
from widthfold_onnx.model.propagate import Dims
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules.base import ConvSite, Site

# Element types for which ONNX Runtime's CPU provider has a Conv (measured on 1.31.1: double and
# bfloat16 are NOT_IMPLEMENTED); what cannot run cannot be verified.
ITEMSIZE = {"FLOAT": 4, "FLOAT16": 2}
# Reshape takes its shape as an input, which the emitted form needs, from this opset on.
MIN_OPSET = 5


def read_conv(
    document: Document, site: Site, static: ShapeTable, planned: ShapeTable
) -> ConvSite | Refusal:
    """Collect weight, bias, shapes and geometry of a Conv.

    Refuses a node that lies in a function, has an element type without a
    kernel, a weight or bias that is not constant, or an input whose rank is not known.
    """
    node, path = site.node, site.scope.path
    if site.scope.proto is None:
        return Refusal("in-function", "the node is in a local function, which calls may share")
    if document.opset < MIN_OPSET:
        return Refusal("opset-too-old", f"opset {document.opset} is below {MIN_OPSET}")
    if node.device_configurations:
        return Refusal("sharded", "the node is configured to run on several devices")
    data, weight, bias = _inputs(document, node)
    if isinstance(weight, Refusal):
        return Refusal(f"weight-{weight.code}", f"the weight {weight.reason}")
    if isinstance(bias, Refusal):
        return Refusal(f"bias-{bias.code}", f"the bias {bias.reason}")
    annotated = [v for v in node.inputs[1:] if v is not None and document.is_annotated(v)]
    if annotated:
        return Refusal("weight-annotated", "a quantization annotation describes the weight")
    if weight.dtype not in ITEMSIZE:
        return Refusal("dtype-unsupported", f"the runtime has no Conv kernel for {weight.dtype}")
    shapes = [table.get(path, data.name or "") for table in (static, planned)]
    group = group_of(node)
    for dims in shapes:
        problem = _shape_problem(dims, weight.shape, bias, group)
        if problem:
            return problem
    static_dims, planned_dims = (
        (d[0], weight.shape[1] * group, *d[2:]) for d in shapes if d is not None
    )
    axes = conv_axes(node, planned_dims, weight.shape)
    if isinstance(axes, Refusal):
        return axes
    if any(axis.out_length is not None and axis.out_length < 1 for axis in axes):
        lengths = [axis.out_length for axis in axes]
        return Refusal("empty-tensor", f"the output would have the extents {lengths}")
    sized = {
        i
        for i, (axis, fixed) in enumerate(zip(axes, static_dims[2:], strict=True))
        if fixed is None and axis.stride > 1 and _auto_pad(node).startswith("SAME")
    }
    return ConvSite(
        node=node,
        scope=site.scope,
        name=site.name,
        op=site.op,
        static=static_dims,
        planned=planned_dims,
        weight=weight,
        bias=bias,
        group=group,
        axes=axes,
        sized_pads=frozenset(sized),
        itemsize=ITEMSIZE[weight.dtype],
    )


def _inputs(
    document: Document, node: Node
) -> tuple[Value, Constant | Refusal, Constant | Refusal | None]:
    data, weight, *rest = node.inputs
    assert data is not None
    assert weight is not None
    bias = rest[0] if rest else None
    return data, document.constant(weight), None if bias is None else document.constant(bias)


def _shape_problem(
    dims: Dims | None, weight: tuple[int, ...], bias: Constant | None, group: int
) -> Refusal | None:
    if dims is None:
        return Refusal("unknown-shape", "the rank of the input is not known")
    if len(dims) != len(weight) or not 3 <= len(dims) <= 5:
        return Refusal(
            "rank-unsupported",
            f"input of rank {len(dims)} and weight of rank {len(weight)}: 1 to 3 spatial axes fold",
        )
    if 0 in dims or 0 in weight:
        return Refusal("empty-tensor", f"input {list(dims)} or weight {list(weight)} is empty")
    consistent = (
        group >= 1
        and weight[0] % group == 0
        and dims[1] in (None, weight[1] * group)
        and (bias is None or bias.shape == weight[:1])
    )
    if not consistent:
        return Refusal(
            "inconsistent-shapes",
            f"input {list(dims)}, weight {list(weight)} and group {group} do not fit",
        )
    return None


def conv_axes(node: Node, dims: Dims, weight: tuple[int, ...]) -> tuple[ConvAxis, ...] | Refusal:
    """Geometry of every spatial axis of a Conv node.

    Args:
        node: the Conv.
        dims: input extents [N, C, *spatial]; None where not known.
        weight: [O, C/group, *kernel].

    Returns:
        The axes with explicit pads (SAME as the ONNX operator text defines it), or a refusal
        where the attributes contradict each other or pads depend on an unknown extent.
    """
    rank = len(weight) - 2
    strides = _ints(node, "strides", [1] * rank)
    dilations = _ints(node, "dilations", [1] * rank)
    pads = _ints(node, "pads", [0] * (2 * rank))
    auto_pad = _auto_pad(node)
    kernel = _ints(node, "kernel_shape", list(weight[2:]))
    fits = (
        tuple(kernel) == weight[2:]
        and (len(strides), len(dilations), len(pads)) == (rank, rank, 2 * rank)
        and min(*strides, *dilations) >= 1
    )
    if not fits:
        return Refusal(
            "inconsistent-attributes",
            f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads} for weight "
            f"{list(weight)}",
        )
    axes = []
    for i in range(rank):
        length, s, d = dims[2 + i], strides[i], dilations[i]
        begin, end = pads[i], pads[rank + i]
        if auto_pad == "VALID":
            begin = end = 0
        elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            span = d * (kernel[i] - 1) + 1
            if length is None and s > 1:
                return Refusal(
                    "unknown-extent",
                    f"{auto_pad} at stride {s} pads by the input's extent, which is not known",
                )
            # At stride 1 the total is span - 1 whatever the extent.
            total = span - 1 if length is None else (-(-length // s) - 1) * s + span - length
            # Where the stride skips more than the kernel covers the total is negative, and the
            # runtime halves it towards zero.
            begin = int(total / 2) if auto_pad == "SAME_UPPER" else int((total + 1) / 2)
            if begin < 0:
                return Refusal(
                    "negative-same-pads", f"{auto_pad} of {length} positions at stride {s} crops"
                )
            end = max(0, total - begin)
        axes.append(
            ConvAxis(
                length=length,
                kernel=kernel[i],
                stride=s,
                dilation=d,
                pad_begin=begin,
                pad_end=end,
            )
        )
    return tuple(axes)


def _auto_pad(node: Node) -> str:
    return node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else ""


def group_of(node: Node) -> int:
    """Groups of a Conv node."""
    return node.attributes["group"].as_int() if "group" in node.attributes else 1


def _ints(node: Node, name: str, default: list[int]) -> list[int]:
    return list(node.attributes[name].as_ints()) if name in node.attributes else default
