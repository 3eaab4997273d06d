"""Replace layers by their forms, all at once: each tensor has one layout in which it is computed.

Neighbours share layouts. So the ops that run packed between layers, and the nodes that one guard
covers, depend on all forms together: regions and guards are chosen before anything is changed.
`Emission` then visits the nodes of a graph. A layer becomes a folded node with its moves
(`rewrite.folded_node`); an op of a region becomes the same op on packed tensors.

* A value that is read in another layout is converted by moves, at most once per layout.
  It is packed before the first node that reads it so, and unpacked behind the node that writes it.
  So two layers that agree need no moves between them, and no packing follows its own unpacking.
* A runtime fuses a DequantizeLinear only with a folded node next to it. So the integers before a
  DequantizeLinear are moved, and dequantized again in every layout that is read. Moves of
  dequantized data are followed by a quantizer pair (`rules.quantization`).

Logical tensors and nodes keep their names; `rewrite.record` describes the metadata of new nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.errors import InternalError
from widthfold_onnx.model.atomic import Temporary
from widthfold_onnx.model.document import Document, Graph, Node, Value, graph_of
from widthfold_onnx.model.linking import NodeName
from widthfold_onnx.model.proto.walk import retain
from widthfold_onnx.model.writer import written
from widthfold_onnx.results import RegionReport
from widthfold_onnx.rewrite.folded_node import FoldedConstants, append_folded
from widthfold_onnx.rewrite.guards import GuardedRegions, LayerForms, make_guard
from widthfold_onnx.rewrite.new_nodes import NodeBuilder, Series, take_over
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rewrite.record import (
    NONFINITE_KEY,
    ORIGIN_KEY,
    PACKED,
    RUNTIME_KEY,
)
from widthfold_onnx.rewrite.regions import PackedTensor, Regions, region_reports
from widthfold_onnx.rules.form import Form, spread_of
from widthfold_onnx.rules.layers import Layer
from widthfold_onnx.rules.legality import guard_conditions
from widthfold_onnx.rules.propagation import PackedOp
from widthfold_onnx.rules.quantization import exact_dequantizer


@dataclass(frozen=True)
class Rewriting:
    """The layers to replace, with their regions and guards; it is carried out once at most.

    Attributes:
        document: the model.
        forms: the forms of the layers that are replaced, by graph.
        guarded_regions: the regions that they make, with guards, by graph.
        runtime: the version of ONNX Runtime that the forms were measured with; "" if none was.
    """

    document: Document
    forms: Mapping[Graph, LayerForms]
    guarded_regions: Mapping[Graph, GuardedRegions]
    runtime: str = ""

    @classmethod
    def of(
        cls,
        document: Document,
        layers: Iterable[tuple[Layer, Form]],
        runtime: str = "",
    ) -> Rewriting:
        """Choose regions and guards for the forms."""
        forms: dict[Graph, LayerForms] = {}
        for layer, form in layers:
            forms.setdefault(graph_of(layer.node), {})[layer.node] = (layer, form)
        guarded_regions = {
            graph: GuardedRegions.of(document, list(graph), graph_forms)
            for graph, graph_forms in forms.items()
        }
        return cls(document, forms, guarded_regions, runtime)

    @property
    def layer_names(self) -> list[NodeName]:
        """The layers that are replaced."""
        pairs = (pair for forms in self.forms.values() for pair in forms.values())
        return [layer.node_name for layer, _ in pairs]

    def layers_of(self, values: Collection[str]) -> set[NodeName]:
        """Return the layers that write one of some values, or lie in a body of a node that does.

        Args:
            values: names of values of the main graph.
        """
        names = {
            layer.node_name: {value.name for value in node.outputs}
            for forms in self.forms.values()
            for node, (layer, _) in forms.items()
        }
        return {
            name
            for name, outputs in names.items()
            if (not name.graph and not outputs.isdisjoint(values))
            or any(name.graph.startswith(f"{value}/") for value in values)
        }

    def guarded_layers(self) -> dict[str, set[NodeName]]:
        """Return the guarded layers, by each value that their If may return."""
        names: dict[str, set[NodeName]] = {}
        for graph, forms in self.forms.items():
            for group in self.guarded_regions[graph].groups:
                replaced = [forms[node] for node in group.nodes if node in forms]
                guarded = {
                    layer.node_name for layer, form in replaced if guard_conditions(layer, form)
                }
                for value in (value for node in group.nodes for value in node.outputs):
                    names.setdefault(value.name or "", set()).update(guarded)
        return names

    def region_reports(self, names: Mapping[Node, str]) -> list[RegionReport]:
        """Return the regions of all graphs.

        Args:
            names: names of the layers, for nodes without one.
        """
        return [
            report
            for graph, guarded in self.guarded_regions.items()
            for report in region_reports(guarded.regions, self.document.path_of(graph), names)
        ]

    def carry_out(self) -> onnx.ModelProto:
        """Replace all layers and the ops between them; this changes the document."""
        document = self.document
        document.drop_wrong_declarations()
        constants = FoldedConstants(document)
        emissions = [
            Emission(document, graph, forms, self.guarded_regions[graph], constants)
            for graph, forms in self.forms.items()
        ]
        for emission in emissions:
            emission.emit()  # all before any is put in place: bodies read values of graphs around
        for emission in emissions:
            emission.replace_nodes()
        model = document.finish()
        spreads = [
            spread_of(layer, form)
            for forms in self.forms.values()
            for layer, form in forms.values()
        ]
        spread = max(spreads, default=1.0)
        _note(model, NONFINITE_KEY, f"spread:{spread:g}" if spread > 1.0 else "")
        _note(model, RUNTIME_KEY, self.runtime)
        return model

    def written(
        self, out: Path, protected: Sequence[Path] = ()
    ) -> AbstractContextManager[Temporary]:
        """Carry it out, and write the model to a temporary file as `model.writer.written` does.

        Constants that are made from external data become external.
        """
        return written(
            self.carry_out(),
            out,
            source_folder=self.document.folder,
            protected=protected,
            externalize=self.document.external_names,
        )


def rewrite(reading: Reading, forms: Mapping[NodeName, Form], runtime: str = "") -> Rewriting:
    """Return the rewriting in which layers of a model take forms.

    Args:
        reading: the model, which was read under the draft for which the forms were made.
        forms: the form of each layer.
        runtime: the version of ONNX Runtime that the forms were measured with; "" if none was.

    Raises:
        InternalError: a form is of no layer of the model: a fault of widthfold.
    """
    layers = []
    for name in sorted(forms):
        site = reading.site_of.get(name)
        layer = None if site is None else reading.layer(site)
        if not isinstance(layer, Layer):
            raise InternalError(f"layer {name} has a form and cannot be read")
        layers.append((layer, forms[name]))
    return Rewriting.of(reading.document, layers, runtime)


def _note(model: onnx.ModelProto, key: str, value: str) -> None:
    """Write an entry of the metadata in place of an older entry; remove that if the value is ""."""
    retain(model.metadata_props, lambda entry: entry.key != key)
    if value:
        model.metadata_props.add(key=key, value=value)


@dataclass(eq=False)
class Emission:
    """The new nodes of one graph."""

    document: Document
    graph: Graph
    forms: LayerForms
    guarded_regions: GuardedRegions
    constants: FoldedConstants
    _packed_values: dict[PackedTensor, Value] = field(default_factory=dict, init=False)
    _logical: dict[Value, Value] = field(default_factory=dict, init=False)
    _replacements: dict[Node, list[Node]] = field(default_factory=dict, init=False)

    @property
    def _regions(self) -> Regions:
        return self.guarded_regions.regions

    def emit(self) -> None:
        """Make the new nodes; the graph still holds the old ones only."""
        for node in self.graph:
            packed_op = self._regions.packed_ops.get(node)
            if node in self.forms:
                self._replacements[node] = []
                self._fold(node, *self.forms[node])
            elif packed_op is not None:
                self._replacements[node] = []
                self._propagate(node, packed_op)
            elif self._regions.is_superseded(node):
                self._replacements[node] = []

    def replace_nodes(self) -> None:
        """Replace the old nodes by the new ones, and put guards around groups."""
        branches: list[Graph] = []
        for group in self.guarded_regions.groups:
            guard = make_guard(self.document, group, self._replacements, self._logical)
            for node in group.nodes:
                self._replacements[node] = []
                for value in node.outputs:
                    self._logical.pop(value, None)
            self._replacements[group.nodes[-1]] = guard.nodes
            self._logical |= guard.outputs
            branches += guard.branches
        self.document.replace(self.graph, self._replacements, self._logical)
        self.document.add_branches(self.graph, branches)

    def _fold(self, node: Node, layer: Layer, form: Form) -> None:
        """Emit the folded node with the moves that belong to it."""
        ends = self._regions.ends_of[node]
        start = self._value_in(layer.data, ends.input_layout, node)
        series = Series(self.document, start, node, node.outputs[0].name or "")
        folded_node = append_folded(series, layer, form, ends, self.constants)
        take_over(node, folded_node)
        self._replacements[node] += series.nodes
        self._return(node, [series.value], ends.output_layout)

    def _propagate(self, node: Node, packed_op: PackedOp) -> None:
        """Emit the op on packed tensors."""
        packed_node = self._packed_node(node, packed_op, node)
        take_over(node, packed_node)
        self._return(node, packed_node.outputs, packed_op.layout)

    def _packed_node(self, node: Node, packed_op: PackedOp, reader: Node) -> Node:
        """Emit a node that computes an op on packed tensors, before `reader`."""
        inputs: list[Value | None] = []
        for i, value in enumerate(node.inputs):
            if value is None:
                inputs.append(None)
            elif packed_op.reads_packed(i):
                inputs.append(self._value_in(value, packed_op.layout, reader))
            elif i in packed_op.constants:
                array = packed_op.constants[i]
                name = f"{value.name}/widthfold"
                sharing_key = (value, packed_op.layout)
                inputs.append(
                    self.constants.shared.add(array, name, self.graph, sharing_key=sharing_key)
                )
            else:
                inputs.append(self._value_in(value, None, reader))
        metadata = {**PACKED, ORIGIN_KEY: node.outputs[0].name or ""}
        packed_node = NodeBuilder(self.document, node).add(
            node.op_type,
            "packed",
            inputs,
            {**node.attributes, **packed_op.attributes},
            metadata=metadata,
            outputs=len(node.outputs),
            domain=node.domain,
        )
        self._replacements[reader].append(packed_node)
        return packed_node

    def _value_in(self, value: Value, layout: PackedLayout | None, reader: Node) -> Value:
        """Return a value in a layout; it is converted before `reader` on the first such read."""
        logical = self._logical.get(value, value)
        if layout is None:
            return logical
        if (value, layout) not in self._packed_values:
            dequantization = self._regions.dequantized.get((value, layout))
            maker = value.producer()
            if dequantization is not None and maker is not None:
                packed_node = self._packed_node(maker, dequantization, reader)
                is_first = not any(v is value for v, _ in self._packed_values)
                if is_first and self._regions.is_superseded(maker):
                    take_over(maker, packed_node)
                self._packed_values[value, layout] = packed_node.outputs[0]
            else:
                result = self._convert(value, logical, layout, reader, inverse=False)
                self._packed_values[value, layout] = result
        return self._packed_values[value, layout]

    def _return(self, node: Node, results: Sequence[Value], layout: PackedLayout | None) -> None:
        """Record the outputs of a new node, and unpack outputs that are read in another layout."""
        for value, result in zip(node.outputs, results, strict=True):
            if layout is None:
                self._logical[value] = result
                continue
            self._packed_values[value, layout] = result
            if self._regions.read_in(value) - {layout}:
                self._logical[value] = self._convert(value, result, layout, node, inverse=True)

    def _convert(
        self, value: Value, start: Value, layout: PackedLayout, owner: Node, *, inverse: bool
    ) -> Value:
        """Pack a logical value into a layout, or with `inverse` unpack it; return the result."""
        series = Series(self.document, start, owner, value.name or "")
        shape = self._regions.shapes[value, layout]
        # Node names say fold and unfold for pack and unpack: other names would change the model.
        suffix = "unfold" if inverse else "fold"
        scale_and_zero = self._regions.signed_quantization(value, layout)
        if scale_and_zero is not None:
            series.append("DequantizeLinear", f"{suffix}_dequantize", [start, *scale_and_zero], {})
        series.append_moves(layout.moves(shape, inverse=inverse), suffix)
        if scale_and_zero is not None:
            series.append(
                "QuantizeLinear", f"{suffix}_quantize", [series.value, *scale_and_zero], {}
            )
        series.requantize(exact_dequantizer(self.document, value))
        if not inverse:
            series.nodes[-1].metadata_props.update(PACKED)
        self._replacements[owner] += series.nodes
        return series.value
