"""Coefficient provenance: which weight multiplies which input element for each output element.

The new nodes around the Conv may only move elements (`evidence.chain`). They are run on labels
instead of numbers: every input element carries its own index, 0 is padding; every weight its own
index, 0 is a structural zero. What reaches an output element is
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

from collections.abc import Sequence

import numpy as np

from widthfold_onnx.evidence.border import border
from widthfold_onnx.evidence.chain import (
    MOVES_AFTER,
    MOVES_BEFORE,
    Chain,
    Geometry,
    Labels,
    Mismatch,
    check_moves,
    labels_of,
    packed,
    replay,
    unpacked,
)


def prove(
    original: Geometry,
    weight_shape: tuple[int, ...],
    chain: Chain,
    folded: Labels,
    per_channel: Sequence[Labels],
) -> str:
    """Show that original and chain form the same products.

    Args:
        original: the original Conv.
        weight_shape: [O, C/group, *kernel] of the original.
        chain: the new nodes.
        folded: the folded weight as labels: index in the original weight + 1, 0 elsewhere.
        per_channel: the folded bias as labels, if there is one, and all else that is there once
            per output channel.

    Returns:
        A certificate in one sentence.

    Raises:
        Mismatch: the products differ; the message says where.
    """
    check_moves(chain.before, MOVES_BEFORE, chain.zero)
    check_moves(chain.after, MOVES_AFTER)
    inputs = labels_of(original.shape)
    if chain.reads is not None:
        inputs = packed(inputs, chain.reads)
    inputs = replay(chain.before, chain.constants, chain.opset, inputs)
    fits = (
        inputs.ndim == folded.ndim
        and inputs.shape[1] == folded.shape[1] * chain.group
        and folded.shape[0] % chain.group == 0
    )
    if not fits:
        raise Mismatch(
            f"an input of {list(inputs.shape)} does not fit a weight of {list(folded.shape)} in "
            f"{chain.group} groups"
        )
    channel, classes, patterns = _input_classes(inputs, original.shape)
    table = _tap_table(folded, weight_shape, original.group, chain.group, channel, classes)
    samples, outputs = inputs.shape[0], folded.shape[0]
    conv = Geometry(inputs.shape, chain.axes(inputs.shape), chain.group)
    produced = [max(a.out_length or 0, 0) for a in conv.axes]
    taken = labels_of((samples, outputs, *produced))
    taken = replay(chain.after, chain.constants, chain.opset, taken)
    expected = (original.shape[0], weight_shape[0], *(a.out_length or 0 for a in original.axes))
    if chain.returns is not None:
        taken = unpacked(taken, chain.returns, expected)
    if taken.shape != expected:
        raise Mismatch(f"the output has shape {list(taken.shape)}, not {list(expected)}")
    if taken.min() < 1:
        raise Mismatch("an output element comes from nowhere")
    _compare(original, conv, patterns, table, per_channel, taken - 1, outputs)
    products = int(np.prod(expected)) * int(np.prod(weight_shape[1:]))
    return (
        f"all {products} products (padding included) of {weight_shape[0]} x {weight_shape[1]} "
        f"channels are those of the original, over {len(patterns)} input classes and "
        f"{folded.shape[0]} output channels"
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
    per_channel: Sequence[Labels],
    taken: Labels,
    outputs: int,
) -> None:
    """Compare positions for every tap, once for all output channels that are alike.

    Args:
        original: the original Conv.
        conv: the Conv of the chain.
        patterns: see `_input_classes`.
        table: see `_tap_table`.
        per_channel: folded bias and the like, as labels.
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
        if any(np.any(numbers[new_o] != o + 1) for numbers in per_channel):
            raise Mismatch(f"output channel {o} gets another channel's bias, scale or zero point")
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
    image = labels_of((1, original.shape[0], *original.shape[2:]))
    image, start, steps = border(image, original.axes, n, j)
    # An absent tap reads the last class, which is all padding.
    with_none = np.concatenate([patterns, np.zeros_like(patterns[:1])])
    folded, new_start, new_steps = border(with_none, conv.axes, new_n, new_j)
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
