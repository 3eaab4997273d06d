"""Coefficient provenance: which weight multiplies which input element for each output element.

The new nodes are run on labels instead of numbers: every input element carries its own index, 0
is padding; every weight its own index, 0 is a structural zero. What reaches an output element is
then a set of pairs (weight, input element), and the proof is that it is the same set as in the
original, for every output element at the planned extents. That proves the site over the reals
for all inputs and all weights, without a tolerance and without trusting the fold algebra.

The sets are not listed one by one. A Conv treats all channels alike, so it is shown first that
the new nodes do too: a folded input channel holds one original channel c, at positions that make
up a class; a folded output channel one original channel o. Then a table says, for every folded
output channel and every original tap k, in which class and at which kernel position q that tap
sits, the same for all c. What is left is to compare positions, once per output pattern and tap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from widthfold_onnx.fold.axis import ConvAxis
from widthfold_onnx.text import printable

Labels = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Geometry:
    """A Conv: extents of its input [N, C, *spatial], its spatial axes, its groups."""

    shape: tuple[int, ...]
    axes: tuple[ConvAxis, ...]
    group: int


@dataclass(frozen=True)
class Chain:
    """The new nodes of a site.

    Attributes:
        before: nodes before the Conv.
        axes: geometry of the Conv for an input of given extents.
        group: groups of the Conv.
        after: nodes behind it.
        constants: what the nodes read besides the data.
        opset: of the default domain.
    """

    before: Sequence[onnx.NodeProto]
    axes: Callable[[tuple[int, ...]], tuple[ConvAxis, ...]]
    group: int
    after: Sequence[onnx.NodeProto]
    constants: dict[str, npt.NDArray[Any]]
    opset: int


class Mismatch(Exception):  # noqa: N818 - it is a finding, not a fault
    """Where the two sets of products differ."""


def replay(nodes: Sequence[onnx.NodeProto], chain: Chain, labels: Labels) -> Labels:
    """Run Reshape, Transpose, Pad and Slice on labels, by onnx's reference implementation."""
    if not nodes:
        return labels
    start, end = nodes[0].input[0], nodes[-1].output[0]
    used = {name for node in nodes for name in node.input[1:]}
    kind = helper.np_dtype_to_tensor_dtype(labels.dtype)
    graph = helper.make_graph(
        nodes,
        "labels",
        [helper.make_tensor_value_info(start, kind, labels.shape)],
        [helper.make_tensor_value_info(end, kind, None)],
        [numpy_helper.from_array(chain.constants[name], name) for name in sorted(used)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", chain.opset)])
    try:
        (result,) = ReferenceEvaluator(model).run(None, {start: labels})
    except (ValueError, IndexError) as error:
        raise Mismatch(f"the new nodes do not fit together: {printable(str(error))}") from error
    return np.asarray(result)


def prove(
    original: Geometry,
    weight_shape: tuple[int, ...],
    chain: Chain,
    folded: Labels,
    folded_bias: Labels | None,
) -> str:
    """Show that original and chain form the same products.

    Args:
        original: the original Conv.
        weight_shape: [O, C/group, *kernel] of the original.
        chain: the new nodes.
        folded: the folded weight as labels: index in the original weight + 1, 0 elsewhere.
        folded_bias: the folded bias as labels, if there is one.

    Returns:
        A certificate in one sentence.

    Raises:
        Mismatch: the products differ; the message says where.
    """
    inputs = replay(chain.before, chain, _labels(original.shape, first=1))
    channel, classes, patterns = _input_classes(inputs, original.shape)
    table = _tap_table(folded, weight_shape, original.group, chain.group, channel, classes)
    samples, outputs = inputs.shape[0], folded.shape[0]
    conv = Geometry(inputs.shape, chain.axes(inputs.shape), chain.group)
    produced = [a.out_length or 0 for a in conv.axes]
    ids = _labels((samples, outputs, *produced), first=0)
    taken = replay(chain.after, chain, ids)
    expected = (original.shape[0], weight_shape[0], *(a.out_length or 0 for a in original.axes))
    if taken.shape != expected:
        raise Mismatch(f"the output has shape {list(taken.shape)}, not {list(expected)}")
    _compare(original, conv, patterns, table, folded_bias, taken, outputs)
    products = int(np.prod(expected)) * int(np.prod(weight_shape[1:]))
    return (
        f"{products} products (padding included) of {weight_shape[0]} x {weight_shape[1]} channels "
        f"are the same: {len(patterns)} input classes, {folded.shape[0]} output channels"
    )


def _input_classes(inputs: Labels, shape: tuple[int, ...]) -> tuple[Labels, Labels, Labels]:
    """Original channel and class of every folded input channel, and the positions of each class.

    Returns:
        channel [C'], -1 where a channel is all padding; class [C']; patterns [classes, N', *L'],
        labels n*L + i + 1 of sample n and position i, 0 for padding.
    """
    spatial = int(np.prod(shape[2:]))
    real = inputs > 0
    sample, rest = np.divmod(inputs - 1, shape[1] * spatial)
    source, position = np.divmod(rest, spatial)
    pattern = np.where(real, sample * spatial + position + 1, 0).swapaxes(0, 1)
    source = np.where(real, source, -1).swapaxes(0, 1).reshape(inputs.shape[1], -1)
    channel = source.max(axis=1)
    if np.any((source != channel[:, None]) & (source >= 0)):
        raise Mismatch("a folded input channel mixes original channels")
    # Rows are alike if their bytes are: linear, where sorting rows is not.
    known: dict[bytes, int] = {}
    classes = np.array([known.setdefault(row.tobytes(), len(known)) for row in pattern])
    first = [int(np.flatnonzero(classes == i)[0]) for i in range(len(known))]
    return channel, classes, pattern[first]


def _tap_table(
    folded: Labels,
    weight_shape: tuple[int, ...],
    group: int,
    new_group: int,
    channel: Labels,
    classes: Labels,
) -> Labels:
    """Where every tap of the original sits: [O', 1 + 2*K].

    Column 0 is the original output channel; then class and kernel position of each tap, -1 where
    the tap is absent. All original channels of the group must agree.
    """
    outputs, per_group = weight_shape[:2]
    taps = int(np.prod(weight_shape[2:]))
    new_outputs, new_per_group = folded.shape[:2]
    flat = folded.reshape(new_outputs, new_per_group, -1)
    at_output, at_channel, q = np.nonzero(flat)
    label = flat[at_output, at_channel, q] - 1
    o, c, k = np.unravel_index(label, (outputs, per_group, taps))
    seen = at_output // (new_outputs // new_group) * new_per_group + at_channel
    table = np.full((new_outputs, 1 + 2 * taps), -1)
    table[at_output, 0] = o
    table[at_output, 1 + k] = classes[seen]
    table[at_output, 1 + taps + k] = q
    agree = (
        (table[at_output, 0] == o)
        & (table[at_output, 1 + k] == classes[seen])
        & (table[at_output, 1 + taps + k] == q)
    )
    if not agree.all():
        raise Mismatch("weights of one output channel or tap stand at different places")
    wanted = o // (outputs // group) * per_group + c
    # A channel that is all padding is every channel's padding; `_compare` says where it may be.
    if np.any((channel[seen] >= 0) & (channel[seen] != wanted)):
        raise Mismatch("a weight meets another input channel")
    present = np.zeros((new_outputs, taps, per_group), np.int64)
    np.add.at(present, (at_output, k, c), 1)
    if np.any(present.max(axis=2) > 1) or np.any(present.min(axis=2) != present.max(axis=2)):
        raise Mismatch("a tap is there for some channels and missing, or twice, for others")
    return table


def _compare(
    original: Geometry,
    conv: Geometry,
    patterns: Labels,
    table: Labels,
    bias: Labels | None,
    taken: Labels,
    outputs: int,
) -> None:
    """Compare positions for every tap, once for all output channels that are alike.

    Args:
        original: the original Conv.
        conv: the Conv of the chain.
        patterns: see `_input_classes`.
        table: see `_tap_table`.
        bias: folded bias as labels, if any.
        taken: for every original output element the folded one that it comes from.
        outputs: folded output channels.
    """
    produced = [axis.out_length or 0 for axis in conv.axes]
    _, row_of = np.unique(table[:, 1:], axis=0, return_inverse=True)
    row_of = row_of.ravel()
    seen: set[tuple[bytes, bytes]] = set()
    for o in range(taken.shape[1]):
        before, place = np.divmod(taken[:, o].ravel(), int(np.prod(produced)))
        new_n, new_o = np.divmod(before, outputs)
        source = table[new_o, 0]
        if np.any((source != o) & (source >= 0)):
            raise Mismatch(f"output channel {o} comes from another channel's weights")
        if bias is not None and np.any(bias[new_o] != o + 1):
            raise Mismatch(f"output channel {o} gets another channel's bias")
        place += new_n * int(np.prod(produced))
        alike = (place.tobytes(), row_of[new_o].tobytes())
        if alike not in seen:
            seen.add(alike)
            _compare_taps(original, conv, patterns, table, place, new_o)


def _compare_taps(
    original: Geometry,
    conv: Geometry,
    patterns: Labels,
    table: Labels,
    place: Labels,
    new_o: Labels,
) -> None:
    """Compare one output channel; element m comes from `new_o[m]` at `place[m]` of [N', *J']."""
    lengths = [axis.out_length or 0 for axis in original.axes]
    n, *j = np.unravel_index(np.arange(place.size), (original.shape[0], *lengths))
    produced = [axis.out_length or 0 for axis in conv.axes]
    new_n, *new_j = np.unravel_index(place, (conv.shape[0], *produced))
    image = _labels((1, original.shape[0], *original.shape[2:]), first=1)
    image, start, steps = _border(image, original.axes, n, j)
    # An absent tap reads the last class, which is all padding.
    with_none = np.concatenate([patterns, np.zeros_like(patterns[:1])])
    folded, new_start, new_steps = _border(with_none, conv.axes, new_n, new_j)
    kind, q = table[:, 1:].reshape(len(table), 2, -1).swapaxes(0, 1)
    jumps = np.where(kind < 0, len(patterns), kind) * folded[0].size + new_steps[np.maximum(q, 0)]
    image, folded = image.ravel(), folded.ravel()
    for tap, step in enumerate(steps):
        wrong = np.flatnonzero(
            image.take(start + step) != folded.take(new_start + jumps[:, tap].take(new_o))
        )
        if wrong.size:
            at = [int(a[wrong[0]]) for a in (n, *j)]
            raise Mismatch(f"tap {tap} of output {at} reads another input element")


def _border(
    image: Labels, axes: Sequence[ConvAxis], sample: Labels, places: Sequence[Labels]
) -> tuple[Labels, Labels, Labels]:
    """Surround images with zeros as far as the kernel reaches, and index them flat.

    Args:
        image: [classes, N, *spatial].
        axes: geometry of the Conv that reads them.
        sample: sample of every output element.
        places: per axis the position of every output element.

    Returns:
        The images; per output element the flat index of its first tap in the first class; per tap
        how far it lies behind the first.
    """
    leads = [max(0, axis.pad_begin) for axis in axes]
    widths = [(0, 0), (0, 0)]
    for axis, lead, extent in zip(axes, leads, image.shape[2:], strict=True):
        last = axis.stride * ((axis.out_length or 1) - 1) + axis.dilation * (axis.kernel - 1)
        widths.append((lead, max(0, last - axis.pad_begin + 1 - extent)))
    padded = np.pad(image, widths)
    strides = np.array(padded.strides[1:]) // padded.itemsize
    first = sample * strides[0]
    for axis, lead, stride, place in zip(axes, leads, strides[1:], places, strict=True):
        first = first + (axis.stride * place - axis.pad_begin + lead) * stride
    taps = np.indices([axis.kernel for axis in axes]).reshape(len(axes), -1)
    reach = np.array([axis.dilation for axis in axes]) * strides[1:]
    return padded, first, reach @ taps


def _labels(shape: tuple[int, ...], *, first: int) -> Labels:
    """Consecutive numbers; 32 bits where they suffice, because memory is what a proof costs."""
    size = int(np.prod(shape))
    stop = first + size
    if stop <= np.iinfo(np.int32).max:
        return np.arange(first, stop, dtype=np.int32).reshape(shape)
    return np.arange(first, stop, dtype=np.int64).reshape(shape)
