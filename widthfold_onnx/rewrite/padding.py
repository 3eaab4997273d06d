"""Pad the channels of a model before any layer is folded: the result has wider layers.

A padded tensor gets a name of its own, since it is no tensor of the original. Nodes keep their
names, by which a plan names the layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import onnx

from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.document import Document, Node, Value
from widthfold_onnx.model.linking import NodeName, shown_name
from widthfold_onnx.model.proto.walk import copy_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.results import Stop
from widthfold_onnx.rewrite.draft import PaddedLayer, PaddingPlan
from widthfold_onnx.rewrite.new_nodes import SharedConstants, base_name, take_over
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY, FoldRecord
from widthfold_onnx.rules.padding.chains import Chains, ChannelPadding


@dataclass(frozen=True)
class PaddableChains:
    """Chains of a model that can be padded.

    Attributes:
        multiple: divides the padded channels.
        chains: the padding of each chain.
        stops: what stops all other channels.
    """

    multiple: int
    chains: Sequence[PaddingPlan]
    stops: Sequence[Stop]

    @property
    def plan(self) -> PaddingPlan | None:
        """The plan that pads all of them; None for none."""
        layers = tuple(sorted(layer for chain in self.chains for layer in chain.layers))
        return PaddingPlan(multiple=self.multiple, layers=layers) if self.chains else None

    def without(self, omitted: Collection[PaddingPlan]) -> PaddableChains:
        """Return the other chains."""
        return replace(self, chains=[chain for chain in self.chains if chain not in omitted])


def paddable_chains(document: Document, multiple: int) -> PaddableChains:
    """Return the chains of a model that can be padded, and what stops all other channels.

    Args:
        document: the model, not padded yet.
        multiple: divides the padded channels.
    """
    padding = Chains(document).plan(multiple)
    chains = [
        PaddingPlan(
            multiple=multiple,
            layers=tuple(
                sorted(
                    PaddedLayer(
                        node=shown_name(node), channels=layout.channels, padded=layout.width
                    )
                    for node in chain
                    for layout in [padding.maker_layouts[node]]
                )
            ),
        )
        for chain in padding.chains
    ]
    refusals = {
        node: refusal for ends in padding.refused.values() for node, refusal in ends.items()
    }
    stops = [
        Stop(node=shown_name(node), op=node.op_type, code=refusal.code.value, reason=refusal.reason)
        for node, refusal in refusals.items()
    ]
    return PaddableChains(multiple, chains, stops)


def padded_model(
    proto: onnx.ModelProto, folder: Path | None, plan: PaddingPlan
) -> tuple[onnx.ModelProto, dict[PaddedLayer, str]]:
    """Return a model whose channels are padded, and why layers of the plan do not fit it.

    Args:
        proto: a checked model; it stays as it is.
        folder: where its external data lies.
        plan: the layers; channels that several layers make are padded if the plan names them all.
    """
    copy = copy_of(proto)
    document = Document(copy, folder, OPERATORS)
    chains = Chains(document)
    nodes = {NodeName("", shown_name(node)): node for node in document.main}
    misfits = dict.fromkeys(plan.layers, "the model has no such layer")
    makers = {nodes[layer.name]: layer for layer in plan.layers if layer.name in nodes}
    while True:
        padding = chains.plan(plan.multiple, makers.keys())
        mismatches = {
            layer: reason
            for node, layer in makers.items()
            if (reason := _misfit(padding, node, layer))
        }
        if not mismatches:
            break
        misfits |= mismatches
        makers = {node: layer for node, layer in makers.items() if layer not in mismatches}
    padded_layers = set(makers.values())
    _put(document, padding, plan.multiple)
    left_out = {layer: reason for layer, reason in misfits.items() if layer not in padded_layers}
    return document.finish(), left_out


def _misfit(padding: ChannelPadding, node: Node, layer: PaddedLayer) -> str:
    """Return why a layer cannot be padded as planned; "" if it can."""
    layout = padding.maker_layouts.get(node)
    if layout is not None and (layout.channels, layout.width) == (layer.channels, layer.padded):
        return ""
    if layout is not None:
        return (
            f"{layout.channels} channels would be padded to {layout.width}, "
            f"planned {layer.channels} to {layer.padded}"
        )
    for stop, refusal in padding.refused.get(node, {}).items():
        stop_name = f"{stop.op_type} {shown_name(stop)}"
        return f"its channels cannot be padded: {stop_name} ({refusal.reason})"
    return f"its channels are not padded, planned {layer.channels} to {layer.padded}"


def _put(document: Document, padding: ChannelPadding, multiple: int) -> None:
    """Put the nodes on padded tensors in the place of the others; the document is changed."""
    constants = SharedConstants(document)
    new_values: dict[Value, Value] = {}
    replacements: dict[Node, list[Node]] = {}
    for node, result in padding.nodes.items():
        (output,) = node.outputs[:1]
        if result.vanishes and output in padding.layouts:
            source = node.inputs[0]
            assert source is not None
            new_values[output] = new_values.get(source, source)
            replacements[node] = []
            continue
        inputs = [None if value is None else new_values.get(value, value) for value in node.inputs]
        inputs += [None] * (max(result.constants, default=-1) + 1 - len(inputs))
        for index, array in result.constants.items():
            value = node.inputs[index] if index < len(node.inputs) else None
            name = f"{base_name(node)}/constant" if value is None else f"{value.name}/padded"
            stored = None if value is None else document.constant(value)
            external = isinstance(stored, Constant) and stored.is_external
            inputs[index] = constants.add(
                array, name, document.main, sharing_key=value, external=external
            )
        attributes = {**node.attributes, **result.attributes}
        new_node = document.new_node(
            "Identity" if result.vanishes else node.op_type,
            inputs[:1] if result.vanishes else inputs,
            {} if result.vanishes else {k: v for k, v in attributes.items() if v is not None},
            name=f"{base_name(node)}/padded",
            metadata={ORIGIN_KEY: output.name or "", **_record(padding, node, multiple)},
            outputs=len(node.outputs),
        )
        take_over(node, new_node)
        new_node.name = shown_name(node)
        new_values |= dict(zip(node.outputs, new_node.outputs, strict=True))
        replacements[node] = [new_node]
    returned_values = {old: new for old, new in new_values.items() if old not in padding.layouts}
    document.replace(document.main, replacements, returned_values)


def _record(padding: ChannelPadding, node: Node, multiple: int) -> dict[str, str]:
    """Return the record of a Conv or ConvTranspose on padded tensors; {} for another node."""
    if node.op_type not in ("Conv", "ConvTranspose"):
        return {}
    texts = []
    for value in (node.inputs[0], node.outputs[0]):
        layout = None if value is None else padding.layouts.get(value)
        texts.append("as they are" if layout is None else f"{layout.channels} in {layout.width}")
    record = FoldRecord(
        form=f"channels padded to multiples of {multiple}", channels=" -> ".join(texts), axes=[]
    )
    return {FOLD_KEY: msgspec.json.encode(record).decode()}
