"""Coefficient provenance of a folded product of matrices: which weight meets which input.

All is written as Y = X B with positions as rows, X [.., L, C] and B [.., C, O]; with the weight on
the left that is the transpose. The moves are run on labels (`evidence.chain`), and so is all else
that belongs to output channels. A folded output channel must hold the C weights of one original
channel, once each; the folded input channels at which they stand, in the order of these weights,
must hold the C elements of one position. Which one is found once per set of input channels, and
then looked up for every element of the result. That proves the product over the reals, for all
inputs and weights, and it trusts no algebra.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from widthfold_onnx.evidence.chain import Labels, Mismatch, labels_of


@dataclass(frozen=True)
class Product:
    """What the folded product reads and returns, as labels: index in the original + 1, 0 for none.

    Attributes:
        data: [.., L', C'], elements of the original's data.
        weight: [.., C', O'], elements of the original's weight.
        beside: elements of what else belongs to output channels (C, scales, zero points), each as
            it broadcasts against the folded result.
        taken: [.., L, O], for every element of the result the index + 1 in the folded result.
    """

    data: Labels
    weight: Labels
    beside: list[Labels]
    taken: Labels


def prove_product(
    shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    beside: list[Labels],
    folded: Product,
) -> str:
    """Show that a folded product forms the products of the original.

    Args:
        shape: [.., L, C] of the original's data.
        weight_shape: [.., C, O] of the original's weight.
        beside: what else belongs to output channels of the original, as labels that broadcast to
            the result.
        folded: the folded product.

    Returns:
        A certificate in one sentence.

    Raises:
        Mismatch: the products differ; the message says where.
    """
    channels, outputs = weight_shape[-2:]
    batches = np.broadcast_shapes(shape[:-2], weight_shape[:-2])
    expected = (*batches, shape[-2], outputs)
    if folded.taken.shape != expected:
        raise Mismatch(f"the result has shape {list(folded.taken.shape)}, not {list(expected)}")
    returned = _returned(folded)
    if folded.taken.min() < 1 or folded.taken.max() > np.prod(returned):
        raise Mismatch("an element of the result comes from nowhere")
    taken = np.unravel_index(folded.taken.ravel() - 1, returned)
    matrix, channel, places = _columns(folded.weight, weight_shape)
    weights = _batches(folded.weight.shape, returned)[taken[:-2]] if taken[:-2] else 0
    inputs = _batches(folded.data.shape, returned)[taken[:-2]] if taken[:-2] else 0
    batch, position, output = _places(expected)
    if np.any(channel[weights, taken[-1]] != output):
        raise Mismatch("an output channel comes from another channel's weights")
    if np.any(matrix[weights, taken[-1]] != _batches(weight_shape, expected).ravel()[batch]):
        raise Mismatch("an output channel comes from another batch's weights")
    sets, which = np.unique(places.reshape(-1, channels), axis=0, return_inverse=True)
    rows = _rows(folded.data, sets)
    read = rows[which.reshape(matrix.shape)[weights, taken[-1]], inputs, taken[-2]]
    wanted = _batches(shape, expected).ravel()[batch] * shape[-2] + position
    wrong = np.flatnonzero(read != wanted)
    if wrong.size:
        at = [int(i) for i in np.unravel_index(wrong[0], expected)]
        raise Mismatch(f"the result at {at} reads other input elements")
    if len(beside) != len(folded.beside):
        raise Mismatch("something is added on one side only")
    for original, given in zip(beside, folded.beside, strict=True):
        _compare_beside(original, given, returned, expected, folded.taken)
    return (
        f"all {folded.taken.size * channels} products of {channels} x {outputs} channels are those "
        f"of the original, over {len(sets)} sets of input channels"
    )


def _returned(folded: Product) -> tuple[int, ...]:
    """Extents of the folded result."""
    data, weight = folded.data.shape, folded.weight.shape
    try:
        batches = np.broadcast_shapes(data[:-2], weight[:-2])
    except ValueError as error:
        raise Mismatch(f"batches {list(data)} and {list(weight)} do not fit") from error
    if data[-1] != weight[-2]:
        raise Mismatch(f"data of {list(data)} does not fit a weight of {list(weight)}")
    return (*batches, data[-2], weight[-1])


def _columns(weight: Labels, original: tuple[int, ...]) -> tuple[Labels, Labels, Labels]:
    """Which weights every folded output channel holds, per matrix of the folded weight.

    Returns:
        matrix and channel of the original [matrices, O'], and the input channels [matrices, O', C]
        at which its weights stand, in the order of the original's input channels.
    """
    channels = original[-2]
    columns = weight.reshape(-1, *weight.shape[-2:]).swapaxes(1, 2)
    held = np.count_nonzero(columns, axis=2)
    if np.any(held != channels):
        raise Mismatch(f"an output channel has {int(held.max())} weights, not {channels}")
    at = np.nonzero(columns)
    label = columns[at].reshape(-1, channels) - 1
    if label.min() < 0 or label.max() >= np.prod(original):
        raise Mismatch("the fold holds something else than the original's numbers")
    order = np.argsort(label, axis=1)
    label, places = (
        np.take_along_axis(a, order, axis=1) for a in (label, at[2].reshape(-1, channels))
    )
    matrix, k, n = np.unravel_index(label, (int(np.prod(original[:-2])), *original[-2:]))
    alike = (matrix == matrix[:, :1]) & (n == n[:, :1]) & (k == np.arange(channels))
    if not alike.all():
        raise Mismatch("an output channel does not hold the weights of one original channel")
    several = columns.shape[:2]
    return (
        matrix[:, 0].reshape(several),
        n[:, 0].reshape(several),
        places.reshape(*several, channels),
    )


def _rows(data: Labels, sets: Labels) -> Labels:
    """The position whose elements stand at a set of channels, -1 where that is no position.

    Returns:
        [sets, matrices of the data, L'].
    """
    flat = data.reshape(-1, *data.shape[-2:])
    rows = np.empty((len(sets), *flat.shape[:2]), np.int64)
    for i, places in enumerate(sets):
        first = flat[..., places[0]].astype(np.int64)
        row, rest = np.divmod(first - 1, len(places))
        whole = (first > 0) & (rest == 0)
        for k, place in enumerate(places):
            whole &= flat[..., place] == first + k
        rows[i] = np.where(whole, row, -1)
    return rows


def _batches(shape: tuple[int, ...], result: tuple[int, ...]) -> Labels:
    """Which matrix of an operand every batch of the result uses."""
    own = shape[:-2]
    return np.broadcast_to(labels_of(own) - 1, result[:-2])


def _places(shape: tuple[int, ...]) -> tuple[Labels, Labels, Labels]:
    """Batch, position and channel of every element of a result, flat."""
    batch, rest = np.divmod(np.arange(int(np.prod(shape))), shape[-2] * shape[-1])
    return batch, rest // shape[-1], rest % shape[-1]


def _compare_beside(
    original: Labels,
    folded: Labels,
    returned: tuple[int, ...],
    expected: tuple[int, ...],
    taken: Labels,
) -> None:
    try:
        used = np.broadcast_to(folded, returned).ravel()[taken - 1]
    except ValueError as error:
        raise Mismatch(
            f"C, scale or zero point of {list(folded.shape)} does not fit {list(returned)}"
        ) from error
    if np.any(used != np.broadcast_to(original, expected)):
        raise Mismatch("an element of the result gets another element of C, scale or zero point")
