"""A folded Conv: is it the fold of the original, between what it reads and what it returns?

1. Does it read the value that the original reads, and return the one that the original returns?
2. Are the stored weight and bias, as bytes, the fold of the original's?
3. Does each weight multiply the same input elements (`evidence.provenance`)?
4. Do the very nodes compute on small integers what the original computes (`evidence.probe`)?
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.errors import NoKernelError
from widthfold_onnx.evidence.chain import Chain, Geometry, Labels, Mismatch, labels_of
from widthfold_onnx.evidence.claims import (
    FREE_POSITIONS,
    FREE_SAMPLES,
    MAX_AXES,
    MAX_ELEMENTS,
    check_extents,
    content,
    placed,
    read,
    too_large,
)
from widthfold_onnx.evidence.patterns import patterns, sentence
from widthfold_onnx.evidence.probe import TRIALS, Side, first_difference
from widthfold_onnx.evidence.provenance import prove
from widthfold_onnx.evidence.rewritten import Rewritten, label
from widthfold_onnx.fold.axis import ConvAxis
from widthfold_onnx.fold.channels import Grouping, regroup, regroup_weight
from widthfold_onnx.fold.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.record import FOLD_KEY, FoldRecord, fold_again, read_record
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.base import Site
from widthfold_onnx.rules.conv_site import conv_axes
from widthfold_onnx.rules.reading import group_of
from widthfold_onnx.rules.windowed import FOLDED_OP, WindowedSite
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Fold:
    """What the original and the record say a site must be.

    `fold` is of the site as it is read here; `recorded` is of the original node.
    """

    site: WindowedSite
    fold: ConvFold
    recorded: ConvFold
    record: FoldRecord
    parameters: list[Array]

    @property
    def axes(self) -> tuple[ConvAxis, ...]:
        """Geometry of the original, at the extents of the record."""
        return self.site.axes

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Input extents of the probe; more than one where the plan leaves some open."""
        channels = self.site.channels[0]
        shapes = []
        for samples, positions in zip(FREE_SAMPLES, FREE_POSITIONS, strict=True):
            spatial = (
                axis.length or axis.dilation * axis.kernel + 2 * axis.stride + positions
                for axis in self.axes
            )
            shapes.append((self.record.samples or samples, channels, *spatial))
        return list(dict.fromkeys(shapes))

    def geometry(self, shape: tuple[int, ...]) -> Geometry:
        """The original Conv on an input of these extents."""
        lengths = zip(self.axes, shape[2:], strict=True)
        axes = tuple(replace(axis, length=extent) for axis, extent in lengths)
        return Geometry(shape, axes, self.site.group)

    def out_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Output extents for an input of these extents."""
        lengths = (axis.out_length or 0 for axis in self.geometry(shape).axes)
        return (shape[0], self.site.channels[1], *lengths)

    def labels(self) -> list[Labels]:
        """Folded weight and bias as labels: index in the original + 1, 0 for a structural zero.

        The index is that in the canonical weight.
        """
        weight, *bias = (labels_of(p.shape) for p in self.canonical(self.parameters))
        return [fold_weight(weight, self.fold), *(fold_per_channel(b, self.fold) for b in bias)]

    def kept(self) -> list[npt.NDArray[np.bool_]]:
        """Which numbers of weight and bias, as the original stores them, the site has."""
        labels = [labels_of(p.shape) for p in self.parameters]
        seen = self.canonical(labels)
        return [np.isin(one, other) for one, other in zip(labels, seen, strict=True)]

    def canonical(self, parameters: list[Array]) -> list[Array]:
        """Weight and bias as the original stores them, the weight made canonical."""
        weight, *bias = parameters
        return [self.site.canonical(weight), *bias]


def check_conv(graph: Rewritten, conv: Node, options: VerifyOptions) -> ExactSite:
    """Prove a folded Conv, together with the moves around it that claim nothing.

    Where the runtime has no kernel for it, what needs no run is proved, and the verdict says so.

    Raises:
        Mismatch: it is another; the message says where.
        UnverifiedError: the runtime cannot run it, or it would need too much memory.
        InvalidModelError: its record cannot be read.
    """
    old, new = graph.old, graph.new
    node = graph.original(conv)
    if node is None or not _is(node, LINEAR) or FOLD_KEY in node.metadata_props:
        raise Mismatch("the original has no such node")
    if not _is(conv, (FOLDED_OP,)):
        raise Mismatch(f"{printable(conv.op_type)} is no folded Conv")
    data, given = node.inputs[0], conv.inputs[0]
    if data is None or given is None:
        raise Mismatch("it reads nothing")
    source, before = graph.line_to(given)
    target, after = graph.line_from(conv.outputs[0])
    start, end = graph.claim(source), graph.claim(target)
    if start is None or end is None or (start.value, end.value) != _ports(node):
        raise Mismatch("the new nodes do not stand where the original node stood")
    wanted = _fold_of(graph, node, conv)
    for shape in wanted.shapes:
        fixed = (wanted.record.samples, 1, *(axis.length for axis in wanted.record.axes))
        check_extents(start, shape, fixed)
        check_extents(end, wanted.out_shape(shape), fixed)
    labels = wanted.labels()
    stored = _parameters(new, conv)
    expected = placed(wanted.canonical(wanted.parameters), labels)
    if [content(a) for a in expected] != [content(a) for a in stored]:
        raise Mismatch("the stored weight or bias is not the fold of the original's")
    line = [*before, conv, *after]
    constants = graph.constants(line)
    chain = Chain(
        before=[new.message(n) for n in before],
        axes=lambda shape: _axes(conv, shape, expected[0].shape),
        group=group_of(conv),
        after=[new.message(n) for n in after],
        constants=constants,
        opset=new.opset,
        reads=start.state,
        returns=end.state,
    )
    one = Side([old.message(node)], _constants_of(old, node), old.opset, _names(node))
    messages = [new.message(n) for n in line]
    other = Side(messages, constants, new.opset, _names(conv), start.state, end.state)
    weight, *bias = labels
    certificates, unrun = [], ""
    for shape in wanted.shapes:
        certificates.append(
            prove(
                wanted.geometry(shape),
                wanted.site.weight_shape,
                chain,
                weight,
                bias[0] if bias else None,
            )
        )
        try:
            found = first_difference(
                one,
                other,
                fold=lambda parameters: placed(wanted.canonical(parameters), labels),
                shape=shape,
                terms=math.prod(wanted.site.weight_shape[1:]) + 1,
                options=options,
                kept=wanted.kept(),
            )
        except NoKernelError as error:
            found, unrun = "", str(error)
        if found:
            raise Mismatch(found)
    runs = f"{TRIALS * len(certificates)} runs on integers agree bit for bit"
    folded = patterns(wanted.fold, wanted.axes, wanted.record.samples)
    became = wanted.recorded.channels(*wanted.site.channels)
    return ExactSite(
        node=label(conv),
        verdict="proved" if unrun else "exact",
        reason=f"{certificates[0]}; the stored weight and bias are the fold of the original's, bit "
        f"for bit; {f'not run on integers: {unrun}' if unrun else runs}",
        channels="{} -> {}, folded {} -> {}".format(*wanted.site.channels, *became),
        fold=sentence(wanted.recorded, folded),
        axes=folded,
    )


def _is(node: Node, kinds: Container[str]) -> bool:
    return node.op_type in kinds and node.domain in ("", "ai.onnx")


def _ports(node: Node) -> tuple[str | None, str | None]:
    """Names of what a Conv convolves and returns."""
    data = node.inputs[0]
    return (None if data is None else data.name, node.outputs[0].name)


def _axes(conv: Node, shape: tuple[int, ...], weight: tuple[int, ...]) -> tuple[ConvAxis, ...]:
    axes = conv_axes(conv, shape, weight)
    if isinstance(axes, Refusal):
        raise Mismatch(axes.reason)
    return axes


def _fold_of(graph: Rewritten, node: Node, conv: Node) -> _Fold:
    record = read_record(conv.metadata_props[FOLD_KEY])
    if not isinstance(record, FoldRecord):
        raise Mismatch("its record is that of another operator")
    _check_record(record)
    assert graph.before is not None
    dims = (record.samples, None, *(a.length for a in record.axes))
    place = Site(node, graph.before, label(conv), node.op_type)
    site = LINEAR[node.op_type](graph.old, place, lambda _: dims, lambda _: dims)
    if not isinstance(site, WindowedSite):
        why = site.reason if isinstance(site, Refusal) else "it is no Conv"
        raise Mismatch(f"the fold cannot be repeated on the original: {why}")
    recorded = fold_again(record, site.axes, site.grouping)
    if isinstance(recorded, Refusal):
        raise Mismatch(f"the fold cannot be repeated on the original: {recorded.reason}")
    site, fold = _in_groups(site, recorded)
    wanted = _Fold(site, fold, recorded, record, _parameters(graph.old, node))
    sizes = map(math.prod, [*wanted.shapes, fold.weight_shape(site.weight_shape)])
    if max(sizes) > MAX_ELEMENTS:
        raise too_large()
    return wanted


def _in_groups(site: WindowedSite, fold: ConvFold) -> tuple[WindowedSite, ConvFold]:
    """The site read as a Conv of the groups of its fold, where those leave weights out.

    Zeros that are left out change no sum, so that the rest of the proof is about the others.

    Raises:
        Mismatch: weights that are not zero are left out.
    """
    if not fold.regrouping.leaves_out:
        return site, fold
    finer = Grouping(*site.channels, fold.regrouping.after.group)
    split, rest = regroup(site.grouping, finer), regroup(finer, fold.regrouping.after)
    if isinstance(split, Refusal) or isinstance(rest, Refusal):
        raise Mismatch(f"{finer.group} groups do not divide the channels of the original")
    weight = site.canonical(site.stored())
    within = regroup_weight(weight, split)
    if np.count_nonzero(within) < np.count_nonzero(weight):
        raise Mismatch("weights are left out that are not zero")
    grouped = replace(
        site,
        group=finer.group,
        weight_shape=within.shape,
        canonical=lambda stored: regroup_weight(site.canonical(stored), split),
    )
    return grouped, replace(fold, regrouping=rest)


def _check_record(record: FoldRecord) -> None:
    """The record comes from the model, so it may hold any number."""
    numbers = [
        record.batch,
        *record.channels,
        record.group,
        1 if record.samples is None else record.samples,
    ]
    for axis in record.axes:
        numbers += [axis.out_digits, axis.in_digits, 1 if axis.length is None else axis.length]
    if min(numbers) < 1 or record.lift not in (0, 1):
        raise Mismatch("its record holds a number out of range")
    # Bounded one by one first: a product of numbers of any size takes any time.
    if len(record.axes) > MAX_AXES or max(numbers) > MAX_ELEMENTS:
        raise too_large()
    if math.prod(axis.out_digits * axis.in_digits for axis in record.axes) > MAX_ELEMENTS:
        raise too_large()


def _parameters(document: Document, node: Node) -> list[Array]:
    """Weight and, if there is one, bias."""
    return [read(document, value) for value in node.inputs[1:] if value is not None]


def _constants_of(document: Document, node: Node) -> dict[str, Array]:
    return dict(zip(_names(node), _parameters(document, node), strict=True))


def _names(node: Node) -> list[str]:
    return [value.name or "" for value in node.inputs[1:] if value is not None]
