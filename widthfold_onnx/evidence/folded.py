"""A folded Conv: is it the fold of the original, between what it reads and what it returns?

1. Does it read the value that the original reads, and return the one that the original returns?
2. Are the stored weight and bias, as bytes, the fold of the original's?
3. Does each weight multiply the same input elements (`evidence.provenance`)?
4. Do the very nodes compute on small integers what the original computes (`evidence.probe`)?
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from widthfold_onnx.errors import NoKernelError
from widthfold_onnx.evidence.chain import Chain, Labels, Mismatch
from widthfold_onnx.evidence.claims import Claim, check_extents, content
from widthfold_onnx.evidence.passed import check_passed_on
from widthfold_onnx.evidence.patterns import patterns, sentence
from widthfold_onnx.evidence.probe import TRIALS, Side, first_difference, small_integers
from widthfold_onnx.evidence.probe_quantized import (
    constants_of,
    draw_bytes,
    given_to,
    own_scales,
    zero_of,
)
from widthfold_onnx.evidence.provenance import prove
from widthfold_onnx.evidence.requantized_data import without_pair
from widthfold_onnx.evidence.rewritten import Rewritten, label
from widthfold_onnx.evidence.wanted import Wanted, numbers_at, read_wanted
from widthfold_onnx.fold.conv_axis import ConvAxis
from widthfold_onnx.model.domain import is_default
from widthfold_onnx.model.graph import Node
from widthfold_onnx.options import VerifyOptions
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.results import ExactSite
from widthfold_onnx.rewrite.record import FOLD_KEY
from widthfold_onnx.rules.conv_site import conv_axes
from widthfold_onnx.rules.reading import group_of
from widthfold_onnx.rules.windowed import FOLDED_OPS
from widthfold_onnx.text import printable

Array = npt.NDArray[Any]


def check_conv(graph: Rewritten, conv: Node, options: VerifyOptions) -> ExactSite:
    """Prove a folded Conv, together with the moves around it that claim nothing.

    Where the runtime has no kernel for it, what needs no run is proved, and the verdict says so.

    Raises:
        Mismatch: it is another, or its record cannot be read; the message says where.
        UnverifiedError: the runtime cannot run it, or it would need too much memory.
    """
    old, new = graph.old, graph.new
    node = _original(graph, conv)
    place = _place(graph, node, conv)
    wanted = read_wanted(graph, node, conv)
    before = without_pair(old, new, wanted.site.dequantizer, place.before)
    place = replace(place, before=before)
    check_passed_on(graph, wanted, conv)
    for shape in wanted.shapes:
        fixed = (wanted.record.samples, 1, *(axis.length for axis in wanted.record.axes))
        check_extents(place.start, shape, fixed)
        check_extents(place.end, wanted.out_shape(shape), fixed)
    labels = wanted.labels()
    stored = numbers_at(new, conv, wanted.places)
    expected = wanted.folded(wanted.parameters, labels)
    if [content(a) for a in expected] != [content(a) for a in stored]:
        raise Mismatch("the stored weight or bias is not the fold of the original's")
    numbers = given_to(old, wanted)
    moves = graph.constants([*place.before, *place.after], numbers)
    chain = _chain(graph, conv, place, expected[0].shape, moves | constants_of(new, conv, numbers))
    one = Side(
        [own_scales(old.message(node))],
        constants_of(old, node, numbers),
        old.opset,
        _names(node, wanted),
    )
    folded_conv = own_scales(new.message(conv))
    if before:  # what quantizes between the two is left out
        folded_conv.input[0] = before[-1].outputs[0].name or ""
    messages = [*chain.before, folded_conv, *chain.after]
    names = _names(conv, wanted)
    other = Side(messages, chain.constants, new.opset, names, chain.reads, chain.returns)
    weight, *others = labels
    certificates, unrun = [], ""
    for shape in wanted.shapes:
        geometry = wanted.geometry(shape)
        certificates.append(prove(geometry, wanted.site.weight_shape, chain, weight, others))
        unrun = _probe(wanted, labels, one, other, shape, options) or unrun
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


def _original(graph: Rewritten, conv: Node) -> Node:
    """The node for which a folded Conv stands.

    Raises:
        Mismatch: there is none that could become one.
    """
    node = graph.original(conv)
    if node is None or not is_default(node, *FOLDED_OPS) or FOLD_KEY in node.metadata_props:
        raise Mismatch("the original has no such node")
    if not is_default(conv, FOLDED_OPS[node.op_type]):
        raise Mismatch(f"{printable(conv.op_type)} is no folded Conv")
    return node


@dataclass(frozen=True)
class _Place:
    """Where a folded Conv stands.

    Attributes:
        start: what is claimed of what the moves before it read.
        before: these moves.
        after: the moves behind it.
        end: what is claimed of what they return.
    """

    start: Claim
    before: list[Node]
    after: list[Node]
    end: Claim


def _place(graph: Rewritten, node: Node, conv: Node) -> _Place:
    """Find the moves around a folded Conv.

    Raises:
        Mismatch: it does not stand where the original stood.
    """
    data, given = node.inputs[0], conv.inputs[0]
    if data is None or given is None:
        raise Mismatch("it reads nothing")
    source, before = graph.line_to(given)
    target, after = graph.line_from(conv.outputs[0])
    start, end = graph.claim(source), graph.claim(target)
    ports = data.name, node.outputs[0].name
    if start is None or end is None or (start.value, end.value) != ports:
        raise Mismatch("the new nodes do not stand where the original node stood")
    return _Place(start, before, after, end)


def _chain(
    graph: Rewritten,
    conv: Node,
    place: _Place,
    weight: tuple[int, ...],
    constants: dict[str, Array],
) -> Chain:
    """A folded Conv with a weight of those extents, and the moves around it."""
    new = graph.new
    return Chain(
        before=[new.message(n) for n in place.before],
        axes=lambda shape: _axes(conv, shape, weight),
        group=group_of(conv),
        after=[new.message(n) for n in place.after],
        constants=constants,
        opset=new.opset,
        reads=place.start.state,
        returns=place.end.state,
        zero=zero_of(conv),
    )


def _probe(
    wanted: Wanted,
    labels: list[Labels],
    one: Side,
    other: Side,
    shape: tuple[int, ...],
    options: VerifyOptions,
) -> str:
    """Why the runtime has no kernel to run both sides, "" if they agree.

    Raises:
        Mismatch: they do not.
    """
    known = wanted.site.quantization
    try:
        found = first_difference(
            one,
            other,
            fold=lambda parameters: wanted.folded(parameters, labels),
            shape=shape,
            terms=wanted.terms,
            options=options,
            draw=small_integers if known is None or known.dequantized else draw_bytes(known),
            kept=wanted.kept(),
        )
    except NoKernelError as error:
        return str(error)
    if found:
        raise Mismatch(found)
    return ""


def _axes(conv: Node, shape: tuple[int, ...], weight: tuple[int, ...]) -> tuple[ConvAxis, ...]:
    axes = conv_axes(conv, shape, weight)
    if isinstance(axes, Refusal):
        raise Mismatch(axes.reason)
    return axes


def _names(node: Node, wanted: Wanted) -> list[str]:
    values = [node.inputs[place] for place in wanted.places]
    return [value.name or "" for value in values if value is not None]
