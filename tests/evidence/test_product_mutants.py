"""No wrong fold of products passes, of one or of a region: what changes the function is found.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.evidence.mutants import products, rows
from tests.evidence.mutants.folded import Folded
from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import Mutant, RightFold, check, check_right, judged
from widthfold_onnx import Provider, VerifyOptions
from widthfold_onnx.evidence.exact import probe_sites

STRICT = {
    "*-record.*": "the nodes must be the fold that the record describes",
    "*-state.*": "what a node claims must hold, whether it is needed or not",
    "*-node.other_operator": "a MatMul stays a MatMul, a Gemm a Gemm",
    "double-*_ulp_up": "the judge computes in float64 itself",
}
"""Mutants that compute the same and are rejected all the same, and why that is right."""


def mutants(family: ModuleType) -> Iterator[Mutant]:
    for base in family.BASES:
        original, options = family.original(base), family.options(base)
        right = RightFold(
            base=base, original=original, options=options, model=family.right_fold(base)
        )
        yield from right.in_model(family.IN_MODEL)
        yield from right.in_code(family.IN_CODE)


FAMILIES = {"one": products, "region": rows}
SAMPLES = {name: list(mutants(family)) for name, family in FAMILIES.items()}
CASES = [(name, base) for name, family in FAMILIES.items() for base in family.BASES]
LARGE = {
    "one": (600, {"weight", "addend", "gemm", "reshape", "move", "node", "code"}),
    "region": (350, {"constant", "wire", "op", "weight", "reshape", "move", "code"}),
}


@pytest.mark.parametrize(("family", "base"), CASES)
def test_right_folds_are_exact(family: str, base: str, tmp_path: Path) -> None:
    of = FAMILIES[family]
    check_right(of.original(base), of.right_fold(base), tmp_path)


@pytest.mark.parametrize(("family", "base"), CASES)
def test_mutants_of(family: str, base: str, tmp_path: Path) -> None:
    for mutant in SAMPLES[family]:
        if mutant.base == base:
            check(mutant, STRICT, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sample_is_large_and_of_all_kinds(family: str) -> None:
    changed = [mutant for mutant in SAMPLES[family] if judged(mutant) is Judgement.OTHER]
    count, kinds = LARGE[family]
    assert len(changed) >= count
    assert {mutant.kind for mutant in changed} == kinds


@pytest.mark.parametrize(
    "changes",
    [
        *({"factor": factor} for factor in (1, 0, -4, 1 << 60)),
        *({"merged": merged} for merged in (0, -1, 1 << 60)),
        *({"shapes": shapes} for shapes in ([[1 << 40, 4]], [[4]], [[]], [[1] * 99], [[None, 4]])),
    ],
)
def test_a_claim_of_any_size_is_no_fault_of_ours(changes: dict, tmp_path: Path) -> None:
    planted = Folded(rows.right_fold("rows"))
    assert rows.claimed("active", **changes)(planted)
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path, model in zip(paths, (rows.original("rows"), planted.model), strict=True):
        path.write_bytes(model.SerializeToString())
    sites, _ = probe_sites(*paths, VerifyOptions(provider=Provider.CPU), lambda line: None)
    assert {"different", "skipped"} & {site.verdict for site in sites}
