"""A folded product of matrices: is it the fold of the original, between what both read and return?

1. Does it read the data that the original reads, and return the value that the original returns,
   with the same alpha and beta?
2. Are the stored weight, C, scales and zero points, as bytes, the fold of the original's? What else
   quantizes must be the very value that the original reads. In the gaps of the weight stands its
   zero point, so what they multiply adds nothing.
3. Does each weight multiply the same input elements (`evidence.products`)?
4. Do the very nodes compute on small integers what the original computes (`evidence.probe`)? Alpha
   and beta are 2 and 3 there: by no other numbers do integers stay integers. For quantized ones
   see `evidence.probe_quantized_product`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from widthfold_onnx.errors import NoKernelError
from widthfold_onnx.evidence.chain import (
    Labels,
    Mismatch,
    check_moves,
    labels_of,
    packed,
    replay,
    unpacked,
)
from widthfold_onnx.evidence.claims import content, fold_record, placed, read
from widthfold_onnx.evidence.probe import TRIALS, Side, first_difference
from widthfold_onnx.evidence.probe_quantized_product import quantized_difference
from widthfold_onnx.evidence.product_pair import (
    ProductPair,
    parameters,
    positions,
    read_pair,
    shapes_of,
)
from widthfold_onnx.evidence.products import Product, prove_product
from widthfold_onnx.evidence.rewritten import CONVERSIONS, Rewritten, label
from widthfold_onnx.model.graph import Node, Value
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import AxisPattern, ExactSite
from widthfold_onnx.rewrite.record import FOLD_KEY, ProductRecord
from widthfold_onnx.rules.matmul_reading import flag
from widthfold_onnx.rules.matmul_site import MatMulSite
from widthfold_onnx.rules.quantized_product import across
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]

SCALES = {"alpha": 2.0, "beta": 3.0}
"""What a Gemm has in the probe in place of its own factors, which are compared as they are."""


def check_product(graph: Rewritten, new: Node, options: VerifyOptions) -> ExactSite:
    """Prove a folded MatMul or Gemm, together with the moves around it.

    Raises:
        Mismatch: it is another, or its record cannot be read; the message says where.
        UnverifiedError: the runtime cannot run it, or it would need too much memory.
    """
    old = graph.original(new)
    known = old is not None and (old.op_type, old.domain) == (new.op_type, new.domain)
    if old is None or not known or FOLD_KEY in old.metadata_props:
        raise Mismatch(f"the original has no such {printable(new.op_type)}")
    record = fold_record(new.metadata_props[FOLD_KEY])
    if not isinstance(record, ProductRecord):
        raise Mismatch("its record is that of another operator")
    certificates, unrun = [], ""
    for shape in shapes_of(graph, old, new, record):
        pair = read_pair(graph, old, new, record, shape)
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
    kept = " is" if len(pair.site.parameters) == 1 else " and what belongs to it are"
    filled = "its zero point" if pair.site.is_integer else "zero"
    return ExactSite(
        node=label(new),
        verdict="proved" if unrun else "exact",
        reason=f"{certificates[0]}; the stored weight{kept} the fold of the original's, bit "
        f"for bit; {f'not run on integers: {unrun}' if unrun else runs}",
        channels=f"{inputs} -> {outputs}, folded {inputs * f} -> {outputs * f}",
        fold=f"every {f} {record.axis} ({side}) became channels of a block-diagonal weight; "
        f"{1 - 1 / f:.0%} of the new weight is {filled} by structure",
        axes=[
            AxisPattern(
                axis=record.axis,
                in_digits=f,
                out_digits=f,
                blocked=pair.site.left,
                in_length=None if None in record.shape else positions(pair.site, record.merged),
                original_kernel=1,
                kernel=1,
                stride=1,
                taps=[(digit, digit, 0, 0) for digit in range(f)],
            )
        ],
    )


def _check_parameters(pair: ProductPair) -> None:
    """Weight and C are folded, bit for bit; alpha, beta and the orientation are the original's."""
    old, new, site = pair.graph.old, pair.graph.new, pair.site
    expected = pair.folded(parameters(old, pair.old, site))
    stored = parameters(new, pair.new, site)
    if [content(a) for a in expected] != [content(a) for a in stored]:
        raise Mismatch("the stored weight or what belongs to it is not the fold of the original's")
    for index, (one, other) in enumerate(zip(pair.old.inputs, pair.new.inputs, strict=True)):
        if index not in (site.data_index, *site.parameters) and not _same_value(pair, one, other):
            raise Mismatch(f"it reads another value as input {index}")
    for name in SCALES:
        before, after = (_scale(node, name) for node in (pair.old, pair.new))
        if content(before) != content(after):  # by their bits: NaN does not equal itself
            raise Mismatch(f"{name} is {after:g} instead of {before:g}")
    names = ["transB", "transA"] if site.left else ["transA", "transB"]
    if [flag(pair.new, name) for name in names] != [False, site.turned]:
        raise Mismatch("an operand is transposed otherwise")


def _same_value(pair: ProductPair, one: Value | None, other: Value | None) -> bool:
    if one is None or other is None:
        return one is other
    found = pair.graph.old.constant(one), pair.graph.new.constant(other)
    if not any(isinstance(constant, Refusal) for constant in found):
        return content(read(pair.graph.old, one)) == content(read(pair.graph.new, other))
    claim = pair.graph.claim(other)
    return claim is not None and (claim.value, claim.state) == (one.name, None)


def _prove(pair: ProductPair) -> str:
    """Run the moves on labels, and compare what meets what."""
    site, opset = pair.site, pair.graph.new.opset
    *leading, rows, columns = (extent or 0 for extent in site.planned)
    natural = (*leading, columns, rows) if site.left else (*leading, rows, columns)
    messages = [[pair.graph.new.message(n) for n in line] for line in (pair.before, pair.after)]
    for line in messages:
        check_moves(line, CONVERSIONS)
    data = _turned(labels_of(natural), site.left != site.transposed)
    if pair.reads is not None:
        data = packed(data, pair.reads)
    given = _turned(replay(messages[0], pair.constants, opset, data), site.left)
    turned = site.left != site.turned
    kernel = (*site.batches, *site.channels)
    # The same labels, but of the weight in the orientation in which it is looked at.
    places, *beside = pair.labels
    (weight,) = placed([_turned(labels_of(kernel), turned)], [places])
    weight = _turned(weight, turned)
    constants = [*site.beside.values(), *([] if site.addend is None else [site.addend])]
    if given.ndim < 2:
        raise Mismatch(f"data of {list(given.shape)} is no matrix")
    try:
        batches = np.broadcast_shapes(given.shape[:-2], weight.shape[:-2])
    except ValueError as error:
        raise Mismatch(f"batches of {list(given.shape)} and the weight do not fit") from error
    returned = _turned(labels_of((*batches, given.shape[-2], weight.shape[-1])), site.left)
    taken = replay(messages[1], pair.constants, opset, returned)
    if pair.returns is not None:
        taken = unpacked(taken, pair.returns, pair.result)
    if site.flat:
        taken = np.expand_dims(taken, -2 if site.left else -1)
    if taken.ndim < 2:
        raise Mismatch(f"a result of {list(taken.shape)} is no matrix")
    return prove_product(
        natural,
        kernel,
        _beside(site, [labels_of(constant.shape) for constant in constants]),
        Product(given, weight, _beside(site, beside), _turned(taken, site.left)),
    )


def _probe(pair: ProductPair, shape: tuple[int, ...], options: VerifyOptions) -> str:
    """Where both sides differ on integers, "" if nowhere."""
    site, graph = pair.site, pair.graph
    if site.is_integer:
        return quantized_difference(pair, shape, options)
    first = parameters(graph.old, pair.old, site)
    second = parameters(graph.new, pair.new, site)
    names = [f"parameter {i}" for i in range(len(first))]
    before, after = ([graph.new.message(n) for n in line] for line in (pair.before, pair.after))
    old = _rescaled(graph.old.message(pair.old), names, site.data_index)
    new = _rescaled(graph.new.message(pair.new), names, site.data_index)
    if before:  # what quantizes between the two is left out
        new.input[site.data_index] = before[-1].output[0]
    held, added = (dict(zip(names, arrays, strict=True)) for arrays in (first, second))
    return first_difference(
        Side([old], held, graph.old.opset, names, data=site.data_index),
        Side(
            [*before, new, *after],
            pair.constants | added,
            graph.new.opset,
            names,
            pair.reads,
            pair.returns,
            data=0 if before else site.data_index,
        ),
        fold=pair.folded,
        shape=shape,
        terms=int(SCALES["alpha"]) * site.channels[0] + int(SCALES["beta"]),
        options=options,
    )


def _rescaled(message: onnx.NodeProto, names: Sequence[str], data: int) -> onnx.NodeProto:
    """A node with whole numbers for alpha and beta, where it has them.

    It reads each parameter under a name of its own: one constant can be both weight and C.
    """
    copy = onnx.NodeProto()
    copy.CopyFrom(message)
    places = [i for i, name in enumerate(copy.input) if name and i != data]
    for place, name in zip(places, names, strict=True):
        copy.input[place] = name
    for attribute in copy.attribute:
        if copy.op_type == "Gemm" and attribute.name in SCALES:
            attribute.f = SCALES[attribute.name]
    return copy


def _scale(node: Node, name: str) -> Array:
    return np.array(node.attributes[name].as_float() if name in node.attributes else 1.0)


def _turned(array: Labels, across: bool) -> Labels:
    return array.swapaxes(-1, -2) if across else array


def _beside(site: MatMulSite, given: list[Labels]) -> list[Labels]:
    """What belongs to output channels, as it broadcasts against the result [.., L, O]."""
    spread = [across(labels, left=site.left and site.addend is None) for labels in given]
    spread = [a.reshape((1,) * (2 - a.ndim) + a.shape) for a in spread]
    return [_turned(labels, site.left) for labels in spread]
