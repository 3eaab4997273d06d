"""A folded product of matrices: is it the fold of the original, between what both read and return?

1. Does it read the data that the original reads, and return the value that the original returns,
   with the same alpha and beta?
2. Are the stored weight and C, as bytes, the fold of the original's?
3. Does each weight multiply the same input elements (`evidence.products`)?
4. Do the very nodes compute on small integers what the original computes (`evidence.probe`)? Alpha
   and beta are 2 and 3 there: by no other numbers do integers stay integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from widthfold_onnx.errors import NoKernelError
from widthfold_onnx.evidence.chain import Labels, Mismatch, check_moves, labels_of, replay
from widthfold_onnx.evidence.claims import (
    MAX_ELEMENTS,
    content,
    every_concrete,
    placed,
    read,
    too_large,
)
from widthfold_onnx.evidence.probe import TRIALS, Side, first_difference
from widthfold_onnx.evidence.products import Product, prove_product
from widthfold_onnx.evidence.rewritten import CONVERSIONS, Rewritten, label
from widthfold_onnx.fold.matmul import MatMulFold, fold_addend, fold_weight
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import AxisPattern, ExactSite
from widthfold_onnx.rewrite.record import FOLD_KEY, ProductRecord, read_record
from widthfold_onnx.rules import LINEAR
from widthfold_onnx.rules.base import Site
from widthfold_onnx.rules.matmul_site import MatMulSite, flag
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]

SCALES = {"alpha": 2.0, "beta": 3.0}
"""What a Gemm has in the probe in place of its own factors, which are compared as they are."""


@dataclass(frozen=True)
class _Pair:
    """The original and the folded node.

    Attributes:
        site: the original, at extents at which it is checked.
        labels: weight and, if there is one, C of the new node: index in the original's + 1, 0 for
            a structural zero.
        before: moves of the data.
        after: moves of the result.
        constants: what the new nodes read besides the data.
    """

    graph: Rewritten
    old: Node
    new: Node
    site: MatMulSite
    labels: list[Labels]
    before: list[Node]
    after: list[Node]
    constants: dict[str, Array]

    def folded(self, parameters: list[Array]) -> list[Array]:
        """The fold of weight and, if there is one, C."""
        return placed(parameters, self.labels)


def check_product(graph: Rewritten, new: Node, options: VerifyOptions) -> ExactSite:
    """Prove a folded MatMul or Gemm, together with the moves around it.

    Raises:
        Mismatch: it is another; the message says where.
        UnverifiedError: the runtime cannot run it, or it would need too much memory.
        InvalidModelError: its record cannot be read.
    """
    old = graph.original(new)
    known = old is not None and (old.op_type, old.domain) == (new.op_type, new.domain)
    if old is None or not known or FOLD_KEY in old.metadata_props:
        raise Mismatch(f"the original has no such {printable(new.op_type)}")
    record = read_record(new.metadata_props[FOLD_KEY])
    if not isinstance(record, ProductRecord):
        raise Mismatch("its record is that of another operator")
    _check_record(record)
    certificates, unrun = [], ""
    for shape in every_concrete(tuple(record.shape)):
        pair = _pair(graph, old, new, record, shape)
        _check_parameters(pair)
        certificates.append(_prove(pair))
        try:
            found = _probe(pair, shape, options)
        except NoKernelError as error:
            found, unrun = "", str(error)
        if found:
            raise Mismatch(found)
    inputs, outputs = pair.site.channels
    f = record.factor
    side = "blocks" if pair.site.left else "neighbours"
    runs = f"{TRIALS * len(certificates)} runs on integers agree bit for bit"
    added = " is" if pair.site.addend is None else " and C are"
    return ExactSite(
        node=label(new),
        verdict="proved" if unrun else "exact",
        reason=f"{certificates[0]}; the stored weight{added} the fold of the original's, bit "
        f"for bit; {f'not run on integers: {unrun}' if unrun else runs}",
        channels=f"{inputs} -> {outputs}, folded {inputs * f} -> {outputs * f}",
        fold=f"every {f} {record.axis} ({side}) became channels of a block-diagonal weight; "
        f"{1 - 1 / f:.0%} of the new weight is zero by structure",
        axes=[
            AxisPattern(
                axis=record.axis,
                in_digits=f,
                out_digits=f,
                blocked=pair.site.left,
                in_length=None if None in record.shape else _positions(pair.site, record.merged),
                original_kernel=1,
                kernel=1,
                stride=1,
                taps=[(digit, digit, 0, 0) for digit in range(f)],
            )
        ],
    )


def _check_record(record: ProductRecord) -> None:
    """The record comes from the model, so it may hold any number."""
    numbers = [record.factor, record.merged, *(1 if e is None else e for e in record.shape)]
    if min(numbers) < 1 or len(record.shape) < 2 or record.merged >= len(record.shape):
        raise Mismatch("its record holds a number out of range")
    if max(numbers) > MAX_ELEMENTS:
        raise too_large()


def _pair(
    graph: Rewritten, old: Node, new: Node, record: ProductRecord, shape: tuple[int, ...]
) -> _Pair:
    """Both nodes at one shape of the stored data, and what lies between them and their values."""
    assert graph.before is not None
    place = Site(old, graph.before, label(new), old.op_type)
    site = LINEAR[old.op_type](graph.old, place, lambda _: shape, lambda _: shape)
    if not isinstance(site, MatMulSite):
        why = site.reason if isinstance(site, Refusal) else "it is no product"
        raise Mismatch(f"the fold cannot be repeated on the original: {why}")
    fold = MatMulFold(factor=record.factor, left=site.left, merged=record.merged)
    if _positions(site, record.merged) % record.factor or (
        record.merged > 1 and (site.left or site.batches)
    ):
        raise Mismatch("the fold cannot be repeated on the original: it does not divide")
    sizes = (shape, site.output, fold.weight_shape(site.weight_shape))
    if max(math.prod(e or 0 for e in size) for size in sizes) > MAX_ELEMENTS:
        raise too_large()
    given = new.inputs[site.data_index]
    if given is None:
        raise Mismatch("it reads nothing")
    source, before = graph.line_to(given)
    target, after = graph.line_from(new.outputs[0])
    start, end = graph.claim(source), graph.claim(target)
    ports = (site.data.name, old.outputs[0].name)
    if start is None or end is None or (start.value, end.value) != ports:
        raise Mismatch("the new nodes do not stand where the original node stood")
    if start.state is not None or end.state is not None:
        raise Mismatch("it reads or returns a packed tensor")
    constants = graph.constants([*before, *after])
    return _Pair(graph, old, new, site, _labels(site, fold), before, after, constants)


def _labels(site: MatMulSite, fold: MatMulFold) -> list[Labels]:
    """The fold of labels instead of numbers."""
    weight = fold_weight(labels_of(site.weight_shape), fold)
    if site.addend is None:
        return [weight]
    rows, columns = (extent or 0 for extent in site.output)
    return [weight, fold_addend(labels_of(site.addend.shape), fold, (rows, columns))]


def _positions(site: MatMulSite, merged: int) -> int:
    """Positions per matrix of the data."""
    axes = site.planned[-1:] if site.left else site.planned[-merged - 1 : -1]
    return math.prod(extent or 0 for extent in axes)


def _check_parameters(pair: _Pair) -> None:
    """Weight and C are folded, bit for bit; alpha, beta and the orientation are the original's."""
    old, new, site = pair.graph.old, pair.graph.new, pair.site
    expected = pair.folded(_parameters(old, pair.old, site))
    stored = _parameters(new, pair.new, site)
    if [content(a) for a in expected] != [content(a) for a in stored]:
        raise Mismatch("the stored weight or C is not the fold of the original's")
    for name in SCALES:
        one, other = (_scale(node, name) for node in (pair.old, pair.new))
        if one != other:
            raise Mismatch(f"{name} is {other:g} instead of {one:g}")
    names = ["transB", "transA"] if site.left else ["transA", "transB"]
    if [flag(pair.new, name) for name in names] != [False, site.turned]:
        raise Mismatch("an operand is transposed otherwise")


def _prove(pair: _Pair) -> str:
    """Run the moves on labels, and compare what meets what."""
    site, opset = pair.site, pair.graph.new.opset
    *leading, rows, columns = (extent or 0 for extent in site.planned)
    natural = (*leading, columns, rows) if site.left else (*leading, rows, columns)
    messages = [[pair.graph.new.message(n) for n in line] for line in (pair.before, pair.after)]
    for line in messages:
        check_moves(line, CONVERSIONS)
    data = _turned(labels_of(natural), site.left != site.transposed)
    packed = _turned(replay(messages[0], pair.constants, opset, data), site.left)
    turned = site.left != site.turned
    kernel = (*site.batches, *site.channels)
    # The same labels, but of the weight in the orientation in which it is looked at.
    places, *addend = pair.labels
    (weight,) = placed([_turned(labels_of(kernel), turned)], [places])
    weight = _turned(weight, turned)
    original = None if site.addend is None else _matrix(labels_of(site.addend.shape))
    if packed.ndim < 2:
        raise Mismatch(f"data of {list(packed.shape)} is no matrix")
    try:
        batches = np.broadcast_shapes(packed.shape[:-2], weight.shape[:-2])
    except ValueError as error:
        raise Mismatch(f"batches of {list(packed.shape)} and the weight do not fit") from error
    returned = _turned(labels_of((*batches, packed.shape[-2], weight.shape[-1])), site.left)
    taken = replay(messages[1], pair.constants, opset, returned)
    if site.flat:
        taken = np.expand_dims(taken, -2 if site.left else -1)
    if taken.ndim < 2:
        raise Mismatch(f"a result of {list(taken.shape)} is no matrix")
    return prove_product(
        natural,
        kernel,
        None if original is None else _turned(original, site.left),
        Product(
            packed,
            weight,
            _turned(_matrix(addend[0]), site.left) if addend else None,
            _turned(taken, site.left),
        ),
    )


def _probe(pair: _Pair, shape: tuple[int, ...], options: VerifyOptions) -> str:
    """Where both sides differ on integers, "" if nowhere."""
    site, graph = pair.site, pair.graph
    sides = []
    for document, node in ((graph.old, pair.old), (graph.new, pair.new)):
        values = [node.inputs[1 - site.data_index], *node.inputs[2:]]
        names = [value.name or "" for value in values if value is not None]
        sides.append((names, dict(zip(names, _parameters(document, node, site), strict=True))))
    (first, held), (second, added) = sides
    line = [_rescaled(graph.new.message(node)) for node in (*pair.before, pair.new, *pair.after)]
    one = _rescaled(graph.old.message(pair.old))
    return first_difference(
        Side([one], held, graph.old.opset, first, data=site.data_index),
        Side(line, pair.constants | added, graph.new.opset, second),
        fold=pair.folded,
        shape=shape,
        terms=int(SCALES["alpha"]) * site.channels[0] + int(SCALES["beta"]),
        options=options,
    )


def _rescaled(message: onnx.NodeProto) -> onnx.NodeProto:
    """A node with whole numbers for alpha and beta, where it has them."""
    copy = onnx.NodeProto()
    copy.CopyFrom(message)
    for attribute in copy.attribute:
        if copy.op_type == "Gemm" and attribute.name in SCALES:
            attribute.f = SCALES[attribute.name]
    return copy


def _parameters(document: Document, node: Node, site: MatMulSite) -> list[Array]:
    """Weight and, if there is one, C."""
    values = [node.inputs[1 - site.data_index], *node.inputs[2:]]
    return [read(document, value) for value in values if value is not None]


def _scale(node: Node, name: str) -> float:
    return node.attributes[name].as_float() if name in node.attributes else 1.0


def _turned(array: Labels, across: bool) -> Labels:
    return array.swapaxes(-1, -2) if across else array


def _matrix(addend: Labels) -> Labels:
    return addend.reshape((1,) * (2 - addend.ndim) + addend.shape)
