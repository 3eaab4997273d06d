"""Cut layers out of a model as models of their own, to be measured in every form.

Each has its real shapes and the operators behind it that a runtime fuses into it. One more
operator stands at the end: a Neg, or a Cast of a type that no Neg takes. So no form pays for
writing a graph output: a Reshape in the middle of a graph is free, a Reshape that makes an output
is a copy. A layer whose data and weight are dequantized gets quantizers at both ends, because a
runtime computes it in integers only between them.

    model:     ... - x - Conv - Relu - Add(c) - Concat - ...
    workload:        x - Conv - Relu - Add(c) - Neg - y

Layers that differ only in the values of their weights are one workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.utils import Extractor

from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.arrays import Array
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.model.linking import message_of, reads
from widthfold_onnx.model.proto.walk import copy_of, operator_of
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import MIN_FACTOR, FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.record import FOLD_KEY, STATE_KEY
from widthfold_onnx.rewrite.rewriting import rewrite
from widthfold_onnx.rules.enumeration import form_of
from widthfold_onnx.rules.form import Form, FormSpec
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.quantization import before_moves, dequantizer_before_moves
from widthfold_onnx.rules.selection import preferred_form
from widthfold_onnx.tuning.cost import Work, form_seconds, kernel_seconds, layer_seconds
from widthfold_onnx.tuning.identity import canonical
from widthfold_onnx.tuning.targets import Target

ALIKE = 1.15
"""Width of a band of predictions, as a ratio: within a band no form is predicted to be faster."""


class PredictedForm(NamedTuple):
    """A form that a layer may take, with its predicted time (`tuning.cost`).

    Attributes:
        form: the form, at the extents at which the layer is measured.
        macs: multiply-adds of one run.
        predicted_seconds: of one run.
        predicted_seconds_inside: of one run between tensors in the layouts of its ends.
    """

    form: Form
    macs: float
    predicted_seconds: float
    predicted_seconds_inside: float

    @property
    def spec(self) -> FormSpec:
        """What tells it from the other forms of its layer: its name in the store."""
        return self.form.spec

    @property
    def input_layout(self) -> PackedLayout | None:
        """The layout in which it reads its input; None for the logical tensor."""
        return self.form.ends.input_layout

    @property
    def output_layout(self) -> PackedLayout | None:
        """The layout of its output."""
        return self.form.ends.output_layout


@dataclass(frozen=True)
class Workload:
    """A layer to be measured.

    Attributes:
        subject: its description as canonical JSON; equal for layers that take equally long.
        model: the layer as it is, serialized.
        forms: the other forms it may take, the most promising first.
        macs: multiply-adds of one run as it is.
        predicted_seconds: of one run as it is (`tuning.cost`).
        is_inside: True if forms run between packed tensors (`tuning.layers`).
    """

    subject: str
    model: bytes
    forms: tuple[PredictedForm, ...]
    macs: int
    predicted_seconds: float
    is_inside: bool = False

    def with_most_promising(self, count: int | None, first: FormSpec | None) -> Workload:
        """Return the layer with its most promising forms.

        Args:
            count: how many of them; None: all.
            first: the form that is taken for the best; None: as they are ordered.
        """
        forms = sorted(self.forms, key=lambda form: form.spec != first)
        return replace(self, forms=tuple(forms[:count]))


def joined(workloads: Iterable[Workload]) -> dict[str, Workload]:
    """Return workloads by subject: one of each, with the forms of all."""
    by_subject: dict[str, Workload] = {}
    for workload in workloads:
        like = by_subject.setdefault(workload.subject, workload)
        forms = {form.spec: form for form in (*like.forms, *workload.forms)}
        by_subject[workload.subject] = replace(like, forms=tuple(forms.values()))
    return by_subject


def most_work_first(workloads: Iterable[Workload]) -> list[Workload]:
    """Return workloads in the order to measure them if time may be short; inside regions last."""
    return sorted(workloads, key=lambda w: (w.is_inside, -w.macs, w.subject))


def most_promising_first(forms: Sequence[PredictedForm]) -> tuple[PredictedForm, ...]:
    """Return forms in the order to race them: among alike predictions the simplest form first."""
    best = min(form.predicted_seconds for form in forms)

    def rank(form: PredictedForm) -> tuple[int, int, float, str]:
        times = int(math.log(form.predicted_seconds / best, ALIKE))
        return times, form.spec.kind.count("+"), form.predicted_seconds, form.spec.text

    return tuple(sorted(forms, key=rank))


def model_in_form(workload: Workload, form: Form) -> bytes:
    """Return the layer in one of its other forms, serialized."""
    proto = onnx.ModelProto.FromString(workload.model)
    # The last node stays outside the region: it stands for any reader of the logical tensor.
    end, output = proto.graph.node.pop(), proto.graph.output.pop()
    proto.graph.output.add().name = end.input[0]
    reading = Reading(Document(proto, None, OPERATORS))
    result = rewrite(reading, {reading.sites[0].node_name: form}).carry_out()
    end.input[0] = result.graph.output[0].name
    if workload.is_inside:
        result, element_type = _core(result)
        # Packed tensors may be integers where the logical tensor was dequantized.
        end, output = ending(result.graph.output[0].name, end.output[0], element_type)
    result.graph.node.append(end)
    result.graph.output[0].CopyFrom(output)
    return bytes(result.SerializeToString())


def ending(last: str, end: str, element_type: int) -> tuple[onnx.NodeProto, onnx.ValueInfoProto]:
    """Return the operator at the end of a layer, and the graph output that it makes.

    Args:
        last: the tensor that it reads.
        end: the name of the output.
        element_type: of the tensor; a Neg takes no bytes without a sign.
    """
    if element_type == TensorProto.UINT8:
        element_type = TensorProto.FLOAT
        node = helper.make_node("Cast", [last], [end], to=element_type)
    else:
        node = helper.make_node("Neg", [last], [end])
    return node, helper.make_tensor_value_info(end, element_type, None)


def _core(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Extract the part of a rewritten layer that runs on packed tensors, and its element type.

    Args:
        model: one folded node with the packed ops behind it, all extents known.
    """
    nodes = model.graph.node
    packed = [name for node in nodes if _has(node, STATE_KEY) for name in node.output]
    folded = next(node for node in nodes if _has(node, FOLD_KEY))
    makers = {name: node for node in nodes for name in node.output}
    start = next((name for name in folded.input if name in packed), model.graph.input[0].name)
    if start in makers and makers[start].op_type == "DequantizeLinear":
        start = makers[start].input[0]
    end = packed[-1] if folded.output[0] in packed else model.graph.output[0].name
    table = ShapeTable(model, {})
    for name in (start, end):
        element_type, dims = table.element_type("", name), table.get("", name)
        model.graph.value_info.append(helper.make_tensor_value_info(name, element_type, dims))
    return Extractor(model).extract_model([start], [end]), table.element_type("", end)


def _has(node: onnx.NodeProto, key: str) -> bool:
    return any(entry.key == key for entry in node.metadata_props)


FUSED = frozenset(
    {
        *("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "HardSigmoid"),
        *("BatchNormalization", "Add", "Mul"),
    }
)
"""Operators that runtimes fuse into a Conv if all other inputs are constants (conv_*_fusion.cc)."""
QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""Operators that they also fuse if data and weight are dequantized."""


@dataclass(frozen=True)
class CutLayer:
    """A layer that was cut out of its model.

    Attributes:
        subject: its description as canonical JSON.
        model: the layer as a model of its own.
        layer: the layer in its model.
        measured_layer: the layer in `model`, where all extents are known.
        forms: the other forms that it may take; each in its model, and as it is measured.
        shape: extents of its data there.
        fused: number of operators behind the layer that a runtime fuses into it.
    """

    subject: str
    model: onnx.ModelProto
    layer: Layer
    measured_layer: Layer
    forms: Sequence[tuple[Form, Form]]
    shape: Sequence[int]
    fused: int

    def workload(self, target: Target) -> Workload:
        """Return the layer to be measured, with its forms ordered for a device."""
        output = [int(d) for d in self.measured_layer.output_shape if d is not None]
        work = Work.of(self.layer, self.shape, output)
        macs = self.measured_layer.macs or 0
        predicted = []
        for form, measured_form in self.forms:
            form_work = work.folded(form, self.shape, output)
            unfused = self.fused if form.ends.output_layout is None else 0  # else they run packed
            moves = (form.packing_moves, form.unpacking_moves)
            predicted.append(
                PredictedForm(
                    form=measured_form,
                    macs=macs * form.flops_ratio,
                    predicted_seconds=form_seconds(work, moves, form_work, unfused, target),
                    predicted_seconds_inside=kernel_seconds(form_work, target),
                )
            )
        return Workload(
            subject=self.subject,
            model=self.model.SerializeToString(),
            forms=most_promising_first(predicted),
            macs=macs,
            predicted_seconds=layer_seconds(work, target),
        )


def cut(
    document: Document,
    layer: Layer,
    table: ShapeTable,
    forms: Sequence[Form],
    options: FoldOptions,
    target: Target,
) -> CutLayer | Refusal:
    """Cut a layer out of its model.

    Args:
        document: the model.
        layer: the layer.
        table: a table of shapes without open dimensions, as far as the model allows.
        forms: the forms to measure besides the layer as it is, if they exist at these extents.
        options: layout and limits of forms.
        target: the device whose figures predict the forms.

    Returns:
        The layer, or a refusal if an extent stays unknown, no form exists at the measured extents,
        or the target has no figures for the element type.
    """
    if not forms:
        answer = preferred_form(layer, replace(options, ragged=True, factor=MIN_FACTOR))
        reason = f"no axis has {MIN_FACTOR} positions"
        return answer if isinstance(answer, Refusal) else Refusal(Code.TOO_SHORT, reason)
    shape = _measured_shape(layer, table, target)
    if isinstance(shape, Refusal):
        return shape
    fused = fused_ops(document, layer)
    proto = excerpt(document, layer, fused, shape, table)
    measured_layer = only_layer(Reading(Document(proto, None, OPERATORS)))
    if isinstance(measured_layer, Refusal):
        return measured_layer
    measured_forms = [(form, form_of(measured_layer, form.spec, options)) for form in forms]
    # A form of open extents may not be one of these.
    possible_forms = [(form, other) for form, other in measured_forms if isinstance(other, Form)]
    if not possible_forms:
        sizes = " x ".join(map(str, shape))
        return Refusal(
            Code.UNKNOWN_EXTENT, f"at {sizes}, where it would be measured, it has no form"
        )
    subject = _subject(layer, shape, proto.graph, len(fused))
    return CutLayer(subject, proto, layer, measured_layer, possible_forms, shape, len(fused))


def _measured_shape(layer: Layer, table: ShapeTable, target: Target) -> list[int] | Refusal:
    """Return the shape of the data at which a layer is measured."""
    dims = table.get(layer.scope.path, layer.data.name or "")
    if dims is None or None in dims:
        return Refusal(Code.UNKNOWN_EXTENT, "an extent is not known, so it cannot be measured")
    if layer.weight.dtype not in target.rate:
        return Refusal(
            Code.DTYPE_UNMEASURED,
            f"{target.name} has no figures for {layer.weight.dtype}; a fixed factor needs none",
        )
    return [int(extent) for extent in dims if extent is not None]


def only_layer(reading: Reading) -> Layer | Refusal:
    """Return the layer of a workload."""
    return reading.layer(reading.sites[0])


def _subject(layer: Layer, shape: Sequence[int], graph: onnx.GraphProto, fused: int) -> str:
    """Return all that decides a layer's time; so many of its last operators are fused into it."""
    constants = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    operators = graph.node[-1 - fused : -1]
    signature = {
        "op": layer.op,
        "dtype": layer.weight.dtype,
        "input": list(shape),
        **layer.signature,
        **({"integers": _integers(graph)} if layer.is_finite else {}),
        "behind": [
            [node.op_type, *(constants[name] for name in node.input if name in constants)]
            for node in operators
        ],
    }
    return canonical(signature)


def _integers(graph: onnx.GraphProto) -> list[str]:
    """Return the element types of the data of a quantized layer and of all its other inputs."""
    kinds = [graph.input[0].type.tensor_type.elem_type, *(t.data_type for t in graph.initializer)]
    return [TensorProto.DataType.Name(kind) for kind in kinds]


def fused_ops(document: Document, layer: Layer) -> list[Node]:
    """Return the operators behind a layer that a runtime fuses into it."""
    op_types = FUSED | QUANTIZING if _dequantizer(layer) is not None else FUSED
    fused: list[Node] = []
    value = layer.node.outputs[0]
    while len(uses := list(value.uses())) == 1 and not value.is_graph_output():
        reader = uses[0].node
        other_inputs = [v for v in reader.inputs if v is not None and v is not value]
        fuses = reader.op_type in op_types and reader.domain == "" and len(reader.outputs) == 1
        if (
            not fuses
            or reader.graph is not layer.node.graph
            or not _are_constant(document, other_inputs)
        ):
            break
        fused.append(reader)
        value = reader.outputs[0]
    return fused


def excerpt(
    document: Document,
    layer: Layer,
    fused: Sequence[Node],
    shape: Sequence[int],
    table: ShapeTable,
) -> onnx.ModelProto:
    """Return a layer as a model of its own; its inputs other than the data are constants there.

    Args:
        document: the model.
        layer: the layer.
        fused: the operators behind it that are fused into it.
        shape: extents of its data.
        table: element types, and extents of computed inputs other than the data.
    """
    path, start = layer.scope.path, layer.data.name or ""
    element = table.element_type(path, start)
    makers: list[Node] = []
    nodes: list[onnx.NodeProto] = []
    maker = _dequantizer(layer)
    if maker is not None:
        for value in layer.node.inputs:
            weight_maker = None if value is layer.data else dequantizer_before_moves(value)
            if weight_maker is not None:
                makers += [weight_maker, *before_moves(value)[1][::-1]]
        integers, *parameters = (value.name or "" for value in maker.inputs if value is not None)
        copy = copy_of(message_of(maker))
        copy.output[0], start = start, document.fresh("start")
        nodes = [helper.make_node("QuantizeLinear", [start, *parameters], [integers]), copy]
    members = [*makers, layer.node, *fused]
    nodes += [message_of(node) for node in members]
    computed = {name for node in nodes for name in node.output} | {start}
    constants = {}
    for value in chain.from_iterable(map(reads, filter(None, [*members, maker]))):
        if (name := value.name or "") not in computed:
            constants[name] = _number(document, value, table, path)
    last = nodes[-1].output[0]
    end = document.fresh("end")
    node, output = ending(last, end, table.element_type(path, last))
    graph = helper.make_graph(
        [*nodes, node],
        "workload",
        [helper.make_tensor_value_info(start, element, shape)],
        [output],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    domain, _ = operator_of(layer.node)
    opsets = [helper.make_opsetid("", document.opset)]
    opsets += [o for o in document.proto.opset_import if domain and o.domain == domain]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _dequantizer(layer: Layer) -> Node | None:
    """Return the DequantizeLinear of the data of a layer that a runtime computes in integers."""
    return dequantizer_before_moves(layer.data) if layer.is_finite else None


def _are_constant(document: Document, values: Sequence[Value]) -> bool:
    return not any(isinstance(document.constant(value), Refusal) for value in values)


def _number(document: Document, value: Value, table: ShapeTable, path: str) -> Array:
    """Return a constant, or ones for a computed input, because all values take equally long."""
    constant = document.constant(value)
    if not isinstance(constant, Refusal):
        return document.read(constant)
    extents = table.get(path, value.name or "") or ()
    dtype = helper.tensor_dtype_to_np_dtype(table.element_type(path, value.name or ""))
    return np.ones([extent or 1 for extent in extents], dtype)
