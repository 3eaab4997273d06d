"""The proof shares no code with the rewrite: a reader that misreads a node is found out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.evidence.mutants.judge import Judgement, judge
from tests.evidence.mutants.proof import difference
from tests.folding import fold_model
from tests.operators.products import Product
from tests.tuning.workloads import tool
from widthfold_onnx.evidence import proof
from widthfold_onnx.operators import OPERATORS, base, conv, conv_transpose, matmul
from widthfold_onnx.operators.base import Operator
from widthfold_onnx.options import FoldOptions
from widthfold_onnx.rules import layer_reading

ALLOWED = ("widthfold_onnx.evidence.proof", "widthfold_onnx.model")
SINGLE = {
    "widthfold_onnx.results",
    "widthfold_onnx.arrays",
    "widthfold_onnx.errors",
    "widthfold_onnx.refusal",
    "widthfold_onnx.system",
    "widthfold_onnx.text",
}
MIRROR = {"SAME_UPPER": "SAME_LOWER", "SAME_LOWER": "SAME_UPPER"}

CONV = tool.conv((2, 3, 7, 24), (5, 3, 3, 4), auto_pad="SAME_UPPER")
UNEVEN = tool.conv((2, 3, 7, 24), (5, 3, 3, 4), pads=[0, 3, 2, 1], dilations=[1, 2])
STRIDED = tool.conv((2, 3, 7, 25), (5, 3, 3, 4), strides=[1, 2])
GROUPS = tool.conv((2, 4, 7, 24), (6, 2, 3, 4), group=2)
UP = tool.conv(
    (2, 3, 12), (3, 5, 4), op="ConvTranspose", strides=[3], output_padding=[1], pads=[0, 2]
)
UP_GROUPS = tool.conv((2, 4, 12), (4, 3, 4), op="ConvTranspose", group=2, strides=[2])
UP_DILATED = tool.conv((2, 3, 12), (3, 5, 4), op="ConvTranspose", dilations=[2])
TURNED = Product(
    op="Gemm", shape=[6, 6], weight=[6, 6], attributes={"transA": 1, "transB": 1}
).model()
ADDED = Product(op="Gemm", shape=[24, 3], weight=[3, 5], addend=[5]).model()


def without(name: str) -> Callable[..., list[int]]:
    """An attribute of integers is taken for its default."""
    return lambda node, key, default: (
        default if key == name else RIGHT_ATTRIBUTE(node, key, default)
    )


def exchanged(node: Any, name: str, default: list[int]) -> list[int]:
    """Pads are read end first."""
    integers = RIGHT_ATTRIBUTE(node, name, default)
    half = len(integers) // 2
    return [*integers[half:], *integers[:half]] if name == "pads" else integers


def groups_side_by_side(weight: np.ndarray, node: Any) -> np.ndarray:
    """The weight of a ConvTranspose as if there were no groups."""
    group = conv.group_of(node)
    channels, outputs, *kernel = weight.shape
    plain = weight.swapaxes(0, 1).reshape(outputs * group, channels // group, *kernel)
    return np.flip(plain, tuple(range(2, weight.ndim)))


def not_mirrored(weight: np.ndarray, node: Any) -> np.ndarray:
    return np.flip(RIGHT_CANONICAL(weight, node), tuple(range(2, weight.ndim)))


def groups_reversed(weight: np.ndarray, node: Any) -> np.ndarray:
    return weight.reshape(conv.group_of(node), -1, *weight.shape[1:])[::-1].reshape(weight.shape)


RIGHT_CANONICAL = conv_transpose.CONV_TRANSPOSE.canonical_weight
RIGHT_ATTRIBUTE = base.int_attribute
RIGHT_FLAG = matmul.flag
RIGHT_AUTO_PAD = conv.auto_pad_of


def mirrored_auto_pad(node: Any) -> str:
    return MIRROR.get(RIGHT_AUTO_PAD(node), RIGHT_AUTO_PAD(node))


def not_set(name: str) -> Callable[..., bool]:
    return lambda node, key: key != name and RIGHT_FLAG(node, key)


def described(op_type: str, *wrong: Operator) -> tuple[object, str, object]:
    """Other descriptions of an operator."""
    return layer_reading, "OPERATORS", {**OPERATORS, ("", op_type): wrong}


FAULTS: dict[str, tuple[onnx.ModelProto, object, str, object]] = {
    "auto_pad is taken for its mirror image": (CONV, conv, "auto_pad_of", mirrored_auto_pad),
    "auto_pad is ignored": (CONV, conv, "auto_pad_of", lambda node: "NOTSET"),
    "dilations are ignored": (UNEVEN, base, "int_attribute", without("dilations")),
    "pads are ignored": (UNEVEN, base, "int_attribute", without("pads")),
    "pads are read end first": (UNEVEN, base, "int_attribute", exchanged),
    "strides are ignored": (STRIDED, base, "int_attribute", without("strides")),
    "groups are read in reverse": (
        GROUPS,
        *(conv.Conv, "canonical_weight", staticmethod(groups_reversed)),
    ),
    "strides of a ConvTranspose are ignored": (UP, base, "int_attribute", without("strides")),
    "output_padding is ignored": (UP, conv_transpose, "int_attribute", without("output_padding")),
    "pads of a ConvTranspose are read end first": (UP, base, "int_attribute", exchanged),
    "dilations of a ConvTranspose are ignored": (
        UP_DILATED,
        base,
        "int_attribute",
        without("dilations"),
    ),
    "groups of a ConvTranspose are ignored": (
        UP_GROUPS,
        *(conv_transpose.ConvTranspose, "canonical_weight", staticmethod(groups_side_by_side)),
    ),
    "the kernel of a ConvTranspose is not mirrored": (
        UP,
        *(conv_transpose.ConvTranspose, "canonical_weight", staticmethod(not_mirrored)),
    ),
    "transA is ignored": (TURNED, matmul, "flag", not_set("transA")),
    "transB is ignored": (TURNED, matmul, "flag", not_set("transB")),
    "C of a Gemm is not read": (
        ADDED,
        *described("Gemm", *(replace(o, inputs=replace(o.inputs, bias=None)) for o in matmul.GEMM)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_broken_reader_makes_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, *place = FAULTS[fault]
    limits = {"max_flops_growth": 1e9, "max_bytes_growth": 1e9}
    options = FoldOptions(factor=2, ragged=True, mix_samples=True, **limits)
    right, _ = fold_model(original, options)
    assert difference(original, right) == ""
    monkeypatch.setattr(*place)
    wrong, (site,) = fold_model(original, options)
    assert site.status == "folded", site.reason
    assert judge(original, wrong) is not Judgement.SAME
    assert difference(original, wrong).startswith("different: ")


def test_the_proof_imports_nothing_of_what_it_judges() -> None:
    for path in Path(proof.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names = [node.module or ""]
            for name in names:
                ours = name.startswith("widthfold_onnx")
                assert not ours or name in SINGLE or name.startswith(ALLOWED), f"{path}: {name}"
