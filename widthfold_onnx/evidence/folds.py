"""Describes, for reports, the folds that the nodes of a rewritten model record.

Their records (`rewrite.record`) are read for people, and prove nothing: a wrong one changes the
description, and no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from widthfold_onnx.errors import InvalidModelError
from widthfold_onnx.evidence.patterns import pattern, patterns, sentence
from widthfold_onnx.fold.channels import Grouping
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.model.graph.document import Document, Node, Value
from widthfold_onnx.model.graph.messages import Scope
from widthfold_onnx.model.proto.dims import Dims
from widthfold_onnx.model.proto.domain import operator_of
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import FoldedNode
from widthfold_onnx.rewrite.record import (
    FOLD_KEY,
    ORIGIN_KEY,
    FoldRecord,
    ProductRecord,
    fold_again,
    read_record,
)
from widthfold_onnx.rules.forms.rows import fold_of
from widthfold_onnx.rules.match.reading import read_site
from widthfold_onnx.rules.match.site import LinearSite, Site

MOST = 1 << 20
"""Largest number of a record that is accepted: whoever edits a model can write any number."""

MOST_TAPS = 1 << 20
"""Weights of folded axes that are described, over all nodes of a model."""

MOST_PAIRS = 1 << 22
"""Pairs of channels of a Conv whose groups were changed that are looked at."""


def recorded_folds(old: Document, new: Document) -> list[FoldedNode]:
    """Describe the nodes that have a record of their fold, in running order.

    Args:
        old: the original.
        new: the rewritten model.
    """
    originals = {
        value.name: (scope, node)
        for scope in reversed(old.scopes)
        for node in scope.graph
        for value in node.outputs
    }
    found: list[FoldedNode] = []
    left = MOST_TAPS
    for _, node in new.nodes(OPERATORS):
        if FOLD_KEY in node.metadata_props:
            origin = node.metadata_props.get(ORIGIN_KEY) or node.outputs[0].name or ""
            name = node.name or f"{node.op_type} -> {origin}"
            try:
                found.append(_described(old, originals, node, name, left))
                left -= sum(len(axis.taps) for axis in found[-1].axes)
            except (InvalidModelError, ValueError, ArithmeticError) as error:
                found.append(FoldedNode(node=name, fold=f"its record cannot be read: {error}"))
    return found


def _described(
    old: Document,
    originals: dict[str | None, tuple[Scope, Node]],
    node: Node,
    name: str,
    most: int,
) -> FoldedNode:
    record = read_record(node.metadata_props[FOLD_KEY])
    scope, original = originals.get(node.metadata_props.get(ORIGIN_KEY), (None, None))
    if scope is None or original is None or operator_of(original) not in OPERATORS:
        raise InvalidModelError("the original has no such node")
    if max(_numbers(record)) > MOST:
        raise InvalidModelError("a number is out of range")
    place = Site(original, scope, name, original.op_type)
    if isinstance(record, FoldRecord):
        dims = (record.samples, None, *(axis.length for axis in record.axes))
        return _convolution(_read(old, place, dims), record, most)
    return _product(_read(old, place, tuple(record.shape)), record, most)


def _numbers(record: FoldRecord | ProductRecord) -> Iterator[int]:
    if isinstance(record, ProductRecord):
        yield from (record.factor, record.merged, *(n or 1 for n in record.shape))
        return
    yield from (record.batch, record.group, *record.channels, record.samples or 1)
    for axis in record.axes:
        yield from (axis.out_tile * axis.in_tile, axis.length or 1)


def _read(old: Document, place: Site, dims: Dims) -> LinearSite:
    def extents(value: Value) -> Dims:
        """Return the extents that the model fixes; of open ones those that the record has."""
        fixed = old.shapes.get(place.scope.path, value.name or "")
        return dims if fixed is None or None in fixed else fixed

    site = read_site(old, place, extents, extents)
    if isinstance(site, Refusal):
        raise InvalidModelError(f"the fold cannot be repeated on the original: {site.reason}")
    return site


def _convolution(site: LinearSite, record: FoldRecord, most: int) -> FoldedNode:
    if site.is_product or len(record.axes) != len(site.axes):
        raise InvalidModelError("it is the record of another operator")
    axes = zip(site.axes, record.axes, strict=True)
    _check_size(record.batch + sum(axis.kernel * entry.out_tile for axis, entry in axes), most)
    if Grouping(*record.channels, record.group) != site.grouping:
        _check_size(math.prod(site.channels), MOST_PAIRS)
    fold = fold_again(record, site.axes, site.grouping)
    if isinstance(fold, Refusal):
        raise InvalidModelError(f"the fold cannot be repeated on the original: {fold.reason}")
    folded = patterns(fold, site.axes, record.samples)
    became = fold.channels(*site.channels)
    return FoldedNode(
        node=site.name,
        channels="{} -> {}, folded {} -> {}".format(*site.channels, *became),
        fold=sentence(fold, folded),
        axes=folded,
    )


def _check_size(count: int, most: int) -> None:
    if count > most:
        raise InvalidModelError("the fold is too large to be shown")


def _product(site: LinearSite, record: ProductRecord, most: int) -> FoldedNode:
    if not site.is_product:
        raise InvalidModelError("it is the record of another operator")
    _check_size(record.factor, most)
    (inputs, outputs), f = site.channels, record.factor
    side = "blocks" if site.left else "neighbours"
    filled = "its zero point" if site.operator.integers else "zero"
    axis = ConvAxis(length=None, kernel=1)
    return FoldedNode(
        node=site.name,
        channels=f"{inputs} -> {outputs}, folded {inputs * f} -> {outputs * f}",
        fold=f"every {f} {record.axis} ({side}) became channels of a block-diagonal weight; "
        f"{1 - 1 / f:.0%} of the new weight is {filled} by structure",
        axes=[pattern(record.axis, axis, fold_of(site, f).axes[0])],
    )
