"""Folded perceptrons with a fault each: constants, wires of carried ops, code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.evidence.mutants.algebra import Planted, code
from tests.evidence.mutants.alter import Alter, element, flipped, next_up, rolled, swapped
from tests.evidence.mutants.folded import Array, Fault, Folded
from tests.evidence.mutants.products.products import (
    WEIGHT,
    exchanged_last,
    one_digit_less,
    reshaped,
    weight_at,
)
from tests.folding import fold_model
from widthfold_onnx.algebra.conv import ConvFold
from widthfold_onnx.algebra.layouts import RowLayout
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rules import row_fold
from widthfold_onnx.rules.layers import ProductLayer
from widthfold_onnx.rules.row_fold import fold_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """Extents of x, and how it is folded; `dims` are the declared extents of x."""

    shape: tuple[int, ...]
    factor: int
    weight_on_left: bool = False
    dims: tuple[int | str, ...] | None = None
    width: int = 4
    dtype: type[np.floating] = np.float32


BASES = {
    "rows": Base(shape=(24, 3), factor=4),
    "three": Base(shape=(15, 3), factor=3, width=3),
    "open_batch": Base(shape=(2, 15, 3), factor=5, dims=("n", 15, 3)),
    "merged": Base(shape=(2, 4, 6, 3), factor=8, dims=("n", 4, 6, 3)),
    "columns": Base(shape=(2, 3, 24), factor=4, weight_on_left=True),
    "one": Base(shape=(24, 1), factor=4, width=1),
    "double": Base(shape=(12, 3), factor=4, dtype=np.float64),
}


@cache
def original(base: str) -> onnx.ModelProto:
    """z = Tanh x; r = Softplus(z W0 + b); p = PRelu(r W1); m = k - (p + r) * a; y = Asinh(m W2)."""
    it = BASES[base]
    rng = np.random.default_rng(3)
    inputs, width = it.shape[-2 if it.weight_on_left else -1], it.width
    column = (1,) if it.weight_on_left else ()
    shapes = {"w0": (inputs, width), "w1": (width, width), "w2": (width, 5)}
    stored = {
        n: rng.standard_normal(s[:: -1 if it.weight_on_left else 1]) for n, s in shapes.items()
    }
    stored |= {n: rng.standard_normal((width, *column)) for n in ("b", "s", "k")}
    stored["a"] = np.array(rng.standard_normal())

    def product(data: str, weight: str, result: str) -> onnx.NodeProto:
        operands = (weight, data) if it.weight_on_left else (data, weight)
        return helper.make_node("MatMul", operands, [result], f"of_{weight}")

    nodes = [
        helper.make_node("Tanh", ["x"], ["z"]),
        product("z", "w0", "c0"),
        helper.make_node("Add", ["c0", "b"], ["d"], "bias"),
        helper.make_node("Softplus", ["d"], ["r"], "active"),
        product("r", "w1", "c1"),
        helper.make_node("PRelu", ["c1", "s"], ["p"], "slope"),
        helper.make_node("Add", ["p", "r"], ["u"], "residual"),
        helper.make_node("Mul", ["u", "a"], ["v"], "scale"),
        helper.make_node("Sub", ["k", "v"], ["m"], "less"),
        product("m", "w2", "c2"),
        helper.make_node("Asinh", ["c2"], ["y"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(it.dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, it.dims or it.shape)],
        [helper.make_tensor_value_info("y", kind, [None] * len(it.shape))],
        [numpy_helper.from_array(array.astype(it.dtype), name) for name, array in stored.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


@cache
def right_fold(base: str) -> onnx.ModelProto:
    model, sites = fold_model(original(base), options(base))
    assert [site.status for site in sites] == ["folded"] * 3
    assert sum(node.op_type == "Reshape" for node in model.graph.node) == 2
    return model


def options(base: str) -> FoldOptions:
    return FoldOptions(
        factor=BASES[base].factor,
        max_flops_growth=1e9,
        max_bytes_growth=1e9,
        mix_samples=True,
    )


def node(folded: Folded, name: str) -> onnx.NodeProto:
    return next(n for n in folded.graph.node if n.name == name)


def constant_input(folded: Folded, op: onnx.NodeProto) -> int:
    """Position of the constant among the inputs of a carried op."""
    names = {tensor.name for tensor in folded.graph.initializer}
    return next(i for i, name in enumerate(op.input) if name in names)


def in_constant(op: str, alter: Alter) -> Fault:
    def fault(folded: Folded) -> bool:
        name = node(folded, op).input[constant_input(folded, node(folded, op))]
        altered = alter(folded.tensor(name))
        if altered is None:
            return False
        folded.store(name, altered.astype(folded.tensor(name).dtype))
        return True

    return fault


def other_order(factor: int) -> Alter:
    """Repeated where it is to be tiled, or the other way round."""

    def alter(array: Array) -> Array | None:
        if array.size % factor:
            return None
        return array.reshape(factor, -1).T.reshape(array.shape)

    return alter


def cut(factor: int) -> Alter:
    """Keep the constants of one tile; they still broadcast where one number is left."""
    return lambda array: None if array.size % factor else array[: len(array) // factor]


def exchanged_constants(folded: Folded) -> bool:
    """Two ops read each other's constants."""
    first, other = node(folded, "slope"), node(folded, "less")
    i, j = constant_input(folded, first), constant_input(folded, other)
    first.input[i], other.input[j] = other.input[j], first.input[i]
    return True


def reads(op: str, index: int, source: str) -> Fault:
    """Another packed tensor of the same extents."""

    def fault(folded: Folded) -> bool:
        node(folded, op).input[index] = node(folded, source).output[0]
        return True

    return fault


def turned(folded: Folded) -> bool:
    names = node(folded, "less").input
    names[0], names[1] = names[1], names[0]
    return True


def another(op: str, kind: str) -> Fault:
    def fault(folded: Folded) -> bool:
        node(folded, op).op_type = kind
        return True

    return fault


def in_weight(name: str, alter: Alter) -> Fault:
    def fault(folded: Folded) -> bool:
        folded.conv = node(folded, name)
        return folded.change(weight_at(folded), alter)

    return fault


def regrouped_between(folded: Folded) -> bool:
    """Positions and channels of a packed tensor change places."""
    reader, maker = node(folded, "slope"), node(folded, "of_w1")
    numbers = folded.tensor(reader.input[constant_input(folded, reader)])
    first = next(n for n in folded.graph.node if n.op_type == "Reshape")
    shape = folded.tensor(first.input[1])
    shape[-numbers.ndim] = numbers.size
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    as_it_was = folded.constant(shape, "as_it_was")
    at = list(reader.input).index(maker.output[0])
    turn = helper.make_node("Transpose", [reader.input[at]], ["turned"], "planted", perm=perm)
    back = helper.make_node("Reshape", ["turned", as_it_was], ["back"], "planted_back")
    place = list(folded.graph.node).index(reader)
    folded.graph.node.insert(place, back)
    folded.graph.node.insert(place, turn)
    reader.input[at] = "back"
    return True


CONSTANT: dict[str, Alter] = {
    "rolled": rolled(0),
    "reversed": flipped(0),
    "first_two_swapped": swapped(0, 0, 1),
    "one_sign": element(0, lambda v: -v),
    "last_is_zero": element(-1, lambda v: 0),
    "first_one_ulp_up": element(0, next_up),
    "last_one_ulp_up": element(-1, next_up),
    "all_doubled": lambda array: 2 * array,
    **{f"cut_to_1_of_{f}": cut(f) for f in (2, 3, 4, 5)},
    **{f"in_other_order_{f}": other_order(f) for f in (3, 4, 5, 8)},
}
CARRIED = ("bias", "slope", "less")

IN_MODEL: dict[str, Fault] = {
    **{
        f"constant.{op}_{name}": in_constant(op, alter)
        for op in CARRIED
        for name, alter in CONSTANT.items()
    },
    "constant.scale_one_ulp_up": in_constant("scale", element(0, next_up)),
    "constant.exchanged": exchanged_constants,
    "wire.residual_of_one": reads("residual", 1, "slope"),
    "wire.residual_before_active": reads("residual", 1, "bias"),
    "wire.slope_of_other_product": reads("slope", 0, "active"),
    "wire.without_active": reads("residual", 1, "of_w0"),
    "wire.without_scale": reads("less", 1, "residual"),
    "wire.turned": turned,
    "op.active": another("active", "Softsign"),
    "op.less": another("less", "Add"),
    "op.bias": another("bias", "Sub"),
    "op.residual": another("residual", "Max"),
    **{
        f"weight.{name}_{alter}": in_weight(name, WEIGHT[alter])
        for name in ("of_w0", "of_w1", "of_w2")
        for alter in ("kron_turned", "rows_rotated", "last_axis_rotated", "first_one_ulp_up")
    },
    "reshape.fold_exchanged": reshaped(0, exchanged_last),
    "reshape.fold_less": reshaped(0, one_digit_less),
    "reshape.unfold_exchanged": reshaped(-1, exchanged_last),
    "reshape.unfold_less": reshaped(-1, one_digit_less),
    "move.regrouped_between": regrouped_between,
}


def other_channels(layout: RowLayout, count: int) -> Array:
    """The channels in the order of the other side: repeated for tiled."""
    tiles = np.arange(count)
    return (
        np.tile(tiles, layout.factor) if layout.weight_on_left else np.repeat(tiles, layout.factor)
    )


def other_weight(layer: ProductLayer, factor: int) -> ConvFold:
    """W (x) I for I (x) W, or the other way round."""
    right = fold_of(layer, factor)
    return replace(right, tile_major=not right.tile_major)


def merged_otherwise(right: RowLayout) -> RowLayout:
    """One axis more or less makes up the positions."""
    return RowLayout(
        right.factor, right.weight_on_left, right.merged + 1 if right.merged < 2 else 1
    )


def other_side(right: RowLayout) -> RowLayout:
    return RowLayout(right.factor, not right.weight_on_left, 1)


def in_layout(alter: Callable[[RowLayout], RowLayout]) -> Planted:
    """Data and result are packed otherwise than the weight is folded."""

    def wrong(factor: int, weight_on_left: bool, merged: int) -> RowLayout:
        return alter(RowLayout(factor, weight_on_left, merged))

    return code((row_fold, "RowLayout"), by=wrong)


IN_CODE: dict[str, Planted] = {
    "code.repeated_for_tiled": code((RowLayout, "channel_of_each"), by=other_channels),
    "code.channels_rolled": code(
        (RowLayout, "channel_of_each"),
        by=lambda layout, count: np.arange(layout.factor * count) % count - 1,
    ),
    "code.weight_of_the_other_side": code((row_fold, "fold_of"), by=other_weight),
    "code.merged_otherwise": in_layout(merged_otherwise),
    "code.other_side": in_layout(other_side),
}
