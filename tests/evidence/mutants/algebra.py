"""Faults in the folding code itself: its folds are mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.evidence.mutants.alter import Alter
from tests.evidence.mutants.convs.weights import ARRAY, BIAS, WEIGHT
from tests.evidence.mutants.folded import Array
from widthfold_onnx.algebra import conv
from widthfold_onnx.algebra.axis import ConvAxis, FoldedAxis, Taps, fold_axis
from widthfold_onnx.algebra.channels import Regrouping, regroup_weight
from widthfold_onnx.algebra.conv import ConvFold, fold_bias, fold_weight
from widthfold_onnx.algebra.packing import Packing, pack
from widthfold_onnx.operators.conv_transpose import CONV_TRANSPOSE, ConvTranspose
from widthfold_onnx.refusal import Refusal
from widthfold_onnx.rewrite import folded_node
from widthfold_onnx.rules import spatial_fold

Planted = Callable[[], Any]
"""A context inside which the package folds wrongly."""


def code(*places: tuple[object, str], by: object) -> Planted:
    """Replace a function wherever it was imported."""

    @contextmanager
    def context() -> Iterator[None]:
        with ExitStack() as stack:
            for module, name in places:
                stack.enter_context(patch.object(module, name, by))
            yield

    return context


def weights(alter: Alter) -> Planted:
    def wrong(weight: Array, fold: ConvFold, *zero: Array) -> Array:
        right = fold_weight(weight, fold, *zero)
        altered = alter(right.copy())
        return right if altered is None else altered.astype(right.dtype)

    return code((folded_node, "fold_weight"), by=wrong)


def biases(alter: Alter) -> Planted:
    def wrong(bias: Array, fold: ConvFold) -> Array:
        right = fold_bias(bias, fold)
        altered = alter(right.copy())
        return right if altered is None else altered.astype(right.dtype)

    return code((folded_node, "fold_bias"), by=wrong)


def regrouped(alter: Callable[[Array, Regrouping], Array]) -> Planted:
    def wrong(weight: Array, regrouping: Regrouping) -> Array:
        right = regroup_weight(weight, regrouping)
        return right if regrouping.original == regrouping.result else alter(right, regrouping)

    return code((conv, "regroup_weight"), by=wrong)


def axes(alter: Callable[[FoldedAxis], dict[str, object]]) -> Planted:
    def wrong(axis: ConvAxis, *tiles: int, blocked: bool = False) -> object:
        right = fold_axis(axis, *tiles, blocked=blocked)
        return replace(right, **alter(right)) if isinstance(right, FoldedAxis) else right

    return code((spatial_fold, "fold_axis"), by=wrong)


def taps(alter: Callable[[FoldedAxis, Taps], Taps]) -> Planted:
    return axes(lambda axis: {"taps": alter(axis, axis.taps)})


def geometry(**steps: int) -> Planted:
    """The fold of a Conv whose attributes were read wrongly."""

    def wrong(axis: ConvAxis, *tiles: int, blocked: bool = False) -> object:
        changed = {name: getattr(axis, name) + step for name, step in steps.items()}
        return fold_axis(replace(axis, **changed), *tiles, blocked=blocked)

    return code((spatial_fold, "fold_axis"), by=wrong)


def canonical(alter: Callable[[Array], Array]) -> Planted:
    """The weight of every ConvTranspose read wrongly."""
    right = CONV_TRANSPOSE.canonical_weight
    wrong = staticmethod(lambda w, node: alter(right(w, node)))
    return code((ConvTranspose, "canonical_weight"), by=wrong)


def transposed_axes(alter: Callable[[ConvAxis], dict[str, int]]) -> Planted:
    """The geometry of every ConvTranspose read wrongly."""
    right = CONV_TRANSPOSE.axes

    def wrong(*arguments: Any) -> object:
        axes = right(*arguments)
        if isinstance(axes, Refusal):
            return axes
        return tuple(replace(axis, **alter(axis)) for axis in axes)

    return code((ConvTranspose, "axes"), by=staticmethod(wrong))


def packing(alter: Callable[[dict[str, Any]], dict[str, Any]], *, output_only: bool) -> Planted:
    """The moves of the fold of another tensor."""
    calls = [0]

    def wrong(shape: Any, tiles: Any, **others: Any) -> Packing:
        calls[0] += 1
        if output_only and calls[0] % 2:
            return pack(shape, tiles, **others)
        return pack(**alter({"shape": shape, "tiles": tiles, **others}))

    return code((spatial_fold, "pack"), by=wrong)


def inverted(arguments: dict[str, Any]) -> dict[str, Any]:
    """Blocked where the fold is interleaved, and the other way round."""
    tiles = tuple((count, not blocked) for count, blocked in arguments["tiles"])
    return {**arguments, "tiles": tiles}


def only_floats(alter: Alter) -> Alter:
    """Faults that depend on the numbers: labels and small integers stay as they are."""
    return lambda array: alter(array) if array.dtype.kind == "f" else array


VALUES: dict[str, Alter] = {
    "small_flushed": only_floats(lambda a: np.where(abs(a) < np.median(abs(a[a != 0])), 0, a)),
    "fractions_rounded": only_floats(lambda a: np.where(abs(a) < 1, np.round(a, 2), a)),
    "negative_dropped": only_floats(lambda a: np.where((a < 0) & (a > -1), 0, a)),
}

FAULTS: dict[str, Planted] = {
    **{f"code.weight.{name}": weights(alter) for name, alter in (ARRAY | WEIGHT | VALUES).items()},
    **{f"code.bias.{name}": biases(alter) for name, alter in (ARRAY | BIAS | VALUES).items()},
    **{
        f"code.regroup.{name}": regrouped(alter)
        for name, alter in {
            "inputs_rotated": lambda w, regrouping: np.roll(w, 1, 1),
            "inputs_reversed": lambda w, regrouping: np.flip(w, 1),
            "outputs_rotated": lambda w, regrouping: np.roll(w, 1, 0),
            "next_block": lambda w, regrouping: np.roll(w, len(w) // regrouping.result.group, 0),
            "first_input_lost": lambda w, regrouping: np.concatenate([0 * w[:, :1], w[:, 1:]], 1),
            "filled": lambda w, regrouping: np.where(w == 0, w.flat[0], w),
        }.items()
    },
    **{
        f"code.axis.{name}": axes(alter)
        for name, alter in {
            "pad_begin_more": lambda a: {"pad_begin": a.pad_begin + 1},
            "pad_end_more": lambda a: {"pad_end": a.pad_end + 1},
            "pads_later": lambda a: {"pad_begin": a.pad_begin + 1, "pad_end": a.pad_end - 1},
            "pads_swapped": lambda a: {"pad_begin": a.pad_end, "pad_end": a.pad_begin},
            "stride_more": lambda a: {"stride": a.stride + 1},
            "dilation_more": lambda a: {"dilation": a.dilation + 1},
            "positions_later": lambda a: {
                "taps": a.taps._replace(q=a.taps.q + 1),
                "kernel": a.kernel + 1,
            },
        }.items()
    },
    **{
        f"code.axis.{name}": taps(alter)
        for name, alter in {
            "input_digits_reversed": lambda a, t: t._replace(f=a.in_tile - 1 - t.f),
            "input_digits_rotated": lambda a, t: t._replace(f=(t.f + 1) % a.in_tile),
            "output_digits_reversed": lambda a, t: t._replace(g=a.out_tile - 1 - t.g),
            "output_digits_rotated": lambda a, t: t._replace(g=(t.g + 1) % a.out_tile),
            "taps_reversed": lambda a, t: t._replace(k=a.original_kernel - 1 - t.k),
            "positions_reversed": lambda a, t: t._replace(q=a.kernel - 1 - t.q),
            "last_tap_lost": lambda a, t: Taps(*(numbers[:-1] for numbers in t)),
            "first_tap_lost": lambda a, t: Taps(*(numbers[1:] for numbers in t)),
            "input_and_output_digit_mixed_up": lambda a, t: t._replace(f=t.g, g=t.f),
            "digit_0_only": lambda a, t: t.where(t.g == 0),
        }.items()
    },
    "code.read.pad_later": geometry(pad_begin=1, pad_end=-1),
    "code.read.pad_earlier": geometry(pad_begin=-1, pad_end=1),
    "code.read.dilation": geometry(dilation=1, pad_end=4),
    "code.read.length": geometry(length=-1, pad_end=1),
    **{
        f"code.transposed.{name}": canonical(alter)
        for name, alter in {
            "not_mirrored": lambda w: np.flip(w, tuple(range(2, w.ndim))),
            "last_axis_not_mirrored": lambda w: np.flip(w, -1),
            "outputs_rotated": lambda w: np.roll(w, 1, 0),
            "inputs_reversed": lambda w: np.flip(w, 1),
        }.items()
    },
    **{
        f"code.transposed.{name}": transposed_axes(alter)
        for name, alter in {
            "crop_later": lambda a: {"pad_begin": a.pad_begin + 1, "pad_end": a.pad_end - 1},
            "crop_swapped": lambda a: {"pad_begin": a.pad_end, "pad_end": a.pad_begin},
            "output_padding_more": lambda a: {"pad_end": a.pad_end + 1},
            "output_padding_in_front": lambda a: {"pad_begin": a.pad_begin + 1},
            "stride_less": lambda a: {
                "base_dilation": max(1, a.base_dilation - 1),
                "pad_end": a.pad_end + (a.base_dilation > 1) * (a.length or 1) - 1,
            },
            "dilation_more": lambda a: {"dilation": a.dilation + 1},
        }.items()
    },
    "code.pack.blocked": packing(inverted, output_only=False),
    "code.pack.output_blocked": packing(inverted, output_only=True),
    "code.pack.no_groups": packing(lambda a: {**a, "group": 1}, output_only=False),
}
