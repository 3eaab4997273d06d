"""A product of matrices and the folded one in its place, side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.evidence.chain import MAX_ELEMENTS, Labels, Mismatch, labels_of, too_large
from widthfold_onnx.evidence.claims import (
    check_extents,
    every_concrete,
    placed,
    read,
)
from widthfold_onnx.evidence.requantized_data import without_pair
from widthfold_onnx.evidence.rewritten import Rewritten, label
from widthfold_onnx.fold.matmul import MatMulFold, fold_addend, fold_weight
from widthfold_onnx.fold.state import State
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.model.graph import Document, Node, Value
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite.record import ProductRecord
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.base import Site
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.quantized_product import PRODUCT_INPUTS, across, per_channel, zero_input

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ProductPair:
    """The original and the folded node.

    Attributes:
        site: the original, at extents at which it is checked.
        result: extents of what the original returns.
        labels: `site.parameters` of the new node: index in the original's + 1, 0 for a gap of the
            weight.
        before: moves of the data.
        after: moves of the result.
        constants: what the new nodes read besides the data.
        reads: the state in which the first new node finds the data; None for natural.
        returns: the state in which the last one leaves the result.
    """

    graph: Rewritten
    old: Node
    new: Node
    site: MatMulSite
    result: tuple[int, ...]
    labels: list[Labels]
    before: list[Node]
    after: list[Node]
    constants: dict[str, Array]
    reads: State | None
    returns: State | None

    def folded(self, parameters: list[Array]) -> list[Array]:
        """The fold of `site.parameters`; in the gaps stands the zero point of the new weight."""
        weight, *others = placed(parameters, self.labels)
        index = zero_input(self.old, left=self.site.left)
        if index is not None and index in self.site.beside:
            zero = others[list(self.site.beside).index(index)]
            weight = np.where(self.labels[0] == 0, across(zero, left=self.site.left), weight)
        return [weight, *others]


def read_pair(
    graph: Rewritten, old: Node, new: Node, record: ProductRecord, shape: tuple[int, ...]
) -> ProductPair:
    """Both nodes at one shape of the stored data, and what lies between them and their values.

    Raises:
        Mismatch: the new nodes do not stand where the original stood, or the record does not fit.
    """
    site = _original(graph, old, new, shape)
    fold = MatMulFold(factor=record.factor, left=site.left, merged=record.merged)
    if positions(site, record.merged) % record.factor or (
        record.merged > 1 and (site.left or site.batches)
    ):
        raise Mismatch("the fold cannot be repeated on the original: it does not divide")
    sizes = (shape, site.output, fold.weight_shape(site.weight_shape))
    if max(math.prod(e or 0 for e in size) for size in sizes) > MAX_ELEMENTS:
        raise too_large()
    if len(new.inputs) != len(old.inputs):
        raise Mismatch("it reads another number of values")
    given = new.inputs[site.data_index]
    if given is None:
        raise Mismatch("it reads nothing")
    source, before = graph.line_to(given)
    before = without_pair(graph.old, graph.new, site.dequantizer, before)
    target, after = graph.line_from(new.outputs[0])
    start, end = graph.claim(source), graph.claim(target)
    ports = (site.data.name, old.outputs[0].name)
    if start is None or end is None or (start.value, end.value) != ports:
        raise Mismatch("the new nodes do not stand where the original node stood")
    result = tuple(extent or 0 for extent in _result(site, shape))
    check_extents(start, shape, tuple(record.shape))
    check_extents(end, result, _result(site, tuple(record.shape)))
    return ProductPair(
        graph=graph,
        old=old,
        new=new,
        site=site,
        result=result,
        labels=_labels(site, fold),
        before=before,
        after=after,
        constants=graph.constants([*before, *after]),
        reads=start.state,
        returns=end.state,
    )


def shapes_of(
    graph: Rewritten, old: Node, new: Node, record: ProductRecord
) -> list[tuple[int, ...]]:
    """Shapes of the stored data at which a product is checked.

    An open batch that meets one of the weight can be that or 1, and nothing else runs. Open
    positions divide there.

    Raises:
        Mismatch: the record does not fit.
        UnverifiedError: a shape has too many elements.
    """
    _check_record(record)
    given = tuple(record.shape)
    batches = _original(graph, old, new, given).batches
    leading = len(given) - 2
    met = ((1,) * leading + batches)[len(batches) :]
    shapes: list[tuple[int, ...]] = []
    for extents in (met, (1,) * leading):
        pairs = zip(given[:leading], met, extents, strict=True)
        filled = (n if e is None and m != 1 else e for e, m, n in pairs)
        shapes += every_concrete((*filled, *given[leading:]))
    grown, rest = open_positions(graph, old, new, record)
    every = dict.fromkeys(shapes)
    return [tuple(e * rest if i == grown else e for i, e in enumerate(s)) for s in every]


def open_positions(
    graph: Rewritten, old: Node, new: Node, record: ProductRecord
) -> tuple[int | None, int]:
    """The axis of the stored data that is open among the positions, and what must divide it.

    Raises:
        Mismatch: the record does not fit.
    """
    _check_record(record)
    site = _original(graph, old, new, tuple(record.shape))
    end = len(record.shape) - (0 if site.left else 1)
    stored = list(range(len(record.shape)))
    if site.transposed:
        stored[-2:] = stored[:-3:-1]
    span = [stored[i] for i in range(end - record.merged, end)]
    known = math.prod(record.shape[axis] or 1 for axis in span)
    grown = next((axis for axis in span if record.shape[axis] is None), None)
    return grown, record.factor // math.gcd(record.factor, known)


def _original(graph: Rewritten, old: Node, new: Node, shape: Dims) -> MatMulSite:
    """The original node, read at a shape of the stored data; extents may be open."""
    assert graph.before is not None
    operands = [old.inputs[index] for index in PRODUCT_INPUTS[old.op_type].operands]

    def extents(value: Value) -> Dims | None:
        return shape if value in operands else graph.extents(value)

    place = Site(old, graph.before, label(new), old.op_type)
    site = LINEAR[old.op_type](graph.old, place, extents, extents)
    if isinstance(site, MatMulSite):
        return site
    why = site.reason if isinstance(site, Refusal) else "it is no product"
    raise Mismatch(f"the fold cannot be repeated on the original: {why}")


def _check_record(record: ProductRecord) -> None:
    """The record comes from the model, so it may be of any size."""
    if len(record.shape) < 2 or record.merged >= len(record.shape):
        raise Mismatch("its record merges more axes than there are")
    if max(record.factor, *(1 if e is None else e for e in record.shape)) > MAX_ELEMENTS:
        raise too_large()


def _labels(site: MatMulSite, fold: MatMulFold) -> list[Labels]:
    """The fold of labels instead of numbers."""
    found = [fold_weight(labels_of(site.weight_shape), fold)]
    found += [per_channel(labels_of(constant.shape), fold) for constant in site.beside.values()]
    if site.addend is not None:
        rows, columns = (extent or 0 for extent in site.output)
        found.append(fold_addend(labels_of(site.addend.shape), fold, (rows, columns)))
    return found


def _result(site: MatMulSite, stored: Dims) -> Dims:
    """Extents of the result as it is stored, for data of some extents as it is stored."""
    *leading, rows, columns = stored
    result = site.result((*leading, columns, rows) if site.transposed else stored)
    channels = len(result) - (2 if site.left else 1)
    return tuple(e for i, e in enumerate(result) if not (site.flat and i == channels))


def positions(site: MatMulSite, merged: int) -> int:
    """Positions per matrix of the data."""
    axes = site.planned[-1:] if site.left else site.planned[-merged - 1 : -1]
    return math.prod(extent or 0 for extent in axes)


def parameters(document: Document, node: Node, site: MatMulSite) -> list[Array]:
    """The numbers of `site.parameters` of a node.

    Raises:
        Mismatch: it does not have them.
    """
    found = []
    for index in site.parameters:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            raise Mismatch("it reads less than the original node")
        found.append(read(document, value))
    return found
