"""Folded products of matrices with a fault each: weight, C, attributes, moves, code."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx

from tests.evidence.mutants.algebra import Planted, code
from tests.evidence.mutants.alter import (
    Alter,
    element,
    flipped,
    next_up,
    regrouped,
    rolled,
    swapped,
    transposed,
)
from tests.evidence.mutants.folded import Array, Fault, Folded, put
from tests.folding import fold_model
from tests.operators.products import Product
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rewrite import folded_node

Plain = {"first": "Tanh", "last": "Asinh", "scale": 1.0}
Scaled = {"alpha": 0.6, "beta": 0.4}

BASES: dict[str, tuple[Product, int]] = {
    "rows": (Product(shape=[24, 3], weight=[3, 5], **Plain), 4),
    "square": (Product(shape=[24, 3], weight=[3, 3], **Plain), 4),
    "one_channel": (Product(shape=[24, 1], weight=[1, 1], **Plain), 8),
    "open_batch": (Product(shape=[2, 15, 3], weight=[3, 5], dims=["n", 15, 3], **Plain), 5),
    "merged": (Product(shape=[2, 4, 6, 3], weight=[3, 5], dims=["n", 4, 6, 3], **Plain), 8),
    "batched": (Product(shape=[2, 6, 3], weight=[2, 3, 5], **Plain), 3),
    "vector": (Product(shape=[2, 15, 3], weight=[3], **Plain), 5),
    "columns": (Product(shape=[3, 24], weight=[5, 3], weight_on_left=True, **Plain), 4),
    "square_columns": (Product(shape=[2, 3, 24], weight=[3, 3], weight_on_left=True, **Plain), 4),
    "batched_columns": (
        Product(shape=[2, 3, 6], weight=[2, 5, 3], weight_on_left=True, **Plain),
        3,
    ),
    "gemm": (
        Product(op="Gemm", shape=[24, 3], weight=[3, 5], addend=[5], attributes=Scaled, **Plain),
        4,
    ),
    "gemm_turned": (
        Product(
            op="Gemm",
            shape=[24, 3],
            weight=[3, 3],
            addend=[24, 1],
            attributes={"transB": 1, **Scaled},
            **Plain,
        ),
        4,
    ),
    "gemm_across": (
        Product(
            op="Gemm",
            shape=[3, 24],
            weight=[3, 5],
            addend=[24, 5],
            attributes={"transA": 1, **Scaled},
            **Plain,
        ),
        4,
    ),
    "gemm_columns": (
        Product(
            op="Gemm",
            shape=[3, 20],
            weight=[5, 3],
            weight_on_left=True,
            addend=[5, 1],
            attributes=Scaled,
            **Plain,
        ),
        4,
    ),
    "gemm_columns_across": (
        Product(
            op="Gemm",
            shape=[20, 3],
            weight=[3, 3],
            weight_on_left=True,
            addend=[20],
            attributes={"transA": 1, "transB": 1, **Scaled},
            **Plain,
        ),
        4,
    ),
    "double": (
        Product(shape=[3, 24], weight=[5, 3], weight_on_left=True, dtype=np.float64, **Plain),
        4,
    ),
    "half": (Product(shape=[24, 3], weight=[3, 5], dtype=np.float16, **Plain), 4),
}


@cache
def original(base: str) -> onnx.ModelProto:
    return BASES[base][0].model()


@cache
def right_fold(base: str) -> onnx.ModelProto:
    model, (site,) = fold_model(original(base), options(base))
    assert site.status == "folded", site.reason
    return model


def options(base: str) -> FoldOptions:
    limits = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}
    return FoldOptions(factor=BASES[base][1], mix_samples=True, **limits)


def weight_at(folded: Folded) -> int:
    """Position of the weight among the inputs of the folded node."""
    held = {tensor.name for tensor in folded.graph.initializer}
    return next(i for i, name in enumerate(folded.conv.input) if name in held)


def filled(array: Array) -> Array | None:
    """A block beside the diagonal holds weights."""
    places = np.argwhere(array == 0)
    if not places.size:
        return None
    array[tuple(places[0])] = array[array != 0][0]
    return array


def kron_turned(array: Array) -> Array | None:
    """W (x) I instead of I (x) W, or the other way round."""
    rows, columns = regrouped(array.ndim - 2), regrouped(array.ndim - 1)
    once = rows(array)
    return None if once is None else columns(once)


def blocks_turned(array: Array) -> Array | None:
    """The whole weight transposed; every block of it, if it is square."""
    square = array.shape[-1] == array.shape[-2]
    return array.swapaxes(-1, -2) if square else None


ANY: dict[str, Alter] = {
    "last_axis_rotated": rolled(-1),
    "last_axis_reversed": flipped(-1),
    "first_two_of_last_axis_swapped": swapped(-1, 0, 1),
    "one_sign": element(0, lambda v: -v),
    "last_is_zero": element(-1, lambda v: 0),
    "first_one_ulp_up": element(0, next_up),
    "all_doubled": lambda array: 2 * array,
    "alpha_applied": lambda array: (array * array.dtype.type(0.6)).astype(array.dtype),
}
WEIGHT: dict[str, Alter] = {
    **ANY,
    "rows_rotated": rolled(-2),
    "rows_reversed": flipped(-2),
    "row_digits_regrouped": lambda array: regrouped(array.ndim - 2)(array),
    "column_digits_regrouped": lambda array: regrouped(array.ndim - 1)(array),
    "block_filled": filled,
    "structural_zero_small": element(0, lambda v: 1e-6, structural=True),
    "kron_turned": kron_turned,
    "blocks_turned": blocks_turned,
    "square_turned": lambda array: transposed(array) if array.ndim == 2 else None,
    "batches_swapped": lambda array: array[::-1] if array.ndim > 2 else None,
}


def in_weight(alter: Alter) -> Fault:
    return lambda folded: folded.change(weight_at(folded), alter)


def in_addend(alter: Alter) -> Fault:
    return lambda folded: folded.change(2, alter)


def scaled(**values: float | None) -> Fault:
    """Other attributes."""

    def fault(folded: Folded) -> bool:
        if folded.conv.op_type != "Gemm":
            return False
        for name, value in values.items():
            put(folded.conv, name, value)
        return True

    return fault


def toggled(name: str) -> Fault:
    def fault(folded: Folded) -> bool:
        if folded.conv.op_type != "Gemm":
            return False
        flags = {a.name: a.i for a in folded.conv.attribute}
        put(folded.conv, name, 1 - flags.get(name, 0))
        return True

    return fault


def reshaped(which: int, change: Callable[[list[int]], list[int]]) -> Fault:
    """The target of a Reshape is another; of the first or the last."""

    def fault(folded: Folded) -> bool:
        move = folded.moves("Reshape")[which]
        shape = folded.tensor(move.input[1]).tolist()
        changed = change(list(shape))
        folded.store(move.input[1], np.array(changed, np.int64))
        return changed != shape

    return fault


def exchanged_last(shape: list[int]) -> list[int]:
    return [*shape[:-2], shape[-1], shape[-2]]


def one_digit_less(shape: list[int]) -> list[int]:
    return [*shape[:-2], shape[-2] * 2, shape[-1] // 2]


def transposed_before(folded: Folded) -> bool:
    """The folded data is transposed and shaped back, so that only its order is another."""
    first = folded.before[-1]
    shape = folded.tensor(first.input[1])
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    node = onnx.helper.make_node("Transpose", [], [], "planted", perm=perm)
    folded.insert(node, first)
    return True


def without_transpose(folded: Folded) -> bool:
    """The Transpose of data that lies across is left out."""
    moves = folded.moves("Transpose")
    if not moves:
        return False
    reader = next(n for n in folded.chain if moves[0].output[0] in n.input)
    reader.input[list(reader.input).index(moves[0].output[0])] = moves[0].input[0]
    folded.graph.node.remove(moves[0])
    return True


def negated(folded: Folded) -> bool:
    folded.insert(onnx.helper.make_node("Neg", [], [], "planted"), folded.before[0])
    return True


def other_operator(folded: Folded) -> bool:
    """A Gemm without its addend and its factors, or a MatMul that became a Gemm."""
    turned = {"Gemm": "MatMul", "MatMul": "Gemm"}
    if folded.conv.op_type == "Gemm":
        del folded.conv.attribute[:]
        del folded.conv.input[2:]
    folded.conv.op_type = turned[folded.conv.op_type]
    return True


IN_MODEL: dict[str, Fault] = {
    **{f"weight.{name}": in_weight(alter) for name, alter in WEIGHT.items()},
    **{f"addend.{name}": in_addend(alter) for name, alter in ANY.items()},
    "addend.digits_regrouped": in_addend(lambda array: regrouped(array.ndim - 1)(array)),
    "gemm.alpha_twice": scaled(alpha=0.36),
    "gemm.alpha_lost": scaled(alpha=None),
    "gemm.beta_lost": scaled(beta=None),
    "gemm.alpha_and_beta_exchanged": scaled(alpha=0.4, beta=0.6),
    "gemm.transA": toggled("transA"),
    "gemm.transB": toggled("transB"),
    "reshape.fold_exchanged": reshaped(0, exchanged_last),
    "reshape.fold_less": reshaped(0, one_digit_less),
    "reshape.unfold_exchanged": reshaped(-1, exchanged_last),
    "reshape.unfold_less": reshaped(-1, one_digit_less),
    "move.transposed_before": transposed_before,
    "move.without_transpose": without_transpose,
    "node.negated": negated,
    "node.other_operator": other_operator,
}


def coded(name: str, alter: Alter) -> Planted:
    """A fault where a constant is folded."""
    right: Callable[..., Array] = getattr(folded_node, name)

    def wrong(*arguments: object, **named: object) -> Array:
        result = right(*arguments, **named)
        altered = alter(result.copy())
        return result if altered is None else altered.astype(result.dtype)

    return code((folded_node, name), by=wrong)


IN_CODE: dict[str, Planted] = {
    **{f"code.weight.{n}": coded("folded_weight", a) for n, a in WEIGHT.items()},
    **{f"code.addend.{n}": coded("folded_bias", a) for n, a in ANY.items()},
}
