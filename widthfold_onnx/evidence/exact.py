"""The exact probe of every rewritten site: is it the fold of the original, bit for bit?

Three questions per site, each of which a wrong fold cannot pass unnoticed:

1. Does the chain of new nodes stand where the original node stood (same input, same output)?
2. Are the stored weight and bias, as bytes, the original's numbers, each at its place?
3. Are the places right: for all numbers by proof (`evidence.provenance`), and for small integers
   by running the very nodes of the chain against the original node (`evidence.probe`)?

The fold algebra only proposes the places, as labels. Numbers never pass through it, so that a
fault in it that depends on them cannot agree with itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.chain import Chain, Geometry, Labels, Mismatch, labels_of
from widthfold_onnx.evidence.elsewhere import first_change
from widthfold_onnx.evidence.patterns import patterns, sentence
from widthfold_onnx.evidence.probe import TRIALS, Side, first_difference
from widthfold_onnx.evidence.provenance import prove
from widthfold_onnx.fold.axis import ConvAxis
from widthfold_onnx.fold.conv import ConvFold, fold_bias, fold_weight
from widthfold_onnx.model.graph import Document, Node, Scope
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.emit import FOLDED_OUTPUT
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY, FoldRecord, fold_again, read_record
from widthfold_onnx.rules.conv_site import conv_axes, group_of

Array = npt.NDArray[Any]

# Extents for dimensions that the plan leaves open, few because that is fast. Two of each: a shape
# that is written into the new nodes may happen to fit one.
FREE_SAMPLES = (2, 1)
FREE_POSITIONS = (5, 6)

MAX_AXES = 3
MAX_ELEMENTS = 1 << 28
"""Of one array that the probe makes."""


class _DifferentError(Exception):
    """The site is not a fold of the original; the message says where it differs."""


@dataclass(frozen=True)
class _Fold:
    """What the original and the record say a site must be."""

    fold: ConvFold
    axes: tuple[ConvAxis, ...]
    record: FoldRecord
    parameters: list[Array]
    group: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Input extents of the probe; more than one where the plan leaves some open."""
        channels = self.parameters[0].shape[1] * self.group
        shapes = []
        for samples, positions in zip(FREE_SAMPLES, FREE_POSITIONS, strict=True):
            spatial = (
                axis.length or axis.dilation * axis.kernel + 2 * axis.stride + positions
                for axis in self.axes
            )
            shapes.append((self.record.samples or samples, channels, *spatial))
        return list(dict.fromkeys(shapes))

    def labels(self) -> list[Labels]:
        """Folded weight and bias as labels: index in the original + 1, 0 for a structural zero."""
        weight, *bias = (labels_of(p.shape) for p in self.parameters)
        return [fold_weight(weight, self.fold), *(fold_bias(b, self.fold) for b in bias)]


def probe_sites(
    original: Path, rewritten: Path, options: VerifyOptions, report: Callable[[str], None]
) -> tuple[list[ExactSite], list[str]]:
    """Probe every site that the rewritten model says was folded.

    Args:
        original: the model before.
        rewritten: the model after.
        options: where the integers are run.
        report: gets a line of text per site.

    Returns:
        The probed sites, and what limits the statement: folds whose record another tool removed,
        and changes outside the folds.
    """
    before, after = load(original), load(rewritten)
    old, new = Document(before.proto, before.folder), Document(after.proto, after.folder)
    originals = {(scope.path, node.outputs[0].name): node for scope, node in old.nodes("Conv")}
    earlier = {
        (scope.path, node.metadata_props.get(ORIGIN_KEY, "")): (scope, node)
        for scope, node in old.nodes("Conv")
        if FOLD_KEY in node.metadata_props
    }
    chains = _Chains()
    results: list[ExactSite] = []
    limits: list[str] = []
    sites: set[tuple[str, str]] = set()
    for scope, conv in new.nodes("Conv"):
        if FOLD_KEY not in conv.metadata_props:
            if FOLDED_OUTPUT.search(conv.outputs[0].name or ""):
                limits.append(f"{conv.name} lost the record of its fold: compared by values only")
            continue
        origin = conv.metadata_props.get(ORIGIN_KEY, "")
        name = conv.name or f"Conv -> {origin}"
        node = originals.get((scope.path, origin))
        report(f"exact probe of {name}")
        known = earlier.get((scope.path, origin))
        chain = chains.of(scope, conv)
        if known is not None and _lines(old, chains.of(*known)) == _lines(new, chain):
            continue  # the original holds this very fold itself
        sites.add((scope.path, origin))
        try:
            if known is not None:
                raise _DifferentError("it is a fold in the original already, and another one")
            if node is None:
                raise _DifferentError("the original has no such Conv")
            site = _check(old, new, node, chain, conv, options)
        except _DifferentError as error:
            results.append(ExactSite(node=name, verdict="different", reason=str(error)))
        except UnverifiedError as error:
            results.append(ExactSite(node=name, verdict="skipped", reason=str(error)))
        else:
            results.append(msgspec.structs.replace(site, node=name))
    changed = first_change(old, new, sites) if sites else ""
    if changed:
        limits.append(f"the models differ outside the folds ({changed}): compared by values only")
    return results, limits


def _check(
    old: Document,
    new: Document,
    node: Node,
    chain: list[Node],
    conv: Node,
    options: VerifyOptions,
) -> ExactSite:
    origin = node.outputs[0].name
    start, end = chain[0].inputs[0], chain[-1].outputs[0]
    data = node.inputs[0]
    if start is None or data is None or (start.name, end.name) != (data.name, origin):
        raise _DifferentError("the new nodes do not stand where the original node stood")
    wanted = _fold_of(old, node, conv)
    labels = wanted.labels()
    stored = _parameters(new, conv)
    expected = _placed(wanted.parameters, labels)
    if [_content(a) for a in expected] != [_content(a) for a in stored]:
        raise _DifferentError("the stored weight or bias is not the fold of the original's")
    before = Side([old.message(node)], _constants(old, [node]), old.opset, _names(node))
    after = Side([new.message(n) for n in chain], _constants(new, chain), new.opset, _names(conv))
    certificates = []
    for shape in wanted.shapes:
        certificates.append(_prove(new, chain, conv, wanted, labels, shape))
        found = first_difference(
            before,
            after,
            fold=lambda parameters: _placed(parameters, labels),
            ports=(start.name or "", end.name or ""),
            shape=shape,
            options=options,
        )
        if found:
            raise _DifferentError(found)
    folded = patterns(wanted.fold, wanted.axes, wanted.record.samples)
    inputs, outputs = wanted.shapes[0][1], len(wanted.parameters[0])
    return ExactSite(
        node=conv.name or "",
        verdict="exact",
        reason=f"{certificates[0]}; the stored weight and bias are the fold of the original's, bit "
        f"for bit; {TRIALS * len(certificates)} runs on integers agree bit for bit",
        channels=f"{inputs} -> {outputs}, folded {inputs * wanted.fold.in_factor} -> "
        f"{outputs * wanted.fold.out_factor}",
        fold=sentence(wanted.fold, folded),
        axes=folded,
    )


def _prove(
    new: Document,
    chain: list[Node],
    conv: Node,
    wanted: _Fold,
    labels: list[Labels],
    extents: tuple[int, ...],
) -> str:
    folded, *folded_bias = labels

    def axes(shape: tuple[int, ...]) -> tuple[ConvAxis, ...]:
        geometry = conv_axes(conv, shape, folded.shape)
        if isinstance(geometry, Refusal):
            raise Mismatch(geometry.reason)
        return geometry

    if [n.op_type for n in chain].count("Conv") != 1 or conv not in chain:
        raise _DifferentError("the new nodes hold more than one Conv")
    at = chain.index(conv)
    lengths = (
        replace(axis, length=extent) for axis, extent in zip(wanted.axes, extents[2:], strict=True)
    )
    try:
        return prove(
            Geometry(extents, tuple(lengths), wanted.group),
            wanted.parameters[0].shape,
            Chain(
                before=[new.message(n) for n in chain[:at]],
                axes=axes,
                group=group_of(conv),
                after=[new.message(n) for n in chain[at + 1 :]],
                constants=_constants(new, chain),
                opset=new.opset,
            ),
            folded,
            folded_bias[0] if folded_bias else None,
        )
    except Mismatch as error:
        raise _DifferentError(str(error)) from error


class _Chains:
    """The nodes that replaced one original node, found in one walk per graph."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, list[Node]]] = {}

    def of(self, scope: Scope, conv: Node) -> list[Node]:
        """All nodes with the origin of a Conv, in graph order."""
        if id(scope.graph) not in self._known:
            table = self._known[id(scope.graph)] = defaultdict(list)
            for node in scope.graph:
                if ORIGIN_KEY in node.metadata_props:
                    table[node.metadata_props[ORIGIN_KEY]].append(node)
        return self._known[id(scope.graph)][conv.metadata_props.get(ORIGIN_KEY, "")]


def _lines(document: Document, chain: list[Node]) -> list[object]:
    """All that makes up a fold: its nodes and their constants."""
    constants = _constants(document, chain)
    messages = [document.message(node).SerializeToString(deterministic=True) for node in chain]
    return [messages, {name: _content(array) for name, array in constants.items()}]


def _fold_of(old: Document, node: Node, conv: Node) -> _Fold:
    record = read_record(conv.metadata_props[FOLD_KEY])
    _check_record(record)
    parameters = _parameters(old, node)
    weight, group = parameters[0], group_of(node)
    dims = (record.samples, weight.shape[1] * group, *(a.length for a in record.axes))
    if len(dims) != weight.ndim:
        raise _DifferentError(f"folded along {len(record.axes)} axes, not {weight.ndim - 2}")
    axes = conv_axes(node, dims, weight.shape)
    fold = axes if isinstance(axes, Refusal) else fold_again(record, axes, group)
    if isinstance(fold, Refusal) or isinstance(axes, Refusal):
        raise _DifferentError("the fold cannot be repeated on the original")
    wanted = _Fold(fold, axes, record, parameters, group)
    sizes = map(math.prod, [*wanted.shapes, fold.weight_shape(weight.shape)])
    if max(sizes) > MAX_ELEMENTS:
        raise _too_large()
    return wanted


def _too_large() -> UnverifiedError:
    return UnverifiedError(f"the probe would need more than {MAX_ELEMENTS} elements")


def _check_record(record: FoldRecord) -> None:
    """The record comes from the model, so it may hold any number."""
    numbers = [record.batch, 1 if record.samples is None else record.samples]
    for axis in record.axes:
        numbers += [axis.out_digits, axis.in_digits, 1 if axis.length is None else axis.length]
    if min(numbers) < 1 or record.lift not in (0, 1):
        raise _DifferentError("its record holds a number out of range")
    # Bounded one by one first: a product of numbers of any size takes any time.
    if len(record.axes) > MAX_AXES or max(numbers) > MAX_ELEMENTS:
        raise _too_large()
    if math.prod(axis.out_digits * axis.in_digits for axis in record.axes) > MAX_ELEMENTS:
        raise _too_large()


def _placed(parameters: list[Array], labels: list[Labels]) -> list[Array]:
    """The numbers of weight and bias where the labels stand, zero where there is none."""
    placed = []
    for array, places in zip(parameters, labels, strict=True):
        if places.min(initial=0) < 0 or places.max(initial=0) > array.size:
            raise _DifferentError("the fold holds something else than the original's numbers")
        placed.append(np.append(np.zeros(1, array.dtype), array)[places])
    return placed


def _parameters(document: Document, node: Node) -> list[Array]:
    """Weight and, if there is one, bias."""
    return [_read(document, node, i) for i, v in enumerate(node.inputs) if i and v is not None]


def _read(document: Document, node: Node, index: int) -> Array:
    value = node.inputs[index]
    assert value is not None
    constant = document.constant(value)
    if isinstance(constant, Refusal):
        raise _DifferentError(constant.reason)
    return document.read(constant)


def _constants(document: Document, nodes: list[Node]) -> dict[str, Array]:
    """Everything but the first input of each node, by name."""
    return {
        value.name or "": _read(document, node, i)
        for node in nodes
        for i, value in enumerate(node.inputs)
        if i and value is not None
    }


def _names(node: Node) -> list[str]:
    return [value.name or "" for value in node.inputs[1:] if value is not None]


def _content(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    return (array.dtype.str, array.shape, array.tobytes())
