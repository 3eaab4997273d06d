"""Collect the layers of a model: equal layers, the forms of each, and the links between them.

Tensors that are joined by ops of `rules.propagation` are all in one layout, or all logical:
they are one link between layers. Only the operator is looked up here; the rewriting decides whether
an op really accepts a layout.

A form alone pays for folding its input and unfolding its output. Between neighbours that agree on
a layout it pays neither. So a form whose layout a neighbour could share is measured a second time
with packed tensors at its ends; the difference is the cost of its folds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from widthfold_onnx.decide.decisions import read_sites
from widthfold_onnx.model.document import Document, Graph, Node, Value, graph_of
from widthfold_onnx.model.messages import NodeName, connected
from widthfold_onnx.model.proto.walk import is_default
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.options import FACTORS, AxisName, FoldOptions, Layout, Shapes
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.plan import LayerPlan, structure_of
from widthfold_onnx.rewrite.reading import Reading
from widthfold_onnx.rules.enumeration import (
    AxisOutcome,
    Split,
    forms_at_factor,
    forms_of_split,
    groupings,
    splits,
    summed_taps,
)
from widthfold_onnx.rules.form import NO_AXIS, Form, FormSpec
from widthfold_onnx.rules.layers import ConvLayer, Layer, ProductLayer
from widthfold_onnx.rules.legality import guard_conditions, legal_form, unguardable
from widthfold_onnx.rules.propagation import PROPAGATION
from widthfold_onnx.rules.row_fold import RowFold
from widthfold_onnx.rules.selection import (
    is_einsum,
    is_of_one_axis,
    search_problem,
    width_problem,
)
from widthfold_onnx.tuning.identity import canonical
from widthfold_onnx.tuning.targets import Target
from widthfold_onnx.tuning.workloads import CutLayer, PredictedForm, Workload, cut, joined

MAX_WHOLE = 64
"""Largest number of positions of an axis that may become channels as a whole."""


ORDERS = {Layout.AUTO: (False, True), Layout.NCHW: (False,), Layout.NHWC: (True,)}
"""Channel orders to try by layout: tile-major or not."""


LIFTED_RANKS = (1, 2)
"""Spatial axes of a Conv that may be lifted. The CPU's blocked kernels exist for two axes only: a
Conv of one axis is lifted to reach them, one of two to avoid them."""


def lift_of(layer: Layer, options: FoldOptions) -> Form | Refusal:
    """Return the form that lifts a layer of one axis, and changes nothing else."""
    problem = search_problem(layer, options)
    if problem is None and is_of_one_axis(layer):
        for form in _legal(forms_of_split(layer, options, (1,) * len(layer.positions), lift=1)):
            if form.spec.axis == NO_AXIS:
                return form
    return problem or Refusal(Code.NO_GAIN, "it has no axis to add")


def forms_to_race(layer: Layer, options: FoldOptions) -> list[Form]:
    """Return the legal forms of a layer; if one of them folds fixed extents, those without a guard.

    A guard keeps the weights of both branches, and gains at some sizes only.
    """
    unguarded = every_form(layer, options, folds_open_axes=False)
    forms = [form for form in unguarded if not guard_conditions(layer, form)]
    has_fold = any(form.folded_axes for form in forms)
    return forms if has_fold or None not in layer.static else list(every_form(layer, options))


def every_form(
    layer: Layer, options: FoldOptions, *, folds_open_axes: bool = True
) -> Iterator[Form]:
    """Yield every legal form of a layer, each once.

    Extents need not be divisible: the cost of extending and cutting is measured with the form. If
    the options name an axis, channels and groups stay as they are. A wide layer, which is of one
    axis, is lifted only.

    Args:
        layer: the layer.
        options: layout, axis and limits are used.
        folds_open_axes: whether open axes of a Conv are folded by a factor, which needs a guard.
            With an open batch these are two thirds of the forms (basic-pitch).
    """
    if isinstance(layer, ProductLayer):
        yield from _of_product(layer, options)
        return
    assert isinstance(layer, ConvLayer)
    options = replace(options, ragged=True)
    unfolded = (1,) * len(layer.positions)
    if width_problem(layer, options) is not None:
        yield from _legal(forms_of_split(layer, options, unfolded, lift=1))
        return
    full_extents = [n for n in layer.positions[1:] if n is not None and n <= MAX_WHOLE]
    # A lifted Conv is not computed by the channels-last kernels, so that order is not tried.
    ways = [(0, order) for order in ORDERS[options.layout]]
    ways += [(1, False)] if len(layer.axes) in LIFTED_RANKS else []
    # A factor equal to the dilation removes it: every tile reads positions of its own tile only.
    dilations = [axis.dilation for axis in layer.axes if axis.dilation <= FACTORS[-1]]
    specs: set[FormSpec] = set()
    for factor in sorted({1, *FACTORS, *full_extents, *dilations}):
        for split in splits(options.axis, factor, len(layer.axes)):
            if not folds_open_axes and _folds_open_axis(layer, split):
                continue
            for lift, order in ways:
                forms = forms_of_split(
                    layer, options, split, lift=lift, tile_major=order, one_sided=True
                )
                for form in _legal(forms):
                    spec = form.spec
                    if spec not in specs:
                        specs.add(spec)
                        yield form
    if options.axis is AxisName.AUTO:
        yield from summed_taps(layer, options)
        for grouping in groupings(layer):
            yield from _legal(forms_of_split(layer, options, unfolded, grouping=grouping))


def _folds_open_axis(layer: ConvLayer, split: Split) -> bool:
    """Check whether a split folds an open axis: the factor would have to divide its extent."""
    batch, _, *extents = layer.static
    pairs = zip((batch, *extents), split, strict=True)
    return any(extent is None and factor > 1 for extent, factor in pairs)


def _of_product(layer: ProductLayer, options: FoldOptions) -> Iterator[Form]:
    """Yield the legal forms at the usual factors, or if there are none at any factor up to them.

    An Einsum is also tried as a MatMul, and nothing else if it is wide.
    """
    if is_einsum(layer):
        product = legal_form(RowFold.smallest(layer, options, 1))
        yield from _legal([(layer.position_names[0], product)])
        if width_problem(layer, options) is not None:
            return
    for factors in (FACTORS, range(2, FACTORS[-1] + 1)):
        legal = [f for factor in factors for f in _legal(forms_at_factor(layer, options, factor))]
        if legal:
            yield from legal
            return


def _legal(outcomes: Iterable[AxisOutcome]) -> Iterator[Form]:
    """Yield the forms among outcomes."""
    for _, form in outcomes:
        if isinstance(form, Form):
            yield form


NOT_IN_DRAFT = Refusal(Code.NO_GAIN, "layers were measured in the model with companions only")
"""Refusal for a layer with another name in the measured model: a companion inlined a function."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model.

    Attributes:
        workloads: workloads by subject.
        subjects: the subject of every layer, or why it has none.
        structures: `rewrite.plan.structure_of` every layer that has a subject.
        links: the tensors between layers.
        workloads_inside: workloads that run between packed tensors, by the subject of the layer.
        cut_layers: the layers as cut out, for every target: one for a subject and its forms.
    """

    workloads: Mapping[str, Workload] = field(default_factory=dict)
    subjects: Mapping[NodeName, str | Refusal] = field(default_factory=dict)
    links: Sequence[Link] = ()
    workloads_inside: Mapping[str, Workload] = field(default_factory=dict)
    structures: Mapping[NodeName, dict[str, Any]] = field(default_factory=dict)
    cut_layers: Sequence[CutLayer] = ()

    @classmethod
    def of(cls, reading: Reading, options: FoldOptions, shapes: Shapes, target: Target) -> Self:
        """Cut every layer that has a form out of the model.

        Args:
            reading: the model.
            options: select the layers, and limit the forms.
            shapes: shapes of every input, at which layers are measured.
            target: the device for which the forms are ordered.
        """
        document = reading.document
        table = ShapeTable(document.proto, shapes)
        # A cut layer holds its weights: equal layers of a large model would fill the memory.
        cut_layers: dict[tuple[str, frozenset[FormSpec]], CutLayer] = {}
        subjects: dict[NodeName, str | Refusal] = {}
        structures: dict[NodeName, dict[str, Any]] = {}
        forms: dict[object, list[Form]] = {}
        nodes: dict[Node, str] = {}
        for _, layer in read_sites(reading, options):
            if isinstance(layer, Refusal):
                continue
            name = layer.node_name
            problem = search_problem(layer, options)
            if problem is not None:
                subjects[name] = problem
                continue
            forms_key = (
                *(layer.op, layer.static, layer.planned, layer.weight_shape, layer.geometry),
                *(layer.itemsize, unguardable(layer)),
            )
            if forms_key not in forms:
                forms[forms_key] = forms_to_race(layer, options)
            cut_layer = cut(document, layer, table, forms[forms_key], options, target)
            if isinstance(cut_layer, Refusal):
                subjects[name] = cut_layer
                continue
            key = cut_layer.subject, frozenset(form.spec for form in cut_layer.forms)
            cut_layers.setdefault(key, cut_layer)
            subjects[name] = nodes[layer.node] = cut_layer.subject
            structures[name] = structure_of(layer)
        layers = cls(
            subjects=subjects,
            links=links_of(document, nodes),
            structures=structures,
            cut_layers=[*cut_layers.values()],
        )
        return layers.at(target)

    def at(self, target: Target) -> Self:
        """Return the layers with their forms predicted and ordered for another target."""
        # Layers of one subject may differ in their legal forms if one has an open extent.
        workloads = joined(layer.workload(target) for layer in self.cut_layers)
        return replace(
            self, workloads=workloads, workloads_inside=workloads_inside(workloads, self.links)
        )

    def subject(self, layer: Layer) -> str | Refusal:
        """Return the subject of a layer, or why it was not measured."""
        return self.subjects.get(layer.node_name, NOT_IN_DRAFT)

    def layer_plans(self, forms: Mapping[str, FormSpec]) -> list[LayerPlan]:
        """Return the parts of a plan in which every layer takes the form of its subject.

        A form that one of these layers does not allow is left out where the plan is applied.
        """
        return [
            LayerPlan(
                graph=name.graph,
                node=name.node,
                structure=self.structures[name],
                form=forms[subject],
            )
            for name, subject in self.subjects.items()
            if isinstance(subject, str) and subject in forms
        ]

    @property
    def neighbours(self) -> list[list[str]]:
        """Groups of layers that share tensors, by subject; a lone layer is in none."""
        shared = (link for link in self.links if link.makers and link.readers)
        return [sorted(group) for group in connected((*k.makers, *k.readers) for k in shared)]

    def count(self, subject: str) -> int:
        """Return how many layers of the model have this subject."""
        return [*self.subjects.values()].count(subject)

    def subjects_of(self, workloads: Iterable[Workload]) -> set[str]:
        """Return the subjects of the layers that were measured, alone or between packed tensors."""
        layer_of = {w.subject: subject for subject, w in self.workloads_inside.items()}
        return {layer_of.get(workload.subject, workload.subject) for workload in workloads}


@dataclass(frozen=True, order=True)
class Link:
    """Tensors that are in one layout.

    Attributes:
        makers: a subject for every layer that returns one of them.
        readers: a subject for every layer that reads one of them.
        has_other_maker: whether anything else makes one of them, in the logical layout.
        has_other_reader: whether anything else reads one of them, in the logical layout.
    """

    makers: tuple[str, ...]
    readers: tuple[str, ...]
    has_other_maker: bool
    has_other_reader: bool


def links_of(document: Document, subjects: Mapping[Node, str]) -> list[Link]:
    """Return the links between layers, before the first and behind the last ones.

    Args:
        document: the model.
        subjects: the subject of every node that is a layer.
    """
    graphs = dict.fromkeys(map(graph_of, subjects))
    return sorted(link for graph in graphs for link in _links_of_graph(document, graph, subjects))


def _links_of_graph(
    document: Document, graph: Graph, subjects: Mapping[Node, str]
) -> Iterator[Link]:
    """Yield the links of one graph."""
    nodes = list(graph)
    layers = dict.fromkeys(node for node in nodes if node in subjects)
    propagated = dict.fromkeys(
        node for node in nodes if node not in subjects and is_default(node, *PROPAGATION)
    )
    groups = [[value] for node in layers for value in _data(document, node)]
    groups += [list(_data(document, node)) for node in propagated]
    for group in connected(groups):
        origins = [value.producer() for value in group]
        uses = [(node, index) for value in group for node, index in value.uses()]
        makers = [subjects[node] for node in origins if node is not None and node in subjects]
        readers = [subjects[node] for node, _ in uses if node in subjects]
        if makers or readers:
            layout_readers = [node for node, _ in uses if node in propagated or node in layers]
            yield Link(
                tuple(sorted(makers)),
                tuple(sorted(readers)),
                any(node not in layers and node not in propagated for node in origins),
                len(layout_readers) < len(uses) or any(map(document.must_stay, group)),
            )


def _data(document: Document, node: Node) -> Iterator[Value]:
    """Yield the values that a node returns, and the values that it reads besides constants."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and isinstance(document.constant(value), Refusal):
            yield value


def subject_inside(subject: str) -> str:
    """Return the subject of the same layer between packed tensors."""
    return canonical({**json.loads(subject), "inside": True})


def workloads_inside(
    workloads: Mapping[str, Workload], links: Sequence[Link]
) -> dict[str, Workload]:
    """Return the workloads to run between packed tensors as well, with the forms that matter there.

    Args:
        workloads: layers by subject.
        links: the tensors between them.

    Returns:
        Workloads by the subject of the layer; a form is included if another layer, or another of
        its kind, could make or read the same tensor in the same layout.
    """
    shared: dict[str, set[PredictedForm]] = {}
    for link in links:
        outputs = [(s, {f: f.output_layout for f in workloads[s].forms}) for s in link.makers]
        inputs = [(s, {f: f.input_layout for f in workloads[s].forms}) for s in link.readers]
        # A layer counts once for a layout, however many of its forms have it.
        layers = Counter(
            layout for _, layouts in (*outputs, *inputs) for layout in set(layouts.values())
        )
        for subject, layouts in (*outputs, *inputs):
            shared_forms = {
                f for f, layout in layouts.items() if layout is not None and layers[layout] > 1
            }
            shared.setdefault(subject, set()).update(shared_forms)
    return {
        subject: replace(
            workloads[subject],
            subject=subject_inside(subject),
            forms=tuple(form for form in workloads[subject].forms if form in forms),
            is_inside=True,
        )
        for subject, forms in shared.items()
        if forms
    }
