"""A folded Conv: is it the fold of the original, between what it reads and what it returns?

1. Does it read the value that the original reads, and return the one that the original returns?
2. Are the stored weight and bias, as bytes, the fold of the original's?
3. Does each weight multiply the same input elements (`evidence.provenance`)?
4. Do the very nodes compute on small integers what the original computes (`evidence.probe`)?
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from widthfold_onnx.evidence.chain import Chain, Geometry, Mismatch
from widthfold_onnx.evidence.claims import (
    FREE_POSITIONS,
    FREE_SAMPLES,
    MAX_AXES,
    MAX_ELEMENTS,
    Claim,
    content,
    read,
    too_large,
)
from widthfold_onnx.evidence.patterns import patterns, sentence
from widthfold_onnx.evidence.probe import Side, first_difference
from widthfold_onnx.evidence.provenance import prove
from widthfold_onnx.evidence.rewritten import Rewritten, label
from widthfold_onnx.fold.axis import ConvAxis
from widthfold_onnx.fold.conv import ConvFold, fold_bias, fold_weight
from widthfold_onnx.model.graph import Document, Node
from widthfold_onnx.options import Provider
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.record import FOLD_KEY, FoldRecord, fold_again, read_record
from widthfold_onnx.rules.conv_site import conv_axes, group_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Fold:
    """What the original and the record say a site must be."""

    fold: ConvFold
    axes: tuple[ConvAxis, ...]
    record: FoldRecord
    parameters: list[Array]
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Input extents of the probe."""
        weight = self.parameters[0]
        spatial = (
            axis.length or axis.dilation * axis.kernel + 2 * axis.stride + FREE_POSITIONS
            for axis in self.axes
        )
        return (self.record.samples or FREE_SAMPLES, weight.shape[1] * self.group, *spatial)

    @property
    def geometry(self) -> Geometry:
        """The original Conv on an input of these extents."""
        lengths = zip(self.axes, self.shape[2:], strict=True)
        axes = tuple(replace(axis, length=extent) for axis, extent in lengths)
        return Geometry(self.shape, axes, self.group)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Output extents of the probe."""
        lengths = (axis.out_length or 0 for axis in self.geometry.axes)
        return (self.shape[0], len(self.parameters[0]), *lengths)


def check_conv(graph: Rewritten, conv: Node, provider: Provider) -> ExactSite:
    """Prove a folded Conv, together with the moves around it that claim nothing.

    Raises:
        Mismatch: it is another; the message says where.
        UnverifiedError: the runtime cannot run it, or it would need too much memory.
        InvalidModelError: its record cannot be read.
    """
    old, new = graph.old, graph.new
    node = graph.original(conv)
    kinds = [n and (n.op_type, n.domain in ("", "ai.onnx")) for n in (node, conv)]
    if node is None or kinds != [("Conv", True)] * 2 or FOLD_KEY in node.metadata_props:
        raise Mismatch("the original has no such Conv")
    data, given = node.inputs[0], conv.inputs[0]
    if data is None or given is None:
        raise Mismatch("it reads nothing")
    source, before = graph.line_to(given)
    target, after = graph.line_from(conv.outputs[0])
    start, end = graph.claim(source), graph.claim(target)
    if start is None or end is None or (start.value, end.value) != _ports(node):
        raise Mismatch("the new nodes do not stand where the original node stood")
    wanted = _fold_of(old, node, conv)
    _check_extents(start, wanted.shape, wanted.record)
    _check_extents(end, wanted.out_shape, wanted.record)
    stored = _parameters(new, conv)
    expected = _folded(wanted.parameters, wanted.fold)
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
    certificate = _prove(wanted, chain)
    found = first_difference(
        Side([old.message(node)], _constants_of(old, node), old.opset, _names(node)),
        Side(
            [new.message(n) for n in line],
            constants,
            new.opset,
            _names(conv),
            start.state,
            end.state,
        ),
        fold=lambda parameters: _folded(parameters, wanted.fold),
        shape=wanted.shape,
        provider=provider,
    )
    if found:
        raise Mismatch(found)
    folded = patterns(wanted.fold, wanted.axes, wanted.record.samples)
    inputs, outputs = wanted.shape[1], len(wanted.parameters[0])
    return ExactSite(
        node=label(conv),
        verdict="exact",
        reason=certificate,
        channels=f"{inputs} -> {outputs}, folded {inputs * wanted.fold.in_factor} -> "
        f"{outputs * wanted.fold.out_factor}",
        fold=sentence(wanted.fold, folded),
        axes=folded,
    )


def _ports(node: Node) -> tuple[str | None, str | None]:
    """Names of what a Conv convolves and returns."""
    data = node.inputs[0]
    return (None if data is None else data.name, node.outputs[0].name)


def _check_extents(claim: Claim, shape: tuple[int, ...], record: FoldRecord) -> None:
    """The extents of a claim must be those that the Conv was planned with, where both are fixed."""
    if claim.state is None:
        return
    fixed = (record.samples, 1, *(axis.length for axis in record.axes))
    pairs = zip(claim.shape, shape, fixed, strict=True) if len(claim.shape) == len(shape) else ()
    if not pairs or any(f and claimed not in (None, extent) for claimed, extent, f in pairs):
        raise Mismatch(f"a packed tensor has the extents {list(claim.shape)}, not {list(shape)}")


def _axes(conv: Node, shape: tuple[int, ...], weight: tuple[int, ...]) -> tuple[ConvAxis, ...]:
    axes = conv_axes(conv, shape, weight)
    if isinstance(axes, Refusal):
        raise Mismatch(axes.reason)
    return axes


def _prove(wanted: _Fold, chain: Chain) -> str:
    weight, *bias = wanted.parameters
    labels = [np.arange(1, p.size + 1).reshape(p.shape) for p in (weight, *bias)]
    folded, *folded_bias = _folded(labels, wanted.fold)
    return prove(
        wanted.geometry, weight.shape, chain, folded, folded_bias[0] if folded_bias else None
    )


def _fold_of(old: Document, node: Node, conv: Node) -> _Fold:
    record = read_record(conv.metadata_props[FOLD_KEY])
    _check_record(record)
    parameters = _parameters(old, node)
    weight, group = parameters[0], group_of(node)
    dims = (record.samples, weight.shape[1] * group, *(a.length for a in record.axes))
    if len(dims) != weight.ndim:
        raise Mismatch(f"folded along {len(record.axes)} axes, not {weight.ndim - 2}")
    axes = conv_axes(node, dims, weight.shape)
    fold = axes if isinstance(axes, Refusal) else fold_again(record, axes, group)
    if isinstance(fold, Refusal) or isinstance(axes, Refusal):
        raise Mismatch("the fold cannot be repeated on the original")
    wanted = _Fold(fold, axes, record, parameters, group)
    if max(math.prod(wanted.shape), math.prod(fold.weight_shape(weight.shape))) > MAX_ELEMENTS:
        raise too_large()
    return wanted


def _check_record(record: FoldRecord) -> None:
    """The record comes from the model, so it may hold any number."""
    numbers = [record.batch, 1 if record.samples is None else record.samples]
    for axis in record.axes:
        numbers += [axis.out_digits, axis.in_digits, 1 if axis.length is None else axis.length]
    if min(numbers) < 1:
        raise Mismatch("its record holds a number below 1")
    # Bounded one by one first: a product of numbers of any size takes any time.
    if len(record.axes) > MAX_AXES or max(numbers) > MAX_ELEMENTS:
        raise too_large()
    if math.prod(axis.out_digits * axis.in_digits for axis in record.axes) > MAX_ELEMENTS:
        raise too_large()


def _folded(parameters: list[Array], fold: ConvFold) -> list[Array]:
    weight, *bias = parameters
    return [fold_weight(weight, fold), *(fold_bias(b, fold) for b in bias)]


def _parameters(document: Document, node: Node) -> list[Array]:
    """Weight and, if there is one, bias."""
    return [read(document, value) for value in node.inputs[1:] if value is not None]


def _constants_of(document: Document, node: Node) -> dict[str, Array]:
    return dict(zip(_names(node), _parameters(document, node), strict=True))


def _names(node: Node) -> list[str]:
    return [value.name or "" for value in node.inputs[1:] if value is not None]
