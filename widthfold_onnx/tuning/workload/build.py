"""Build the models that race: a layer in another form, alone or between packed tensors."""

from __future__ import annotations

import onnx
from onnx.utils import Extractor

from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rewrite.apply import fit
from widthfold_onnx.rewrite.plan import LayerPlan, Limits, Plan
from widthfold_onnx.rewrite.record import FOLD_KEY, LAYOUT_KEY
from widthfold_onnx.rules.forms.spec import FormSpec
from widthfold_onnx.tuning.workload.workloads import Workload


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
    if workload.inside:
        result = _core(result)
    end.input[0] = result.graph.output[0].name
    result.graph.node.append(end)
    result.graph.output[0].CopyFrom(output)
    return bytes(result.SerializeToString())


def _core(model: onnx.ModelProto) -> onnx.ModelProto:
    """Extract the part of a rewritten layer that runs on packed tensors.

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
        kind, dims = table.element("", name), table.get("", name)
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, kind, dims))
    return Extractor(model).extract_model([start], [end])


def _has(node: onnx.NodeProto, key: str) -> bool:
    return any(entry.key == key for entry in node.metadata_props)
