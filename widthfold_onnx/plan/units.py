"""Units of measurement: one layer cut out of the model, as it is and in every form it may take.

What is cut is the Conv at its real shapes with the operators behind it that a runtime fuses into
it, and one more operator at the end, so that no form pays for writing a graph output: a Reshape in
the middle of a graph is free, one that makes an output is a copy (reference: DESIGN, section 4).
Layers that look alike are one unit, whatever their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy.typing as npt

from widthfold_onnx.fold.state import State
from widthfold_onnx.model.constants import Constant
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.model.shapes import ShapeTable
from widthfold_onnx.plan.alone import layer_model
from widthfold_onnx.plan.candidates import form_key
from widthfold_onnx.plan.cost import form_seconds, layer_seconds
from widthfold_onnx.plan.decisions import read_site
from widthfold_onnx.plan.identity import canonical
from widthfold_onnx.plan.targets import Target
from widthfold_onnx.plan.work import Work
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.base import LinearSite, Reformulation, Site
from widthfold_onnx.rules.windowed import WindowedSite

Array = npt.NDArray[Any]

FUSED = frozenset(
    {"Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "HardSigmoid", "BatchNormalization"}
    | {"Add", "Mul"}
)
"""What runtimes fuse into a Conv, where all other inputs are constants (conv_*_fusion.cc)."""


class Form(NamedTuple):
    """What a layer may become.

    Attributes:
        key: its `form_key`.
        macs: multiply-adds of one run.
        predicted: seconds of one run (`plan.cost`).
        reads: the state in which it reads its input; None where that is the natural tensor.
        returns: the state of its output.
    """

    key: str
    macs: float
    predicted: float
    reads: State | None = None
    returns: State | None = None


@dataclass(frozen=True)
class Unit:
    """A layer to be measured.

    Attributes:
        subject: what it is, as canonical JSON; equal for layers that take equally long.
        model: the layer as it is, serialized.
        forms: what else it may be, the most promising first.
        macs: multiply-adds of one run as it is.
        predicted: seconds of one run as it is (`plan.cost`).
        inside: whether forms run between packed tensors (`plan.inside`).
    """

    subject: str
    model: bytes
    forms: tuple[Form, ...]
    macs: int
    predicted: float
    inside: bool = False

    def joined(self, other: Unit) -> Unit:
        """The same layer with the forms of both."""
        return replace(self, forms=tuple(dict.fromkeys((*self.forms, *other.forms))))


def cut(
    document: Document,
    site: LinearSite,
    measured: ShapeTable,
    forms: Sequence[Reformulation],
    target: Target,
) -> Unit | Refusal:
    """Cut a site out of its model.

    Args:
        document: the model.
        site: the Conv.
        measured: a table without open dimensions, as far as the model allows.
        forms: what to measure besides the layer as it is.
        target: the device that the order of the forms is for.

    Returns:
        The unit, or a refusal where an extent stays unknown, or nothing is known of the element
        type on the target.
    """
    dims = measured.get(site.scope.path, site.data.name or "")
    if dims is None or None in dims:
        return Refusal("unknown-extent", "an extent is not known, so it cannot be measured")
    if site.weight.dtype not in target.rate:
        return Refusal(
            "dtype-unmeasured",
            f"{target.name} has no figures for {site.weight.dtype}; a fixed factor needs none",
        )
    shape = [int(d) for d in dims if d is not None]
    behind = _behind(document, site)
    proto = layer_model(document, site, behind, shape)
    site_again = only_site(Document(proto, None))
    if isinstance(site_again, Refusal):
        return site_again
    output = [int(d) for d in site_again.output if d is not None]
    macs = site_again.macs or 0
    work = Work.of(site, shape, output)

    def known(form: Reformulation) -> Form:
        ends = form.ends(site)
        alone = len(behind) if ends.returns is None else 0  # else they are carried
        seconds = form_seconds(work, form, work.folded(form, shape, output), alone, target)
        return Form(
            form_key(site, form), macs * form.flops_ratio, seconds, ends.reads, ends.returns
        )

    ordered = tuple(sorted(map(known, forms), key=lambda form: (form.predicted, form.key)))
    subject = _subject(document, site, shape, behind)
    return Unit(subject, proto.SerializeToString(), ordered, macs, layer_seconds(work, target))


def _behind(document: Document, site: LinearSite) -> list[Node]:
    """The operators behind a node that a runtime fuses into it.

    Of one that reads dequantized tensors that is what quantizes its result as well.
    """
    node = site.node
    integers = isinstance(site, WindowedSite) and site.is_dequantized
    found: list[Node] = []
    value = node.outputs[0]
    while len(uses := list(value.uses())) == 1 and not value.is_graph_output():
        after = uses[0].node
        others = [v for v in after.inputs if v is not None and v is not value]
        known = FUSED | {"QuantizeLinear"} if integers else FUSED
        fuses = after.op_type in known and after.domain == "" and len(after.outputs) == 1
        if not fuses or after.graph is not node.graph or not _constant(document, others):
            break
        found.append(after)
        value = after.outputs[0]
        if after.op_type == "QuantizeLinear":
            break
    return found


def _constant(document: Document, values: Sequence[Value]) -> bool:
    return not any(isinstance(document.constant(value), Refusal) for value in values)


def only_site(document: Document) -> LinearSite | Refusal:
    """The site of a unit."""
    table = ShapeTable(document.proto, {})
    scope, node = next(document.nodes(LINEAR))
    return read_site(document, Site(node, scope, node.name or "", node.op_type), table, table)


def _subject(
    document: Document, site: LinearSite, shape: Sequence[int], behind: Sequence[Node]
) -> str:
    constants = [
        [
            node.op_type,
            *(
                list(constant.shape)
                for value in node.inputs
                if value is not None and isinstance(constant := document.constant(value), Constant)
            ),
        ]
        for node in behind
    ]
    signature = {
        "op": site.op,
        "dtype": site.weight.dtype,
        "input": list(shape),
        "weight": list(site.weight_shape),
        **site.signature,
        "behind": constants,
    }
    return canonical(signature)
