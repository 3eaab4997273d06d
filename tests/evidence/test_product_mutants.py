"""No wrong fold of a product passes: every planted fault that changes the function is found.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import onnx
import pytest

from tests.evidence.mutants.algebra import Planted
from tests.evidence.mutants.judge import Judgement, judge
from tests.evidence.mutants.products import BASES, mutants, original, right_fold
from tests.evidence.mutants.proof import difference

STRICT = {
    "*-record.*": "the nodes must be the fold that the record describes",
    "double-*.first_one_ulp_up": "the judge computes in float64 itself",
    "*-node.other_operator": "a MatMul stays a MatMul, a Gemm a Gemm",
}
"""Mutants that compute the same and are rejected all the same, and why that is right."""

SAMPLE = {name: (model, context) for name, model, context in mutants()}


@cache
def judged(name: str) -> Judgement:
    return judge(original(name.partition("-")[0]), SAMPLE[name][0])


def found(name: str, model: onnx.ModelProto, context: Planted, folder: Path) -> str:
    with context():
        return difference(original(name.partition("-")[0]), model, folder)


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_exact(base: str, tmp_path: Path) -> None:
    assert judge(original(base), right_fold(base)) is Judgement.SAME
    assert difference(original(base), right_fold(base), tmp_path) == ""


@pytest.mark.parametrize("base", BASES)
def test_mutants_of(base: str, tmp_path: Path) -> None:
    for name, (model, context) in SAMPLE.items():
        if name.startswith(f"{base}-"):
            said = found(name, model, context, tmp_path)
            if judged(name) is not Judgement.SAME:
                assert said, f"{name} is {judged(name)}, and nothing was found"
            elif said:
                assert any(fnmatchcase(name, pattern) for pattern in STRICT), f"{name}: {said}"


def test_the_sample_is_large_and_of_all_kinds() -> None:
    changed = [name for name in SAMPLE if judged(name) is Judgement.OTHER]
    assert len(changed) >= 600
    kinds = {name.partition("-")[2].partition(".")[0] for name in changed}
    assert kinds == {"weight", "addend", "gemm", "reshape", "move", "node", "code"}
