"""A Split or Resize of packed tensors is proved, and a fault that is planted there is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.evidence.mutants.proof import difference
from tests.evidence.proof.faults.carried import constant, find
from tests.folding import fold_model
from tests.rewrite.graphs import Builder
from widthfold_onnx.options import AxisName, FoldOptions


def model() -> onnx.ModelProto:
    g = Builder([2, 3, 7, 12], np.random.default_rng(5))
    value = g.conv("x", 6, [3, 3])
    g.constants["sizes"] = np.array([2, 4], np.int64)
    g.nodes.append(helper.make_node("Split", [value, "sizes"], ["a", "b"], "split", axis=1))
    g.channels |= {"a": 2, "b": 4}
    resized = g.op("Resize", "b", "", "", np.array([2, 4, 9, 12]), mode="nearest")
    return g.model([g.conv("a", 3, [1, 3]), g.conv(resized, 2, [3, 3])])


@pytest.fixture(scope="module")
def pair() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    original = model()
    result, sites = fold_model(original, FoldOptions(factor=4, axis=AxisName.WIDTH))
    assert [site.status for site in sites] == ["folded"] * 3
    assert sum(node.op_type == "Transpose" for node in result.graph.node) == 3
    return original, result


Pair = tuple[onnx.ModelProto, onnx.ModelProto]


def test_it_is_equal(pair: Pair) -> None:
    assert difference(*pair) == ""


def other_axis(rewritten: onnx.ModelProto) -> None:
    find(rewritten, "Split").attribute[0].i = -3


def exchanged(rewritten: onnx.ModelProto) -> None:
    outputs = find(rewritten, "Split").output
    outputs[0], outputs[1] = outputs[1], outputs[0]


def equal_parts(rewritten: onnx.ModelProto) -> None:
    del find(rewritten, "Split").input[1]


def other_mode(rewritten: onnx.ModelProto) -> None:
    find(rewritten, "Resize").attribute[0].s = b"linear"


def moved(by: list[int]) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array += by

    return change


@pytest.mark.parametrize(
    "mutant",
    [
        *(constant(moved(by), "Split", 1) for by in ([1, -1], [-4, 4], [8, -8], [-6, -12])),
        *(constant(moved(by), "Resize", 3) for by in ([0, 0, 1, 0], [0, 0, 0, 1], [0, 0, -2, 0])),
        *(exchanged, equal_parts, other_mode),
    ],
)
def test_a_planted_fault_is_found(pair: Pair, mutant: Callable) -> None:
    original, rewritten = pair
    changed = onnx.ModelProto()
    changed.CopyFrom(rewritten)
    mutant(changed)
    assert difference(original, changed)


def test_another_name_of_the_axis_is_equal(pair: Pair) -> None:
    changed = onnx.ModelProto()
    changed.CopyFrom(pair[1])
    other_axis(changed)
    assert changed != pair[1]
    assert difference(pair[0], changed) == ""
