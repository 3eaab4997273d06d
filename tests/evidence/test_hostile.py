"""Models that guard against Inf and NaN are run on them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.evidence.mutants.guards import FAULTS, GUARD, copied, right
from widthfold_onnx.evidence.hostile import hostile_differences
from widthfold_onnx.evidence.proof.program import program
from widthfold_onnx.evidence.proof.sizes import first_tries
from widthfold_onnx.options import Provider, VerifyOptions

OPTIONS = VerifyOptions(provider=Provider.CPU, thorough=False, timing=False)


def differences(base: str, rewritten: onnx.ModelProto, folder: Path) -> list[str]:
    paths = folder / "original.onnx", folder / "rewritten.onnx"
    for path, model in zip(paths, (GUARD[base], rewritten), strict=True):
        path.write_bytes(model.SerializeToString())
    shapes = next(first_tries(program(GUARD[base], None), {}, {}))
    found, unrun = hostile_differences(*paths, OPTIONS, shapes, lambda _: None)
    assert not unrun
    return found


@pytest.mark.parametrize("base", ["chain", "several"])
def test_a_right_guard_keeps_inf_and_nan_where_they_were(base: str, tmp_path: Path) -> None:
    assert differences(base, right(base), tmp_path) == []


@pytest.mark.parametrize("fault", ["always", "inverted"])
def test_a_guard_that_lets_them_pass_is_found(fault: str, tmp_path: Path) -> None:
    mutant = copied("chain")
    FAULTS["chain", fault](mutant)
    assert differences("chain", mutant, tmp_path)
