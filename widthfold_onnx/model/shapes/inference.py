"""Calls onnx's shape inference, and avoids the inputs that would end the process.

Extents may be negative: the positions of a window larger than its padded input, extents that a
model computes, or a declared -1. Slice clamps between 0 and the extent of its data; at a negative
extent an assertion of onnx 1.23.2 fails and ends the process. So values that a Slice may
read pass through an operator of our own, whose inference leaves a negative extent open. Inference
also indexes by two attributes unchecked: a model with values that no runtime takes is refused.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx
from onnx import defs, helper, shape_inference  # noqa: TID251 - this module is the door

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.domain import domain_name, is_default
from widthfold_onnx.model.proto.functions import FunctionKey, call_key, function_key
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import all_graphs, all_nodes, subgraphs

DOMAIN = "widthfold.extents"
"""Domain of the operator that leaves negative extents open; no written model has it."""

_OP = "OpenNegative"
_RAW = "widthfold/raw/"  # prefix of the name of a value whose negative extents are not open yet

PROPAGATING = {
    *("Add", "Cast", "Concat", "Gather", "Mul", "Shape", "Size", "Slice", "Squeeze", "Sub"),
    "Unsqueeze",
}
"""Operators through which onnx propagates extents as data."""

# Inference finds extents by these next to each other, so nothing may come between them. None of
# them makes a negative extent of extents that are not.
_CARRIERS = {"Constant", *PROPAGATING}


def infer_shapes(model: onnx.ModelProto, *, data_prop: bool = False) -> onnx.ModelProto:
    """Infer shapes without strict mode: a node that cannot be inferred does not hide the others.

    Args:
        model: nodes in running order; left as it is.
        data_prop: whether vectors of extents are evaluated.

    Returns:
        The model with inferred types; itself if its declarations contradict each other. Where
        there is a Slice, negative extents are open, declared ones as well.

    Raises:
        InvalidModelError: a local function is of the domain that is ours.
    """
    if any(domain_name(function.domain) == DOMAIN for function in model.functions):
        raise InvalidModelError(f"a function has the domain {DOMAIN}, which widthfold uses itself")
    read = _read_by_slices(model)
    try:
        if not read:
            return shape_inference.infer_shapes(model, data_prop=data_prop)
        made = shape_inference.infer_shapes(_guarded(model, read), data_prop=data_prop)
    except shape_inference.InferenceError:
        return model
    return _told(model, made)


def infer_node(
    node: onnx.NodeProto,
    opset: int,
    types: Mapping[str, onnx.TypeProto],
    data: Mapping[str, onnx.TensorProto],
) -> dict[str, onnx.TypeProto]:
    """Infer the types of a node's outputs; {} if its inputs do not fit.

    Args:
        node: of an operator that has a schema.
        opset: version of the operator set of its domain.
        types: of its inputs.
        data: of those inputs whose numbers are known.
    """
    domain = domain_name(node.domain)
    schema, ids = defs.get_schema(node.op_type, opset, domain), [helper.make_opsetid(domain, opset)]
    try:
        return shape_inference.infer_node_outputs(
            schema, node, dict(types), dict(data), opset_imports=ids
        )
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return {}


def check_inferable(node: onnx.NodeProto) -> None:
    """Refuse a node that ends the process in shape inference, in onnx's as in onnxruntime's.

    Raises:
        InvalidModelError: a Split into fewer parts than it has outputs, or a negative number of
            batch dimensions of a GatherND.
    """
    counts = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    parts, written = counts.get("num_outputs", 0), len(node.output)
    # An attribute that a function's caller gives is 0 here.
    if is_default(node, "Split") and 0 < parts < written:
        what = f"num_outputs is {parts}, but it has {written} outputs"
        raise InvalidModelError(f"{describe_node(node)}: {what}")
    if is_default(node, "GatherND") and counts.get("batch_dims", 0) < 0:
        raise InvalidModelError(f"{describe_node(node)}: batch_dims is negative")


def _read_by_slices(model: onnx.ModelProto) -> set[str]:
    """Return names of values whose extents a Slice may read; the same names elsewhere do no harm.

    Bodies of nodes and functions may slice all their inputs, and callers a function's outputs.
    """
    functions = {function_key(function) for function in model.functions}
    waiting = [name for function in model.functions for name in function.output]
    carried: dict[str, list[str]] = {}
    slices = False
    for body in (model.graph, *model.functions):
        for node in all_nodes(body.node):
            if is_default(node, "Slice"):
                slices = True
                waiting += node.input[:1]
            elif call_key(node) in functions or subgraphs(node):
                waiting += node.input
            if _carries(node, functions):
                for name in node.output:
                    carried.setdefault(name, []).extend(node.input)
    if not slices:
        return set()
    read: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in read:
            read.add(name)
            waiting += carried.get(name, ())
    return read - {""}


def _carries(node: onnx.NodeProto, functions: Container[FunctionKey]) -> bool:
    return is_default(node, *_CARRIERS) or call_key(node) in functions


def _guarded(model: onnx.ModelProto, read: Container[str]) -> onnx.ModelProto:
    """Return a copy in which no Slice reads a negative extent."""
    _register()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    functions = {function_key(function) for function in copy.functions}
    for body in (copy.graph, *copy.functions):
        _guard(body, read, functions)
        imports = copy.opset_import if isinstance(body, onnx.GraphProto) else body.opset_import
        imports.add(domain=DOMAIN, version=1)
    return copy


def _guard(
    body: onnx.GraphProto | onnx.FunctionProto,
    read: Container[str],
    functions: Container[FunctionKey],
) -> None:
    """Insert the operator after what produces these values; open declared negative extents."""
    of_graph = (*body.input, *body.output) if isinstance(body, onnx.GraphProto) else ()
    for value in (*of_graph, *body.value_info):
        _open_negative(value.type)
    for index in reversed(range(len(body.node))):
        node = body.node[index]
        for inner in subgraphs(node):
            _guard(inner, read, functions)
        for place, name in enumerate(node.output):
            if name in read and not _carries(node, functions):
                node.output[place] = _RAW + name
                guard = onnx.helper.make_node(_OP, [_RAW + name], [name], domain=DOMAIN)
                body.node.insert(index + 1, guard)


def _told(model: onnx.ModelProto, made: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the types that inference found for its guarded copy."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for graph, source in zip(all_graphs(result.graph), all_graphs(made.graph), strict=True):
        for name in ("input", "output", "value_info"):
            graph.ClearField(name)
        graph.input.extend(source.input)
        graph.output.extend(source.output)
        graph.value_info.extend(v for v in source.value_info if not v.name.startswith(_RAW))
    return result


def _register() -> None:
    """Register the operator with onnx."""
    if defs.has(_OP, domain=DOMAIN):
        return
    parameter = defs.OpSchema.FormalParameter
    types = defs.get_schema("Identity").type_constraints[0].allowed_type_strs
    schema = defs.OpSchema(
        *(_OP, DOMAIN, 1),
        inputs=[parameter("input", "T")],
        outputs=[parameter("output", "T")],
        type_constraints=[("T", list(types), "")],
    )
    schema.set_type_and_shape_inference_function(_pass_on)
    defs.register_schema(schema)


def _pass_on(context: shape_inference.InferenceContext) -> None:
    told = context.get_input_type(0)
    if told is not None:
        _open_negative(told)
        context.set_output_type(0, told)


def _open_negative(told: onnx.TypeProto) -> None:
    """Remove negative extents from the type of a tensor, or of the elements of a sequence."""
    kind = told.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        _open_negative(getattr(told, kind).elem_type)
    elif kind == "tensor_type":
        for dim in told.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
