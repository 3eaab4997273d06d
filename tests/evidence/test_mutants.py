"""No wrong fold passes: every planted fault that changes the function is found, cleanly.

What counts as changed is decided by onnx's reference implementation (`mutants.judge`). A mutant
that computes the same is not counted; it may be rejected only where `STRICT` says why.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.evidence.mutants import (
    BASES,
    CONVS,
    PLANTERS,
    TRANSPOSED,
    in_model,
    mutants,
    outside,
    right_fold,
)
from tests.evidence.mutants.base import original
from tests.evidence.mutants.judge import Judgement
from tests.evidence.mutants.mutant import Mutant, check, check_right, judged
from widthfold_onnx import VerifyOptions, verify

SAMPLE = [*mutants(list(CONVS), 4), *mutants(list(TRANSPOSED), 2)]
STRICT = {
    "*-record.*": "the nodes must be the fold that the record describes",
    "*weight.structural_zero_negative": "weights are compared as bytes: -0 is not 0",
    "*weight.*structural_zero_filled": "also those that meet nothing but channels of padding",
    "*-code.regroup.filled": "a weight has one place, also where it meets nothing but padding",
    "*-pad.*": "a Pad has no value, so that none has to be judged, not even where weights are zero",
    "*-node.Identity_*": "the new nodes only move elements and follow each other",
    "*-wire.site_after_its_reader": "the site must read what the original node read",
}
"""Mutants that compute the same function and are rejected all the same, and why that is right."""


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_exact(base: str, tmp_path: Path) -> None:
    check_right(original(BASES[base]), right_fold(base), tmp_path)


@pytest.mark.parametrize("mutant", SAMPLE, ids=str)
def test_mutant(mutant: Mutant, tmp_path: Path) -> None:
    check(mutant, STRICT, tmp_path)


def test_the_sample_is_large_and_of_all_kinds() -> None:
    changed = [mutant for mutant in SAMPLE if judged(mutant) is Judgement.OTHER]
    assert len(changed) >= 800  # 200 are asked for
    assert {mutant.kind for mutant in SAMPLE} - {mutant.kind for mutant in changed} == {"record"}
    assert {mutant.base for mutant in changed} == set(BASES)
    assert {mutant.fault for mutant in SAMPLE} == set(PLANTERS)


WHOLE = {
    **{name: partial(in_model, fault) for name, fault in outside.FAULTS.items()},
    **{
        name: PLANTERS[name]
        for name in (
            "weight.last_one_ulp_up",
            "transpose.last_two_last",
            "node.Neg_before_conv_unmarked",
            "reshape.bypassed_first",
            "pads.begin_more",
        )
    },
}
"""Faults for all of verify, the last two of models that do not run."""


@pytest.mark.parametrize("fault", WHOLE)
def test_verify_finds_what_lies_around_the_sites_as_well(fault: str, tmp_path: Path) -> None:
    mutant = WHOLE[fault](fault, "line")
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    before.write_bytes(original(BASES["line"]).SerializeToString())
    after.write_bytes(mutant.model.SerializeToString())
    report = verify(before, after, VerifyOptions(thorough=False, timing=False, seeds=1))
    assert report.verdict == "fail"
    assert report.reasons


@pytest.mark.slow
def test_every_fault_in_every_base(tmp_path: Path) -> None:
    for mutant in mutants(list(BASES)):
        check(mutant, STRICT, tmp_path)
