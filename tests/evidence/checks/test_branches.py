"""Both branches that an input chooses are compared; branches that no input reached are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.small_models import build, save
from widthfold_onnx import verify
from widthfold_onnx.errors import UsageError

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,N] x, int64 sr) => (float[1,1,M] y)
<float[1,1,3] w, float[1,1,8] long>
{
    k = Constant <value = int64 {16000}> ()
    c = Equal (sr, k)
    y = If (c) <
        then_branch = wide () => (float[1,1,P] a) { a = Conv <strides = [4]> (x, long) },
        else_branch = narrow () => (float[1,1,Q] b) { %s b = Conv (n, w) }
    >
}"""
SOUND = "n = Neg (x)"
OF_ITS_OWN_SIZE = "f = Constant <value_ints = [1,1,256]> () n = Reshape (x, f)"
QUICK = {"no_timing": True, "provider": "cpu"}


def pair(tmp_path: Path, narrow: str = SOUND, other: str | None = None) -> tuple[Path, Path]:
    """A model, and one whose branch for other rates than 16000 differs."""
    models = [build(TEXT % text) for text in (narrow, other or narrow)]
    return save(models[0], tmp_path / "model.onnx"), save(models[1], tmp_path / "other.onnx")


def test_a_fault_in_the_branch_of_another_rate_is_found_by_values(tmp_path: Path) -> None:
    report = verify(*pair(tmp_path, other="n = Abs (x)"), **QUICK)
    assert report.verdict == "fail"
    assert any("(seed 5, normal, sr 8000)" in reason for reason in report.reasons)
    assert report.values == [{"sr": [16000.0]}, {"sr": [8000.0]}]
    alone = verify(*pair(tmp_path, other="n = Abs (x)"), **QUICK, value={"sr": 16000})
    assert [row.passed for row in alone.outputs] == [True, True]
    assert alone.values == [{"sr": [16000.0]}]


def test_a_branch_of_other_sizes_is_compared_at_these(tmp_path: Path) -> None:
    first, other = pair(tmp_path, OF_ITS_OWN_SIZE)
    report = verify(first, other, **QUICK, input_shape={"x": (1, 1, 512)})
    assert (report.verdict, report.input_sets) == ("pass", 6)
    assert not any("reached" in reason for reason in report.reasons)


@pytest.mark.parametrize(
    ("rate", "missed"), [(16000, "else_branch of y"), (8000, "then_branch of y")]
)
def test_a_branch_that_no_input_reached_is_named(tmp_path: Path, rate: int, missed: str) -> None:
    report = verify(*pair(tmp_path), **QUICK, value={"sr": rate})
    assert f"no input set reached {missed}" in report.reasons
    assert report.verdict == "pass"


def test_a_branch_that_extents_choose_is_not_named(tmp_path: Path) -> None:
    text = TEXT.replace("c = Equal (sr, k)", "s = Size (x) c = Equal (s, k)").replace(
        ", int64 sr", ""
    )
    model = save(build(text % SOUND), tmp_path / "model.onnx")
    assert verify(model, model, **QUICK).reasons == []


def test_stored_inputs_reach_branches_too(tmp_path: Path) -> None:
    first, other = pair(tmp_path)
    x = np.ones((1, 1, 300), np.float32)
    np.savez(tmp_path / "stored.npz", x=x, sr=np.int64(1))
    report = verify(first, other, **QUICK, inputs=tmp_path / "stored.npz", value={"sr": 16000})
    assert not any("reached" in reason for reason in report.reasons)


def test_a_value_gives_the_size_of_its_input(tmp_path: Path) -> None:
    text = TEXT.replace("int64 sr", "int64 sr, float[K] limits") % SOUND
    model = save(build(text), tmp_path / "model.onnx")
    options = {**QUICK, "value": {"limits": [1, 2, 3]}}
    assert verify(model, model, **options).verdict == "pass"
    with pytest.raises(UsageError, match=r"limits 3 elements where its shape is \[4\]"):
        verify(model, model, **options, input_shape={"limits": (4,)})


def test_a_text_is_no_value_of_a_number(tmp_path: Path) -> None:
    first, other = pair(tmp_path)
    with pytest.raises(UsageError, match="value is"):
        verify(first, other, **QUICK, value={"sr": "fast"})
