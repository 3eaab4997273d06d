"""The proof of a folded product holds for every fold, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.fold.test_conv_properties import run
from widthfold_onnx.evidence.chain import Mismatch, labels_of
from widthfold_onnx.evidence.products import Product, prove_product
from widthfold_onnx.fold.matmul import MatMulFold, fold_addend, fold_weight

FOLDS = {
    "rows": (MatMulFold(factor=4), (12, 3), (3, 5)),
    "one channel": (MatMulFold(factor=4), (8, 1), (1, 1)),
    "kept batch": (MatMulFold(factor=3), (2, 9, 3), (3, 5)),
    "merged batch": (MatMulFold(factor=6, merged=2), (4, 9, 3), (3, 5)),
    "batched weight": (MatMulFold(factor=3), (2, 6, 3), (2, 3, 5)),
    "weight per batch of one input": (MatMulFold(factor=3), (6, 3), (2, 3, 5)),
    "columns": (MatMulFold(factor=4, left=True), (3, 12), (5, 3)),
    "batched columns": (MatMulFold(factor=2, left=True), (7, 3, 4), (7, 5, 3)),
}


def across(array: np.ndarray) -> np.ndarray:
    return array.swapaxes(-1, -2)


def canonical(fold: MatMulFold, array: np.ndarray) -> np.ndarray:
    return across(array) if fold.left else array


def proof(
    name: str, alter: Callable[[Product], Product] = lambda product: product, *, add: bool = False
) -> str:
    """What is said of a fold, with a change of what it returns."""
    fold, shape, weight_shape = FOLDS[name]
    stored = np.broadcast_to(0, shape), np.broadcast_to(0, weight_shape)
    natural, weight = (canonical(fold, a).shape for a in stored)
    batches = np.broadcast_shapes(shape[:-2], weight_shape[:-2])
    result = (*batches, natural[-2], weight[-1])
    out = canonical(fold, np.broadcast_to(0, result)).shape
    data = run(fold.folding(shape), canonical(fold, labels_of(natural)))
    weights = fold_weight(canonical(fold, labels_of(weight)), fold)
    returned = canonical(
        fold, labels_of(canonical(fold, np.broadcast_to(0, fold.state.extents(out))).shape)
    )
    addend = labels_of((out[-2], 1) if fold.left else (out[-1],)) if add else None
    product = Product(
        canonical(fold, data),
        canonical(fold, weights),
        [] if addend is None else [canonical(fold, fold_addend(addend, fold, out[-2:]))],
        canonical(fold, run(fold.unfolding(out), returned)),
    )
    original = [] if addend is None else [addend.ravel()]
    return prove_product(natural, weight, original, alter(product))


@pytest.mark.parametrize("name", FOLDS)
def test_every_fold_is_proved(name: str) -> None:
    assert "all" in proof(name)
    if len(FOLDS[name][1]) == 2 == len(FOLDS[name][2]):
        assert "all" in proof(name, add=True)


def weight(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Product], Product]:
    return lambda p: replace(p, weight=change(p.weight.copy()))


def filled(array: np.ndarray) -> np.ndarray:
    array[..., -1, 0] = 1
    return array


def lost(array: np.ndarray) -> np.ndarray:
    array[..., 0, 0] = 0
    return array


FAULTS: dict[str, Callable[[Product], Product]] = {
    "structural zero filled": weight(filled),
    "weight lost": weight(lost),
    "first input channels exchanged": weight(lambda a: a[..., [1, 0, *range(2, a.shape[-2])], :]),
    "output channels rolled": weight(lambda a: np.roll(a, 1, -1)),
    "output channels reversed": weight(lambda a: a[..., ::-1]),
    "input channels rolled": weight(lambda a: np.roll(a, 1, -2)),
    "rows of the data rolled": lambda p: replace(p, data=np.roll(p.data, 1, -2)),
    "channels of the data reversed": lambda p: replace(p, data=p.data[..., ::-1]),
    "padding in the data": lambda p: replace(p, data=np.where(p.data == 1, 0, p.data)),
    "result rolled": lambda p: replace(p, taken=np.roll(p.taken, 1)),
    "result from nowhere": lambda p: replace(p, taken=p.taken - 1),
    "result cut": lambda p: replace(p, taken=p.taken[..., :-1, :]),
    "something added": lambda p: replace(p, beside=[np.ones(1, int)]),
}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(name: str, fault: str) -> None:
    with pytest.raises(Mismatch):
        proof(name, FAULTS[fault])


@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize("alter", [lambda a: np.roll(a, 1, -1), lambda a: a[..., :-1], np.negative])
def test_a_wrong_addend_is_found(name: str, alter: Callable[[np.ndarray], np.ndarray]) -> None:
    with pytest.raises(Mismatch, match="C"):
        proof(name, lambda p: replace(p, beside=[alter(p.beside[0])]), add=True)


@pytest.mark.parametrize("name", ["batched weight", "weight per batch of one input"])
def test_weights_of_another_batch_are_found(name: str) -> None:
    with pytest.raises(Mismatch, match="batch"):
        proof(name, weight(lambda a: a[::-1]))
