"""The exact probe of every rewritten site: is it the fold of the original, bit for bit?

Three questions per site, each of which a wrong fold cannot pass unnoticed:

1. Does the chain of new nodes stand where the original node stood (same input, same output)?
2. Are the stored weight and bias, as bytes, the fold of the original's?
3. Do the very nodes of the chain compute on small integers what the original node computes
   (`evidence.probe`)?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from widthfold_onnx.errors import UnverifiedError
from widthfold_onnx.evidence.probe import TRIALS, Side, first_difference
from widthfold_onnx.fold.axis import ConvAxis
from widthfold_onnx.fold.conv import ConvFold, fold_bias, fold_weight
from widthfold_onnx.model.graph import Document, Node, Scope
from widthfold_onnx.model.loader import load
from widthfold_onnx.options import Provider
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.record import FOLD_KEY, ORIGIN_KEY, FoldRecord, fold_again, read_record
from widthfold_onnx.rules.conv_site import conv_axes, group_of

Array = npt.NDArray[Any]

# Extents for dimensions that the plan leaves open: any will do, few are fast.
FREE_SAMPLES = 3
FREE_POSITIONS = 5


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
    def shape(self) -> tuple[int, ...]:
        """Input extents of the probe."""
        weight = self.parameters[0]
        spatial = (
            axis.length or axis.dilation * axis.kernel + 2 * axis.stride + FREE_POSITIONS
            for axis in self.axes
        )
        return (self.record.samples or FREE_SAMPLES, weight.shape[1] * self.group, *spatial)


def probe_sites(
    original: Path, rewritten: Path, provider: Provider, report: Callable[[str], None]
) -> list[ExactSite]:
    """Probe every site that the rewritten model says was folded.

    Args:
        original: the model before.
        rewritten: the model after.
        provider: where the integers are run.
        report: gets a line of text per site.
    """
    before, after = load(original), load(rewritten)
    old, new = Document(before.proto, before.folder), Document(after.proto, after.folder)
    originals = {(scope.path, node.outputs[0].name): node for scope, node in old.nodes("Conv")}
    results = []
    for scope, conv in new.nodes("Conv"):
        if FOLD_KEY not in conv.metadata_props:
            continue
        origin = conv.metadata_props.get(ORIGIN_KEY, "")
        name = conv.name or f"Conv -> {origin}"
        node = originals.get((scope.path, origin))
        report(f"exact probe of {name}")
        if node is not None and FOLD_KEY in node.metadata_props:
            continue  # the original holds this fold itself
        try:
            if node is None:
                raise _DifferentError("the original has no such Conv")
            shape = _check(old, new, node, scope, conv, provider)
        except _DifferentError as error:
            results.append(ExactSite(node=name, verdict="different", reason=str(error)))
        except UnverifiedError as error:
            results.append(ExactSite(node=name, verdict="skipped", reason=str(error)))
        else:
            reason = f"{TRIALS} integer trials on {list(shape)}, bit for bit"
            results.append(ExactSite(node=name, verdict="exact", reason=reason))
    return results


def _check(
    old: Document, new: Document, node: Node, scope: Scope, conv: Node, provider: Provider
) -> tuple[int, ...]:
    origin = node.outputs[0].name
    chain = [n for n in scope.graph if n.metadata_props.get(ORIGIN_KEY) == origin]
    start, end = chain[0].inputs[0], chain[-1].outputs[0]
    data = node.inputs[0]
    if start is None or data is None or (start.name, end.name) != (data.name, origin):
        raise _DifferentError("the new nodes do not stand where the original node stood")
    wanted = _fold_of(old, node, conv)
    stored = _parameters(new, conv)
    expected = _folded(wanted.parameters, wanted.fold)
    if [_content(a) for a in expected] != [_content(a) for a in stored]:
        raise _DifferentError("the stored weight or bias is not the fold of the original's")
    before = Side([old.message(node)], _constants(old, [node]), old.opset, _names(node))
    after = Side([new.message(n) for n in chain], _constants(new, chain), new.opset, _names(conv))
    found = first_difference(
        before,
        after,
        fold=lambda parameters: _folded(parameters, wanted.fold),
        ports=(start.name or "", end.name or ""),
        shape=wanted.shape,
        provider=provider,
    )
    if found:
        raise _DifferentError(found)
    return wanted.shape


def _fold_of(old: Document, node: Node, conv: Node) -> _Fold:
    record = read_record(conv.metadata_props[FOLD_KEY])
    parameters = _parameters(old, node)
    weight, group = parameters[0], group_of(node)
    dims = (record.samples, weight.shape[1] * group, *(a.length for a in record.axes))
    if len(dims) != weight.ndim:
        raise _DifferentError(f"folded along {len(record.axes)} axes, not {weight.ndim - 2}")
    axes = conv_axes(node, dims, weight.shape)
    fold = axes if isinstance(axes, Refusal) else fold_again(record, axes, group)
    if isinstance(fold, Refusal) or isinstance(axes, Refusal):
        raise _DifferentError("the fold cannot be repeated on the original")
    return _Fold(fold, axes, record, parameters, group)


def _folded(parameters: list[Array], fold: ConvFold) -> list[Array]:
    weight, *bias = parameters
    return [fold_weight(weight, fold), *(fold_bias(b, fold) for b in bias)]


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
