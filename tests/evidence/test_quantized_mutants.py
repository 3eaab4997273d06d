"""No wrong fold of a quantized convolution passes the proof."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.evidence.mutants.proof import difference
from tests.evidence.mutants.quantized import BASES, FAULTS, IN_CODE, is_another, options, right_fold
from widthfold_onnx import fold_model

STRICT = {
    "integers.*": "the integers must be the fold of the original's, not others of the same floats",
    "gaps.*": "weights are compared as bytes, also those that only meet padding",
    "weight.first_one_more": "what saturates or rounds hides a change",
    "*.off": "what saturates hides a change",
    "zero.*": "what saturates hides a change",
    "scale*": "what saturates hides a change",
    "pair.*": "what the runtime needs must be there as it is meant",
    "pad.*": "what is appended may be cut again",
}
"""Mutants that compute the same on some inputs and are rejected all the same."""


@pytest.mark.parametrize("base", BASES)
def test_right_folds_are_exact(base: str, tmp_path: Path) -> None:
    model = right_fold(base)
    assert not is_another(base, model)
    assert difference(BASES[base][0].model(), model, tmp_path) == ""


@pytest.mark.parametrize("base", BASES)
def test_planted_faults_are_found(base: str, tmp_path: Path) -> None:
    changed = 0
    for name, plant in FAULTS.items():
        model = right_fold(base)
        if not plant(model):
            continue
        found = difference(BASES[base][0].model(), model, tmp_path)
        if is_another(base, model):
            changed += 1
            assert found, f"{name} was not found"
        elif found:
            assert any(fnmatchcase(name, pattern) for pattern in STRICT), f"{name}: {found}"
    assert changed >= 12


@pytest.mark.parametrize("fault", IN_CODE)
@pytest.mark.parametrize("base", BASES)
def test_faults_of_the_folding_code_are_found(base: str, fault: str, tmp_path: Path) -> None:
    original = BASES[base][0].model()
    with IN_CODE[fault]():
        model, _ = fold_model(original, options(base))
        found = difference(original, model, tmp_path)
    assert bool(found) == is_another(base, model)


@pytest.mark.parametrize("fault", [name for name in FAULTS if name.startswith("pair.")])
def test_what_quantizes_moved_data_again_must_be_there(fault: str, tmp_path: Path) -> None:
    base = "qdq_weight_of_floats"
    model = right_fold(base)
    assert FAULTS[fault](model)
    assert "quantize" in difference(BASES[base][0].model(), model, tmp_path).lower()
