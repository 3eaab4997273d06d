"""Tensors that stay packed between folded Convs are proved, and planted faults there are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

from tests.evidence.mutants.mutant import content
from tests.evidence.mutants.proof import difference
from tests.evidence.proof.faults.carried import Model, constant, find
from tests.folding import fold_model
from tests.rewrite.graphs import Builder
from widthfold_onnx.options import AxisName, FoldOptions

OPTIONS = FoldOptions(factor=4, axis=AxisName.WIDTH)


def model() -> Model:
    """Convs with all kinds of carried ops; v3 is read as a logical tensor as well."""
    g = Builder([2, 3, 7, 12], np.random.default_rng(3))
    norm = [np.arange(1, 6, dtype=np.float32) * i for i in range(1, 5)]
    value = g.op("BatchNormalization", g.conv("x", 5, [3, 3]), *norm)
    value = g.op("Clip", value, np.array(-3, np.float32), np.array(6, np.float32))
    skip = g.op("PRelu", value, np.arange(1, 6, dtype=np.float32).reshape(5, 1, 1))
    value = g.op("LeakyRelu", g.conv(skip, 5, [1, 3]), alpha=0.25)
    value = g.op("Sub", value, skip)
    value = g.op("Mul", value, np.arange(2, 7, dtype=np.float32).reshape(1, 5, 1, 1))
    value = g.op("Concat", value, skip, axis=1, channels=10)
    value = g.op("MaxPool", value, kernel_shape=[3, 1], pads=[1, 0, 1, 0])
    value = g.op("Pad", value, np.array([0, 0, 1, 0] * 2), np.array(2, np.float32))
    last = g.conv(value, 2, [3, 3])
    return g.model([last, g.op("Softmax", skip, axis=-1)])


@pytest.fixture(scope="module")
def pair() -> tuple[Model, Model]:
    original = model()
    result, sites = fold_model(original, OPTIONS)
    assert [site.status for site in sites] == ["folded"] * 3
    kinds = [node.op_type for node in result.graph.node]
    assert sum(kind in ("Reshape", "Transpose") for kind in kinds) == 9, kinds
    return original, result


def test_the_region_is_equal(pair: tuple[Model, Model]) -> None:
    assert difference(*pair) == ""


def one_ulp(array: np.ndarray) -> None:
    array.flat[-1] = np.nextafter(array.flat[-1], np.float32(99))


def shifted(array: np.ndarray) -> None:
    """One position more at one end and less at the other."""
    array[...] = array + np.array([0, 0, 1, 0, 0, 0, -1, 0])


def pads(rewritten: Model) -> None:
    (ints,) = (a.ints for a in find(rewritten, "MaxPool").attribute if a.name == "pads")
    ints[:] = [2, 0, 0, 0]


def swapped(array: np.ndarray) -> None:
    """Channels in the order of tiles first: the same numbers, elsewhere."""
    array[...] = array.reshape(-1, 4).T.reshape(array.shape)


def other_op(old: str, new: str) -> Callable:
    def mutant(rewritten: Model) -> None:
        node = find(rewritten, old)
        node.op_type = new
        del node.attribute[:]

    return mutant


def attribute(rewritten: Model) -> None:
    find(rewritten, "LeakyRelu").attribute[0].f = 0.250001


def new_attribute(rewritten: Model) -> None:
    find(rewritten, "Concat").attribute[0].i = 2


def another_axis_name(rewritten: Model) -> None:
    find(rewritten, "Concat").attribute[0].i = -3


def turned(op: str) -> Callable:
    def mutant(rewritten: Model) -> None:
        names = find(rewritten, op).input
        names[0], names[1] = names[1], names[0]

    return mutant


def operand(op: str, index: int, source: str) -> Callable:
    """Let a carried op read another packed tensor of the same shape."""

    def mutant(rewritten: Model) -> None:
        find(rewritten, op).input[index] = find(rewritten, source).output[0]

    return mutant


def inserted(op: str) -> Callable:
    """An op more between two packed tensors."""

    def mutant(rewritten: Model) -> None:
        nodes = list(rewritten.graph.node)
        reader = find(rewritten, "LeakyRelu")
        extra = helper.make_node(op, [reader.input[0]], ["extra"], "extra")
        reader.input[0] = "extra"
        rewritten.graph.node.insert(nodes.index(reader), extra)

    return mutant


def removed(rewritten: Model) -> None:
    node = find(rewritten, "LeakyRelu")
    find(rewritten, "Sub").input[0] = node.input[0]
    rewritten.graph.node.remove(node)


def swapped_unfold(rewritten: Model) -> None:
    nodes = list(rewritten.graph.node)
    end = next(i for i, node in enumerate(nodes) if node.output[0] == "v3")
    perm = next(n for n in reversed(nodes[:end]) if n.op_type == "Transpose").attribute[0].ints
    perm[1], perm[3] = perm[3], perm[1]


def packed_reader(rewritten: Model) -> None:
    """A node of the original reads the packed tensor."""
    find(rewritten, "Softmax").input[0] = find(rewritten, "PRelu").output[0]


def second_bias(rewritten: Model) -> None:
    """A constant of the original's own size would be broadcast if there were four channels."""
    find(rewritten, "Clip").input[2] = find(rewritten, "Clip").input[1]


@pytest.mark.parametrize(
    "mutant",
    [
        *(constant(one_ulp, op, i) for op, i in (("PRelu", 1), ("Mul", 1), ("Clip", 1))),
        *(constant(one_ulp, "BatchNormalization", i) for i in range(1, 5)),
        *(constant(swapped, op, 1) for op in ("PRelu", "Mul", "BatchNormalization")),
        *(other_op("LeakyRelu", op) for op in ("Neg", "Relu", "Identity", "Softmax")),
        *(other_op("Sub", op) for op in ("Add", "Mul", "Min")),
        *(constant(one_ulp, "Pad", 2), constant(shifted, "Pad", 1), pads),
        *(attribute, new_attribute, turned("Sub"), turned("Concat")),
        *(operand("Sub", 1, "LeakyRelu"), operand("Sub", 1, "Clip"), operand("Concat", 1, "Sub")),
        inserted("Neg"),
        *(removed, swapped_unfold, packed_reader, second_bias),
    ],
)
def test_a_planted_fault_is_found(pair: tuple[Model, Model], mutant: Callable) -> None:
    original, rewritten = pair
    changed = Model()
    changed.CopyFrom(rewritten)
    mutant(changed)
    assert content(changed) != content(rewritten)
    assert difference(original, changed)


@pytest.mark.parametrize("mutant", [inserted("Identity"), another_axis_name])
def test_what_computes_the_same_is_equal(pair: tuple[Model, Model], mutant: Callable) -> None:
    changed = Model()
    changed.CopyFrom(pair[1])
    mutant(changed)
    assert changed != pair[1]
    assert difference(pair[0], changed) == ""
