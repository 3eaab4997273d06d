"""Change one thing of a model: an attribute, a constant, an input, the operator, its version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import defs, helper, numpy_helper

from sweep.cases import Case

WORDS = (
    "NOTSET SAME_UPPER SAME_LOWER VALID",
    "constant reflect edge wrap",
    "nearest linear bilinear cubic bicubic",
    "zeros border reflection",
    "half_pixel pytorch_half_pixel align_corners asymmetric output_half_pixel "
    "half_pixel_symmetric tf_crop_and_resize",
    "round_prefer_floor round_prefer_ceil floor ceil",
    "stretch not_larger not_smaller",
    "none add mul max min",
    "DCR CRD",
    "forward reverse bidirectional",
    "none mean sum",
    "none tanh",
    "LEFT RIGHT",
    "avg max",
    "Relu Tanh Sigmoid",
    "euclidean sqeuclidean",
    "LOWER UPPER NONE",
    "TF IDF TFIDF",
)
"""Words that one attribute may have, one attribute a line."""

LIKE = (
    "Abs Neg Exp Ceil Floor Round Sign Relu Sigmoid Tanh Softplus Softsign Erf Sqrt "
    "Reciprocal Sin Cos Atan HardSwish Mish Elu Selu Celu LeakyRelu HardSigmoid "
    "ThresholdedRelu Gelu Identity Shrink",
    "Add Sub Mul Div Pow Max Min PRelu Mod Sum Mean",
    "And Or Xor",
    "Less LessOrEqual Greater GreaterOrEqual Equal",
    "ReduceMax ReduceMin ReduceMean ReduceSum ReduceL1 ReduceL2 ReduceProd "
    "ReduceSumSquare ReduceLogSum ReduceLogSumExp",
    "ArgMax ArgMin",
    "MaxPool AveragePool LpPool",
    "GlobalMaxPool GlobalAveragePool GlobalLpPool",
    "Softmax LogSoftmax Hardmax",
    "HannWindow HammingWindow BlackmanWindow",
    "BitwiseAnd BitwiseOr BitwiseXor",
    "CumSum CumProd",
)
"""Operators that take the same inputs, one group a line."""

Change = tuple[str, onnx.ModelProto]


def changes(case: Case) -> Iterator[Change]:
    """Yield changed models, each with the name of the change."""
    yield from _other_attributes(case)
    yield from _other_constants(case)
    yield from _other_inputs(case)
    yield from _other_operators(case)
    yield from _other_opsets(case)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _schema(case: Case) -> defs.OpSchema | None:
    versions = {opset.domain: opset.version for opset in case.model.opset_import}
    try:
        return defs.get_schema(
            case.node.op_type, versions.get(case.node.domain, 1), case.node.domain
        )
    except defs.SchemaError:
        return None


def _other_attributes(case: Case) -> Iterator[Change]:
    """Change each attribute; drop it; set those that are not there."""
    present = {item.name: helper.get_attribute_value(item) for item in case.node.attribute}
    schema = _schema(case)
    defaults: dict[str, Any] = {}
    for name, attribute in {} if schema is None else schema.attributes.items():
        default = attribute.default_value
        kind = str(attribute.type).rpartition(".")[2]
        defaults[name] = helper.get_attribute_value(default) if default.name else _UNSET.get(kind)
    for name in sorted(present.keys() | defaults.keys()):
        value = present.get(name, defaults.get(name))
        if isinstance(value, onnx.GraphProto):
            continue
        for number, other in enumerate(_others(value)):
            text = number if isinstance(other, onnx.TensorProto) else other
            yield f"{name} {text}", _with_attribute(case, name, other)
        if name in present:
            yield f"no {name}", _with_attribute(case, name, None)


_UNSET = {"INT": 0, "FLOAT": 1.0, "INTS": [0, 0], "STRING": b""}
"""Values of attributes without a default, by type, from which others are made."""


def _others(value: Any) -> Iterator[Any]:
    """Yield other values of an attribute."""
    if isinstance(value, int):
        yield from sorted({value + 1, value - 1, -value, -value - 1, 1 - value} - {value})
    elif isinstance(value, float):
        yield from sorted({value + 0.5, value * 2, -value} - {value})
    elif isinstance(value, bytes):
        word = value.decode()
        alike = (line.split() for line in WORDS if word in line.split())
        yield from sorted({other for words in alike for other in words} - {word})
    elif isinstance(value, onnx.TensorProto):
        array = numpy_helper.to_array(value)
        yield from (numpy_helper.from_array(other, value.name) for _, other in _moved(array))
    elif isinstance(value, Sequence) and value and not isinstance(value[0], bytes):
        for i, item in enumerate(value[:6]):
            for other in (item + 1, item - 1, -item):
                if other != item:
                    yield [*value[:i], other, *value[i + 1 :]]
        if len(value) > 1:
            yield value[::-1]
            yield value[:-1]


def _with_attribute(case: Case, name: str, value: Any) -> onnx.ModelProto:
    model = copied(case.model)
    node = model.graph.node[0]
    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))
    return model


def _moved(array: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield arrays of which one element is another one."""
    if not array.size or array.dtype.kind not in "biuf":
        return
    for index in sorted({0, array.size // 2, array.size - 1}):
        for name, add in (("+ 1", np.add), ("- 1", np.subtract)):
            other = array.copy()
            with np.errstate(all="ignore"):
                is_bool = array.dtype.kind == "b"
                flat = other.reshape(-1)[index : index + 1]
                flat[...] = ~flat if is_bool else add(flat, array.dtype.type(1))
            yield f"element {index} {name}", other
    if array.dtype.kind == "i" and array.size < 8:
        for rank in (1, 2, 3, 4):
            yield f"minus {rank}", array - array.dtype.type(rank)
    if array.size > 1:
        yield "reversed", array[::-1].copy()


def _other_constants(case: Case) -> Iterator[Change]:
    for index, tensor in enumerate(case.model.graph.initializer):
        for change, array in _moved(numpy_helper.to_array(tensor)):
            model = copied(case.model)
            model.graph.initializer[index].CopyFrom(numpy_helper.from_array(array, tensor.name))
            yield f"{tensor.name} {change}", model


def _other_inputs(case: Case) -> Iterator[Change]:
    """Exchange inputs of one type, and leave out the last one."""
    names = list(case.node.input)
    for i in range(len(names) - 1):
        model = copied(case.model)
        node = model.graph.node[0]
        node.input[i], node.input[i + 1] = names[i + 1], names[i]
        yield f"inputs {i} and {i + 1} exchanged", model
        model = copied(case.model)
        model.graph.node[0].input[i + 1] = ""
        yield f"no input {i + 1}", model
        model = copied(case.model)
        model.graph.node[0].input[i + 1] = names[i]
        yield f"input {i} twice", model


def _other_operators(case: Case) -> Iterator[Change]:
    for others in map(str.split, LIKE):
        if case.node.op_type not in others or case.node.domain:
            continue
        for other in others:
            if other != case.node.op_type:
                model = copied(case.model)
                model.graph.node[0].op_type = other
                yield f"{other} in its place", model


def _other_opsets(case: Case) -> Iterator[Change]:
    """Yield the model under each version of its operator."""
    if case.node.domain:
        return
    now = next(opset.version for opset in case.model.opset_import if not opset.domain)
    versions = {
        schema.since_version
        for schema in defs.get_all_schemas_with_history()
        if (schema.domain, schema.name) == ("", case.node.op_type)
    }
    for version in sorted({*versions, *(since - 1 for since in versions)} - {now}):
        if version >= 7:
            model = copied(case.model)
            for opset in model.opset_import:
                if not opset.domain:
                    opset.version = version
            yield f"opset {version}", model


def settings(case: Case) -> Iterator[Case]:
    """Yield the case itself, and with other extents, ranks and places of its node."""
    yield case
    first = next(iter(case.feed), None)
    if first is None:
        return
    array = case.feed[first]
    for axis in range(array.ndim):
        for extent in {0, 1} - {array.shape[axis]}:
            index = [slice(None)] * axis + [slice(0, extent)]
            yield _with_first(case, f"axis {axis} of {extent}", array[tuple(index)])
    yield _with_first(case, "one rank more", array[None])
    if array.ndim:
        yield _with_first(
            case, "one rank less", np.asarray(array[0], array.dtype) if len(array) else array
        )
    yield from _open_sizes(case)


def _with_first(case: Case, name: str, array: NDArray[Any]) -> Case:
    """Return a case whose first input is another array; outputs have no declared extents."""
    model = copied(case.model)
    value = model.graph.input[0]
    kind = value.type.tensor_type.elem_type
    value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))
    _forget_extents(model)
    return Case(f"{case.name}, {name}", model, {**case.feed, value.name: array})


def _forget_extents(model: onnx.ModelProto) -> None:
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")


def _open_sizes(case: Case) -> Iterator[Case]:
    """Yield the case with open sizes, each of a name of its own."""
    model = copied(case.model)
    value = model.graph.input[0]
    for i, dim in enumerate(value.type.tensor_type.shape.dim):
        dim.dim_param = f"size{i}"
    _forget_extents(model)
    if value.type.tensor_type.shape.dim:
        yield Case(f"{case.name}, open", model, case.feed)


def in_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose node is moved into a local function."""
    moved = copied(model)
    node = moved.graph.node[0]
    inputs = list(dict.fromkeys(name for name in node.input if name))
    outputs = [name for name in node.output if name]
    function = helper.make_function(
        "own", "Inner", inputs, outputs, [node], list(moved.opset_import)
    )
    moved.functions.append(function)
    node.CopyFrom(helper.make_node("Inner", inputs, outputs, domain="own"))
    moved.opset_import.append(helper.make_opsetid("own", 1))
    return moved


def in_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose node is moved into the branch of an If that a constant chooses."""
    moved = copied(model)
    node = moved.graph.node[0]
    outputs = [value for value in moved.graph.output if value.name in node.output]
    branches = {}
    for branch in ("then_branch", "else_branch"):
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.output[:] = [name and f"{branch}_{name}" for name in node.output]
        values = []
        for output in outputs:
            values.append(onnx.ValueInfoProto())
            values[-1].CopyFrom(output)
            values[-1].name = f"{branch}_{output.name}"
            values[-1].type.tensor_type.ClearField("shape")
        branches[branch] = helper.make_graph([inner], branch, [], values)
    names = [value.name for value in outputs]
    node.CopyFrom(helper.make_node("If", ["chosen"], names, **branches))
    moved.graph.initializer.append(numpy_helper.from_array(np.array(True), "chosen"))
    return moved
