"""Infers the types of what one node returns, by onnx's shape inference.

A node is inferred alone, so that no extent below zero reaches another one: a Slice of onnx 1.23.2
ends the process there. Inference also indexes by two attributes unchecked: a model with values that
no runtime takes is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import onnx
from onnx import helper, shape_inference  # noqa: TID251 - this module is the door

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.scope import describe_node
from widthfold_onnx.model.proto.walk import is_default, operator_of
from widthfold_onnx.model.shapes.extents import RULES, extents
from widthfold_onnx.model.shapes.fact import Fact, declared, of_type
from widthfold_onnx.text import quoted

FUSED_CONV = ("com.microsoft", "FusedConv")
ACTIVATION = ("activation", "activation_params")
"""Attributes that a FusedConv has beside those of a Conv."""

CACHED = 1 << 14
CACHED_BYTES = 1 << 12
"""Larger nodes are not kept: they hold tables."""

MOST_READ = 1 << 8
"""Most numbers of an input that inference reads: extents, axes, pads."""

READ_FLOATS = ("OneHot", "Range", "Resize", "Upsample")
"""Operators whose result has extents by floats."""

_TERM = rb"[A-Za-z]*(\.{3}[A-Za-z]*)?"
EQUATION = re.compile(rb"%b(,%b)*(->%b)?" % (_TERM, _TERM, _TERM))
"""What an Einsum computes, without spaces. Inference does not end at some other characters."""

Given = tuple[int, Dims | None, bytes, bytes | None]
"""An input: its type as in `Fact`, and its numbers as they lie in memory, if they are read."""


def infer_node(
    node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[Fact | None]
) -> Sequence[Fact]:
    """Infer the types of the outputs of a node without graphs.

    Args:
        node: it calls no local function.
        opsets: version of the operator set by domain.
        inputs: by position; None where one is left out.
    """
    domain, op_type = operator_of(node)
    node_attributes = [*node.attribute]
    if (domain, op_type) == FUSED_CONV:  # it has the extents of a Conv
        domain, op_type, inputs = "", "Conv", inputs[:3]
        node_attributes = [entry for entry in node_attributes if entry.name not in ACTIVATION]
    infer = _inferred if node.ByteSize() <= CACHED_BYTES else _inferred.__wrapped__
    facts = infer(
        op_type,
        domain,
        opsets.get(domain, 1),
        tuple([entry.SerializeToString() for entry in node_attributes]),
        tuple([bool(name) for name in node.output]),
        tuple([None if fact is None else (*fact.type, _read(fact, op_type)) for fact in inputs]),
    )
    if domain or op_type not in RULES or not facts or not inputs or inputs[0] is None:
        return facts
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node_attributes}
    true = Fact(facts[0].kind or inputs[0].kind, extents(op_type, attributes, inputs))
    return [declared(true, facts[0]), *facts[1:]]


def _read(fact: Fact, op_type: str) -> bytes | None:
    """Return the numbers that inference may read."""
    numbers = fact.numbers
    if numbers is None or not fact.is_whole or numbers.ndim > 1 or numbers.size > MOST_READ:
        return None
    return numbers.tobytes() if numbers.dtype.kind != "f" or op_type in READ_FLOATS else None


@lru_cache(CACHED)
def _inferred(
    op_type: str,
    domain: str,
    version: int,
    attributes: Sequence[bytes],
    outputs: Sequence[bool],
    inputs: Sequence[Given | None],
) -> Sequence[Fact]:
    """Infer a node that stands alone in a model."""
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    model.opset_import.add(domain=domain, version=version)
    graph = model.graph
    node = graph.node.add(op_type=op_type, domain=domain)
    node.attribute.extend(onnx.AttributeProto.FromString(entry) for entry in attributes)
    node.output.extend(f"o{i}" if is_there else "" for i, is_there in enumerate(outputs))
    for i, argument in enumerate(inputs):
        name = "" if argument is None else f"i{i}"
        node.input.append(name)
        if argument is not None:
            kind, dims, other, numbers = argument
            if numbers is None:
                graph.input.add(name=name, type=Fact(kind, dims, other).proto())
            else:
                graph.initializer.add(name=name, data_type=kind, dims=dims, raw_data=numbers)
    try:
        inferred = shape_inference.infer_shapes(model)
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return [Fact()] * len(outputs)
    facts = {value.name: of_type(value.type) for value in inferred.graph.value_info}
    return [facts.get(name, Fact()) for name in node.output]


def check_inferable(node: onnx.NodeProto) -> None:
    """Refuse a node that ends or hangs the process in shape inference, by onnx or onnxruntime.

    Raises:
        InvalidModelError: a Split into fewer parts than it has outputs, a negative number of
            batch dimensions of a GatherND, or an Einsum without an equation of letters.
    """
    counts = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    parts, written = counts.get("num_outputs", 0), len(node.output)
    # An attribute that a function's caller gives is 0 here.
    if is_default(node, "Split") and 0 < parts < written:
        what = f"num_outputs is {parts}, but it has {written} outputs"
        raise InvalidModelError(f"{describe_node(node)}: {what}")
    if is_default(node, "GatherND") and counts.get("batch_dims", 0) < 0:
        raise InvalidModelError(f"{describe_node(node)}: batch_dims is negative")
    for text in [
        a.s for a in node.attribute if a.name == "equation" and is_default(node, "Einsum")
    ]:
        if not EQUATION.fullmatch(text.replace(b" ", b"")):
            raise InvalidModelError(f"{describe_node(node)}: {quoted(text)} is no equation")
