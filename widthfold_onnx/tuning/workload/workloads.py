"""Cut workloads out of the model: one layer as it is and in every form it may take.

`tuning.workload.extract` describes the cut. Layers that differ only in the values of their weights
are one workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto

from widthfold_onnx.algebra.layouts import PackedLayout
from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.shapes.table import ShapeTable
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import SMALLEST_FACTOR, FoldOptions
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.apply import Reading
from widthfold_onnx.rewrite.plan import structure_of
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.forms.spec import FormSpec, form_of, spec_of
from widthfold_onnx.rules.match.site import LinearSite
from widthfold_onnx.rules.selection import reformulate
from widthfold_onnx.tuning.predict.cost import conv_seconds, form_seconds, layer_seconds
from widthfold_onnx.tuning.predict.targets import Target
from widthfold_onnx.tuning.predict.work import Work
from widthfold_onnx.tuning.store.identity import canonical
from widthfold_onnx.tuning.workload.extract import excerpt, fused_behind

ALIKE = 1.15
"""Predictions that differ by less do not tell which form is faster."""


class PredictedForm(NamedTuple):
    """A form that a layer may take.

    Attributes:
        spec: the form.
        macs: multiply-adds of one run.
        predicted: seconds of one run (`tuning.predict.cost`).
        reads: the layout in which it reads its input; None for the logical tensor.
        returns: the layout of its output.
        packed: predicted seconds of one run between tensors in these layouts.
    """

    spec: FormSpec
    macs: float
    predicted: float
    reads: PackedLayout | None = None
    returns: PackedLayout | None = None
    packed: float = 0.0


@dataclass(frozen=True)
class Workload:
    """A layer to be measured.

    Attributes:
        subject: its description as canonical JSON; equal for layers that take equally long.
        model: the layer as it is, serialized.
        forms: the other forms it may take, the most promising first.
        macs: multiply-adds of one run as it is.
        predicted: seconds of one run as it is (`tuning.predict.cost`).
        node: name of the layer in `model`.
        structure: `rewrite.plan.structure_of` the layer.
        inside: whether forms run between packed tensors (`tuning.workload.packed_workload`).
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
        others = tuple(form for form in self.forms if form.spec != also)
        return replace(self, forms=(first + others)[:forms])


def joined(workloads: Iterable[Workload]) -> dict[str, Workload]:
    """Return workloads by subject: one of each, with the forms of all."""
    found: dict[str, Workload] = {}
    for workload in workloads:
        like = found.setdefault(workload.subject, workload)
        forms = dict.fromkeys((*like.forms, *workload.forms))
        found[workload.subject] = replace(like, forms=tuple(forms))
    return found


def most_work_first(workloads: Iterable[Workload]) -> list[Workload]:
    """Return workloads in the order to measure them if time may be short; inside regions last."""
    return sorted(workloads, key=lambda w: (w.inside, -w.macs, w.subject))


def cut(
    document: Document,
    site: LinearSite,
    measured: ShapeTable,
    forms: Sequence[Reformulation],
    options: FoldOptions,
    target: Target,
) -> Workload | Refusal:
    """Cut a site out of its model.

    Args:
        document: the model.
        site: the Conv.
        measured: a table of shapes without open dimensions, as far as the model allows.
        forms: the forms to measure besides the layer as it is, if they exist at these extents.
        options: layout and limits of forms.
        target: the device for which the forms are ordered.

    Returns:
        The workload, or a refusal if an extent stays unknown, no form exists at the measured
        extents, or the target has no figures for the element type.
    """
    if not forms:
        return _why_none(site, options)
    dims = measured.get(site.scope.path, site.data.name or "")
    if dims is None or None in dims:
        return Refusal(Code.UNKNOWN_EXTENT, "an extent is not known, so it cannot be measured")
    if site.weight.dtype not in target.rate:
        return Refusal(
            Code.DTYPE_UNMEASURED,
            f"{target.name} has no figures for {site.weight.dtype}; a fixed factor needs none",
        )
    shape = [int(d) for d in dims if d is not None]
    behind = fused_behind(document, site)
    proto = excerpt(document, site, behind, shape, measured)
    site_again = only_site(Document(proto, None, OPERATORS))
    if isinstance(site_again, Refusal):
        return site_again
    if options.guard_shapes and None in site.planned:  # a guarded form may not fit these extents
        forms = [form for form in forms if _exists(spec_of(site, form), site_again, options)]
    if not forms:
        sizes = " x ".join(map(str, shape))
        return Refusal(
            Code.UNKNOWN_EXTENT, f"at {sizes}, where it would be measured, it has no form"
        )
    output = [int(d) for d in site_again.output if d is not None]
    macs = site_again.macs or 0
    work = Work.of(site, shape, output)

    def predicted(form: Reformulation) -> PredictedForm:
        ends = form.ends
        alone = len(behind) if ends.returns is None else 0  # else they run packed
        folded, moves = work.folded(form, shape, output), (form.folding, form.unfolding)
        return PredictedForm(
            spec=spec_of(site, form),
            macs=macs * form.flops_ratio,
            predicted=form_seconds(work, moves, folded, alone, target),
            reads=ends.reads,
            returns=ends.returns,
            packed=conv_seconds(folded, target),
        )

    ordered = in_order([(predicted(form), form.kind.count("+")) for form in forms])
    subject = _subject(site, shape, proto.graph, len(behind))
    return Workload(
        subject,
        proto.SerializeToString(),
        ordered,
        macs,
        layer_seconds(work, target),
        site_again.name,
        structure_of(site_again),
    )


def _why_none(site: LinearSite, options: FoldOptions) -> Refusal:
    """Return why a site has no form; any factor gives the reason."""
    outcome = reformulate(site, replace(options, ragged=True), SMALLEST_FACTOR)
    if isinstance(outcome, Refusal):
        return outcome
    return Refusal(Code.TOO_SHORT, f"no axis has {SMALLEST_FACTOR} positions")


def in_order(forms: Sequence[tuple[PredictedForm, int]]) -> tuple[PredictedForm, ...]:
    """Return forms, the most promising first: of those predicted alike the ones of fewest steps.

    Args:
        forms: each with the number of steps that it combines.
    """
    best = min(form.predicted for form, _ in forms)

    def rank(item: tuple[PredictedForm, int]) -> tuple[int, int, float, str]:
        form, steps = item
        return int(math.log(form.predicted / best, ALIKE)), steps, form.predicted, form.spec.text

    return tuple(form for form, _ in sorted(forms, key=rank))


def only_site(document: Document) -> LinearSite | Refusal:
    """Return the site of a workload."""
    reading = Reading(document)
    return reading.layer(reading.sites[0])


def _exists(spec: FormSpec, site: LinearSite, options: FoldOptions) -> bool:
    return isinstance(form_of(site, spec, options), Reformulation)


def _subject(site: LinearSite, shape: Sequence[int], layer: onnx.GraphProto, behind: int) -> str:
    """Return all that decides a layer's time; `behind` of its operators are fused into the site."""
    constants = {tensor.name: list(tensor.dims) for tensor in layer.initializer}
    fused = layer.node[-1 - behind : -1]
    signature = {
        "op": site.op,
        "dtype": site.weight.dtype,
        "input": list(shape),
        **site.signature,
        **({"integers": _integers(layer)} if site.is_finite else {}),
        "behind": [
            [node.op_type, *(constants[name] for name in node.input if name in constants)]
            for node in fused
        ],
    }
    return canonical(signature)


def _integers(layer: onnx.GraphProto) -> list[str]:
    """Return the element types of the data of a quantized layer and of all its other inputs."""
    kinds = [layer.input[0].type.tensor_type.elem_type, *(t.data_type for t in layer.initializer)]
    return [TensorProto.DataType.Name(kind) for kind in kinds]
