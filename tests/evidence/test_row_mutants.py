"""No wrong region of products passes: every planted fault that changes the function is found.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from tests.evidence.mutants.folded import Folded
from tests.evidence.mutants.judge import Judgement, judge
from tests.evidence.mutants.proof import difference
from tests.evidence.mutants.rows import BASES, claimed, mutants, original, right_fold
from widthfold_onnx import Provider, VerifyOptions
from widthfold_onnx.evidence.exact import probe_sites

STRICT = {
    "*-state.*": "what a node claims must hold, whether it is needed or not",
    "double-*_ulp_up": "the judge computes in float64 itself",
}
"""Mutants that compute the same and are rejected all the same, and why that is right."""

SAMPLE = {name: (model, context) for name, model, context in mutants()}


@cache
def judged(name: str) -> Judgement:
    return judge(original(name.partition("-")[0]), SAMPLE[name][0])


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_exact(base: str, tmp_path: Path) -> None:
    assert judge(original(base), right_fold(base)) is Judgement.SAME
    assert difference(original(base), right_fold(base), tmp_path) == ""


@pytest.mark.parametrize("base", BASES)
def test_mutants_of(base: str, tmp_path: Path) -> None:
    for name, (model, context) in SAMPLE.items():
        if name.startswith(f"{base}-"):
            with context():
                said = difference(original(base), model, tmp_path)
            if judged(name) is not Judgement.SAME:
                assert said, f"{name} is {judged(name)}, and nothing was found"
            elif said:
                assert any(fnmatchcase(name, pattern) for pattern in STRICT), f"{name}: {said}"


def test_the_sample_is_large_and_of_all_kinds() -> None:
    changed = [name for name in SAMPLE if judged(name) is Judgement.OTHER]
    assert len(changed) >= 350
    kinds = {name.partition("-")[2].partition(".")[0] for name in changed}
    assert kinds == {"constant", "wire", "op", "weight", "reshape", "move", "code"}


@pytest.mark.parametrize(
    "changes",
    [
        *({"factor": factor} for factor in (1, 0, -4, 1 << 60)),
        *({"merged": merged} for merged in (0, -1, 1 << 60)),
        *({"shapes": shapes} for shapes in ([[1 << 40, 4]], [[4]], [[]], [[1] * 99], [[None, 4]])),
    ],
)
def test_a_claim_of_any_size_is_no_fault_of_ours(changes: dict, tmp_path: Path) -> None:
    planted = Folded(right_fold("rows"))
    assert claimed("active", **changes)(planted)
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path, model in zip(paths, (original("rows"), planted.model), strict=True):
        path.write_bytes(model.SerializeToString())
    sites, _ = probe_sites(*paths, VerifyOptions(provider=Provider.CPU), lambda line: None)
    assert {"different", "skipped"} & {site.verdict for site in sites}
