"""The proof of a folded quantized product holds for every fold, and no planted fault passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import Mutant, check, check_right
from tests.evidence.mutants.products.integers import FACTOR, Arrays, Fault, check_faults, right_fold
from tests.rewrite.quantized.products import INTEGER, LINEAR, QuantizedProduct
from widthfold_onnx.algebra.conv import ConvFold, fold_per_channel, fold_weight

BASES = {
    "integer": QuantizedProduct(shape=[6, 3], weight=[3, 5], zeros=((), (5,))),
    "bare": QuantizedProduct(shape=[6, 3], weight=[3, 5], zeros=(None, None)),
    "batched": QuantizedProduct(shape=[2, 6, 3], weight=[2, 3, 5], zeros=((), (2, 1, 5))),
    "columns": QuantizedProduct(
        shape=[3, 6], weight=[5, 3], weight_on_left=True, types=("int8", "int8")
    ),
    "linear": QuantizedProduct(
        shape=[2, 6, 3], weight=[3, 5], op=LINEAR, zeros=((), (5,)), scales=((), (5,))
    ),
    "linear columns": QuantizedProduct(shape=[3, 6], weight=[5, 3], weight_on_left=True, op=LINEAR),
}


def site(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type in (INTEGER, LINEAR))


def slot(model: onnx.ModelProto, what: str) -> str:
    """The name of an input: "weight", "zero" or "scale" of the weight."""
    node = site(model)
    step, first = (1, 2) if node.op_type == INTEGER else (3, 2)
    operand = int("reshape" in node.input[0])  # the other one is the data
    places = {"weight": operand * step, "zero": first + operand * step, "scale": operand * 3 + 1}
    index = places[what]
    return node.input[index] if index < len(node.input) else ""


def changed(what: str, alter: Callable[[np.ndarray], np.ndarray]) -> Fault:
    def fault(model: onnx.ModelProto, arrays: Arrays) -> None:
        name = slot(model, what)
        if name in arrays:
            arrays[name] = np.asarray(alter(arrays[name].copy()))

    return fault


def gaps(fill: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Fault:
    """The gaps hold something else; `fill` gets the weight, and a mask of its gaps."""

    def fault(model: onnx.ModelProto, arrays: Arrays) -> None:
        weight = arrays[slot(model, "weight")]
        rows, columns = (extent // FACTOR for extent in weight.shape[-2:])
        weight_on_left = site(model).input[0] == slot(model, "weight")
        flat = np.ones((rows, columns))
        block = np.kron(flat, np.eye(FACTOR)) if weight_on_left else np.kron(np.eye(FACTOR), flat)
        where = np.broadcast_to(block == 0, weight.shape)
        arrays[slot(model, "weight")] = fill(weight, where).astype(weight.dtype)

    return fault


def first_gap(weight: np.ndarray, where: np.ndarray) -> np.ndarray:
    changed = weight.copy()
    at = tuple(np.argwhere(where)[0])
    changed[at] ^= 1
    return changed


def regrouped(axis: int) -> Callable[[np.ndarray], np.ndarray]:
    """Repeated for every digit where it should be tiled, or the other way round."""

    def alter(array: np.ndarray) -> np.ndarray:
        if array.ndim == 0 or array.shape[axis] % FACTOR:
            return array
        moved = np.moveaxis(array, axis, -1)
        turned = moved.reshape(*moved.shape[:-1], FACTOR, -1).swapaxes(-1, -2)
        return np.moveaxis(turned.reshape(moved.shape), -1, axis)

    return alter


def plus_one(array: np.ndarray) -> np.ndarray:
    array.flat[0] = array.flat[0] ^ 1 if array.dtype.kind in "iu" else array.flat[0] * 2
    return array


def other_input(index: int, operator: str) -> Fault:
    """An input that is passed on is another number."""

    def fault(model: onnx.ModelProto, arrays: Arrays) -> None:
        node = site(model)
        if node.op_type == operator and index < len(node.input) and node.input[index] in arrays:
            name = node.input[index]
            if arrays[name].size == 1:
                arrays[f"{name}/other"] = plus_one(arrays[name].copy())
                node.input[index] = f"{name}/other"

    return fault


def without_zero_points(model: onnx.ModelProto, arrays: Arrays) -> None:
    node = site(model)
    if node.op_type == INTEGER:
        del node.input[2:]


def reshaped(which: int) -> Fault:
    def fault(model: onnx.ModelProto, arrays: Arrays) -> None:
        move = [n for n in model.graph.node if n.op_type == "Reshape"][which]
        shape = arrays[move.input[1]]
        arrays[move.input[1]] = np.array([*shape[:-2], shape[-1], shape[-2]], np.int64)

    return fault


FAULTS: dict[str, Fault] = {
    "gaps hold 0": gaps(lambda weight, where: np.where(where, 0, weight)),
    "gaps hold 1": gaps(lambda weight, where: np.where(where, 1, weight)),
    "one gap differs": gaps(first_gap),
    "gaps of other columns": gaps(lambda w, where: np.where(where, np.roll(w, 1, -1), w)),
    "weight differs": changed("weight", plus_one),
    "weight rolled": changed("weight", lambda a: np.roll(a, 1, -1)),
    "weight regrouped": changed("weight", lambda a: regrouped(-1)(regrouped(-2)(a))),
    "rows regrouped": changed("weight", regrouped(-2)),
    "zero point differs": changed("zero", plus_one),
    "zero points rolled": changed("zero", lambda a: np.roll(a, 1, -1) if a.ndim else a),
    "zero points in the wrong order": changed("zero", regrouped(-1)),
    "scale differs": changed("scale", plus_one),
    "scales in the wrong order": changed("scale", regrouped(-1)),
    "another zero point of A": other_input(2, INTEGER),
    "another zero point of B": other_input(3, INTEGER),
    "no zero points": without_zero_points,
    **{f"another input {index}": other_input(index, LINEAR) for index in (1, 2, 4, 5, 6, 7)},
    "fold exchanged": reshaped(0),
    "unfold exchanged": reshaped(-1),
}


STRICT = {
    *("weight differs", "zero point differs", "one gap differs", "scale differs"),
    "another input 5",
}
"""Faults that rounding may hide from the judge."""


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_equal(base: str) -> None:
    check_right(BASES[base].model(), right_fold(BASES[base]))


@pytest.mark.parametrize("base", BASES)
def test_every_fault_that_changes_the_function_is_found(base: str) -> None:
    assert check_faults(BASES[base], FAULTS, STRICT) >= {"bare": 9, "columns": 14}.get(base, 15)


def always_zero(array: np.ndarray, fold: ConvFold, zero: object = 0) -> np.ndarray:
    return fold_weight(array, fold)


def in_the_other_order(array: np.ndarray, fold: ConvFold) -> np.ndarray:
    return fold_per_channel(array, replace(fold, tile_major=not fold.tile_major))


IN_CODE = {
    "gaps hold 0": ("widthfold_onnx.rewrite.folded_node.fold_weight", always_zero),
    "repeated instead of tiled": (
        "widthfold_onnx.rewrite.folded_node.fold_per_channel",
        in_the_other_order,
    ),
}


@pytest.mark.parametrize("base", ["integer", "batched", "linear"])
@pytest.mark.parametrize("fault", IN_CODE)
def test_a_fault_in_the_algebra_itself_is_found(
    base: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*IN_CODE[fault])
    wrong = Mutant(base, fault, BASES[base].model(), right_fold(BASES[base]))
    assert check(wrong, {}) is Judgement.OTHER


@pytest.mark.parametrize("op", [INTEGER, LINEAR])
@pytest.mark.parametrize("types", [(a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")])
def test_all_types_are_proved(types: tuple[str, str], op: str) -> None:
    product = QuantizedProduct(shape=[6, 3], weight=[3, 5], op=op, types=types)
    check_right(product.model(), right_fold(product))
