"""The proof of a folded QDQ product holds, and no planted fault in what quantizes it passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.evidence.mutants.mutant import check_right
from tests.evidence.mutants.products.integers import FACTOR, Arrays, Fault, check_faults, right_fold
from tests.rewrite.quantized.dequantized_products import DequantizedProduct

BASES = {
    "matmul": DequantizedProduct(shape=[6, 3], weight=[3, 5], axis=1, quantized=False),
    "columns": DequantizedProduct(
        shape=[3, 6], weight=[5, 3], weight_on_left=True, types=("int8", "int8")
    ),
    "gemm": DequantizedProduct(
        shape=[6, 3], weight=[5, 3], op="Gemm", turned=True, axis=0, added=[5], quantized=False
    ),
}


def number(name: str, alter: Callable[[np.ndarray], np.ndarray]) -> Fault:
    """A folded constant holds other numbers."""

    def fault(model: onnx.ModelProto, arrays: Arrays) -> None:
        folded = f"{name}/widthfold"
        if folded in arrays:
            arrays[folded] = alter(arrays[folded].copy()).astype(arrays[folded].dtype)

    return fault


def regrouped(array: np.ndarray) -> np.ndarray:
    return array.reshape(FACTOR, -1).T.reshape(array.shape)


def first_changed(array: np.ndarray) -> np.ndarray:
    array.flat[0] = array.flat[0] * 2 if array.dtype.kind == "f" else array.flat[0] ^ 16
    return array


def gap_of_zero(array: np.ndarray) -> np.ndarray:
    array[-1, array[-1] == array[-1, 0]] = 0  # of the last row; one alone may be rounded away
    return array


def one_gap_of_zero(array: np.ndarray) -> np.ndarray:
    array[-1, 0] = 0
    return array


def pair(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes that quantize the folded data again."""
    start = next(n for n in model.graph.node if n.op_type == "Reshape").output[0]
    first = next(n for n in model.graph.node if start in n.input)
    return [first, next(n for n in model.graph.node if first.output[0] in n.input)]


def in_pair(which: int, index: int) -> Fault:
    """One node of the pair, or both, has another scale or zero point."""

    def fault(model: onnx.ModelProto, arrays: Arrays) -> None:
        nodes = pair(model)[which : which + 1] if which >= 0 else pair(model)
        name = nodes[0].input[index]
        arrays["other"] = first_changed(arrays[name].copy())
        for node in nodes:
            node.input[index] = "other"

    return fault


def without_pair(model: onnx.ModelProto, arrays: Arrays) -> None:
    """Remove the pair; the graph computes the same."""
    first, second = pair(model)
    reader = next(n for n in model.graph.node if second.output[0] in n.input)
    reader.input[list(reader.input).index(second.output[0])] = first.input[0]
    model.graph.node.remove(first)
    model.graph.node.remove(second)


def added_to_pair(model: onnx.ModelProto, arrays: Arrays) -> None:
    pair(model)[0].attribute.append(helper.make_attribute("axis", 0))


def negated(model: onnx.ModelProto, arrays: Arrays) -> None:
    """A Neg stands in the place of the pair."""
    first, second = pair(model)
    first.op_type, second.op_type = "Neg", "Identity"
    del first.input[1:], second.input[1:]


FAULTS: dict[str, Fault] = {
    "integer differs": number("w", first_changed),
    "gaps hold 0": number("w", gap_of_zero),
    "one gap holds 0": number("w", one_gap_of_zero),
    "integers turned": number("w", lambda a: a[::-1]),
    "scales regrouped": number("sw", regrouped),
    "scale differs": number("sw", first_changed),
    "zero points regrouped": number("zw", regrouped),
    "zero point differs": number("zw", first_changed),
    "C regrouped": number("c", regrouped),
    "C differs": number("c", first_changed),
    "scales of C regrouped": number("sc", regrouped),
    **{f"scale of {what}": in_pair(which, 1) for what, which in (("Q", 0), ("DQ", 1), ("QDQ", -1))},
    **{f"zero of {what}": in_pair(which, 2) for what, which in (("Q", 0), ("DQ", 1), ("QDQ", -1))},
    "no pair": without_pair,
    "an attribute": added_to_pair,
    "negated": negated,
}
STRICT = {"integer differs", "one gap holds 0", "C differs", "scale differs", "scale of QDQ"}
"""Faults that rounding may hide from the judge."""


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_equal(base: str) -> None:
    check_right(BASES[base].model(), right_fold(BASES[base]))


@pytest.mark.parametrize("base", BASES)
def test_every_fault_that_changes_the_function_is_found(base: str) -> None:
    count = check_faults(BASES[base], FAULTS, STRICT)
    assert count >= {"matmul": 11, "columns": 8, "gemm": 14}[base]
