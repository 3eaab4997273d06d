"""What a folded Conv must be, by the original and by its own record."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.evidence.chain import (
    MAX_ELEMENTS,
    Geometry,
    Labels,
    Mismatch,
    labels_of,
    too_large,
)
from widthfold_onnx.evidence.claims import (
    FREE_POSITIONS,
    FREE_SAMPLES,
    MAX_AXES,
    fold_record,
    placed,
    read,
)
from widthfold_onnx.evidence.rewritten import Rewritten, label
from widthfold_onnx.fold.channels import Grouping, regroup, regroup_weight
from widthfold_onnx.fold.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.record import FOLD_KEY, FoldRecord, fold_again
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.base import Site
from widthfold_onnx.rules.parameter import INPUTS
from widthfold_onnx.rules.windowed import WindowedSite

Array = npt.NDArray[Any]

MAX_DIGITS = 1 << 20
"""Of one axis: where its taps go takes some 50 bytes per digit and tap."""


@dataclass(frozen=True)
class Wanted:
    """What the original and the record say a folded Conv must be.

    Attributes:
        site: the original.
        fold: its fold, as the site is read here.
        recorded: the fold of the original node.
        record: what the folded node says of itself.
        places: which inputs are folded, the weight first.
        parameters: the original's numbers there.
    """

    site: WindowedSite
    fold: ConvFold
    recorded: ConvFold
    record: FoldRecord
    places: list[int]
    parameters: list[Array]

    @property
    def axes(self) -> tuple[ConvAxis, ...]:
        """Geometry of the original, at the extents of the record."""
        return self.site.axes

    @property
    def terms(self) -> int:
        """Most summands of one output element."""
        return math.prod(self.site.weight_shape[1:]) + 1

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Input extents of the probe; more than one where the plan leaves some open."""
        channels = self.site.channels[0]
        shapes = []
        for samples, positions in zip(FREE_SAMPLES, FREE_POSITIONS, strict=True):
            spatial = (
                axis.length
                or folded.in_digits * (axis.dilation * axis.kernel + 2 * axis.stride + positions)
                for axis, folded in zip(self.axes, self.fold.axes, strict=True)
            )
            batch = self.record.samples or self.fold.batch * samples
            shapes.append((batch, channels, *spatial))
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
        """What is folded as labels: index in the original + 1, 0 for a structural zero.

        The index is that in the canonical weight.
        """
        weight, *others = (labels_of(p.shape) for p in self.canonical(self.parameters))
        return [fold_weight(weight, self.fold), *(fold_per_channel(o, self.fold) for o in others)]

    def kept(self) -> list[npt.NDArray[np.bool_]]:
        """Which numbers of weight and bias, as the original stores them, the site has."""
        labels = [labels_of(p.shape) for p in self.parameters]
        seen = self.canonical(labels)
        return [np.isin(one, other) for one, other in zip(labels, seen, strict=True)]

    def canonical(self, parameters: list[Array]) -> list[Array]:
        """What the original stores, the weight made canonical."""
        weight, *others = parameters
        return [self.site.canonical(weight), *others]

    def folded(self, parameters: list[Array], labels: list[Labels]) -> list[Array]:
        """What the folded Conv reads, from what the original stores."""
        return placed(self.canonical(parameters), labels, self._gaps())

    def _gaps(self) -> Array:
        """What stands where the folded weight has no weight; dequantized it is 0."""
        zero = np.zeros(()) if self.site.is_dequantized else self.site.zero
        if zero.size == 1:
            return zero
        channel = fold_per_channel(labels_of(zero.shape[:1]), self.fold) - 1
        shape = (-1, *[1] * (1 + len(self.fold.kernel)))
        return np.asarray(zero.ravel()[channel].reshape(shape))


def read_wanted(graph: Rewritten, node: Node, conv: Node) -> Wanted:
    """The fold of a node of the original that a folded node says it is.

    Raises:
        Mismatch: it cannot be one, or its record cannot be read.
        UnverifiedError: the proof would need too much memory.
    """
    record = fold_record(conv.metadata_props[FOLD_KEY])
    if not isinstance(record, FoldRecord):
        raise Mismatch("its record is that of another operator")
    check_size(record)
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
    places = _places(site)
    numbers = numbers_at(graph.old, node, places)
    wanted = Wanted(site, fold, recorded, record, places, numbers)
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


def check_size(record: FoldRecord) -> None:
    """Check that a fold can be repeated: the record comes from the model, so it may be of any size.

    Raises:
        UnverifiedError: it would need too much memory.
    """
    numbers = [
        record.batch,
        *record.channels,
        record.group,
        1 if record.samples is None else record.samples,
    ]
    for axis in record.axes:
        numbers += [axis.out_digits, axis.in_digits, 1 if axis.length is None else axis.length]
    # Bounded one by one first: a product of numbers of any size takes any time.
    if len(record.axes) > MAX_AXES or max(numbers) > MAX_ELEMENTS:
        raise too_large()
    digits = [digit for axis in record.axes for digit in (axis.out_digits, axis.in_digits)]
    if max(digits, default=1) > MAX_DIGITS or math.prod(digits) > MAX_ELEMENTS:
        raise too_large()


def _places(site: WindowedSite) -> list[int]:
    """The inputs of the original that its fold changes, the weight first."""
    weight = INPUTS[site.op].weight
    changed = {site.parameter, *site.per_channel}
    others = [
        index
        for index, value in enumerate(site.node.inputs)
        if index not in (site.data_index, weight) and changed & set(site.leaves(value))
    ]
    return [weight, *others]


def numbers_at(document: Document, node: Node, places: list[int]) -> list[Array]:
    """The constants that a node reads at some inputs.

    Raises:
        Mismatch: one is not constant, or left out.
    """
    values = [node.inputs[place] if place < len(node.inputs) else None for place in places]
    if None in values:
        raise Mismatch("it lacks an input")
    return [read(document, value) for value in values if value is not None]
