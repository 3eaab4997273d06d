"""The proof alone, and the probe alone: each finds faults that are planted in the new nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from widthfold_onnx.evidence.chain import Chain, Geometry, Mismatch, labels_of, replay
from widthfold_onnx.evidence.probe import Side, first_difference
from widthfold_onnx.evidence.provenance import prove
from widthfold_onnx.fold.axis import fold_axis
from widthfold_onnx.fold.conv import ConvFold, fold_per_channel, fold_weight
from widthfold_onnx.fold.conv_axis import ConvAxis, FoldedAxis
from widthfold_onnx.options import Provider, VerifyOptions

SHAPE, WEIGHT = (2, 3, 20), (5, 3, 4)
AXIS = ConvAxis(length=20, kernel=4, stride=1, dilation=1, pad_begin=2, pad_end=1)
FOLDED = fold_axis(AXIS, 4, 4)
assert isinstance(FOLDED, FoldedAxis)
FOLD = ConvFold(axes=(FOLDED,))
CONV = {
    "pads": [FOLDED.pad_begin, FOLDED.pad_end],
    "strides": [1],
    "dilations": [1],
    "kernel_shape": [FOLDED.kernel],
}
CONSTANTS = {
    "split": np.array([0, 3, 5, 4]),
    "merge": np.array([0, 12, 5]),
    "cut": np.array([0, 5, 4, 5]),
    "join": np.array([0, 5, 20]),
}


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, [output], **attributes)


BEFORE = [
    node("Reshape", ["x", "split"], "a"),
    node("Transpose", ["a"], "b", perm=[0, 1, 3, 2]),
    node("Reshape", ["b", "merge"], "c"),
]
AFTER = [
    node("Reshape", ["d", "cut"], "e"),
    node("Transpose", ["e"], "f", perm=[0, 1, 3, 2]),
    node("Reshape", ["f", "join"], "y"),
]


def axes_with(kernel: int, **changes: int):
    def axes(shape: tuple[int, ...]) -> tuple[ConvAxis, ...]:
        axis = ConvAxis(
            length=shape[2],
            kernel=kernel,
            pad_begin=FOLDED.pad_begin,
            pad_end=FOLDED.pad_end,
        )
        return (replace(axis, **changes),)

    return axes


GOOD = Chain(BEFORE, axes_with(FOLDED.kernel), 1, AFTER, CONSTANTS, 17)


def labels() -> tuple[np.ndarray, np.ndarray]:
    weight = np.arange(1, np.prod(WEIGHT) + 1).reshape(WEIGHT)
    return fold_weight(weight, FOLD), fold_per_channel(np.arange(1, 6), FOLD)


def proof(chain: Chain = GOOD, change=lambda weight, bias: None) -> str:
    weight, bias = (array.copy() for array in labels())
    change(weight, bias)
    return prove(Geometry(SHAPE, (AXIS,), 1), WEIGHT, chain, weight, [bias])


def test_a_right_fold_is_proved() -> None:
    assert "2400 products" in proof()


def inserted(op: str, **attributes: Any) -> Chain:
    more = [node(op, ["c"], "c2", **attributes)]
    return replace(GOOD, before=[*BEFORE, *more])


@pytest.mark.parametrize(
    "chain",
    [
        inserted("Relu"),
        inserted("Abs"),
        inserted("Round"),
        inserted("Identity"),
        inserted("Shrink", lambd=1e-7),
        replace(GOOD, before=BEFORE[:1] + BEFORE[2:]),
        replace(GOOD, before=[BEFORE[0], node("Transpose", ["a"], "b", perm=[0, 3, 1, 2])]),
        replace(GOOD, after=[AFTER[0], node("Transpose", ["e"], "f", perm=[0, 3, 1, 2])]),
        replace(GOOD, after=AFTER[:1] + AFTER[2:]),
        replace(GOOD, constants={**CONSTANTS, "merge": np.array([0, 15, 4])}),
        replace(GOOD, constants={**CONSTANTS, "join": np.array([0, 4, 25])}),
        replace(GOOD, constants={**CONSTANTS, "split": np.array([0, 3, 4, 5])}),
        replace(GOOD, axes=axes_with(FOLDED.kernel, pad_begin=0, pad_end=2)),
        replace(GOOD, axes=axes_with(FOLDED.kernel, pad_begin=2, pad_end=0)),
        replace(GOOD, group=2),
        replace(
            GOOD,
            before=[node("Pad", ["x", "w", "fill"], "p"), *BEFORE],
            constants={**CONSTANTS, "w": np.zeros(6, np.int64), "fill": np.array(0.4)},
        ),
    ],
)
def test_wrong_nodes_are_no_proof(chain: Chain) -> None:
    with pytest.raises(Mismatch):
        proof(chain)


def test_moves_that_crop_more_than_there_is_do_not_fit() -> None:
    """At a Slice behind them, inference would end the process."""
    moves = [node("Pad", ["x", "crop"], "a"), node("Slice", ["a", "from", "to"], "b")]
    constants = {
        "crop": np.array([0, -9, 0, 0]),
        "from": np.array([0, 0]),
        "to": np.array([2, 5]),
    }
    with pytest.raises(Mismatch, match=r"^the new nodes do not fit together"):
        replay(moves, constants, 17, labels_of((2, 5)))


def swap(array: np.ndarray, first: int, second: int, axis: int) -> None:
    order = list(range(array.shape[axis]))
    order[first], order[second] = order[second], order[first]
    array[...] = np.take(array, order, axis)


def drop(weight: np.ndarray) -> None:
    at = np.argwhere(weight)[7]
    weight[tuple(at)] = 0


def move(weight: np.ndarray) -> None:
    at, to = tuple(np.argwhere(weight)[7]), tuple(np.argwhere(weight == 0)[7])
    weight[to], weight[at] = weight[at], 0


WEIGHT_FAULTS = [
    lambda w, b: swap(w, 0, 1, 0),
    lambda w, b: swap(w, 0, 1, 1),
    lambda w, b: swap(w, 0, 5, 1),
    lambda w, b: swap(w, 0, 1, 2),
    lambda w, b: drop(w),
    lambda w, b: move(w),
    lambda w, b: np.copyto(w, w[..., ::-1].copy()),
]
BIAS_FAULTS = [lambda w, b: swap(b, 0, 4, 0), lambda w, b: np.copyto(b, np.roll(b, 1))]


@pytest.mark.parametrize("fault", [*WEIGHT_FAULTS, *BIAS_FAULTS])
def test_wrong_places_are_no_proof(fault) -> None:
    with pytest.raises(Mismatch):
        proof(change=fault)


@pytest.mark.parametrize("fault", [None, *WEIGHT_FAULTS, *BIAS_FAULTS])
def test_the_probe_alone_finds_them(fault) -> None:
    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[2, 1])
    wide = helper.make_node("Conv", ["c", "W", "B"], ["d"], **CONV)
    empty = {"w": np.zeros(WEIGHT, np.float32), "b": np.zeros(5, np.float32)}

    def fold(parameters: list[np.ndarray]) -> list[np.ndarray]:
        folded = [fold_weight(parameters[0], FOLD), fold_per_channel(parameters[1], FOLD)]
        if fault is not None:
            fault(*folded)
        return folded

    found = first_difference(
        Side([conv], empty, 17, ["w", "b"]),
        Side(
            [*BEFORE, wide, *AFTER], {**CONSTANTS, "W": empty["w"], "B": empty["b"]}, 17, ["W", "B"]
        ),
        fold=fold,
        shape=SHAPE,
        terms=int(np.prod(WEIGHT[1:])) + 1,
        options=VerifyOptions(provider=Provider.CPU),
    )
    assert bool(found) == (fault is not None), found
