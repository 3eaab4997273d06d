"""Represent layers to be measured, and build their models in another form.

Layers that differ only in the values of their weights are one workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import onnx
from onnx.utils import Extractor

from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rewrite.apply import fit
from widthfold_onnx.rewrite.plan import LayerPlan, Limits, Plan
from widthfold_onnx.rewrite.record import FOLD_KEY, LAYOUT_KEY
from widthfold_onnx.rules.forms.form import FormSpec

ALIKE = 1.15
"""Width of a band of predictions, as a ratio: within a band no form is predicted to be faster."""


class PredictedForm(NamedTuple):
    """A form that a layer may take.

    Attributes:
        spec: the form.
        macs: multiply-adds of one run.
        predicted: seconds of one run (`tuning.cost`).
        input_layout: the layout in which it reads its input; None for the logical tensor.
        output_layout: the layout of its output.
        packed: predicted seconds of one run between tensors in these layouts.
    """

    spec: FormSpec
    macs: float
    predicted: float
    input_layout: PackedLayout | None = None
    output_layout: PackedLayout | None = None
    packed: float = 0.0


@dataclass(frozen=True)
class Workload:
    """A layer to be measured.

    Attributes:
        subject: its description as canonical JSON; equal for layers that take equally long.
        model: the layer as it is, serialized.
        forms: the other forms it may take, the most promising first.
        macs: multiply-adds of one run as it is.
        predicted: seconds of one run as it is (`tuning.cost`).
        node: name of the layer in `model`.
        structure: `rewrite.plan.structure_of` the layer.
        inside: whether forms run between packed tensors (`tuning.workload.layers`).
    """

    subject: str
    model: bytes
    forms: tuple[PredictedForm, ...]
    macs: int
    predicted: float
    node: str = ""
    structure: Mapping[str, Any] = field(default_factory=dict)
    inside: bool = False

    def cut_to(self, forms: int, also: FormSpec | None = None) -> Workload:
        """Return the layer with its most promising forms, and `also` before them."""
        first = tuple(form for form in self.forms if form.spec == also)
        remainder = tuple(form for form in self.forms if form.spec != also)
        return replace(self, forms=(first + remainder)[:forms])


def joined(workloads: Iterable[Workload]) -> dict[str, Workload]:
    """Return workloads by subject: one of each, with the forms of all."""
    by_subject: dict[str, Workload] = {}
    for workload in workloads:
        like = by_subject.setdefault(workload.subject, workload)
        forms = dict.fromkeys((*like.forms, *workload.forms))
        by_subject[workload.subject] = replace(like, forms=tuple(forms))
    return by_subject


def most_work_first(workloads: Iterable[Workload]) -> list[Workload]:
    """Return workloads in the order to measure them if time may be short; inside regions last."""
    return sorted(workloads, key=lambda w: (w.inside, -w.macs, w.subject))


def in_order(forms: Sequence[PredictedForm]) -> tuple[PredictedForm, ...]:
    """Return forms, the most promising first: among alike predictions the forms of fewest axes."""
    best = min(form.predicted for form in forms)

    def rank(form: PredictedForm) -> tuple[int, int, float, str]:
        times = int(math.log(form.predicted / best, ALIKE))
        return times, form.spec.kind.count("+"), form.predicted, form.spec.text

    return tuple(sorted(forms, key=rank))


def reformed(workload: Workload, spec: FormSpec, options: FoldOptions) -> bytes | None:
    """Return the layer in another form, serialized; None if its extents do not allow the form.

    Args:
        workload: the layer.
        spec: the form.
        options: the limits are used.
    """
    proto = onnx.ModelProto.FromString(workload.model)
    # The last node stays outside the region: it stands for any reader of the logical tensor.
    end, output = proto.graph.node.pop(), proto.graph.output.pop()
    proto.graph.output.add().name = end.input[0]
    layer = LayerPlan(node=workload.node, structure=dict(workload.structure), form=spec)
    fitting = fit(proto, None, Plan(layers=(layer,), limits=Limits.of(options)))
    if fitting.misfits:
        return None
    result = fitting.rewriting.carry_out()
    end.input[0] = result.graph.output[0].name
    if workload.inside:
        result, kind = _core(result)
        # Packed tensors may be integers where the logical tensor was dequantized.
        end, output = ending(result.graph.output[0].name, end.output[0], kind)
    result.graph.node.append(end)
    result.graph.output[0].CopyFrom(output)
    return bytes(result.SerializeToString())


def ending(last: str, end: str, kind: int) -> tuple[onnx.NodeProto, onnx.ValueInfoProto]:
    """Return the operator at the end of a layer, and the graph output that it makes.

    Args:
        last: the tensor that it reads.
        end: the name of the output.
        kind: element type of the tensor; a Neg takes no bytes without a sign.
    """
    if kind == onnx.TensorProto.UINT8:
        kind = onnx.TensorProto.FLOAT
        node = onnx.helper.make_node("Cast", [last], [end], to=kind)
    else:
        node = onnx.helper.make_node("Neg", [last], [end])
    return node, onnx.helper.make_tensor_value_info(end, kind, None)


def _core(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Extract the part of a rewritten layer that runs on packed tensors, and its element type.

    Args:
        model: one folded node with the packed ops behind it, all extents known.
    """
    nodes = model.graph.node
    packed = [name for node in nodes if _has(node, LAYOUT_KEY) for name in node.output]
    folded = next(node for node in nodes if _has(node, FOLD_KEY))
    makers = {name: node for node in nodes for name in node.output}
    start = next((name for name in folded.input if name in packed), model.graph.input[0].name)
    if start in makers and makers[start].op_type == "DequantizeLinear":
        start = makers[start].input[0]
    end = packed[-1] if folded.output[0] in packed else model.graph.output[0].name
    table = ShapeTable(model, {})
    for name in (start, end):
        kind, dims = table.element_type("", name), table.get("", name)
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, kind, dims))
    return Extractor(model).extract_model([start], [end]), table.element_type("", end)


def _has(node: onnx.NodeProto, key: str) -> bool:
    return any(entry.key == key for entry in node.metadata_props)
